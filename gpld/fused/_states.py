"""Latent states whose heads share what they read."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from gpld import nets, world_model
from gpld.behavior import PolicyHead
from gpld.fused._layers import activated_product, dense_with_product, joint_linear, joint_products
from gpld.fused._twohot import TwoHotHead, twohot
from gpld.fused.kernels import Part


class Observed(world_model.Observed):
    """The first layers of all heads are one product."""

    def read(self, *heads: nets.MLPHead) -> list[PyTree]:
        """What each head makes of these states."""
        first = joint_products([head.mlp.layers[0].linear.weight for head in heads], self.h, self.z)
        return [
            _output(head, activated_product(head.mlp.layers[0], y), self.h.shape[:-1])
            for head, y in zip(heads, first, strict=True)
        ]


class Dream(world_model.Dream):
    """A dream that knows what its policy's first layer made of every state."""

    record: Float[Array, "S N F"]
    """[h, z]."""
    policy_product: Float[Array, "S N units"]

    @property
    def feature(self) -> Float[Array, "S N F"]:
        """[h, z]."""
        return self.record

    def read(self, *heads: nets.MLPHead | PolicyHead) -> list[PyTree]:
        """What each head makes of these states; a policy among them must be the one that dreamt."""
        shape = self.record.shape[:-1]
        rows = self.record.reshape(shape[0] * shape[1], -1)
        # XLA would merge these products with those on replayed states, and then copy their results apart.
        others = jax.lax.optimization_barrier([head for head in heads if not isinstance(head, PolicyHead)])
        weights = jax.lax.stop_gradient([head.mlp.layers[0].linear.weight for head in others])
        products = rows @ jnp.concatenate(weights, axis=1).astype(rows.dtype)
        others = [(head, Part(products, i)) for i, head in enumerate(others)]
        policy_product = Part(self.policy_product.reshape(len(rows), -1))
        known = [(h, policy_product) if isinstance(h, PolicyHead) else others.pop(0) for h in heads]
        return [
            _output(head, dense_with_product(head.mlp.layers[0], rows, product), shape)
            for head, product in known
        ]


def _output(head: nets.MLPHead | PolicyHead, x: Float[Array, "*N units"], shape: tuple[int, ...]) -> PyTree:
    """The output of a head for states of this shape, from that of its first layer."""
    for layer in head.mlp.layers[1:]:
        x = layer(x)
    if isinstance(head, TwoHotHead):
        return twohot(head, x, shape)
    if not isinstance(head, PolicyHead):
        return head.out(x).reshape(*shape, -1)
    names = sorted(head.outputs)
    outputs = joint_linear([head.outputs[name] for name in names], x)
    return head.distribution({k: y.reshape(*shape, -1) for k, y in zip(names, outputs, strict=True)})
