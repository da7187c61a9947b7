"""A trained agent as its run folder or agent file holds it: options, spaces and parameters."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpld import agent, config as options, files
from gpld.agent import Model
from gpld.config import Config, ConfigError
from gpld.training import agent_files
from gpld.training.agent_files import locate as locate, outputs as outputs
from gpld.training.checkpoints import CheckpointError, Checkpoints, named_leaves, saved_steps
from gpld.training.checkpoints.milestones import MILESTONES
from gpld.types import Spaces

CONFIG = "config.json"
"""The resolved configuration, in the folder of every run."""

SPACES = "spaces.json"
"""The agent's observation and action spaces, so that it can act where its environment is not installed."""

EVALUATION = "evaluation.json"
"""Episodes that were played with the agent, and their returns."""

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


PRIVATE = ("command", "platform", "xla_flags")
"""Of the provenance, what is left out of a file that is given to others."""


class Trained(NamedTuple):
    """An agent after `env_steps` of its run."""

    folder: Path
    """Of its run; for an agent file, where films and measurements go."""
    config: Config
    spaces: Spaces
    model: Model
    env_steps: int
    updates: int


def steps(folder: str | Path) -> list[int]:
    """Env steps of a run's checkpoints and milestones, the oldest first, or of an agent file."""
    if (path := locate(folder)).is_file():
        return [evaluation_of(path)["env_steps"]]
    return sorted({step for name in PLACES for step in saved_steps(path / name)})


def load(run: str | Path, step: int | None = None) -> Trained:
    """The agent of a run's newest good checkpoint, or of the checkpoint or milestone of `step`.

    If all checkpoints are damaged, that of the newest good milestone. The run may still be training. `run` is
    its folder, or an agent file, as `locate` finds it.
    """
    folder = locate(run)
    if folder.is_file():
        trained = _load_file(folder)
        if step not in (None, trained.env_steps):
            raise CheckpointError(f"{run} has no checkpoint of step {step}; it has {trained.env_steps}")
        return trained
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


def pack(trained: Trained, evaluation: dict[str, Any], path: Path) -> str:
    """Write an agent and its score (`Score.values`) to an agent file; the file's SHA-256.

    Paths of this machine, which are in the provenance, stay here.
    """
    about = evaluation.get("provenance", {})
    evaluation = evaluation | {"provenance": {k: x for k, x in about.items() if k not in PRIVATE}}
    texts = {
        CONFIG: dataclasses.asdict(trained.config),
        SPACES: _spaces_values(trained.spaces),
        EVALUATION: evaluation,
    }
    arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(trained.model).items()}
    return agent_files.write(path, {name: files.dump_json(values) for name, values in texts.items()}, arrays)


def evaluation_of(path: Path) -> dict[str, Any]:
    """The score in an agent file."""
    return _json(path, agent_files.AgentFile(path), EVALUATION)


def config_of(run: str | Path) -> Config:
    """The options of a run or agent file."""
    path = locate(run)
    if path.is_file():
        return _config(path, agent_files.AgentFile(path))
    return options.load(path / CONFIG)


def _load_file(path: Path) -> Trained:
    file = agent_files.AgentFile(path)
    config = _config(path, file)
    spaces = _spaces(_json(path, file, SPACES), path)
    shapes = jax.eval_shape(partial(agent.init, config.agent, spaces), jax.random.key(0)).model
    arrays = [jnp.asarray(file.array(name, leaf.shape)) for name, leaf in named_leaves(shapes).items()]
    model = jax.tree.unflatten(jax.tree.structure(shapes), arrays)
    about = _json(path, file, EVALUATION)
    return Trained(outputs(path), config, spaces, model, about["env_steps"], about["updates"])


def _config(path: Path, file: agent_files.AgentFile) -> Config:
    return options.parse(_json(path, file, CONFIG), path)


def _json(path: Path, file: agent_files.AgentFile, name: str) -> dict[str, Any]:
    try:
        return files.parse_json(file.text(name))
    except (ValueError, RecursionError) as error:
        raise files.DamagedFile(f"{path}: {name}: {error}") from error


def write_spaces(folder: Path, spaces: Spaces) -> None:
    """Write a run's spaces to its folder, in one move."""
    files.write_json(folder / SPACES, _spaces_values(spaces))


def _spaces_values(spaces: Spaces) -> dict[str, Any]:
    return {
        "obs": dict(spaces.obs),
        "actions": spaces.actions,
        "discrete": spaces.discrete,
        "images": spaces.images,
        "bounds": spaces.bounds,
    }


def read_spaces(folder: Path) -> Spaces:
    """The spaces that `write_spaces` wrote."""
    path = folder / SPACES
    try:
        values = files.read_json(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a description of spaces ({error!r})") from error
    return _spaces(values, path)


def _spaces(values: Any, path: Path) -> Spaces:
    try:
        obs = {name: tuple(shape) for name, shape in values["obs"].items()}
        # Older runs have no images, and do not say so. They know no bounds either.
        later = (values.get(name, ()) for name in ("images", "bounds"))
        return Spaces.of(obs, values["actions"], values["discrete"], *later)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a description of spaces ({error!r})") from error
