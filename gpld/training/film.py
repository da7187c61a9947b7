"""Films of a trained agent: an episode as a GIF, and some of its frames in a row.

They are made by a process of their own, on the CPU: MuJoCo settles how it draws when it is first imported,
and training turns drawing off.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from gpld import config as options
from gpld import machine
from gpld.tasks import GYM_PREFIX
from gpld.training import saved

FRAMES = 100
"""Most frames of a GIF."""
STRIP_FRAMES = 8
FRAME_MILLISECONDS = 80
HEIGHT = 240
"""Pixels; larger pictures are shrunk."""

Picture = UInt8[np.ndarray, "height width 3"]


class Film(NamedTuple):
    """An episode that was filmed."""

    gif: Path
    strip: Path
    episode_return: float


class NoFilm(RuntimeError):  # noqa: N818
    """A film that could not be made, in words for the user."""


def film(run: Path, out: Path, *, seed: int = 0, timeout: float = 600.0) -> Film:
    """Film an episode of a run's newest checkpoint, into `out`: `film.gif` and `film.png`.

    `seed` decides where the episode begins and what is random in the actions. Raises `NoFilm` if pictures
    cannot be drawn here, or not within `timeout` seconds.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    # "off" may be this process's own choice, made because nothing was to be drawn.
    if environment.get("MUJOCO_GL", "").lower() in ("off", "disable", "disabled", "0", "false"):
        del environment["MUJOCO_GL"]
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(run), str(out), str(seed)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoFilm(f"it took more than {timeout:g} s") from None
    if done.returncode:
        raise NoFilm(_explain(done.stderr, options.load(run / saved.CONFIG).task))
    gif, strip, episode_return = json.loads(done.stdout.splitlines()[-1])
    return Film(Path(gif), Path(strip), episode_return)


def _explain(errors: str, task: str) -> str:
    reason = (errors.strip().splitlines() or ["the process that draws was killed"])[-1]
    if task.startswith(GYM_PREFIX) or reason.startswith("gpld."):
        return reason
    return f"{reason}. MuJoCo draws with EGL or OSMesa; Debian: `apt install {machine.GL_PACKAGES}`"


def shoot(run: Path, out: Path, seed: int) -> Film:
    """What `film` does, in a process in which drawing has not been settled yet."""
    import jax

    from gpld.training.evaluation import make, play

    machine.use_compilation_cache()
    trained = saved.load(run)
    config, key = trained.config, jax.random.key(seed)
    steps = 0

    def count(_) -> None:
        nonlocal steps
        steps += 1

    # Drawing is slow, so an episode is played once to know its length, and again to draw some of it.
    with make(config, 1, seed, render=True) as env:
        play(config.agent, trained.model, env, key, count)
    every, number, pictures = math.ceil(steps / FRAMES), 0, []
    with make(config, 1, seed, render=True) as env:

        def draw(_) -> None:
            nonlocal number
            if number % every == 0 or number == steps - 1:
                pictures.append(env.render(0))
            number += 1

        (episode_return,) = play(config.agent, trained.model, env, key, draw)
    out.mkdir(parents=True, exist_ok=True)
    result = Film(out / "film.gif", out / "film.png", episode_return)
    save_gif(result.gif, pictures)
    save_strip(result.strip, pictures)
    return result


def save_gif(path: Path, pictures: Sequence[Picture]) -> None:
    """Save pictures as an animation that repeats."""
    first, *rest = map(_image, pictures)
    first.save(path, save_all=True, append_images=rest, duration=FRAME_MILLISECONDS, loop=0)


def save_strip(path: Path, pictures: Sequence[Picture]) -> None:
    """Save some pictures, evenly spaced from the first to the last, side by side."""
    from PIL import Image

    count = min(STRIP_FRAMES, len(pictures))
    chosen = [_image(pictures[i]) for i in np.linspace(0, len(pictures) - 1, count).round().astype(int)]
    width, height = chosen[0].size
    gap = max(2, height // 60)
    strip = Image.new("RGB", (count * (width + gap) - gap, height), "white")
    for i, image in enumerate(chosen):
        strip.paste(image, (i * (width + gap), 0))
    strip.save(path)


def _image(picture: Picture):
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((10 * HEIGHT, HEIGHT))
    return image


if __name__ == "__main__":
    print(json.dumps(shoot(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])), default=str))
