"""Films: of episodes that a trained agent plays, and of what its world model predicts without observing."""

from gpld.analysis.open_loop import NoPredictions as NoPredictions
from gpld.films._dreams import film_dream as film_dream
from gpld.films._episodes import Film as Film
from gpld.films._episodes import NoFilm as NoFilm
from gpld.films._episodes import film as film
from gpld.films._finished import attempt as attempt
from gpld.films._finished import film_finished as film_finished
from gpld.films._predictions import film_predictions as film_predictions
from gpld.pictures import NoCodec as NoCodec
from gpld.pictures import save_gif as save_gif
from gpld.pictures import save_mp4 as save_mp4
from gpld.pictures import save_strip as save_strip
