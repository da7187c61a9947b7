"""A trained agent as its run folder holds it: options, spaces and parameters, without the replay."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from gpld import agent, files
from gpld import config as options
from gpld.agent import Model
from gpld.config import Config, ConfigError
from gpld.training.checkpoints import CheckpointError, Checkpoints, saved_steps
from gpld.training.checkpoints.milestones import MILESTONES
from gpld.types import Spaces

CONFIG = "config.json"
"""The resolved configuration, in the folder of every run."""

SPACES = "spaces.json"
"""The agent's observation and action spaces, so that it can act where its environment is not installed."""

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints in that of a run."""

PLACES = (CHECKPOINTS, MILESTONES)
"""Where models are looked for."""


FREE = (
    "checkpoint.",
    "log.",
    "env.threads",
    "env.processes",
    "env.timeout",
    "env.restarts",
    "env.pickle",
    "max_skipped",
)
"""Prefixes of options that do not change what a run computes: they may change between two starts."""


class Trained(NamedTuple):
    """An agent after `env_steps` of its run."""

    folder: Path
    config: Config
    spaces: Spaces
    model: Model
    env_steps: int
    updates: int


def steps(folder: str | Path) -> list[int]:
    """Env steps of a run's checkpoints and milestones, the oldest first."""
    return sorted({step for name in PLACES for step in saved_steps(Path(folder) / name)})


def load(folder: str | Path, step: int | None = None) -> Trained:
    """The agent of a run's newest good checkpoint, or of the checkpoint or milestone of `step`.

    If all checkpoints are damaged, that of the newest good milestone. The run may still be training.
    """
    folder = Path(folder)
    for name in (CONFIG, SPACES):
        if not (folder / name).exists():
            raise ConfigError(f"run: {str(folder)!r} is not the folder of a run (it has no {name})")
    config, spaces = options.load(folder / CONFIG), read_spaces(folder)
    shapes = jax.eval_shape(partial(agent.init, config.agent, spaces), jax.random.key(0))
    found, errors = None, []
    for name in PLACES:
        try:
            with Checkpoints(folder / name) as checkpoints:
                found = found or checkpoints.restore({"agent": {"model": shapes.model}}, part=True, step=step)
        except CheckpointError as error:  # there may be a good one in the other place
            errors.append(error)
    if found is None and errors:
        raise errors[0]
    if found is None and step is not None:
        there = ", ".join(map(str, steps(folder))) or "none"
        raise CheckpointError(f"{folder} has no checkpoint of step {step}; it has {there}")
    if found is None:
        raise CheckpointError(
            f"{folder} has no checkpoint yet: a run writes one every {config.checkpoint.minutes:g} minutes "
            "(checkpoint.minutes) and when it ends"
        )
    model = found.arrays["agent"]["model"]
    return Trained(folder, config, spaces, model, found.step, found.info["updates"])


def write_spaces(folder: Path, spaces: Spaces) -> None:
    """Write a run's spaces to its folder, in one move."""
    values = {
        "obs": dict(spaces.obs),
        "actions": spaces.actions,
        "discrete": spaces.discrete,
        "images": spaces.images,
    }
    files.write_json(folder / SPACES, values)


def read_spaces(folder: Path) -> Spaces:
    """The spaces that `write_spaces` wrote."""
    path = folder / SPACES
    try:
        values = files.read_json(path)
        obs = {name: tuple(shape) for name, shape in values["obs"].items()}
        # Older runs have no images, and do not say so.
        return Spaces.of(obs, values["actions"], values["discrete"], values.get("images", ()))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a description of spaces ({error!r})") from error
