"""The prior's dreams: what follows a state when a policy acts and nothing is observed."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpld import kernels
from gpld.kernels import At, Part
from gpld.nets import BlockLinear, Head, Linear, cast, unrolled
from gpld.world_model._record import empty_record, write
from gpld.world_model._recurrence import Cell, draw, gates, gru, hidden, next_h
from gpld.world_model._rssm import ActionIn, Dynamics, bounded, split


class Dreaming(NamedTuple):
    """A state inside a dream, what linear maps make of it, and a record of the dream so far."""

    h: Float[Array, "N D"]
    blocks: Float[Array, "G N own"] | None
    """h by blocks, for the GPU kernels."""
    z: Float[Array, "N KC"]
    by_h: Float[Array, "N by_h"]
    by_z: Float[Array, "N by_z"]
    record: Float[Array, "S N F"]
    """[h, z] of every state so far."""


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

    def begin(self, h: Float[Array, "N D"], z: Float[Array, "N KC"], steps: int) -> Dreaming:
        """The state that a dream of `steps` steps starts from."""
        blocks = None
        if self.fused:
            blocks = h.reshape(h.shape[0], self.cell.own.weight.shape[0], -1).swapaxes(0, 1)
        feature = _feature(h, z)
        record = write(At(empty_record(feature, steps + 1), jnp.zeros(1, jnp.int32)), feature)
        return Dreaming(h, blocks, z, h @ self.by_h, z @ self.by_z, record)

    def product(self, state: Dreaming) -> Float[Array, "N width"]:
        """Output of the reader, without its bias."""
        width = self.reader.weight.shape[1]
        return state.by_h[:, :width] + state.by_z[:, :width]

    def read(self, state: Dreaming) -> Float[Array, "N width"]:
        """Output of the reader."""
        return self.reader.add_bias(self.product(state))

    def product_parts(self, state: Dreaming) -> list[Part]:
        """`product` as a sum, for the GPU kernels."""
        return [Part(state.by_h), Part(state.by_z)]

    def advance(
        self,
        state: Dreaming,
        action: Float[Array, "N A"],
        uniform: Float[Array, "N K"],
        now: Int[Array, "1"],
    ) -> Dreaming:
        """The next state, the `now`-th of the record."""
        advance = self._fused_advance if self.fused else self._advance
        return advance(state, action.astype(state.h.dtype), uniform, At(state.record, now))

    def _advance(
        self, state: Dreaming, action: Float[Array, "N A"], uniform: Float[Array, "N K"], record: At
    ) -> Dreaming:
        cell, width = self.cell, self.reader.weight.shape[1]
        own = slice(width, width + cell.z_in.linear.weight.shape[1])
        entered = (
            cell.h_in.linear.add_bias(state.by_h[:, own]),
            cell.z_in.linear.add_bias(state.by_z[:, own]),
        )
        x = hidden(cell, state.h, entered, self.action_in(action))
        h = gru(gates(cell, x), state.h)
        by_h = h @ self.by_h
        first = self.prior.first.add_bias(by_h[:, -self.prior.first.weight.shape[1] :])
        z = draw(self.prior.finish(first), uniform, self.unimix)
        return Dreaming(h, None, z, by_h, z @ self.by_z, write(record, _feature(h, z)))

    def _fused_advance(
        self, state: Dreaming, action: Float[Array, "N A"], uniform: Float[Array, "N K"], record: At
    ) -> Dreaming:
        cell, a_in, prior = self.cell, self.action_in.dense, self.prior
        active = kernels.enter(
            [Part(state.by_h, 1), Part(state.by_z, 1)],
            (bounded(action), a_in.linear.weight),
            [dense.activation for dense in (cell.h_in, cell.z_in, a_in)],
        )
        own, bias = _by_blocks(state.blocks, cell.own), self.action_in.shared.bias
        x = kernels.activate_hidden(own, active @ self.shared, bias, cell.norm.scale)
        h, blocks, states = kernels.gru_blocks(_by_blocks(x, cell.gates), cell.gates.bias, state.h, record)
        by_h = h @ self.by_h
        last, activation = prior.mlp.last_product([Part(by_h, 2)]), prior.mlp.layers[-1].activation
        weight, bias, record = prior.out.weight, prior.out.bias, At(states, record.step)
        z, states = kernels.draw(last, activation, weight, bias, uniform, self.unimix, record)
        return Dreaming(h, blocks, z, by_h, z @ self.by_z, states)


def pull_dream(
    dynamics: Dynamics,
    feature: Float[Array, "S N F"],
    action: Float[Array, "S-1 N A"],
    by_feature: Float[Array, "S N F"],
    *,
    unroll: int = 1,
) -> Float[Array, "S-1 N A"]:
    """Carry gradients by the states [h, z] of a dream back to its actions, which are held to be free.

    The gradient by a sampled z is that by its probabilities.
    """
    cell, action_in = split(dynamics, feature.dtype)
    prior, deter = cast(dynamics.prior, feature.dtype), dynamics.hidden_norm.scale.shape[0]

    def step(feature, action):
        h = next_h(cell, feature[:, :deter], feature[:, deter:], action_in(action))
        return _feature(h, dynamics.probs(prior(h)).reshape(h.shape[0], -1).astype(h.dtype))

    def back(by_next, given):
        feature, action, direct = given
        by_state, by_action = jax.vjp(step, feature, action)[1](by_next)
        return by_state + direct, by_action

    given = (feature[:-1], action.astype(feature.dtype), by_feature[:-1])
    return jax.lax.scan(back, by_feature[-1], given, reverse=True, unroll=unrolled(len(action), unroll))[1]


def _feature(h: Float[Array, "N D"], z: Float[Array, "N KC"]) -> Float[Array, "N F"]:
    return jnp.concatenate([h, z], axis=-1)


def _by_blocks(x: Float[Array, "G N in"], layer: BlockLinear) -> Float[Array, "G N out"]:
    return jax.lax.dot_general(x, layer.weight, (((2,), (1,)), ((0,), (0,))))
