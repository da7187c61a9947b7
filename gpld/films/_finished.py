"""Films of a finished run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gpld.analysis.open_loop import NoPredictions
from gpld.config import ConfigError
from gpld.envs import EnvironmentFailure
from gpld.films._episodes import NoFilm, film
from gpld.films._predictions import film_predictions
from gpld.training import CheckpointError, logs, saved

SECONDS = 90.0
"""Time limit for the film of a finished run."""

Made = TypeVar("Made")


def attempt(what: str, make: Callable[[], Made]) -> tuple[Made | None, str]:
    """The result of `make`, or why there is none: a missing film is no error."""
    try:
        return make(), ""
    except (NoFilm, NoPredictions, CheckpointError, ConfigError, EnvironmentFailure) as reason:
        return None, f"no {what}: {reason}"


def film_finished(folder: Path) -> Iterator[str]:
    """Film an episode and predictions of a run, into its folder and TensorBoard; lines about them."""
    trained = saved.load(folder)
    shown: list[Path] = []
    filmed, why = attempt("film", lambda: film(folder, folder, timeout=SECONDS))
    shown += [path for made in filmed or () for path in (made.gif, made.strip)]
    yield why or "\n".join(map(str, filmed or ()))
    predicted, why = attempt("predictions", lambda: film_predictions(trained, folder))
    shown += [path for path in predicted or () if path.suffix in (".gif", ".png")]
    yield why or f"predictions: {', '.join(map(str, predicted or ()))}"
    if shown and trained.config.log.tensorboard:
        named = {f"films/{path.stem}{'-frames' * (path.suffix == '.png')}": path for path in shown}
        logs.show_pictures(folder, trained.env_steps, named)
