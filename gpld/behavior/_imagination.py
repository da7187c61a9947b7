from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.behavior._policy import PolicyHead
from gpld.config import AgentConfig
from gpld.kernels import At
from gpld.nets import cast, unrolled
from gpld.world_model import Dreams, Dynamics, empty_record, write


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
    read: Float[Array, "S N units"] | None
    """The product of the policy's first layer with the features, if the GPU kernels were taken."""


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
    steps = noise.actions.shape[0]
    unroll = unrolled(steps, unroll)
    state = dreams.begin(h, z, steps)
    now = jnp.arange(steps + 1, dtype=jnp.int32)[:, None]
    given = (noise, now[:-1], now[1:])

    def step(state, given):
        noise, _, then = given
        action = policy.finish(dreams.read(state)).sample(noise.actions)
        return dreams.advance(state, action, noise.classes, then), action

    def fused_step(carry, given):
        state, reads = carry
        noise, now, then = given
        choice, reads = policy.finish_fused(dreams.product_parts(state), At(reads, now))
        action = choice.sample(noise.actions)
        return (dreams.advance(state, action, noise.classes, then), reads), action

    if not fused:
        state, actions = jax.lax.scan(step, state, given, unroll=unroll)
        return Dream(state.record, actions, None)
    reads = empty_record(dreams.product(state), steps + 1)
    (state, reads), actions = jax.lax.scan(fused_step, (state, reads), given, unroll=unroll)
    return Dream(state.record, actions, write(At(reads, now[-1]), dreams.product(state)))
