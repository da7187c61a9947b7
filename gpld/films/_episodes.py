"""Films of a trained agent's episodes.

They are made by a process of their own, on the CPU: MuJoCo chooses its renderer when it is first imported,
and training turns rendering off.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpld import machine
from gpld.envs import announce
from gpld.pictures import FRAMES, Picture, save_film, spaced
from gpld.tasks import GYM_PREFIX
from gpld.training import saved

HEIGHT = 240
"""Pixels; larger pictures are shrunk."""


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
    run: Path, out: Path, *, films: int = 1, frames: int = FRAMES, seed: int = 0, timeout: float = 600.0
) -> list[Film]:
    """Film episodes of a run's newest checkpoint: `film.mp4`, `film.gif` and `film.png` in `out`.

    The second film is called `film-1`, and so on. `seed` decides where the first episode begins and what is
    random in its actions, `seed + 1` the second. An episode with more agent steps than `frames`, the first
    observation counted, is drawn at so many of them, evenly spaced. Raises `NoFilm` if pictures cannot be
    drawn here, or a film takes longer than `timeout` seconds.
    """
    task = saved.config_of(run).task
    made = in_own_process("film", (run, out, seed, films, frames), task, films * timeout)
    return [
        Film(Path(gif), Path(strip), episode_return, mp4 and Path(mp4), why)
        for gif, strip, episode_return, mp4, why in made
    ]


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
    if reason.startswith("gpld.envs."):  # it has a message already, behind the name of its class
        return reason.partition(": ")[2]
    if task.startswith(GYM_PREFIX) or reason.startswith("gpld."):
        return reason
    return f"{reason}. MuJoCo renders with EGL or OSMesa; Debian: `apt install {machine.GL_PACKAGES}`"


def record_films(run: Path, out: Path, seed: int, films: int = 1, frames: int = FRAMES) -> list[Film]:
    """Make the films of `film`, in a process in which MuJoCo has not been imported yet."""
    machine.use_compilation_cache()
    trained = saved.load(run)
    return [
        _save(out, f"film-{i}" if i else "film", *_play_and_render(trained, seed + i, frames))
        for i in range(films)
    ]


def _play_and_render(trained: saved.Trained, seed: int, frames: int) -> tuple[list[Picture], float]:
    """Pictures of an episode, and its return."""
    import jax

    from gpld.training.evaluation import make_env, play

    config, key = trained.config, jax.random.key(seed)
    steps = 0

    def count(_) -> None:
        nonlocal steps
        steps += 1

    # Drawing is slow, so an episode is played once to know its length, and again to draw some of it.
    with make_env(config, 1, seed, render=True) as env:
        play(config.agent, trained.model, env, key, count, config.eval.limit)
    chosen, number, pictures = {*spaced(steps, frames)}, 0, []
    with make_env(config, 1, seed, render=True) as env:

        def draw(_) -> None:
            nonlocal number
            if number in chosen:
                pictures.append(_resized(env.render(0)))
            number += 1

        (episode_return,) = play(config.agent, trained.model, env, key, draw, config.eval.limit)
    return pictures, episode_return


def _resized(picture: Picture) -> Picture:
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((10 * HEIGHT, HEIGHT))
    return np.asarray(image)


def _save(out: Path, name: str, pictures: list[Picture], episode_return: float) -> Film:
    (*mp4, gif, strip), why = save_film(out, name, pictures)
    return Film(gif, strip, episode_return, mp4[0] if mp4 else None, why)
