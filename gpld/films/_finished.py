"""What a finished run shows of itself."""

from collections.abc import Iterator
from pathlib import Path

from gpld.envs import EnvironmentFailure
from gpld.films._episodes import NoFilm, film
from gpld.films._predictions import film_predictions
from gpld.training import logs, saved

SECONDS = 90.0
"""Longest that a finished run waits for its film."""


def film_finished(folder: Path) -> Iterator[str]:
    """Film an episode and predictions of a run, into its folder and TensorBoard; what was made, in lines.

    TensorBoard, if the run has it, shows the GIFs and PNGs under Images.
    """
    trained = saved.load(folder)
    shown: list[Path] = []
    try:
        (made,) = film(folder, folder, timeout=SECONDS)
        shown += [made.gif, made.strip]
        yield str(made)
    except NoFilm as reason:
        yield f"no film: {reason}"
    try:
        predicted = film_predictions(trained, folder)
        shown += [path for path in predicted if path.suffix in (".gif", ".png")]
        yield f"predictions: {', '.join(map(str, predicted))}"
    except (ValueError, EnvironmentFailure) as reason:
        yield f"no predictions: {reason}"
    if shown and trained.config.log.tensorboard:
        named = {f"films/{path.stem}{'-frames' * (path.suffix == '.png')}": path for path in shown}
        logs.show_pictures(folder, trained.env_steps, named)
