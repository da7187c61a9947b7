"""What all kernels share: how they are called, and what they do to a tile."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.custom_batching
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float, Int

from gpld.nets import NORM_EPS

ENOUGH = 96
"""Tiles that keep most of a GPU busy."""

P = ParamSpec("P")
T = TypeVar("T")


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

    def few(self, rows: int, columns: int, runs: int) -> bool:
        """Whether one array for each run makes too few tiles to keep a GPU busy."""
        return runs * (rows // self.rows) * (columns // self.columns) < ENOUGH

    def enough(self, rows: int, columns: int, runs: int) -> "Tile":
        """As `within`, with fewer rows, as far as a matrix unit allows, where these would be too few."""
        cut = self.within(rows, columns)
        while cut.rows > 16 and cut.few(rows, columns, runs):
            cut = cut._replace(rows=cut.rows // 2)
        return cut


class Part(NamedTuple):
    """The `index`-th of the equal parts of an array's columns."""

    array: Float[Array, "..."]
    index: int = 0


class At(NamedTuple):
    """One step of an array of all steps, `[T, ...]`: what a kernel reads or, of a result, writes in place."""

    array: Float[Array, "T ..."]
    step: Int[Array, "1"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one step."""
        return self.array.shape[1:]


def empty_record(like: Float[Array, "N F"], length: int) -> Float[Array, "T N F"]:
    """A record of `length` steps, none of which is written: a scan does that in place, by `write` or `call`.

    Stacked by the scan, whose order of axes puts the steps before the runs, they would need a transpose.
    JAX's own rules for many runs would copy the record, and make a scatter of every write.
    """

    @jax.custom_batching.custom_vmap
    def empty(like):
        return jax.lax.empty((length, *like.shape), like.dtype)

    @empty.def_vmap
    def empty_runs(size, batched, like):
        del batched
        return jax.lax.empty((size, length, *like.shape[1:]), like.dtype), True

    return empty(like)


def write(record: At, row: Float[Array, "N F"]) -> Float[Array, "T N F"]:
    """The record with this step."""
    return _write(record.array, row, record.step[0])


@jax.custom_batching.custom_vmap
def _write(rows: Array, row: Array, step: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(rows, row, step, 0)


@_write.def_vmap
def _write_runs(size: int, batched: list[bool], rows: Array, row: Array, step: Array) -> tuple[Array, bool]:
    assert batched == [True, True, False]
    return jax.lax.dynamic_update_index_in_dim(rows, row, step, 1), True


class _Row:
    """A reference to one step of what is referred to."""

    def __init__(self, ref: Any, step: Int[Array, ""]) -> None:
        self.ref, self.step = ref, step
        self.shape, self.dtype = ref.shape[1:], ref.dtype

    def _at(self, at: Any) -> tuple[Any, ...]:
        return (self.step,) if at is Ellipsis else (self.step, *at)

    def __getitem__(self, at: Any) -> Array:
        return self.ref[self._at(at)]

    def __setitem__(self, at: Any, value: Array) -> None:
        self.ref[self._at(at)] = value


def call(
    kernel: Callable[..., None], grid: tuple[int, ...], inputs: Sequence[Any], outputs: Any, tile: Tile
) -> Any:
    """Run `kernel(*inputs, *outputs)`. Both are trees of (array or shape, tile), seen as references.

    Instead of an array there may be `At`, all at the same step. In `outputs`, it stands for an array that is
    changed in place and returned.
    """

    def is_pair(x):
        return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], BlockSpec)

    ins, in_tree = jax.tree.flatten(inputs, is_leaf=is_pair)
    outs, out_tree = jax.tree.flatten(outputs, is_leaf=is_pair)
    kept = [i for i, (x, _) in enumerate(outs) if isinstance(x, At)]
    steps = [(x.step, BlockSpec((1,), lambda *_: (0,))) for x, _ in (*ins, *outs) if isinstance(x, At)][:1]
    operands = [*ins, *(outs[i] for i in kept), *steps]

    def unpacked(*refs):
        step = refs[len(operands) - 1][0] if steps else None

        def seen(pairs, refs):
            return [
                _Row(ref, step) if isinstance(x, At) else ref for (x, _), ref in zip(pairs, refs, strict=True)
            ]

        kernel(*in_tree.unflatten(seen(ins, refs[: len(ins)])), *seen(outs, refs[len(operands) :]))

    results = pl.pallas_call(
        unpacked,
        grid=grid,
        in_specs=[_spec(*pair) for pair in operands],
        out_specs=[_spec(*pair) for pair in outs],
        out_shape=[Shape(x.shape, x.dtype) for x in map(_whole, outs)],
        input_output_aliases={len(ins) + i: out for i, out in enumerate(kept)},
        **({"interpret": True} if interpreted() else {"compiler_params": _triton(tile)}),
    )(*map(_whole, operands))
    return out_tree.unflatten(results)


def with_runs(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose argument `runs` is over how many runs it is mapped. Only arrays may differ in them."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        arrays, others = eqx.partition((args, kwargs), eqx.is_array)

        def of(runs, arrays):
            args, kwargs = eqx.combine(arrays, others)
            return function(*args, **{**kwargs, "runs": runs})

        @jax.custom_batching.custom_vmap
        def mapped(arrays):
            return of(1, arrays)

        @mapped.def_vmap
        def mapped_by_runs(runs, batched, arrays):
            axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
            results = jax.vmap(functools.partial(of, runs), axes)(arrays)
            return results, jax.tree.map(lambda _: True, results)

        return mapped(arrays)

    return wrapper


def _whole(pair: tuple[Any, BlockSpec]) -> Any:
    return pair[0].array if isinstance(pair[0], At) else pair[0]


def _spec(x: Any, spec: BlockSpec) -> BlockSpec:
    shape, index = spec.block_shape, spec.index_map
    if not isinstance(x, At) or shape is None or index is None:
        return spec
    return BlockSpec((len(x.array), *shape), lambda *at: (0, *index(*at)))


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
        return [y + dot(x, w, axis) for y, w in zip(sums, slices, strict=True)]

    zeros = [jnp.zeros((tile.rows, weight.shape[1 - axis]), jnp.float32) for weight in weights]
    return jax.lax.fori_loop(0, width // depth, step, zeros)


def column(x: Any) -> Float[Array, "rows 1"]:
    """The one column of a reference. As a tile, it would be loaded again for every column that it meets."""
    return x[:, 0][:, None]


def dot(
    x: Float[Array, "rows depth"], weight: Float[Array, "..."], axis: int = 0
) -> Float[Array, "rows columns"]:
    """`x @ w`, or `x @ w.T` if `axis` is 1, in float32 from factors of the weight's type."""
    dims = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x.astype(weight.dtype), weight, dims, preferred_element_type=jnp.float32)


def inverse_rms(x: Float[Array, "*N width"]) -> Float[Array, "*N 1"]:
    """What RMS norm multiplies by, before its scale."""
    return jax.lax.rsqrt(_mean(jnp.square(x.astype(jnp.float32))) + NORM_EPS)


def vjp_norm(
    dunit: Float[Array, "*N width"], unit: Float[Array, "*N width"], inverse: Float[Array, "*N 1"]
) -> Float[Array, "*N width"]:
    """From the gradient by a normed input, before its scale, to that by the input itself."""
    return inverse * (dunit - unit * _mean(dunit * unit))


def _mean(x: Float[Array, "*N width"]) -> Float[Array, "*N 1"]:
    return jnp.sum(x, axis=-1, keepdims=True) / x.shape[-1]


def activated(x: Float[Array, "rows width"], scale: Float[Array, " width"]) -> Float[Array, "rows width"]:
    """RMS norm and SiLU."""
    return silu(x * inverse_rms(x) * scale[None])


def summed(parts: Sequence[Any]) -> Float[Array, "rows width"]:
    """The sum of several parts in float32."""
    first, *others = (part[...].astype(jnp.float32) for part in parts)
    return sum(others, first)


def activated_sum(parts: Sequence[Any], bias: Any, scale: Any) -> Float[Array, "rows width"]:
    """The sum of several parts, plus a bias if there is one, through RMS norm and SiLU."""
    x = summed(parts)
    return activated(x if bias is None else x + bias[...][None], scale[...])


def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x` times its sigmoid."""
    return x * sigmoid(x)


def silu_slope(x: Float[Array, "..."], gate: Float[Array, "..."]) -> Float[Array, "..."]:
    """The derivative of `silu`, where `gate` is the sigmoid of `x`."""
    return gate * (1 + x * (1 - gate))


def tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Hyperbolic tangent, by the sigmoid."""
    return 2 * sigmoid(2 * x) - 1


def sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logistic function, inside a kernel."""
    if interpreted():
        return jax.nn.sigmoid(x)
    return _instructions(
        # by minus the logarithm of e to the base 2, then plus 1
        "mul.f32 y, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 y, y;"
        "add.f32 y, y, 0f3F800000; rcp.approx.ftz.f32 $0, y;",
        x,
    )


def exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The exponential function, inside a kernel."""
    if interpreted():
        return jnp.exp(x)
    return _instructions("mul.f32 y, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, y;", x)


def _instructions(code: str, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """What a GPU's own instructions make of `$1`: exact to some of the last bits of float32.

    Triton's functions are four times as many, and kernels that do little else wait for them.
    """
    from jax.experimental.pallas import triton

    shape = Shape(x.shape, jnp.float32)
    return triton.elementwise_inline_asm(
        f"{{ .reg .f32 y; {code} }}", args=[x], constraints="=f,f", pack=1, result_shape_dtypes=[shape]
    )[0]
