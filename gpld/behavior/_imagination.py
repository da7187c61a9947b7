from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.behavior._policy import PolicyHead
from gpld.config import AgentConfig
from gpld.world_model import Dynamics, imagine_step


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

    h: Float[Array, "S N D"]
    z: Float[Array, "S N KC"]
    action: Float[Array, "H N A"]


def imagine(
    dynamics: Dynamics,
    policy: PolicyHead,
    h: Float[Array, "N D"],
    z: Float[Array, "N KC"],
    noise: DreamNoise,
    *,
    unroll: int = 1,
) -> Dream:
    """Follow the prior and the policy. No gradient flows through a dream."""
    dynamics, policy, h, z = jax.lax.stop_gradient((dynamics, policy, h, z))
    advance = imagine_step(dynamics)

    def step(state, noise):
        action = policy(*state).sample(noise.actions)
        state = advance(*state, action, noise.classes)
        return state, (*state, action)

    _, (hs, zs, actions) = jax.lax.scan(step, (h, z), noise, unroll=unroll)
    return Dream(jnp.concatenate([h[None], hs]), jnp.concatenate([z[None], zs]), actions)
