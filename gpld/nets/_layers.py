import itertools
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.kernels import Activation, Part, activate, activate_part, dense, inverse_rms, pull_activation

_Module = TypeVar("_Module", bound=eqx.Module)

# A standard normal truncated to [-2, 2] has this inverse standard deviation.
_TRUNCATION = 1.1368


def initial_weight(
    key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, scale: float
) -> Float[Array, "..."]:
    """A normal of standard deviation `scale / sqrt(fan_in)`, truncated; exactly zero if `scale` is."""
    if scale == 0:
        return jnp.zeros(shape)
    return scale * _TRUNCATION * fan_in**-0.5 * jax.random.truncated_normal(key, -2.0, 2.0, shape)


class Linear(eqx.Module):
    """`x @ weight + bias` over the last axis."""

    weight: Float[Array, "in out"]
    bias: Float[Array, " out"] | None

    @classmethod
    def init(cls, inputs: int, outputs: int, *, scale: float = 1.0, key: PRNGKeyArray) -> "Linear":
        """Weights of standard deviation `scale / sqrt(inputs)`, bias zero."""
        return cls(initial_weight(key, (inputs, outputs), inputs, scale), jnp.zeros(outputs))

    def add_bias(self, y: Float[Array, "*N out"]) -> Float[Array, "*N out"]:
        """What follows the product, for those who form it themselves."""
        return y if self.bias is None else y + jnp.broadcast_to(self.bias.astype(y.dtype), y.shape)

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        return self.add_bias(x @ self.weight.astype(x.dtype))


class BlockLinear(eqx.Module):
    """A block-diagonal linear map: the last axis in G slices, each with its own matrix."""

    weight: Float[Array, "G in out"]
    bias: Float[Array, " wide_out"] | None

    @classmethod
    def init(cls, inputs: int, outputs: int, blocks: int, *, key: PRNGKeyArray) -> "BlockLinear":
        """As `Linear`; the standard deviation follows the whole input width, not one block's."""
        shape = (blocks, inputs // blocks, outputs // blocks)
        return cls(initial_weight(key, shape, inputs, 1.0), jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*N wide_in"]) -> Float[Array, "*N wide_out"]:
        blocks, inputs, outputs = self.weight.shape
        x = x.reshape(*x.shape[:-1], blocks, inputs)
        y = _by_blocks(x, self.weight.astype(x.dtype)).reshape(*x.shape[:-2], blocks * outputs)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias.astype(y.dtype), y.shape)


@jax.custom_vjp
def _by_blocks(
    x: Float[Array, "*N blocks in"], weight: Float[Array, "blocks in out"]
) -> Float[Array, "*N blocks out"]:
    """Each block of x times its matrix.

    The gradient by the weight comes in the order of its axes. JAX's own comes with the last two swapped, and
    XLA carries this through the whole optimiser rather than to swap them once.
    """
    axis = x.ndim - 1
    # Not by einsum, which may swap the factors and leave the rows of x as the fastest axis.
    return jnp.moveaxis(jax.lax.dot_general(x, weight, (((axis,), (1,)), ((axis - 1,), (0,)))), 0, -2)


def _by_blocks_forward(x, weight):
    return _by_blocks(x, weight), (x, weight)


def _by_blocks_backward(residuals, gradient):
    x, weight = residuals
    rows, axis = tuple(range(x.ndim - 2)), x.ndim - 1
    by_x = jax.lax.dot_general(gradient, weight, (((axis,), (2,)), ((axis - 1,), (0,))))
    by_weight = jax.lax.dot_general(x, gradient, ((rows, rows), ((axis - 1,), (axis - 1,))))
    return jnp.moveaxis(by_x, 0, -2), by_weight


_by_blocks.defvjp(_by_blocks_forward, _by_blocks_backward)


class RMSNorm(eqx.Module):
    """`scale * x / sqrt(mean(x^2) + eps)` over the last axis, computed in float32."""

    scale: Float[Array, " width"]

    @classmethod
    def init(cls, width: int) -> "RMSNorm":
        """Scale one."""
        return cls(jnp.ones(width))

    def __call__(self, x: Float[Array, "*N width"]) -> Float[Array, "*N width"]:
        y = x.astype(jnp.float32) * inverse_rms(x)
        return (y * jnp.broadcast_to(self.scale, y.shape)).astype(x.dtype)


class Dense(eqx.Module):
    """Linear, RMS norm, SiLU."""

    linear: Linear
    norm: RMSNorm

    @classmethod
    def init(cls, inputs: int, outputs: int, *, key: PRNGKeyArray) -> "Dense":
        """A freshly initialised layer."""
        return cls(Linear.init(inputs, outputs, key=key), RMSNorm.init(outputs))

    def activate(self, y: Float[Array, "*N out"]) -> Float[Array, "*N out"]:
        """What follows the linear map."""
        return jax.nn.silu(self.norm(y))

    @property
    def activation(self) -> Activation:
        """What follows the product, for GPU kernels."""
        return Activation(self.linear.bias, self.norm.scale)

    def from_product(self, product: Float[Array, "*N out"], *, fused: bool = False) -> Float[Array, "*N out"]:
        """What follows the product with the weight; `fused` takes one GPU kernel for all of it."""
        if not fused:
            return self.activate(self.linear.add_bias(product))
        rows = product.reshape(-1, product.shape[-1])
        return activate(rows, *self.activation).reshape(product.shape)

    def __call__(self, x: Float[Array, "*N in"], *, fused: bool = False) -> Float[Array, "*N out"]:
        return self.from_product(x @ self.linear.weight.astype(x.dtype), fused=fused)

    def at_known(self, x: Float[Array, "N in"], product: Part) -> Float[Array, "N out"]:
        """What `__call__` gives where the product with x is known, in a kernel. No gradient flows to x."""
        return _known_dense(x, self.linear.weight, product.array, *self.activation, product.index)


class MLP(eqx.Module):
    """Dense layers, one after the other."""

    layers: tuple[Dense, ...]

    @classmethod
    def init(cls, inputs: int, units: int, depth: int, *, key: PRNGKeyArray) -> "MLP":
        """`depth` layers of `units`."""
        keys = jax.random.split(key, depth)
        widths = [inputs] + [units] * depth
        return cls(tuple(Dense.init(i, o, key=k) for i, o, k in zip(widths, widths[1:], keys, strict=False)))

    def preactivations(self, y: Float[Array, "*N units"]) -> list[Float[Array, "*N units"]]:
        """Outputs of all linear maps, given that of the first, so that this map can be shared or split."""
        outputs = [y]
        for layer, following in itertools.pairwise(self.layers):
            outputs.append(following.linear(layer.activate(outputs[-1])))
        return outputs

    def last_product(self, y: Sequence[Part]) -> Sequence[Part]:
        """From the first layer's product, a sum, to the last layer's, both without bias, in GPU kernels."""
        for layer, following in itertools.pairwise(self.layers):
            y = [Part(dense(y, layer.activation, following.linear.weight))]
        return y

    def finish(self, y: Float[Array, "*N units"]) -> Float[Array, "*N units"]:
        """What follows the first layer's linear map."""
        return self.layers[-1].activate(self.preactivations(y)[-1])

    def from_product(
        self, product: Float[Array, "*N units"], *, fused: bool = False
    ) -> Float[Array, "*N units"]:
        """What follows the first layer's product with its weight."""
        first, *others = self.layers
        x = first.from_product(product, fused=fused)
        for layer in others:
            x = layer(x, fused=fused)
        return x

    def __call__(
        self, x: Float[Array, "*N in"], *, fused: bool = False, known: Part | None = None
    ) -> Float[Array, "*N units"]:
        """`known` is the first layer's product with x, if it has been formed; then no gradient flows to x."""
        layers = self.layers
        if known is not None:
            x, layers = layers[0].at_known(x, known), layers[1:]
        for layer in layers:
            x = layer(x, fused=fused)
        return x


class Head(eqx.Module):
    """An MLP and a linear output."""

    mlp: MLP
    out: Linear

    @classmethod
    def init(
        cls, inputs: int, units: int, depth: int, outputs: int, *, scale: float = 1.0, key: PRNGKeyArray
    ) -> "Head":
        """`scale` is the output layer's: 0 makes a head that starts at zero."""
        mlp_key, out_key = jax.random.split(key)
        mlp = MLP.init(inputs, units, depth, key=mlp_key)
        return cls(mlp, Linear.init(units, outputs, scale=scale, key=out_key))

    @property
    def first(self) -> Linear:
        """The linear map of the first layer."""
        return self.mlp.layers[0].linear

    def finish(self, y: Float[Array, "*N units"]) -> Float[Array, "*N out"]:
        """What follows `first`."""
        return self.out(self.mlp.finish(y))

    def from_product(
        self, product: Float[Array, "*N units"], *, fused: bool = False
    ) -> Float[Array, "*N out"]:
        """What follows the product with the weight of `first`."""
        return self.out(self.mlp.from_product(product, fused=fused))

    def product(
        self, x: Float[Array, "*N in"], *, fused: bool = False, known: Part | None = None
    ) -> Float[Array, "*N out"]:
        """The output without its bias; `known` as for the MLP."""
        return self.mlp(x, fused=fused, known=known) @ self.out.weight.astype(x.dtype)

    def __call__(
        self, x: Float[Array, "*N in"], *, fused: bool = False, known: Part | None = None
    ) -> Float[Array, "*N out"]:
        return self.out.add_bias(self.product(x, fused=fused, known=known))


def aligned(head: Head) -> Head:
    """A column of zeros added to an odd number of outputs, by which GPUs multiply slowly."""
    odd = head.out.weight.shape[1] % 2
    out = Linear(jnp.pad(head.out.weight, ((0, 0), (0, odd))), jnp.pad(head.out.bias, (0, odd)))
    return Head(head.mlp, out)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _known_dense(
    x: Float[Array, "N in"],
    weight: Float[Array, "in out"],
    products: Float[Array, "N several_out"],
    bias: Float[Array, " out"],
    scale: Float[Array, " out"],
    index: int,
) -> Float[Array, "N out"]:
    """What a dense layer makes of x, whose product is the `index`-th part of `products`.

    No gradient flows to x.
    """
    del x, weight
    return activate_part(Part(products, index), bias, scale)


def _known_dense_forward(x, weight, products, bias, scale, index):
    out = activate_part(Part(products, index), bias, scale)
    return out, (x, weight, products, bias, scale)


def _known_dense_backward(index, residuals, gradient):
    x, weight, products, bias, scale = residuals
    by_product, by_bias, by_scale = pull_activation(Part(products, index), bias, scale, gradient)
    by_weight = jax.lax.dot_general(x, by_product, (((0,), (0,)), ((), ())))
    return jnp.zeros_like(x), by_weight.astype(weight.dtype), jnp.zeros_like(products), by_bias, by_scale


_known_dense.defvjp(_known_dense_forward, _known_dense_backward)


def cast(module: _Module, dtype: jnp.dtype) -> _Module:
    """Matrices in the compute type: once, rather than in every step of a scan that multiplies by them."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 else x, module)


def unrolled(length: int, limit: int) -> int:
    """How many of `length` steps to put into one loop body: at most `limit`, with no steps left over."""
    return max(n for n in range(1, limit + 1) if length % n == 0)


def joint_linear(linears: Sequence[Linear], *parts: Float[Array, "..."]) -> list[Float[Array, "..."]]:
    """Outputs of several linear layers that all read the concatenation of `parts`."""
    products = joint_product(linears, *parts)
    return [linear.add_bias(y) for y, linear in zip(products, linears, strict=True)]


def joint_product(linears: Sequence[Linear], *parts: Float[Array, "..."]) -> list[Float[Array, "..."]]:
    """The same without biases.

    One matrix product per part serves all layers, and the concatenation is never formed.
    """
    weight = jnp.concatenate([linear.weight for linear in linears], axis=1).astype(parts[0].dtype)
    y, row = None, 0
    for part in parts:
        product = part @ weight[row : row + part.shape[-1]]
        y = product if y is None else y + product
        row += part.shape[-1]
    widths = [linear.weight.shape[1] for linear in linears]
    ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
    return jnp.split(y, ends, axis=-1)


def joint_heads(
    heads: Sequence[Head], *parts: Float[Array, "..."], fused: bool = False
) -> list[Float[Array, "..."]]:
    """Outputs of several heads that all read the concatenation of `parts`, as `joint_product` does."""
    products = joint_product([head.first for head in heads], *parts)
    return [head.from_product(y, fused=fused) for head, y in zip(heads, products, strict=True)]
