from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

NORM_EPS = 1e-4

# A standard normal truncated to [-2, 2] has this inverse standard deviation.
_TRUNCATION = 1.1368


def _initial_weight(
    key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, scale: float
) -> Float[Array, "..."]:
    if scale == 0:
        return jnp.zeros(shape)
    return scale * _TRUNCATION * fan_in**-0.5 * jax.random.truncated_normal(key, -2.0, 2.0, shape)


def _add_bias(y: Float[Array, "*N out"], bias: Float[Array, " out"] | None) -> Float[Array, "*N out"]:
    return y if bias is None else y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)


class Linear(eqx.Module):
    """`x @ weight + bias` over the last axis."""

    weight: Float[Array, "in out"]
    bias: Float[Array, " out"] | None

    @classmethod
    def init(cls, inputs: int, outputs: int, *, scale: float = 1.0, key: PRNGKeyArray) -> "Linear":
        """Weights of standard deviation `scale / sqrt(inputs)`, bias zero."""
        return cls(_initial_weight(key, (inputs, outputs), inputs, scale), jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        return _add_bias(x @ self.weight.astype(x.dtype), self.bias)


class BlockLinear(eqx.Module):
    """A block-diagonal linear map: the last axis in G slices, each with its own matrix."""

    weight: Float[Array, "G in out"]
    bias: Float[Array, " wide_out"] | None

    @classmethod
    def init(cls, inputs: int, outputs: int, blocks: int, *, key: PRNGKeyArray) -> "BlockLinear":
        """As `Linear`; the standard deviation follows the whole input width, not one block's."""
        shape = (blocks, inputs // blocks, outputs // blocks)
        return cls(_initial_weight(key, shape, inputs, 1.0), jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*N wide_in"]) -> Float[Array, "*N wide_out"]:
        blocks, inputs, outputs = self.weight.shape
        x = x.reshape(*x.shape[:-1], blocks, inputs)
        y = jnp.einsum("...gi,gio->...go", x, self.weight.astype(x.dtype))
        return _add_bias(y.reshape(*y.shape[:-2], blocks * outputs), self.bias)


class RMSNorm(eqx.Module):
    """`scale * x / sqrt(mean(x^2) + eps)` over the last axis, computed in float32."""

    scale: Float[Array, " width"]

    @classmethod
    def init(cls, width: int) -> "RMSNorm":
        """Scale one."""
        return cls(jnp.ones(width))

    def __call__(self, x: Float[Array, "*N width"]) -> Float[Array, "*N width"]:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + NORM_EPS)
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

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        return self.activate(self.linear(x))


class MLP(eqx.Module):
    """Dense layers, one after the other."""

    layers: tuple[Dense, ...]

    @classmethod
    def init(cls, inputs: int, units: int, depth: int, *, key: PRNGKeyArray) -> "MLP":
        """`depth` layers of `units`."""
        keys = jax.random.split(key, depth)
        widths = [inputs] + [units] * depth
        return cls(tuple(Dense.init(i, o, key=k) for i, o, k in zip(widths, widths[1:], keys, strict=False)))

    def finish(self, y: Float[Array, "*N units"]) -> Float[Array, "*N units"]:
        """What follows the first layer's linear map, so that this map can be shared or split."""
        y = self.layers[0].activate(y)
        for layer in self.layers[1:]:
            y = layer(y)
        return y

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N units"]:
        return self.finish(self.layers[0].linear(x))


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

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        return self.finish(self.first(x))


def joint_linear(linears: Sequence[Linear], *parts: Float[Array, "..."]) -> list[Float[Array, "..."]]:
    """Outputs of several linear layers that all read the concatenation of `parts`.

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
    outputs = jnp.split(y, ends, axis=-1)
    return [_add_bias(y, linear.bias) for y, linear in zip(outputs, linears, strict=True)]
