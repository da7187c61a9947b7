from collections.abc import Callable

import equinox as eqx
import jax
import jax.custom_batching
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.nets._layers import RMSNorm, initial_weight


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
def convolve(
    maps: Float[Array, "N rows columns in"], weight: Float[Array, "k k in out"]
) -> Float[Array, "N rows columns out"]:
    """The maps, padded with zeros to keep their size, convolved with a kernel."""
    return _run_by_run(_plain)(maps, weight)


def _convolve_forward(maps: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _run_by_run(_plain)(maps, weight), (maps, weight)


def _convolve_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    maps, weight = kept

    # A convolution is linear in each of its arguments.
    def by_maps(gradient: Array, weight: Array) -> Array:
        return jax.linear_transpose(lambda x: _plain(x, weight), maps)(gradient)[0]

    def by_weight(gradient: Array, maps: Array) -> Array:
        return jax.linear_transpose(lambda w: _plain(maps, w), weight)(gradient)[0]

    return _run_by_run(by_maps)(gradient, weight), _run_by_run(by_weight)(gradient, maps)


convolve.defvjp(_convolve_forward, _convolve_backward)


class Conv(eqx.Module):
    """A convolution over maps `[..., rows, columns, channels]`, padded with zeros to keep their size."""

    weight: Float[Array, "k k in out"]
    bias: Float[Array, " out"]

    @classmethod
    def init(cls, inputs: int, outputs: int, size: int, *, key: PRNGKeyArray) -> "Conv":
        """As `Linear`: an output reads `size * size * inputs` numbers, and the bias is zero."""
        weight = initial_weight(key, (size, size, inputs, outputs), size * size * inputs, 1.0)
        return cls(weight, jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*N rows columns in"]) -> Float[Array, "*N rows columns out"]:
        return _affine(x, self.weight, self.bias)

    def of_doubled(self, x: Float[Array, "*N rows columns in"]) -> Float[Array, "*N rows columns 2 2 out"]:
        """The convolution of maps in which every place of `x` has become 2x2 places, in blocks.

        Those maps are never made. What a window over them reads twice is multiplied once, by summed weights.
        """
        weight = _between_blocks(self.weight).sum(axis=(2, 3))
        y = _affine(x, weight.reshape(*weight.shape[:3], -1), jnp.tile(self.bias, 4))
        return y.reshape(*x.shape[:-1], 2, 2, -1)

    def of_blocks(self, x: Float[Array, "*N rows columns 2 2 in"]) -> Float[Array, "*N rows columns 2 2 out"]:
        """The convolution of maps in blocks, for images: it is slow on GPUs with only three channels.

        A block is a place with four times the channels.
        """
        weight = _between_blocks(self.weight)
        weight = weight.reshape(*weight.shape[:2], 4 * x.shape[-1], -1)
        y = _affine(x.reshape(*x.shape[:-3], -1), weight, jnp.tile(self.bias, 4))
        return y.reshape(*x.shape[:-1], -1)


def _affine(
    x: Float[Array, "*N rows columns in"], weight: Float[Array, "k k in out"], bias: Float[Array, " out"]
) -> Float[Array, "*N rows columns out"]:
    y = convolve(x.reshape(-1, *x.shape[-3:]), weight.astype(x.dtype))
    y = y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)
    return y.reshape(*x.shape[:-1], y.shape[-1])


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


class ConvLayer(eqx.Module):
    """Convolution, RMS norm over the channels of each place, SiLU."""

    conv: Conv
    norm: RMSNorm

    @classmethod
    def init(cls, inputs: int, outputs: int, size: int, *, key: PRNGKeyArray) -> "ConvLayer":
        """A freshly initialised layer."""
        return cls(Conv.init(inputs, outputs, size, key=key), RMSNorm.init(outputs))

    def activate(self, y: Float[Array, "*N rows columns out"]) -> Float[Array, "*N rows columns out"]:
        """What follows the convolution."""
        return jax.nn.silu(self.norm(y))

    def __call__(self, x: Float[Array, "*N rows columns in"]) -> Float[Array, "*N rows columns out"]:
        return self.activate(self.conv(x))


def in_blocks(x: Float[Array, "*N twice_rows twice_columns C"]) -> Float[Array, "*N rows columns 2 2 C"]:
    """The maps cut into blocks of 2x2 places; both sides must be even."""
    *leading, rows, columns, channels = x.shape
    return jnp.swapaxes(x.reshape(*leading, rows // 2, 2, columns // 2, 2, channels), -4, -3)


def from_blocks(x: Float[Array, "*N rows columns 2 2 C"]) -> Float[Array, "*N twice_rows twice_columns C"]:
    """What `in_blocks` was given."""
    *leading, rows, columns, _, _, channels = x.shape
    return jnp.swapaxes(x, -4, -3).reshape(*leading, 2 * rows, 2 * columns, channels)
