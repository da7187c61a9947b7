"""Films: of episodes that a trained agent plays, and of what its world model predicts without observing."""

from gpld.analysis.open_loop import NoPredictions as NoPredictions
from gpld.films._episodes import Film as Film, NoFilm as NoFilm, film as film
from gpld.films._finished import attempt as attempt, film_finished as film_finished
from gpld.films._predictions import film_dream as film_dream, film_predictions as film_predictions
