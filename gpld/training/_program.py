"""What a run does on the device: two programs, one that acts and remembers, one that learns.

Everything random is drawn from fixed keys and counters, so a resumed run draws what it would have drawn.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpld import agent, replay
from gpld.agent import AgentState, Carry, Model
from gpld.config import AgentConfig, Config, ReplayConfig
from gpld.replay import Record, Replay
from gpld.types import Batch, Latent, Spaces


class Live(NamedTuple):
    """Everything on the device that changes during a run."""

    agent: AgentState
    carry: Carry
    replay: Replay
    sums: dict[str, Float[Array, ""]]
    """Metrics summed over the updates since they were last logged."""


class Keys(NamedTuple):
    """One key for every use of random numbers."""

    agent: PRNGKeyArray
    act: PRNGKeyArray
    sample: PRNGKeyArray
    evaluate: PRNGKeyArray

    @classmethod
    def of(cls, seed: int) -> "Keys":
        """The keys of a run."""
        return cls(*jax.random.split(jax.random.key(seed), 4))


def init(config: Config, spaces: Spaces, storage: replay.Storage) -> Live:
    """A fresh agent with nothing remembered."""
    sizes, keys = config.agent.model, Keys.of(config.seed)
    state = jax.jit(agent.init, static_argnums=(0, 1))(config.agent, spaces, keys.agent)
    slots = replay.slots_for(
        config.replay.capacity, config.agent_steps, config.env.count, config.replay.length
    )
    memory = replay.init(
        spaces, config.env.count, slots, sizes.deter, sizes.stoch, config.agent.compute, storage
    )
    carry = agent.init_carry(config.agent, spaces, config.env.count)
    return Live(state, carry, memory, zero_sums(config, spaces))


def zero_sums(config: Config, spaces: Spaces) -> dict[str, Float[Array, ""]]:
    """Metrics of no updates."""

    def metrics(key):
        state = agent.init(config.agent, spaces, key)
        return _traced_update(config.agent, state, _example(config, spaces))[2]

    shapes = jax.eval_shape(metrics, jax.random.key(0))
    return {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}


def _example(config: Config, spaces: Spaces):
    """A batch of the right shapes."""
    sizes = config.agent.model
    empty = replay.init(spaces, 1, config.replay.length + 1, sizes.deter, sizes.stoch, config.agent.compute)
    return replay.sample(empty, jax.random.key(0), config.replay.batch, config.replay.length)[1]


def act(config: Config, live: Live, step: Record, index: int, key: PRNGKeyArray) -> Live:
    """Observe the `index`-th step of all environments, choose actions, and remember both.

    `step` holds what the environments gave; its action and latent are filled in here.
    """
    draw = jax.random.fold_in(key, index)
    if live.replay.host:
        carry, record = _act(config.agent, live.agent.model, live.carry, step, draw)
        return live._replace(carry=carry, replay=replay.append(live.replay, jax.tree.map(np.asarray, record)))
    memory, carry = _act_and_append(config.agent, live.agent.model, live.replay, live.carry, step, draw)
    return live._replace(carry=carry, replay=memory)


@partial(jax.jit, static_argnums=0)
def _act(
    config: AgentConfig, model: Model, carry: Carry, step: Record, key: PRNGKeyArray
) -> tuple[Carry, Record]:
    carry = agent.act(config, model, carry, step.obs, step.is_first, key)
    return carry, step._replace(action=carry.action, latent=carry.latent)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _act_and_append(
    config: AgentConfig, model: Model, memory: Replay, carry: Carry, step: Record, key: PRNGKeyArray
) -> tuple[Replay, Carry]:
    carry, record = _act(config, model, carry, step, key)
    return replay.append(memory, record), carry


def learn(config: Config, live: Live, updates: int, key: PRNGKeyArray) -> Live:
    """`updates` updates in one program, each on a fresh batch whose latents are written back."""
    trained = (live.agent, live.replay, live.sums)
    if live.replay.host:
        for _ in range(updates):
            trained = _learn_one(config.agent, config.replay, trained, key)
    else:
        trained = _learn(config.agent, config.replay, updates, trained, key)
    return live._replace(agent=trained[0], replay=trained[1], sums=trained[2])


_Sums = dict[str, Float[Array, ""]]
_Trained = tuple[AgentState, Replay, _Sums]


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def _learn(
    config: AgentConfig, options: ReplayConfig, updates: int, trained: _Trained, key: PRNGKeyArray
) -> _Trained:
    def one(_, trained):
        return _learn_one(config, options, trained, key)

    return jax.lax.fori_loop(0, updates, one, trained)


def _learn_one(config: AgentConfig, options: ReplayConfig, trained: _Trained, key: PRNGKeyArray) -> _Trained:
    state, memory, sums = trained
    draw = jax.random.fold_in(key, state.updates)
    memory, batch, indices = replay.sample(memory, draw, options.batch, options.length, options.online)
    state, latents, sums = _update(config, state, sums, batch)
    memory = replay.write_back(memory, indices, latents, state.skipped_in_row == 0)
    return state, memory, sums


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def _update(
    config: AgentConfig, state: AgentState, sums: _Sums, batch: Batch
) -> tuple[AgentState, Latent, _Sums]:
    state, latents, metrics = _traced_update(config, state, batch)
    return state, latents, jax.tree.map(jnp.add, sums, metrics)


# Tracing takes seconds: this does it once, for the shapes of metrics and for the programs that learn.
_traced_update = jax.jit(agent.update, static_argnums=0)
