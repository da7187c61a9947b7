"""Warm starts: runs that begin with named parts of a trained agent. The rest is fresh, and all is trained."""

from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from gpld import agent
from gpld.agent import AgentState, Model
from gpld.config import Config, ConfigError
from gpld.training import saved
from gpld.training.checkpoints import CheckpointError, named_leaves
from gpld.types import Spaces

PARTS = "encoder,decoder"
"""The parts to take by default: the paper's diagnostic."""

MAX_DIFFERENCES = 8
"""The most differences named in a message."""


def check(config: Config, spaces: Spaces) -> None:
    """Raise what `initialize` would raise, before anything is allocated."""
    if config.init_from:
        fresh = jax.eval_shape(partial(agent.init, config.agent, spaces), jax.random.key(0))
        model = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), fresh.model)
        _chosen(model, _source(config), _patterns(config), config.init_from)


def initialize(config: Config, state: AgentState) -> AgentState:
    """Fresh agents, `[R, ...]`, with the parts that `config.init` names from the run `config.init_from`.

    Without `init_from`, they do not change. Optimisers never do, and the slow value is a copy of the value.
    """
    if not config.init_from:
        return state
    model = transferred(state.model, _source(config), _patterns(config), source=config.init_from)
    return state._replace(model=model, slow_value=jax.tree.map(jnp.copy, model.value))


def _source(config: Config) -> Model:
    try:
        return saved.load(*source_of(config.init_from)).model
    except (CheckpointError, ConfigError) as error:
        raise ConfigError(f"init_from: {str(error).removeprefix('run: ')}") from error


def _patterns(config: Config) -> list[str]:
    return [pattern.strip() for pattern in (config.init or PARTS).split(",")]


def source_of(init_from: str) -> tuple[str, int | None]:
    """The folder of a run, and its env steps if FOLDER@STEP names them."""
    folder, _, step = init_from.rpartition("@")
    if folder and step.isascii() and step.isdigit() and not Path(init_from).exists():
        return folder, int(step)
    return init_from, None


def transferred(model: Model, trained: Model, patterns: list[str], *, source: str) -> Model:
    """`model`, of several runs, with the parameters of `trained` that a pattern names.

    A pattern names parameters by the start of their paths: `encoder` all of the encoder, `dynamics.p*` the
    dynamics' posterior and prior, `*` everything. Both models must have the same of them, in the same shapes.
    """
    target, parts = _named(model), _named(trained)
    for name in _chosen(model, trained, patterns, source):  # the same for all runs, on their devices
        like = target[name]
        target[name] = jax.device_put(jnp.broadcast_to(parts[name][None], like.shape), like.sharding)
    return jax.tree.unflatten(jax.tree.structure(model), list(target.values()))


def _chosen(model: Model, trained: Model, patterns: list[str], source: str) -> list[str]:
    """Paths of the parameters to take, or a `ConfigError` that says which cannot be taken."""
    target, available = _named(model), _named(trained)
    for pattern in patterns:
        if not any(_matches(pattern, name) for name in target):
            allowed = ", ".join(dict.fromkeys(name.partition(".")[0] for name in target))
            raise ConfigError(
                f"init: {pattern!r} is not a part of the agent; it must be one of {allowed}, or a part of one"
            )
    both = {**target, **available}
    chosen = [name for name in both if any(_matches(pattern, name) for pattern in patterns)]
    here = {name: list(target[name].shape[1:]) for name in chosen if name in target}
    there = {name: list(available[name].shape) for name in chosen if name in available}
    wrong = [
        f"  {name}: {there.get(name, 'not')} there, {here.get(name, 'not')} here"
        for name in chosen
        if here.get(name) != there.get(name)
    ]
    if wrong:
        more = [f"  and {len(wrong) - MAX_DIFFERENCES} more"] if len(wrong) > MAX_DIFFERENCES else []
        where = f"in {len(wrong)} of {len(chosen)} places"
        first = f"init_from: {source} has other parameters than this run {where}"
        raise ConfigError("\n".join([first, *wrong[:MAX_DIFFERENCES], *more]))
    return chosen


def _named(model: PyTree) -> dict[str, Any]:
    """Parameters by their paths, without the room `world` that five of the seven parts are in."""
    return {path.removeprefix("world."): leaf for path, leaf in named_leaves(model).items()}


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a parameter, or a part that it is in."""
    return any(fnmatchcase(part, pattern) for part in accumulate(name.split("."), "{}.{}".format))
