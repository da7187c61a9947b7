"""Dreams in GPU kernels."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpld import world_model
from gpld.behavior import PolicyHead
from gpld.distributions import Policy
from gpld.fused import kernels
from gpld.fused._cell import Cell
from gpld.fused._layers import activation
from gpld.fused._states import Dream
from gpld.fused.kernels import At, Part
from gpld.nets import MLPHead, add_bias, cast, unrolled
from gpld.world_model import DreamNoise, States


class Dreaming(NamedTuple):
    """A state inside a dream, products with it, and a record of the dream so far."""

    h: Float[Array, "N D"]
    h_blocks: Float[Array, "G N own"]
    z: Float[Array, "N KC"]
    h_product: Float[Array, "N h_readers"]
    z_product: Float[Array, "N z_readers"]
    record: Float[Array, "S N F"]
    """[h, z] of every state so far."""

    @property
    def policy_parts(self) -> list[Part]:
        """The product with the policy's first matrix, as a sum."""
        return [Part(self.h_product), Part(self.z_product)]


class Prior(NamedTuple):
    """The layers of a step without observation."""

    cell: Cell
    head: MLPHead
    h_readers: Float[Array, "D h_readers"]
    """All that reads h, as one matrix: the policy, the next step, the prior."""
    z_readers: Float[Array, "KC z_readers"]
    """The same for z: the policy, the next step."""
    shared: Float[Array, "active D"]
    """All that reaches the whole hidden layer, as one matrix."""
    unimix: float

    @classmethod
    def of(cls, rssm: world_model.RSSM, policy: PolicyHead, dtype: jnp.dtype) -> "Prior":
        """The layers of a model that a policy acts in, in the compute type."""
        cell, prior = Cell.of(rssm, dtype), cast(rssm.prior, dtype)
        reader, deter = policy.mlp.layers[0].linear.weight.astype(dtype), rssm.hidden_norm.scale.shape[0]
        h_readers = [reader[:deter], cell.h_in.linear.weight, prior.mlp.layers[0].linear.weight]
        z_readers = [reader[deter:], cell.z_in.linear.weight]
        return cls(
            cell,
            prior,
            jnp.concatenate(h_readers, axis=1),
            jnp.concatenate(z_readers, axis=1),
            jnp.concatenate([cell.shared, cell.action]),
            rssm.unimix,
        )

    def begin(self, start: States, steps: int) -> Dreaming:
        """The state that a dream of `steps` steps starts from."""
        h, z, feature = start.h, start.z, start.feature
        h_blocks = h.reshape(h.shape[0], self.cell.own.shape[0], -1).swapaxes(0, 1)
        record = kernels.empty_record(feature, steps + 1)
        record = kernels.write(At(record, jnp.zeros(1, jnp.int32)), feature)
        return Dreaming(h, h_blocks, z, h @ self.h_readers, z @ self.z_readers, record)

    def step(
        self, state: Dreaming, action: Float[Array, "N A"], uniform: Float[Array, "N K"], now: Int[Array, "1"]
    ) -> Dreaming:
        """The next state, the `now`-th of the record."""
        cell, mlp, out = self.cell, self.head.mlp, self.head.out
        active = kernels.enter(
            [Part(state.h_product, 1), Part(state.z_product, 1)],
            (world_model.bounded(action.astype(state.h.dtype)), cell.a_in.linear.weight),
            [activation(dense) for dense in (cell.h_in, cell.z_in, cell.a_in)],
        )
        own = _block_products(state.h_blocks, cell.own)
        x = kernels.activate_hidden(own, active @ self.shared, cell.bias, cell.norm.scale)
        opened = _block_products(x, cell.gates.weight)
        h, h_blocks, record = kernels.gru_blocks(opened, cell.gates.bias, state.h, At(state.record, now))
        h_product = h @ self.h_readers
        y = [Part(h_product, 2)]
        for layer, following in itertools.pairwise(mlp.layers):
            y = [Part(kernels.dense(y, activation(layer), following.linear.weight))]
        last = activation(mlp.layers[-1])
        z, record = kernels.draw(y, last, out.weight, out.bias, uniform, self.unimix, At(record, now))
        return Dreaming(h, h_blocks, z, h_product, z @ self.z_readers, record)


def imagine(
    rssm: world_model.RSSM, policy: PolicyHead, start: States, noise: DreamNoise, *, unroll: int
) -> Dream:
    """What `RSSM.imagine` computes."""
    rssm, policy, start = jax.lax.stop_gradient((rssm, policy, start))
    prior, policy = Prior.of(rssm, policy, start.h.dtype), cast(policy, start.h.dtype)
    steps, width = len(noise.classes), policy.mlp.layers[0].linear.weight.shape[1]
    state = prior.begin(start, steps)
    now = jnp.arange(steps + 1, dtype=jnp.int32)[:, None]

    def policy_product(state: Dreaming) -> Float[Array, "N units"]:
        return state.h_product[:, :width] + state.z_product[:, :width]

    def step(carry, given):
        state, products = carry
        noise, now, then = given
        choice, products = _policy(policy, state.policy_parts, At(products, now))
        action = choice.sample(noise.actions)
        return (prior.step(state, action, noise.classes, then), products), action

    products = kernels.empty_record(policy_product(state), steps + 1)
    given = (noise, now[:-1], now[1:])
    (state, products), action = jax.lax.scan(step, (state, products), given, unroll=unrolled(steps, unroll))
    products = kernels.write(At(products, now[-1]), policy_product(state))
    deter = start.h.shape[-1]
    return Dream(state.record[..., :deter], state.record[..., deter:], action, state.record, products)


def _policy(policy: PolicyHead, first: list[Part], record: At) -> tuple[Policy, Float[Array, "S N units"]]:
    """What a policy makes of the product with its first matrix, a sum; and the record with that product."""
    layers, names = policy.mlp.layers, sorted(policy.outputs)
    outputs = [policy.outputs[name] for name in names]
    last = jnp.concatenate([linear.weight for linear in outputs], axis=1)
    width = last.shape[1]
    # A matrix unit takes sixteen columns, and tiles are powers of two.
    last = jnp.pad(last, ((0, 0), (0, max(16, 1 << (width - 1).bit_length()) - width)))
    weights = [*(layer.linear.weight for layer in layers[1:]), last]
    x, products = kernels.dense_and_sum(first, activation(layers[0]), weights[0], record)
    for layer, weight in zip(layers[1:], weights[1:], strict=True):
        x = kernels.dense([Part(x)], activation(layer), weight)
    split = jnp.split(x[:, :width], len(outputs), axis=1)
    out = {k: add_bias(y, policy.outputs[k].bias) for k, y in zip(names, split, strict=True)}
    return policy.distribution(out), products


def _block_products(x: Float[Array, "G N in"], weight: Float[Array, "G in out"]) -> Float[Array, "G N out"]:
    return jax.lax.dot_general(x, weight, (((2,), (1,)), ((0,), (0,))))
