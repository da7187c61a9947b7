"""Open-loop predictions in files."""

from collections.abc import Callable
from pathlib import Path

from gpld.analysis import figures, open_loop
from gpld.pictures import NoCodec, save_gif, save_mp4, save_strip
from gpld.training.saved import Trained

NAME = "open-loop"
"""The prefix of the files' names."""


def film_predictions(
    trained: Trained,
    out: Path,
    *,
    steps: int = open_loop.STEPS,
    seed: int = 0,
    task: Callable | None = None,
) -> list[Path]:
    """Predict episodes without observing more than their first five steps; the files that show it, in `out`.

    Of each image a film (`open-loop-NAME.mp4`, `.gif`) with truth, model and their difference in rows and
    four episodes side by side, and some frames of one of them (`.png`); of vectors a figure (`open-loop.pdf`,
    `.png`). The options are those of `analysis.open_loop.open_loop`, which raises `NoPredictions` if an
    episode is too short.
    """
    found = open_loop.open_loop(trained, steps=steps, seed=seed, task=task)
    made = [path for name in trained.spaces.images for path in _film(found, name, out)]
    if trained.spaces.vector_obs:
        source = f"{trained.config.task}, {trained.env_steps:,} env steps, seed {seed}; {trained.folder}"
        made += figures.save(open_loop.draw(found), out, NAME, source=source)
    return made


def _film(found: open_loop.OpenLoop, name: str, out: Path) -> list[Path]:
    mp4, gif, png = (out / f"{NAME}-{name}{suffix}" for suffix in (".mp4", ".gif", ".png"))
    pictures = list(open_loop.pictures(found, name))
    save_gif(gif, pictures)
    save_strip(png, list(open_loop.pictures(open_loop.first_episode(found), name)))
    try:
        save_mp4(mp4, pictures)
    except NoCodec:
        mp4.unlink(missing_ok=True)
        return [gif, png]
    return [mp4, gif, png]
