import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.nets._layers import RMSNorm, initial_weight


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
        layout = ("NHWC", "HWIO", "NHWC")
        weight = self.weight.astype(x.dtype)
        y = jax.lax.conv_general_dilated(maps, weight, (1, 1), "SAME", dimension_numbers=layout)
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
