"""Films: of episodes that a trained agent plays, and of what its world model predicts without observing."""

from gpld.analysis.open_loop import NoPredictions as NoPredictions
from gpld.films._films import (
    Film as Film,
    NoFilm as NoFilm,
    attempt as attempt,
    film as film,
    film_dream as film_dream,
    film_finished as film_finished,
    film_predictions as film_predictions,
)
