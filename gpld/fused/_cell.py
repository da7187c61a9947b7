"""The recurrent step, cut into stages.

    entered = h_in(h), z_in(z)           two linear maps
    hidden  = own(h) + shared(act(entered)) + what the action adds
    h       = gru(act(hidden), h)
    z       ~ classes of a head on h

What depends on neither h nor z is computed before, for all steps at once.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld import world_model
from gpld.fused._layers import block_product
from gpld.nets import BlockLinear, Dense, RMSNorm, add_bias, cast


class Cell(eqx.Module):
    """The layers of the recurrent step, its hidden layer cut by what it reads."""

    h_in: Dense
    z_in: Dense
    a_in: Dense
    own: Float[Array, "G own own"]
    """From each block of h to the same block of the hidden layer."""
    shared: Float[Array, "wide D"]
    """From the activations of `h_in` and `z_in` to all of the hidden layer."""
    action: Float[Array, "hidden D"]
    """The same from those of `a_in`."""
    bias: Float[Array, " D"]
    norm: RMSNorm
    gates: BlockLinear

    @classmethod
    def of(cls, rssm: world_model.RSSM, dtype: jnp.dtype) -> "Cell":
        """The cell of a model, its matrices in the compute type."""
        rssm = cast(rssm, dtype)
        weight = rssm.hidden.weight
        own = weight.shape[2]
        # What all blocks read is one ordinary matrix.
        shared = weight[:, own:].transpose(1, 0, 2).reshape(weight.shape[1] - own, -1)
        hz = shared.shape[0] // 3 * 2
        parts = (weight[:, :own], shared[:hz], shared[hz:], rssm.hidden.bias)
        return cls(*rssm.inputs, *parts, rssm.hidden_norm, rssm.gates)

    def action_part(self, action: Float[Array, "*N A"]) -> Float[Array, "*N D"]:
        """What actions add to the hidden layer, its bias included."""
        return add_bias(self.a_in(world_model.bounded(action)) @ self.action, self.bias)


class Gates(NamedTuple):
    """The gates of the GRU, before their nonlinearities."""

    reset: Float[Array, "*N D"]
    candidate: Float[Array, "*N D"]
    update: Float[Array, "*N D"]


def hidden_layer(
    cell: Cell,
    h: Float[Array, "*N D"],
    entered: tuple[Float[Array, "*N hidden"], Float[Array, "*N hidden"]],
    action_part: Float[Array, "*N D"],
) -> Float[Array, "*N D"]:
    """The hidden layer before its norm."""
    shared = jnp.concatenate([cell.h_in.activate(entered[0]), cell.z_in.activate(entered[1])], axis=-1)
    own = block_product(h.reshape(*h.shape[:-1], *cell.own.shape[:2]), cell.own).reshape(h.shape)
    return own + shared @ cell.shared + action_part


def open_gates(cell: Cell, x: Float[Array, "*N D"]) -> Gates:
    """The gates, from the hidden layer before its norm."""
    blocks, own, _ = cell.gates.weight.shape
    y = jax.nn.silu(cell.norm(x))
    y = block_product(y.reshape(*y.shape[:-1], blocks, own), cell.gates.weight)
    y = add_bias(y.reshape(*y.shape[:-2], -1), cell.gates.bias).reshape(*x.shape[:-1], blocks, 3, own)
    return Gates(*(y[..., i, :].reshape(x.shape) for i in range(3)))


def next_h(gates: Gates, h: Float[Array, "*N D"]) -> Float[Array, "*N D"]:
    """The next h."""
    candidate = jnp.tanh(jax.nn.sigmoid(gates.reset) * gates.candidate)
    update = jax.nn.sigmoid(gates.update - 1)
    return update * candidate + (1 - update) * h
