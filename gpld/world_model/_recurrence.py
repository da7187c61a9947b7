"""One recurrent step, cut into stages.

    entered = h_in(h), z_in(z)           two linear maps
    hidden  = own(h) + shared(act(entered)) + what the action adds
    h       = gru(act(hidden), h)
    z       ~ classes of a head on h

What depends on neither h nor z is done before, for all steps at once, and maps that read the same array are
one product.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld.distributions import mixed_softmax, sample_classes
from gpld.nets import BlockLinear, Dense, Linear, RMSNorm


class Cell(eqx.Module):
    """The layers of the recurrent step."""

    h_in: Dense
    z_in: Dense
    own: BlockLinear
    """From each block of h to the same block of the hidden layer."""
    shared: Linear
    """From the activations of `h_in` and `z_in` to all of the hidden layer."""
    norm: RMSNorm
    gates: BlockLinear


class Gates(NamedTuple):
    """The gates of the GRU, before their nonlinearities."""

    reset: Float[Array, "*N D"]
    candidate: Float[Array, "*N D"]
    update: Float[Array, "*N D"]


def hidden(
    cell: Cell,
    h: Float[Array, "*N D"],
    entered: tuple[Float[Array, "*N hidden"], Float[Array, "*N hidden"]],
    action_part: Float[Array, "*N D"],
) -> Float[Array, "*N D"]:
    """The hidden layer before its norm."""
    shared = jnp.concatenate([cell.h_in.activate(entered[0]), cell.z_in.activate(entered[1])], axis=-1)
    return cell.own(h) + cell.shared(shared) + action_part


def gates(cell: Cell, x: Float[Array, "*N D"]) -> Gates:
    """The gates, from the hidden layer before its norm."""
    blocks, own, _ = cell.gates.weight.shape
    y = cell.gates(jax.nn.silu(cell.norm(x))).reshape(*x.shape[:-1], blocks, 3, own)
    return Gates(*(y[..., i, :].reshape(x.shape) for i in range(3)))


def gru(gates: Gates, h: Float[Array, "*N D"]) -> Float[Array, "*N D"]:
    """The next h."""
    candidate = jnp.tanh(jax.nn.sigmoid(gates.reset) * gates.candidate)
    update = jax.nn.sigmoid(gates.update - 1)
    return update * candidate + (1 - update) * h


def next_h(
    cell: Cell, h: Float[Array, "*N D"], z: Float[Array, "*N KC"], action_part: Float[Array, "*N D"]
) -> Float[Array, "*N D"]:
    """All stages up to the next h."""
    entered = cell.h_in.linear(h), cell.z_in.linear(z)
    return gru(gates(cell, hidden(cell, h, entered, action_part)), h)


def draw(
    logits: Float[Array, "*N KC"], uniform: Float[Array, "*N K"], unimix: float
) -> Float[Array, "*N KC"]:
    """Sampled classes, one-hot and flat."""
    probs = mixed_softmax(logits.reshape(*uniform.shape, -1), unimix)
    index = sample_classes(probs, uniform)
    return jax.nn.one_hot(index, probs.shape[-1], dtype=logits.dtype).reshape(logits.shape)
