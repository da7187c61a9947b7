"""Finite MDPs whose states have places in a metric space: the paper's setting before latents are continuous.

All but `shuffled` are made from a flow, which says where an action leads from any point x, and noise around
it: P(s' | x, a) falls off as a normal with the distance of e(s') from there. So a law is a smooth function of
x, of which the transition table holds the values at the states.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Flow = Callable[[Float[Array, " d"]], Float[Array, " d"]]
"""Where one action leads on average, from any point."""


class EmbeddedMDP(NamedTuple):
    """S states in R^d, A actions, and the transition law to be estimated."""

    name: str
    embedding: Float[np.ndarray, "S d"]
    """e(s)."""
    law: Float[np.ndarray, "A S S"]
    """P(s' | s, a), the next state last."""
    radius: float
    """epsilon: states no further apart are neighbours."""

    @property
    def pairs(self) -> int:
        """Number of state-action pairs."""
        return self.law.shape[0] * self.law.shape[1]


def random_smooth(seed: int, *, states: int = 49, actions: int = 2, noise: float = 0.6) -> EmbeddedMDP:
    """States at random places of a square, one for each unit of its area, and flows of random waves."""
    rng = np.random.default_rng([seed, 0])
    side = states**0.5
    embedding = rng.uniform(0.0, side, (states, 2))
    flows = [_inside(random_flow(rng, 2, wavelength=side), side) for _ in range(actions)]
    return _tabulated("random", embedding, flows, noise, radius=1.5)


def grid(*, side: int = 7, noise: float = 0.6) -> EmbeddedMDP:
    """A square of cells, four actions that move by one cell, and gusts of wind from all sides."""
    axis = np.arange(float(side))
    embedding = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    moves = np.array([(-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0)])
    flows = [_inside(lambda x, move=move: x + move, side - 1.0) for move in moves]
    return _tabulated("grid", embedding, flows, noise, radius=1.0)


def pendulum(*, angles: int = 10, speeds: int = 7, noise: float = 0.6) -> EmbeddedMDP:
    """A swinging pendulum pushed left, right or not at all, in bins of angle and angular velocity.

    The embedding is a cylinder, on which the angles just below and just above a full turn are neighbours. Its
    circumference and height are such that neighbouring bins are one apart along the arc.
    """
    radius, seconds, step = angles / (2 * np.pi), 0.4, 1.0

    def place(angle: Array, speed: Array) -> Array:
        return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle), speed], axis=-1)

    def swing(x: Array, torque: float) -> Array:
        angle, speed = jnp.arctan2(x[1], x[0]), x[2]
        speed = speed + seconds * (2.0 * jnp.sin(angle) + torque)
        speed = jnp.clip(speed, -(speeds // 2) * step, (speeds // 2) * step)
        return place(angle + seconds * speed, speed)

    corners = np.meshgrid(np.arange(angles) / radius, step * (np.arange(speeds) - speeds // 2), indexing="ij")
    embedding = np.asarray(place(*(jnp.asarray(c.ravel()) for c in corners)), np.float64)
    flows = [lambda x, torque=torque: swing(x, torque) for torque in (-1.0, 0.0, 1.0)]
    return _tabulated("pendulum", embedding, flows, noise, radius=1.05)


def shuffled(mdp: EmbeddedMDP, seed: int) -> EmbeddedMDP:
    """The same rows of the transition table, dealt out to the states at random.

    Neighbours have nothing in common any more, and nothing else has changed: whatever an estimator gained by
    smoothness must be gone.
    """
    rng = np.random.default_rng([seed, 1])
    law = np.stack([rows[rng.permutation(len(rows))] for rows in mdp.law])
    return mdp._replace(name="shuffled", law=law)


def random_flow(rng: np.random.Generator, dims: int, *, wavelength: float, waves: int = 8) -> Flow:
    """x plus a sum of random waves: smooth, and different everywhere."""
    frequencies = rng.normal(size=(dims, waves)) * 2 * np.pi / (2 * wavelength * dims**0.5)
    phases = rng.uniform(0.0, 2 * np.pi, waves)
    heights = rng.normal(size=(waves, dims)) * 1.5 * (2 / waves) ** 0.5
    return lambda x: x + jnp.cos(x @ frequencies + phases) @ heights


def normal_law(
    centres: Float[np.ndarray, "S d"], flow: Flow, noise: float
) -> Callable[[Float[Array, " d"]], Float[Array, " S"]]:
    """P(. | x, a) at any point x, for the action of this flow."""

    def law(x: Float[Array, " d"]) -> Float[Array, " S"]:
        distances = jnp.sum(jnp.square(centres - flow(x)[None]), axis=1)
        return jax.nn.softmax(-distances / (2 * noise**2))

    return law


def _inside(flow: Flow, side: float) -> Flow:
    """The walls of the square stop what would leave it."""
    return lambda x: jnp.clip(flow(x), 0.0, side)


def _tabulated(
    name: str, embedding: Float[np.ndarray, "S d"], flows: list[Flow], noise: float, *, radius: float
) -> EmbeddedMDP:
    with jax.enable_x64(True):
        points = jnp.asarray(embedding)
        rows = [jax.vmap(normal_law(embedding, flow, noise))(points) for flow in flows]
        return EmbeddedMDP(name, embedding, np.stack(rows), radius)
