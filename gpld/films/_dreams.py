"""Films of what a world model that predicts numbers expects: the poses that the numbers describe."""

from pathlib import Path

import numpy as np

from gpld import envs, machine
from gpld.analysis import open_loop
from gpld.films._episodes import HEIGHT, NoFilm, in_own_process
from gpld.pictures import NoCodec, Picture, save_gif, save_mp4, save_strip
from gpld.tasks import SUITE
from gpld.training import saved
from gpld.training.saved import Trained

NAME = "dream"
"""The prefix of the files' names."""
WIDTH = 4 * HEIGHT // 3
STEPS = 100
"""Agent steps that are drawn."""


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
        raise NoFilm(f"poses are drawn of the suite's tasks from states, not of {task}")
    return [Path(path) for path in in_own_process("dream", (run, out, seed, steps), task, timeout)]


def record_dream(run: Path, out: Path, seed: int, steps: int) -> list[str]:
    """Make the film of `film_dream`, in a process in which MuJoCo has not been imported yet."""
    machine.use_compilation_cache()
    pictures = _pictures(saved.load(run), seed, steps)
    gif, png, mp4 = (out / f"{NAME}{suffix}" for suffix in (".gif", ".png", ".mp4"))
    save_gif(gif, pictures)
    save_strip(png, pictures, count=4)
    try:
        save_mp4(mp4, pictures)
    except NoCodec:
        mp4.unlink(missing_ok=True)
        return [str(gif), str(png)]
    return [str(mp4), str(gif), str(png)]


def _pictures(trained: Trained, seed: int, steps: int) -> list[Picture]:
    found = open_loop.open_loop(trained, episodes=1, steps=steps, seed=seed)
    truth, model = (_poses(trained, side) for side in (found.truth, found.model))
    film = np.concatenate([truth, model], axis=2)
    return list(open_loop.with_bar(film, found.context))


def _poses(trained: Trained, side: open_loop.Trajectory) -> np.ndarray:
    """Pictures `[T, height, width, 3]` of the poses of the first episode."""
    poses = envs.Poses(trained.config.task, action_repeat=trained.config.env.action_repeat)
    pictures = []
    for step in range(len(side.reward)):
        poses.follow({name: values[step, 0] for name, values in side.obs.items()})
        pictures.append(poses.render(HEIGHT, WIDTH))
    poses.close()
    return np.stack(pictures)
