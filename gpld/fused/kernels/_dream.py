"""A step of many dreams: small heads, a kernel a layer, and what surrounds the recurrence's large products.

Those are left to cuBLAS, which multiplies by all blocks of a block-diagonal matrix at once if they come one
after the other, as `[G, N, own]`. These kernels read and write that order, so that nothing is transposed.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float

from gpld.fused.kernels._step import Activation, follow
from gpld.fused.kernels._tiles import At, Part, Tile, activated_sum, call, dot, silu, summed, with_runs
from gpld.nets import NORM_EPS

ENTER, HIDDEN, GRU = Tile(rows=4, warps=1), Tile(rows=1, warps=2), Tile(rows=2, warps=1)
DENSE = Tile(rows=64, columns=128)


def enter(
    entered: Sequence[Part],
    action: tuple[Float[Array, "N A"], Float[Array, "A width"]],
    activations: Sequence[Activation],
) -> Float[Array, "N wide"]:
    """`[act(x) for x in entered]` and `act(action @ weight)`, side by side."""
    count, width = entered[0].array.shape[0], activations[0].scale.shape[0]
    cut = ENTER.within(count, width)

    def kernel(entered, action, weight, activations, out):
        # Too few to be worth a matrix unit.
        terms = (
            action[:, i].astype(jnp.float32)[:, None] * weight[i].astype(jnp.float32)[None]
            for i in range(weight.shape[0])
        )
        summands = [*([x] for x in entered), list(terms)]
        for i, (parts, activation) in enumerate(zip(summands, activations, strict=True)):
            out[:, pl.ds(i * width, width)] = activated_sum(parts, *activation).astype(out.dtype)

    rows = cut.rows
    return call(
        kernel,
        (count // rows,),
        [
            [(x.array, BlockSpec((rows, width), lambda n, i=x.index: (n, i))) for x in entered],
            (action[0], BlockSpec((rows, action[0].shape[1]), lambda n: (n, 0))),
            (action[1], BlockSpec(action[1].shape, lambda n: (0, 0))),
            [tuple((x, BlockSpec((width,), lambda n: (0,))) for x in pair) for pair in activations],
        ],
        (
            Shape((count, len(activations) * width), entered[0].array.dtype),
            BlockSpec((rows, len(activations) * width), lambda n: (n, 0)),
        ),
        cut,
    )


def activate_hidden(
    own: Float[Array, "G N own"],
    shared: Float[Array, "N D"],
    bias: Float[Array, " D"],
    scale: Float[Array, " D"],
) -> Float[Array, "G N own"]:
    """SiLU of the RMS norm of `own + shared + bias`."""
    blocks, count, inner = own.shape
    width = blocks * inner
    cut = HIDDEN.within(count, inner)

    def kernel(own, shared, bias, scale, out):
        at = [pl.ds(g * inner, inner) for g in range(blocks)]
        x = [
            own[g].astype(jnp.float32) + shared[:, at[g]].astype(jnp.float32) + bias[at[g]][None]
            for g in range(blocks)
        ]
        # Summed over the blocks first, so that threads wait for each other once.
        squares = sum((jnp.square(y) for y in x[1:]), jnp.square(x[0]))
        inverse = jax.lax.rsqrt(jnp.sum(squares, axis=-1, keepdims=True) / width + NORM_EPS)
        for g in range(blocks):
            out[g] = silu(x[g] * inverse * scale[at[g]][None]).astype(out.dtype)

    tile = BlockSpec((blocks, cut.rows, inner), lambda n: (0, n, 0))
    line = BlockSpec((width,), lambda n: (0,))
    return call(
        kernel,
        (count // cut.rows,),
        [(own, tile), (shared, BlockSpec((cut.rows, width), lambda n: (n, 0))), (bias, line), (scale, line)],
        (Shape(own.shape, own.dtype), tile),
        cut,
    )


def gru_blocks(
    gates: Float[Array, "G N wide"], bias: Float[Array, " gates"], h: Float[Array, "N D"], record: At
) -> tuple[Float[Array, "N D"], Float[Array, "G N own"], Float[Array, "T N F"]]:
    """The next h from the gates without their bias: as rows, by blocks, and as first columns of a record."""
    blocks, count, wide = gates.shape
    inner = wide // 3
    cut = GRU.within(count, inner)

    def kernel(gates, bias, h, rows, by_block, kept):
        at = [pl.ds(i * inner, inner) for i in range(3)]
        y = (gates[:, a].astype(jnp.float32) + bias[a][None] for a in at)
        after = follow(*y, h[...].astype(jnp.float32)).astype(rows.dtype)
        rows[...] = after
        by_block[...] = after
        kept[...] = after

    row = BlockSpec((cut.rows, inner), lambda n, g: (n, g))
    return call(
        kernel,
        (count // cut.rows, blocks),
        [
            (gates, BlockSpec((None, cut.rows, wide), lambda n, g: (g, n, 0))),
            (bias, BlockSpec((wide,), lambda n, g: (g,))),
            (h, row),
        ],
        (
            (Shape(h.shape, h.dtype), row),
            (
                Shape((blocks, count, inner), h.dtype),
                BlockSpec((None, cut.rows, inner), lambda n, g: (g, n, 0)),
            ),
            (record, row),
        ),
        cut,
    )


@with_runs
def dense(
    x: Sequence[Part], activation: Activation, weight: Float[Array, "width out"], *, runs: int = 1
) -> Float[Array, "N out"]:
    """`act(sum(x)) @ weight`."""

    def kernel(x, activation, weight, out):
        out[...] = dot(activated_sum(x, *activation), weight[...]).astype(out.dtype)

    grid, inputs, output, cut = _dense_tiles(x, activation, weight, runs)
    return call(kernel, grid, inputs, output, cut)


@with_runs
def dense_and_sum(
    x: Sequence[Part], activation: Activation, weight: Float[Array, "width out"], record: At, *, runs: int = 1
) -> tuple[Float[Array, "N out"], Float[Array, "T N width"]]:
    """What `dense` gives, and the record with the sum of x."""

    def kernel(x, activation, weight, out, kept):
        total = summed(x)
        # Tiles in the same rows all write this, and the same.
        kept[...] = total.astype(kept.dtype)
        out[...] = dot(activated_sum([total], *activation), weight[...]).astype(out.dtype)

    grid, inputs, output, cut = _dense_tiles(x, activation, weight, runs)
    row = BlockSpec((cut.rows, weight.shape[0]), lambda n, j: (n, 0))
    return call(kernel, grid, inputs, (output, (record, row)), cut)


def _dense_tiles(
    x: Sequence[Part], activation: Activation, weight: Float[Array, "width out"], runs: int
) -> tuple[tuple[int, int], list[Any], Any, Tile]:
    count, (width, outputs) = x[0].array.shape[0], weight.shape
    cut = DENSE.enough(count, outputs, runs)
    rows, columns = cut.rows, cut.columns
    line = BlockSpec((width,), lambda n, j: (0,))
    inputs = [
        [(part.array, BlockSpec((rows, width), lambda n, j, i=part.index: (n, i))) for part in x],
        [(vector, line) for vector in activation],
        (weight, BlockSpec((width, columns), lambda n, j: (0, j))),
    ]
    shape = Shape((count, outputs), weight.dtype)
    output = (shape, BlockSpec((rows, columns), lambda n, j: (n, j)))
    return (count // rows, outputs // columns), inputs, output, cut
