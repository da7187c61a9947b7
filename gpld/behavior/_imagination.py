from typing import NamedTuple

import jax
import jax.custom_batching
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpld.behavior._policy import PolicyHead
from gpld.config import AgentConfig
from gpld.nets import cast, unrolled
from gpld.world_model import Dreaming, Dreams, Dynamics


class DreamNoise(NamedTuple):
    """The random numbers of one dream, drawn before its scan."""

    classes: Float[Array, "H N K"]
    """Uniform in [0, 1)."""
    actions: Float[Array, "H N *A"]
    """Standard normal `[H, N, A]`, or uniform `[H, N]` for discrete actions."""


def draw_noise(config: AgentConfig, policy: PolicyHead, states: int, *, key: PRNGKeyArray) -> DreamNoise:
    """Noise for dreams from `states` states."""
    classes, actions = jax.random.split(key)
    shape = (config.behavior.horizon, states)
    return DreamNoise(
        jax.random.uniform(classes, (*shape, config.model.stoch)), policy.draw_noise(shape, key=actions)
    )


class Dream(NamedTuple):
    """H steps from each of N states: S = H + 1 states, index 0 being the one it starts from."""

    feature: Float[Array, "S N F"]
    """[h, z]."""
    action: Float[Array, "H N A"]


def imagine(
    dynamics: Dynamics,
    policy: PolicyHead,
    h: Float[Array, "N D"],
    z: Float[Array, "N KC"],
    noise: DreamNoise,
    *,
    unroll: int = 1,
    fused: bool = False,
) -> Dream:
    """Follow the prior and the policy. No gradient flows through a dream."""
    dynamics, policy, h, z = jax.lax.stop_gradient((dynamics, policy, h, z))
    dreams = Dreams.of(dynamics, policy.first, h.dtype, fused=fused)
    policy = cast(policy, h.dtype)
    state = dreams.begin(h, z)
    # States are written where they belong, not stacked by the scan, so that many runs need no transpose.
    steps = noise.actions.shape[0]
    first = _feature(state)
    features = _write(jax.lax.empty((steps + 1, *first.shape), first.dtype), first, jnp.int32(0))

    def step(carry, x):
        state, features = carry
        index, noise = x
        action = policy.finish(dreams.read(state)).sample(noise.actions)
        state = dreams.advance(state, action, noise.classes)
        return (state, _write(features, _feature(state), index)), action

    xs = (jnp.arange(1, steps + 1), noise)
    (_, features), actions = jax.lax.scan(step, (state, features), xs, unroll=unrolled(steps, unroll))
    return Dream(features, actions)


def _feature(state: Dreaming) -> Float[Array, "N F"]:
    return jnp.concatenate([state.h, state.z], axis=-1)


@jax.custom_batching.custom_vmap
def _write(rows: Float[Array, "S *shape"], row: Float[Array, "*shape"], index: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


@_write.def_vmap
def _write_runs(
    size: int, batched: list[bool], rows: Array, row: Array, index: ArrayLike
) -> tuple[Array, bool]:
    # JAX's own rule makes a scatter of it, which reads what it overwrites.
    rows = rows if batched[0] else jnp.broadcast_to(rows, (size, *rows.shape))
    assert batched[1:] == [True, False]
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 1), True
