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
        maps = x.reshape(-1, *x.shape[-3:])
        y = convolve(maps, self.weight.astype(x.dtype))
        y = y + jnp.broadcast_to(self.bias.astype(y.dtype), y.shape)
        return y.reshape(*x.shape[:-1], y.shape[-1])


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


def pooled(x: Float[Array, "*N rows columns C"]) -> Float[Array, "*N half_rows half_columns C"]:
    """The maximum of each 2x2 window; both sides must be even."""
    *leading, rows, columns, channels = x.shape
    # Not by a window reduction, whose gradient is a scatter.
    return x.reshape(*leading, rows // 2, 2, columns // 2, 2, channels).max(axis=(-4, -2))


def doubled(x: Float[Array, "*N rows columns C"]) -> Float[Array, "*N twice_rows twice_columns C"]:
    """Every place as 2x2 places."""
    *leading, rows, columns, channels = x.shape
    y = jnp.broadcast_to(x[..., :, None, :, None, :], (*leading, rows, 2, columns, 2, channels))
    return y.reshape(*leading, 2 * rows, 2 * columns, channels)
