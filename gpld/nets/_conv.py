import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.nets._layers import RMSNorm, add_bias, initial_weight


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
        y = jax.lax.conv_general_dilated(
            x.reshape(-1, *x.shape[-3:]),
            self.weight.astype(x.dtype),
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return add_bias(y, self.bias).reshape(*x.shape[:-1], y.shape[-1])

    def of_doubled(
        self, x: Float[Array, "*N rows columns in"]
    ) -> Float[Array, "*N twice_rows twice_columns out"]:
        """The convolution of maps in which every place of `x` has become 2x2 places."""
        return self(x.repeat(2, axis=-3).repeat(2, axis=-2))


class ConvLayer(eqx.Module):
    """Convolution, RMS norm over the channels of each place, SiLU."""

    conv: Conv
    norm: RMSNorm

    @classmethod
    def init(cls, inputs: int, outputs: int, size: int, *, key: PRNGKeyArray) -> "ConvLayer":
        """A freshly initialised layer."""
        return cls(Conv.init(inputs, outputs, size, key=key), RMSNorm.init(outputs))

    def halve(self, x: Float[Array, "*N twice_rows twice_columns in"]) -> Float[Array, "*N rows columns out"]:
        """Maps of half the height and width: the largest of each 2x2 places after the convolution."""
        y = self.conv(x)
        y = y.reshape(*y.shape[:-3], y.shape[-3] // 2, 2, y.shape[-2] // 2, 2, y.shape[-1])
        return jax.nn.silu(self.norm(y.max(axis=(-4, -2))))

    def double(
        self, x: Float[Array, "*N rows columns in"]
    ) -> Float[Array, "*N twice_rows twice_columns out"]:
        """Maps of twice the height and width: every place is repeated before the convolution."""
        return jax.nn.silu(self.norm(self.conv.of_doubled(x)))
