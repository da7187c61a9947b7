"""What all kernels share: how they are called, and what they do to a tile."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

NORM_EPS = 1e-4
"""Added to the mean square by every RMS norm."""


class Tile(NamedTuple):
    """How an output is cut, and how a tile of it is worked on."""

    rows: int = 16
    columns: int = 64
    depth: int = 64
    """Columns of a factor loaded at a time."""
    warps: int = 4
    stages: int = 3
    """Loads under way at a time."""

    def within(self, rows: int, columns: int) -> "Tile":
        """Cut down to fit an array: whose columns are a power of two, and rows a multiple of one."""
        return self._replace(rows=min(self.rows, rows & -rows), columns=min(self.columns, columns))


class Part(NamedTuple):
    """The `index`-th of the equal parts of an array's columns."""

    array: Float[Array, "..."]
    index: int = 0


def call(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    inputs: Sequence[Any],
    outputs: Any,
    tile: Tile,
) -> Any:
    """Run `kernel(*inputs, *outputs)`. Both are trees of (array or shape, tile), seen as references."""

    def is_pair(x):
        return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], pl.BlockSpec)

    pairs, structure = jax.tree.flatten(inputs, is_leaf=is_pair)

    def unpacked(*refs):
        kernel(*structure.unflatten(refs[: len(pairs)]), *refs[len(pairs) :])

    return pl.pallas_call(
        unpacked,
        grid=grid,
        in_specs=[spec for _, spec in pairs],
        out_specs=jax.tree.map(lambda pair: pair[1], outputs, is_leaf=is_pair),
        out_shape=jax.tree.map(lambda pair: pair[0], outputs, is_leaf=is_pair),
        **({"interpret": True} if interpreted() else {"compiler_params": _triton(tile)}),
    )(*(array for array, _ in pairs))


def _triton(tile: Tile) -> Any:
    from jax.experimental.pallas import triton  # not there on every platform

    return triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages)


def interpreted() -> bool:
    """Whether there is no GPU to run on."""
    return jax.default_backend() != "gpu"


def products(
    load: Callable[[Any], Float[Array, "rows depth"]],
    weights: Sequence[Any],
    tile: Tile,
    *,
    transposed: bool = False,
) -> list[Float[Array, "rows columns"]]:
    """`x @ w`, or `x @ w.T`, for every w, where `load(at)` gives the columns of x that the slice `at` names.

    A loop over slices lets the next ones be loaded while one is worked on.
    """
    axis = int(transposed)
    width = weights[0].shape[axis]
    depth = min(tile.depth, width & -width)

    def step(i, sums):
        at = pl.ds(i * depth, depth)
        x = load(at)
        slices = [weight[:, at] if transposed else weight[at, :] for weight in weights]
        return [y + _dot(x.astype(w.dtype), w, axis) for y, w in zip(sums, slices, strict=True)]

    zeros = [jnp.zeros((tile.rows, weight.shape[1 - axis]), jnp.float32) for weight in weights]
    return jax.lax.fori_loop(0, width // depth, step, zeros)


def _dot(x: Float[Array, "rows depth"], weight: Float[Array, "..."], axis: int) -> Array:
    return jax.lax.dot_general(x, weight, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)


def inverse_rms(x: Float[Array, "*N width"]) -> Float[Array, "*N 1"]:
    """What RMS norm multiplies by, before its scale."""
    return jax.lax.rsqrt(_mean(jnp.square(x.astype(jnp.float32))) + NORM_EPS)


def pull_norm(
    by_unit: Float[Array, "*N width"], unit: Float[Array, "*N width"], inverse: Float[Array, "*N 1"]
) -> Float[Array, "*N width"]:
    """From the gradient by a normed input, before its scale, to that by the input itself."""
    return inverse * (by_unit - unit * _mean(by_unit * unit))


def _mean(x: Float[Array, "*N width"]) -> Float[Array, "*N 1"]:
    return jnp.sum(x, axis=-1, keepdims=True) / x.shape[-1]


def activated(x: Float[Array, "rows width"], scale: Float[Array, " width"]) -> Float[Array, "rows width"]:
    """RMS norm and SiLU."""
    return silu(x * inverse_rms(x) * scale[None])


def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x` times its sigmoid."""
    return x * jax.nn.sigmoid(x)


def silu_slope(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The derivative of `silu`."""
    gate = jax.nn.sigmoid(x)
    return gate * (1 + x * (1 - gate))


def tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Hyperbolic tangent, by the sigmoid, which lowers to an exponential."""
    return 2 * jax.nn.sigmoid(2 * x) - 1
