"""Films of what a world model predicts: beside the truth, and as the poses that numbers describe."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpld import envs, machine
from gpld.analysis import figures, open_loop
from gpld.films._episodes import HEIGHT, NoFilm, in_own_process
from gpld.pictures import save_film
from gpld.tasks import SUITE
from gpld.training import saved
from gpld.training.saved import Trained

NAME = "open-loop"
"""The prefix of the files of predictions."""
WIDTH = 4 * HEIGHT // 3
STEPS = 100
"""Agent steps that are drawn."""


def film_predictions(
    trained: Trained, out: Path, *, steps: int = open_loop.STEPS, seed: int = 0, task: Callable | None = None
) -> list[Path]:
    """Predict episodes without observing more than their first five steps; the files that show it, in `out`.

    Of each image a film (`open-loop-NAME.mp4`, `.gif`) with truth, model and their difference in rows and
    four episodes side by side, and some frames of one of them (`.png`); of vectors a figure (`open-loop.pdf`,
    `.png`). The options are those of `analysis.open_loop.open_loop`, which raises `NoPredictions` if an
    episode is too short.
    """
    found = open_loop.open_loop(trained, steps=steps, seed=seed, task=task)
    made = []
    for name in trained.spaces.images:
        both = (open_loop.pictures(found, name, episodes) for episodes in (None, 1))
        made += save_film(out, f"{NAME}-{name}", *map(list, both))[0]
    if trained.spaces.vector_obs:
        source = f"{trained.config.task}, {trained.env_steps:,} env steps, seed {seed}; {trained.folder}"
        made += figures.save(open_loop.draw(found), out, NAME, source=source)
    return made


def film_dream(
    run: Path, out: Path, *, seed: int = 0, steps: int = STEPS, timeout: float = 600.0
) -> list[Path]:
    """Film an episode beside what the world model expects of it, as poses: `dream.mp4`, `.gif` and `.png`.

    On the left is the truth, on the right the model's prediction: it saw the first five observations,
    and from there on it was given only the actions. The bar above is blue while it observes and
    orange while it imagines. For tasks of the suite from states; raises `NoFilm` for others.
    """
    task, images = (trained := saved.load(run)).config.task, trained.spaces.images
    if task not in SUITE or images:
        raise NoFilm(f"poses can be drawn for tasks of the suite from states, not for {task}")
    return [Path(path) for path in in_own_process("dream", (run, out, seed, steps), task, timeout)]


def record_dream(run: Path, out: Path, seed: int, steps: int) -> list[str]:
    """Make the film of `film_dream`, in a process in which MuJoCo has not been imported yet."""
    machine.use_compilation_cache()
    trained = saved.load(run)
    found = open_loop.open_loop(trained, episodes=1, steps=steps, seed=seed)
    sides = [_poses(trained, side) for side in (found.truth, found.model)]
    film = open_loop.with_bar(np.concatenate(sides, axis=2), found.context)
    return [str(path) for path in save_film(out, "dream", list(film), still=4)[0]]


def _poses(trained: Trained, side: open_loop.Trajectory) -> np.ndarray:
    """Pictures `[T, height, width, 3]` of the poses of the first episode."""
    poses = envs.Poses(trained.config.task, action_repeat=trained.config.env.action_repeat)
    pictures = []
    for step in range(len(side.reward)):
        poses.follow({name: values[step, 0] for name, values in side.obs.items()})
        pictures.append(poses.render(HEIGHT, WIDTH))
    poses.close()
    return np.stack(pictures)
