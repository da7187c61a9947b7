from collections.abc import Callable, Mapping
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

_Module = TypeVar("_Module", bound=eqx.Module)

NORM_EPS = 1e-4
"""Added to the mean square by every RMS norm."""
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
    bias: Float[Array, " out"]

    @classmethod
    def init(cls, inputs: int, outputs: int, *, scale: float = 1.0, key: PRNGKeyArray) -> "Linear":
        """Weights of standard deviation `scale / sqrt(inputs)`, bias zero."""
        return cls(initial_weight(key, (inputs, outputs), inputs, scale), jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        # As rows of one matrix: of more axes, the gradient by the weight takes transposed copies on a CPU.
        y = x.reshape(-1, x.shape[-1]) @ self.weight.astype(x.dtype)
        return add_bias(y.reshape(*x.shape[:-1], len(self.bias)), self.bias)


class BlockLinear(eqx.Module):
    """A block-diagonal linear map: the last axis in G slices, each with its own matrix.

    All blocks may read a second input, after their slices of the first: then its part of the matrices is an
    ordinary one.
    """

    weight: Float[Array, "G in out"]
    bias: Float[Array, " wide_out"]

    @classmethod
    def init(cls, inputs: int, outputs: int, blocks: int, *, key: PRNGKeyArray) -> "BlockLinear":
        """As `Linear`; the standard deviation follows the whole input width, not one block's."""
        shape = (blocks, inputs // blocks, outputs // blocks)
        return cls(initial_weight(key, shape, inputs, 1.0), jnp.zeros(outputs))

    def __call__(
        self, x: Float[Array, "*N wide_in"], shared: Float[Array, "*N shared_in"] | None = None
    ) -> Float[Array, "*N wide_out"]:
        weight = self.weight.astype(x.dtype)
        own = x.shape[-1] // len(weight)
        y = self.product(x.reshape(*x.shape[:-1], -1, own), weight[:, :own]).reshape(*x.shape[:-1], -1)
        if shared is not None:
            y += shared @ weight[:, own:].transpose(1, 0, 2).reshape(shared.shape[-1], -1)
        return add_bias(y, self.bias)

    @staticmethod
    def product(x: Float[Array, "*N G in"], weight: Float[Array, "G in out"]) -> Float[Array, "*N G out"]:
        """Each slice of x times its matrix."""
        rows = jnp.swapaxes(x.reshape(-1, *x.shape[-2:]), 0, 1)
        return jnp.swapaxes(rows @ weight, 0, 1).reshape(*x.shape[:-1], weight.shape[2])


def add_bias(y: Float[Array, "*N out"], bias: Float[Array, " out"]) -> Float[Array, "*N out"]:
    """`y + bias`, in the type of `y`."""
    return y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)


class RMSNorm(eqx.Module):
    """`scale * x / sqrt(mean(x^2) + eps)` over the last axis, computed in float32."""

    scale: Float[Array, " width"]

    @classmethod
    def init(cls, width: int) -> "RMSNorm":
        """Scale one."""
        return cls(jnp.ones(width))

    def __call__(self, x: Float[Array, "*N width"]) -> Float[Array, "*N width"]:
        y = x.astype(jnp.float32)
        y *= jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + NORM_EPS)
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

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N units"]:
        for layer in self.layers:
            x = layer(x)
        return x


class MLPHead(eqx.Module):
    """An MLP and a linear output."""

    mlp: MLP
    out: Linear

    @classmethod
    def init(
        cls, inputs: int, units: int, depth: int, outputs: int, *, scale: float = 1.0, key: PRNGKeyArray
    ) -> "MLPHead":
        """`scale` is the output layer's: 0 makes a head that starts at zero."""
        mlp_key, out_key = jax.random.split(key)
        mlp = MLP.init(inputs, units, depth, key=mlp_key)
        return cls(mlp, Linear.init(units, outputs, scale=scale, key=out_key))

    def __call__(self, x: Float[Array, "*N in"]) -> Float[Array, "*N out"]:
        return self.out(self.mlp(x))

    def first(self, x: Float[Array, "*N in"]) -> Float[Array, "*N units"]:
        """The output of the first linear map, where the penalty's closed form starts."""
        return self.mlp.layers[0].linear(x)

    def after_first(self, y: Float[Array, "*N units"]) -> Float[Array, "*N out"]:
        """The output, from that of the first linear map."""
        first, *others = self.mlp.layers
        return self.out(MLP(tuple(others))(first.activate(y)))


def cast(module: _Module, dtype: jnp.dtype) -> _Module:
    """Matrices in the compute type: once, rather than in every step of a scan that multiplies by them."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 else x, module)


def of_each(
    function: Callable[..., Array], arrays: Mapping[str, Float[Array, "..."]]
) -> dict[str, Float[Array, ""]]:
    """`jnp.mean` or `jnp.std` of each array, those of one shape at once: GPUs are slow at many small sums."""
    together: dict[tuple[int, ...], list[str]] = {}
    for name, array in arrays.items():
        together.setdefault(array.shape, []).append(name)
    found: dict[str, Array] = {}
    for names in together.values():
        stack = jnp.stack([arrays[name].ravel() for name in names])
        found |= dict(zip(names, function(stack, axis=1), strict=True))
    return {name: found[name] for name in arrays}


def unrolled(length: int, limit: int) -> int:
    """How many of `length` steps to put into one loop body: at most `limit`, with no steps left over."""
    return max(n for n in range(1, limit + 1) if length % n == 0)
