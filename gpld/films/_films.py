"""Films of a trained agent's episodes, and of what its world model predicts.

Episodes and poses are drawn by a process of their own, on the CPU: MuJoCo chooses its renderer when it is
first imported, and training turns rendering off.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpld import envs, machine
from gpld.analysis import figures, open_loop
from gpld.analysis.open_loop import NoPredictions
from gpld.config import ConfigError
from gpld.envs import EnvironmentFailure, announce
from gpld.pictures import FRAMES, Picture, save_film, spaced
from gpld.tasks import GYM_PREFIX, SUITE
from gpld.training import CheckpointError, logs, saved
from gpld.training.saved import Trained

HEIGHT = 240
"""Pixels; larger pictures are shrunk."""
WIDTH = 4 * HEIGHT // 3
STEPS = 100
"""Agent steps of a dream."""
SECONDS = 90.0
"""Time limit for the film of a finished run."""
OPEN_LOOP = "open-loop"
"""The prefix of the files of predictions."""

Made = TypeVar("Made")


class Film(NamedTuple):
    """An episode that was filmed."""

    gif: Path
    strip: Path
    """Some of its pictures, side by side."""
    episode_return: float
    mp4: Path | None = None
    no_mp4: str = ""
    """Why there is none."""

    def __str__(self) -> str:
        playing = ", ".join(str(path) for path in (self.mp4, self.gif) if path)
        line = f"film: {playing}, some of its frames: {self.strip} (return {self.episode_return:.1f})"
        return f"{line}; {self.no_mp4}" if self.no_mp4 else line


class NoFilm(RuntimeError):  # noqa: N818
    """A film that could not be made, with a message for the user."""


def film(
    run: Path,
    out: Path,
    *,
    films: int = 1,
    frames: int = FRAMES,
    seed: int = 0,
    limit: int = 0,
    timeout: float = 600.0,
) -> list[Film]:
    """Film episodes of a run's newest checkpoint: `film.mp4`, `film.gif` and `film.png` in `out`.

    The second film is called `film-1`, and so on. `seed` decides where the first episode begins and what is
    random in its actions, `seed + 1` the second. An episode with more agent steps than `frames`, the first
    observation counted, is drawn at so many of them, evenly spaced; after `limit` (0: the run's `eval.limit`)
    it is cut off. Raises `NoFilm` if pictures cannot be drawn here, or a film takes longer than `timeout`
    seconds.
    """
    task = saved.config_of(run).task
    made = in_own_process("film", (run, out, seed, films, frames, limit), task, films * timeout)
    return [
        Film(Path(gif), Path(strip), episode_return, mp4 and Path(mp4), why)
        for gif, strip, episode_return, mp4, why in made
    ]


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
        made += save_film(out, f"{OPEN_LOOP}-{name}", *map(list, both))[0]
    if trained.spaces.vector_obs:
        source = f"{trained.config.task}, {trained.env_steps:,} env steps, seed {seed}; {trained.folder}"
        made += figures.save(open_loop.draw(found), out, OPEN_LOOP, source=source)
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


def in_own_process(what: str, arguments: Sequence[object], task: str, timeout: float) -> list[Any]:
    """The output of `python -m gpld.films WHAT ...` for a run of a task, or `NoFilm`."""
    announce(task)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    # "off" may be this process's own choice, made because nothing was to be drawn.
    if environment.get("MUJOCO_GL", "").lower() in ("off", "disable", "disabled", "0", "false"):
        del environment["MUJOCO_GL"]
    command = [sys.executable, "-W", "ignore", "-m", "gpld.films", what, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoFilm(f"it took more than {timeout:g} s") from None
    if done.returncode:
        raise NoFilm(_explain(done.stderr, task))
    return json.loads(done.stdout.splitlines()[-1])


def _explain(errors: str, task: str) -> str:
    reason = (errors.strip().splitlines() or ["the process that renders was killed"])[-1]
    if reason.startswith("gpld."):  # it has a message already, behind the name of its class
        return reason.partition(": ")[2] or reason
    if task.startswith(GYM_PREFIX):
        return reason
    return f"{reason}. MuJoCo renders with EGL or OSMesa; Debian: `apt install {machine.GL_PACKAGES}`"


def record_films(
    run: Path, out: Path, seed: int, films: int = 1, frames: int = FRAMES, limit: int = 0
) -> list[Film]:
    """Make the films of `film`, in a process in which MuJoCo has not been imported yet."""
    machine.use_compilation_cache()
    trained = saved.load(run)
    return [
        _save(out, f"film-{i}" if i else "film", *_play_and_render(trained, seed + i, frames, limit))
        for i in range(films)
    ]


def _play_and_render(trained: Trained, seed: int, frames: int, limit: int) -> tuple[list[Picture], float]:
    """Pictures of an episode, and its return."""
    import jax

    from gpld.training.evaluation import make_env, play

    config, key, counted, numbers = trained.config, jax.random.key(seed), count(), count()
    limit = limit or config.eval.limit
    # Drawing is slow, so an episode is played once to know its length, and again to draw some of it.
    with make_env(config, 1, seed, render=True) as env:
        play(config.agent, trained.model, env, key, lambda _: next(counted), limit)
    chosen, pictures = {*spaced(next(counted), frames)}, []
    with make_env(config, 1, seed, render=True) as env:

        def draw(_) -> None:
            if next(numbers) in chosen:
                pictures.append(_resized(env.render(0)))

        (episode_return,) = play(config.agent, trained.model, env, key, draw, limit)
    return pictures, episode_return


def _resized(picture: Picture) -> Picture:
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((10 * HEIGHT, HEIGHT))
    return np.asarray(image)


def _save(out: Path, name: str, pictures: list[Picture], episode_return: float) -> Film:
    (*mp4, gif, strip), why = save_film(out, name, pictures)
    return Film(gif, strip, episode_return, mp4[0] if mp4 else None, why)


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
