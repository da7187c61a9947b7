"""Layers that compute what those of `nets` do, as a GPU does it fast."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.custom_batching
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld import nets
from gpld.fused import kernels
from gpld.fused.kernels import Activation, Part
from gpld.nets import add_bias


class Dense(nets.Dense):
    """One kernel for all that follows the product, and one backwards."""

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        return activated_product(self, x @ self.linear.weight.astype(x.dtype))


def activation(layer: nets.Dense) -> Activation:
    """What follows a layer's product, for kernels."""
    return Activation(layer.linear.bias, layer.norm.scale)


def activated_product(layer: nets.Dense, product: Float[Array, "*N out"]) -> Float[Array, "*N out"]:
    """What follows a layer's product with its weight, in one kernel."""
    rows = product.reshape(-1, product.shape[-1])
    return kernels.activate(rows, *activation(layer)).reshape(product.shape)


def dense_with_product(layer: nets.Dense, x: Float[Array, "N in"], product: Part) -> Float[Array, "N out"]:
    """What a layer makes of `x`, whose product with its weight has been formed. No gradient flows to x."""
    return _dense_with_product(x, layer.linear.weight, product.array, *activation(layer), product.index)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _dense_with_product(
    x: Float[Array, "N in"],
    weight: Float[Array, "in out"],
    products: Float[Array, "N several_out"],
    bias: Float[Array, " out"],
    scale: Float[Array, " out"],
    index: int,
) -> Float[Array, "N out"]:
    del x, weight
    return kernels.activate_part(Part(products, index), bias, scale)


def _dense_with_product_forward(x, weight, products, bias, scale, index):
    out = kernels.activate_part(Part(products, index), bias, scale)
    return out, (x, weight, products, bias, scale)


def _dense_with_product_backward(index, residuals, gradient):
    x, weight, products, bias, scale = residuals
    dproduct, dbias, dscale = kernels.vjp_activation(Part(products, index), bias, scale, gradient)
    dweight = jax.lax.dot_general(x, dproduct, (((0,), (0,)), ((), ())))
    return jnp.zeros_like(x), dweight.astype(weight.dtype), jnp.zeros_like(products), dbias, dscale


_dense_with_product.defvjp(_dense_with_product_forward, _dense_with_product_backward)


def joint_products(
    weights: Sequence[Float[Array, "in _"]], *parts: Float[Array, "..."]
) -> list[Float[Array, "..."]]:
    """Products of the concatenation of `parts` with several matrices.

    One product per part serves all matrices, and the concatenation is never formed.
    """
    weight = jnp.concatenate(weights, axis=1).astype(parts[0].dtype)
    y, row = None, 0
    for part in parts:
        product = part @ weight[row : row + part.shape[-1]]
        y = product if y is None else y + product
        row += part.shape[-1]
    widths = [w.shape[1] for w in weights]
    ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
    return jnp.split(y, ends, axis=-1)


def joint_linear(linears: Sequence[nets.Linear], x: Float[Array, "*N in"]) -> list[Float[Array, "*N _"]]:
    """Outputs of several linear layers, from one product."""
    products = joint_products([linear.weight for linear in linears], x)
    return [add_bias(y, linear.bias) for y, linear in zip(products, linears, strict=True)]


class BlockLinear(nets.BlockLinear):
    """The gradient by the weight comes in the order of its axes.

    JAX's own comes with the last two swapped, and XLA carries this through the whole optimiser rather than to
    swap them once.
    """

    @staticmethod
    def product(x: Float[Array, "*N G in"], weight: Float[Array, "G in out"]) -> Float[Array, "*N G out"]:
        return block_product(x, weight)


@jax.custom_vjp
def block_product(x: Float[Array, "*N G in"], weight: Float[Array, "G in out"]) -> Float[Array, "*N G out"]:
    """Each slice of x times its matrix."""
    axis = x.ndim - 1
    # Not by einsum, which may swap the factors and leave the rows of x as the fastest axis.
    return jnp.moveaxis(jax.lax.dot_general(x, weight, (((axis,), (1,)), ((axis - 1,), (0,)))), 0, -2)


def _block_product_forward(x, weight):
    return block_product(x, weight), (x, weight)


def _block_product_backward(residuals, gradient):
    x, weight = residuals
    rows, axis = tuple(range(x.ndim - 2)), x.ndim - 1
    dx = jax.lax.dot_general(gradient, weight, (((axis,), (2,)), ((axis - 1,), (0,))))
    dweight = jax.lax.dot_general(x, gradient, ((rows, rows), ((axis - 1,), (axis - 1,))))
    return jnp.moveaxis(dx, 0, -2), dweight


block_product.defvjp(_block_product_forward, _block_product_backward)


class Conv(nets.Conv):
    """The same convolution, run by run where runs are mapped over."""

    def __call__(self, x: Float[Array, "*N rows columns in"]) -> Float[Array, "*N rows columns out"]:
        return _affine(x, self.weight, self.bias)

    def of_doubled(
        self, x: Float[Array, "*N rows columns in"]
    ) -> Float[Array, "*N twice_rows twice_columns out"]:
        """The doubled maps are never made: what a window reads twice is multiplied by summed weights."""
        return from_blocks(self.of_doubled_in_blocks(x))

    def of_doubled_in_blocks(
        self, x: Float[Array, "*N rows columns in"]
    ) -> Float[Array, "*N rows columns 2 2 out"]:
        """`of_doubled` as blocks of 2x2 places."""
        weight = _between_blocks(self.weight).sum(axis=(2, 3))
        y = _affine(x, weight.reshape(*weight.shape[:3], -1), jnp.tile(self.bias, 4))
        return y.reshape(*x.shape[:-1], 2, 2, -1)

    def of_blocks(self, x: Float[Array, "*N rows columns 2 2 in"]) -> Float[Array, "*N rows columns 2 2 out"]:
        """The convolution of maps in blocks, for images: it is slow with only three channels.

        A block is a place with four times the channels.
        """
        weight = _between_blocks(self.weight)
        weight = weight.reshape(*weight.shape[:2], 4 * x.shape[-1], -1)
        y = _affine(x.reshape(*x.shape[:-3], -1), weight, jnp.tile(self.bias, 4))
        return y.reshape(*x.shape[:-1], -1)


FEW_CHANNELS = 16
"""Maps with fewer channels are convolved in blocks."""


class ConvLayer(nets.ConvLayer):
    """The same layer, which keeps maps in blocks of 2x2 places as far as it can."""

    conv: Conv

    def halve(self, x: Float[Array, "*N twice_rows twice_columns in"]) -> Float[Array, "*N rows columns out"]:
        few = x.shape[-1] < FEW_CHANNELS
        y = self.conv.of_blocks(in_blocks(x)) if few else in_blocks(self.conv(x))
        return jax.nn.silu(self.norm(y.max(axis=(-3, -2))))

    def double(
        self, x: Float[Array, "*N rows columns in"]
    ) -> Float[Array, "*N twice_rows twice_columns out"]:
        return from_blocks(jax.nn.silu(self.norm(self.conv.of_doubled_in_blocks(x))))


def in_blocks(x: Float[Array, "*N twice_rows twice_columns C"]) -> Float[Array, "*N rows columns 2 2 C"]:
    """The maps cut into blocks of 2x2 places; both sides must be even."""
    *leading, rows, columns, channels = x.shape
    return jnp.swapaxes(x.reshape(*leading, rows // 2, 2, columns // 2, 2, channels), -4, -3)


def from_blocks(x: Float[Array, "*N rows columns 2 2 C"]) -> Float[Array, "*N twice_rows twice_columns C"]:
    """What `in_blocks` was given."""
    *leading, rows, columns, _, _, channels = x.shape
    return jnp.swapaxes(x, -4, -3).reshape(*leading, 2 * rows, 2 * columns, channels)


def _affine(
    x: Float[Array, "*N rows columns in"], weight: Float[Array, "k k in out"], bias: Float[Array, " out"]
) -> Float[Array, "*N rows columns out"]:
    y = _convolve(x.reshape(-1, *x.shape[-3:]), weight.astype(x.dtype))
    return add_bias(y, bias).reshape(*x.shape[:-1], y.shape[-1])


def _between_blocks(weight: Float[Array, "k k in out"]) -> Float[Array, "s s 2 2 in 2 2 out"]:
    """The weights from each place of each block to each place of the middle one, zero if it is too far."""
    size = weight.shape[0]
    blocks = 2 * ((size // 2 + 1) // 2) + 1

    def to(row: int, column: int) -> Float[Array, "s 2 s 2 in out"]:
        # The window begins so many places after the first block does.
        before = [blocks - 1 - size // 2 + place for place in (row, column)]
        after = [2 * blocks - size - places for places in before]
        padded = jnp.pad(weight, (*zip(before, after, strict=True), (0, 0), (0, 0)))
        return padded.reshape(blocks, 2, blocks, 2, *weight.shape[2:])

    every = jnp.stack([jnp.stack([to(row, column) for column in (0, 1)]) for row in (0, 1)])
    return every.transpose(2, 4, 3, 5, 6, 0, 1, 7)


def _run_by_run(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The same function, which computes one run after the other where runs are mapped over.

    JAX would make one convolution in groups of the convolutions of all runs. For that the runs' maps are
    transposed to lie beside each other as channels, and grouped convolutions are slow on GPUs.
    """
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def runs(size: int, batched: list[bool], *both: Array) -> tuple[Array, bool]:
        if not all(batched):  # then it is one plain convolution of more maps or channels
            return jax.vmap(function, [0 if axis else None for axis in batched])(*both), True
        return jnp.stack([mapped(*(x[run] for x in both)) for run in range(size)]), True

    return mapped


def _plain(maps: Array, weight: Array) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(maps, weight, (1, 1), "SAME", dimension_numbers=layout)


@jax.custom_vjp
def _convolve(
    maps: Float[Array, "N rows columns in"], weight: Float[Array, "k k in out"]
) -> Float[Array, "N rows columns out"]:
    return _run_by_run(_plain)(maps, weight)


def _convolve_forward(maps: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _run_by_run(_plain)(maps, weight), (maps, weight)


def _convolve_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    maps, weight = residuals

    # A convolution is linear in each of its arguments.
    def dmaps(gradient: Array, weight: Array) -> Array:
        return jax.linear_transpose(lambda x: _plain(x, weight), maps)(gradient)[0]

    def dweight(gradient: Array, maps: Array) -> Array:
        return jax.linear_transpose(lambda w: _plain(maps, w), weight)(gradient)[0]

    return _run_by_run(dmaps)(gradient, weight), _run_by_run(dweight)(gradient, maps)


_convolve.defvjp(_convolve_forward, _convolve_backward)
