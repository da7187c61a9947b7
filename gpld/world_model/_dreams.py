"""The prior's dreams: what follows a state when a policy acts and nothing is observed."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld import kernels
from gpld.kernels import Activation, Part
from gpld.nets import BlockLinear, Head, Linear, cast
from gpld.world_model._recurrence import Cell, draw, gates, gru, hidden
from gpld.world_model._rssm import ActionIn, Dynamics, bounded, split


class Dreaming(NamedTuple):
    """A state inside a dream, and what linear maps make of it."""

    h: Float[Array, "N D"]
    blocks: Float[Array, "G N own"] | None
    """h by blocks, for the GPU kernels."""
    z: Float[Array, "N KC"]
    by_h: Float[Array, "N by_h"]
    by_z: Float[Array, "N by_z"]


class Dreams(eqx.Module):
    """The prior, for use inside a scan. No gradient is meant to flow through it."""

    cell: Cell
    action_in: ActionIn
    prior: Head
    by_h: Float[Array, "D by_h"]
    """Of all that reads h, one matrix: the reader, the next step, the prior."""
    by_z: Float[Array, "KC by_z"]
    """The same for z: the reader, the next step."""
    shared: Float[Array, "active D"]
    """Of all activations that reach the whole hidden layer, one matrix; for the GPU kernels."""
    reader: Linear
    unimix: float = eqx.field(static=True)
    fused: bool = eqx.field(static=True)

    @classmethod
    def of(cls, dynamics: Dynamics, reader: Linear, dtype: jnp.dtype, *, fused: bool = False) -> "Dreams":
        """Prepare for states of type `dtype`.

        `reader` is a linear map of [h, z] whose output is wanted of every state, such as a policy's first
        layer; `fused` takes the GPU kernels.
        """
        cell, action_in = split(dynamics, dtype)
        prior, reader = cast(dynamics.prior, dtype), cast(reader, dtype)
        deter = dynamics.hidden_norm.scale.shape[0]
        by_h = [reader.weight[:deter], cell.h_in.linear.weight, prior.first.weight]
        by_z = [reader.weight[deter:], cell.z_in.linear.weight]
        shared = [cell.shared.weight, action_in.shared.weight]
        return cls(
            cell,
            action_in,
            prior,
            jnp.concatenate(by_h, axis=1),
            jnp.concatenate(by_z, axis=1),
            jnp.concatenate(shared),
            reader,
            dynamics.unimix,
            fused,
        )

    def begin(self, h: Float[Array, "N D"], z: Float[Array, "N KC"]) -> Dreaming:
        """The state that a dream starts from."""
        blocks = None
        if self.fused:
            blocks = h.reshape(h.shape[0], self.cell.own.weight.shape[0], -1).swapaxes(0, 1)
        return Dreaming(h, blocks, z, h @ self.by_h, z @ self.by_z)

    def read(self, state: Dreaming) -> Float[Array, "N width"]:
        """Output of the reader."""
        width = self.reader.weight.shape[1]
        return self.reader.add_bias(state.by_h[:, :width] + state.by_z[:, :width])

    def advance(self, state: Dreaming, action: Float[Array, "N A"], uniform: Float[Array, "N K"]) -> Dreaming:
        """The next state."""
        next_h = self._fused_next_h if self.fused else self._next_h
        h, blocks = next_h(state, action.astype(state.h.dtype))
        by_h = h @ self.by_h
        first = self.prior.first.add_bias(by_h[:, -self.prior.first.weight.shape[1] :])
        z = self._draw(first, uniform)
        return Dreaming(h, blocks, z, by_h, z @ self.by_z)

    def _next_h(self, state: Dreaming, action: Float[Array, "N A"]) -> tuple[Float[Array, "N D"], None]:
        cell, width = self.cell, self.reader.weight.shape[1]
        own = slice(width, width + cell.z_in.linear.weight.shape[1])
        entered = (
            cell.h_in.linear.add_bias(state.by_h[:, own]),
            cell.z_in.linear.add_bias(state.by_z[:, own]),
        )
        x = hidden(cell, state.h, entered, self.action_in(action))
        return gru(gates(cell, x), state.h), None

    def _fused_next_h(
        self, state: Dreaming, action: Float[Array, "N A"]
    ) -> tuple[Float[Array, "N D"], Float[Array, "G N own"]]:
        cell, a_in = self.cell, self.action_in.dense
        product = bounded(action) @ a_in.linear.weight
        active = kernels.enter(
            [Part(state.by_h, 1), Part(state.by_z, 1), Part(product)],
            [Activation(dense.linear.bias, dense.norm.scale) for dense in (cell.h_in, cell.z_in, a_in)],
        )
        x = kernels.activate_hidden(
            _by_blocks(state.blocks, cell.own),
            active @ self.shared,
            self.action_in.shared.bias,
            cell.norm.scale,
        )
        return kernels.gru_blocks(_by_blocks(x, cell.gates), cell.gates.bias, state.h)

    def _draw(self, first: Float[Array, "N hidden"], uniform: Float[Array, "N K"]) -> Float[Array, "N KC"]:
        mlp, out = self.prior.mlp, self.prior.out
        if not self.fused:
            return draw(self.prior.finish(first), uniform, self.unimix)
        last = Part(mlp.preactivations(first)[-1])
        scale = mlp.layers[-1].norm.scale
        return kernels.draw(last, None, scale, out.weight, out.bias, uniform, self.unimix)


def _by_blocks(x: Float[Array, "G N in"], layer: BlockLinear) -> Float[Array, "G N out"]:
    return jax.lax.dot_general(x, layer.weight, (((2,), (1,)), ((0,), (0,))))
