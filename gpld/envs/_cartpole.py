"""A cart-pole swing-up written in JAX, with the interface of Brax's environments."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, PRNGKeyArray, UInt32

GRAVITY, CART, POLE, HALF_LENGTH = 9.81, 1.0, 0.1, 0.5
"""m/s^2; masses in kg; half of the pole's length in m."""
FORCE, SECONDS, RAIL = 10.0, 0.01, 1.8
"""Newtons of a full action; time step; how far the cart can go to either side, in m."""


class CartPoleState(NamedTuple):
    """Where cart and pole are, and what the agent sees of it."""

    motion: Float32[Array, "4"]
    """Place and velocity of the cart; angle from upright and angular velocity of the pole."""
    obs: dict[str, Float32[Array, "..."]]
    reward: Float32[Array, ""]
    done: Float32[Array, ""]


class CartPole:
    """A pole that hangs from a cart is to be swung up and kept upright near the middle of the rail.

    It has the observations, actions and time step of the suite's cartpole-swingup, not its physics to the
    bit. Rewards are in [0, 1].
    """

    action_size = 1
    observation_size: ClassVar = {"position": 3, "velocity": 2}

    def reset(self, rng: PRNGKeyArray | UInt32[Array, "2"]) -> CartPoleState:
        """The pole hangs, nearly at rest."""
        return self._seen(0.01 * jax.random.normal(rng, (4,)) + jnp.array([0.0, 0.0, jnp.pi, 0.0]))

    def step(self, state: CartPoleState, action: Float32[Array, "1"]) -> CartPoleState:
        """Push the cart with `action` in [-1, 1] for a time step; velocities are integrated first."""
        x, speed, angle, spin = state.motion
        sin, cos, total = jnp.sin(angle), jnp.cos(angle), CART + POLE
        push = (FORCE * action[0] + POLE * HALF_LENGTH * spin**2 * sin) / total
        turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / total))
        speed = speed + SECONDS * (push - POLE * HALF_LENGTH * turn * cos / total)
        spin = spin + SECONDS * turn
        x = x + SECONDS * speed
        speed = jnp.where(jnp.abs(x) < RAIL, speed, 0.0)  # stopped by the rail's end
        return self._seen(jnp.stack([jnp.clip(x, -RAIL, RAIL), speed, angle + SECONDS * spin, spin]))

    def _seen(self, motion: Float32[Array, "4"]) -> CartPoleState:
        x, speed, angle, spin = motion
        position = jnp.stack([x, jnp.cos(angle), jnp.sin(angle)])
        upright, centred = (jnp.cos(angle) + 1) / 2, 1 - jnp.abs(x) / (2 * RAIL)
        obs = {"position": position, "velocity": jnp.stack([speed, spin])}
        return CartPoleState(motion, obs, upright * centred, jnp.float32(0))
