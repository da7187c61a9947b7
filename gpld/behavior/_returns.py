"""Lambda-returns over imagined and over replayed trajectories. Time is the first axis."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpld.types import Number


def _lambda_returns(
    reward: Float[Array, "H N"],
    discount: Float[Array, "H N"],
    trace: Float[Array, "H N"],
    value: Float[Array, "H N"],
) -> Float[Array, "H N"]:
    """`R_t = r_{t+1} + d_{t+1} ((1 - l_{t+1}) v_{t+1} + l_{t+1} R_{t+1})`; the last R is the last value.

    Row t of every argument belongs to the state that step t arrives at.
    """
    # The recursion is affine in R, so it runs in log2(H) parallel steps instead of H sequential ones.
    offset = reward + discount * (1 - trace) * value
    factor = discount * trace

    def compose(later, earlier):
        return later[0] * earlier[0], later[1] * earlier[0] + earlier[1]

    factor, offset = jax.lax.associative_scan(compose, (factor, offset), reverse=True)
    return offset + factor * jnp.broadcast_to(value[-1], factor.shape)


def dream_returns(
    reward: Float[Array, "S N"],
    cont: Float[Array, "S N"],
    value: Float[Array, "S N"],
    *,
    trace: Number,
    discount: Number,
) -> Float[Array, "S-1 N"]:
    """Returns of the first S-1 of S imagined states; `discount` is 1 where `cont` contains it."""
    cont = cont[1:] * discount
    return _lambda_returns(reward[1:], cont, jnp.full_like(cont, trace), value[1:])


def replay_returns(
    reward: Float[Array, "T B"],
    is_last: Bool[Array, "T B"],
    is_terminal: Bool[Array, "T B"],
    bootstrap: Float[Array, "T B"],
    *,
    trace: Number,
    discount: Number,
) -> Float[Array, "T-1 B"]:
    """Returns of the first T-1 replayed states, with `bootstrap` for the value of every state."""
    live = jnp.where(is_terminal[1:], 0.0, discount)
    return _lambda_returns(reward[1:], live, jnp.where(is_last[1:], 0.0, trace), bootstrap[1:])
