"""What surrounds the matrix products of a recurrent step of many states, which are left to cuBLAS.

cuBLAS multiplies by all blocks of a block-diagonal matrix at once if they come one after the other, as
`[G, N, own]`. These kernels read and write that order, so that nothing is transposed for it.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from gpld.kernels._step import Activation, follow
from gpld.kernels._tiles import NORM_EPS, Part, Tile, activated, call, silu

ENTER, HIDDEN, GRU = Tile(rows=16), Tile(rows=4), Tile(rows=16)


def enter(entered: Sequence[Part], activations: Sequence[Activation]) -> Float[Array, "N wide"]:
    """`[act(x) for x in entered]`, side by side."""
    count, width, parts = entered[0].array.shape[0], activations[0].scale.shape[0], len(entered)
    cut = ENTER.within(count, width)

    def kernel(entered, activations, out):
        for i, (x, (bias, scale)) in enumerate(zip(entered, activations, strict=True)):
            y = activated(x[...].astype(jnp.float32) + bias[...][None], scale[...])
            out[:, pl.ds(i * width, width)] = y.astype(out.dtype)

    return call(
        kernel,
        (count // cut.rows,),
        [
            [(x.array, pl.BlockSpec((cut.rows, width), lambda n, i=x.index: (n, i))) for x in entered],
            [tuple((x, pl.BlockSpec((width,), lambda n: (0,))) for x in pair) for pair in activations],
        ],
        (
            jax.ShapeDtypeStruct((count, parts * width), entered[0].array.dtype),
            pl.BlockSpec((cut.rows, parts * width), lambda n: (n, 0)),
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
        squares = [jnp.sum(jnp.square(y), axis=-1, keepdims=True) for y in x]
        inverse = jax.lax.rsqrt(sum(squares[1:], squares[0]) / width + NORM_EPS)
        for g in range(blocks):
            out[g] = silu(x[g] * inverse * scale[at[g]][None]).astype(out.dtype)

    tile = pl.BlockSpec((blocks, cut.rows, inner), lambda n: (0, n, 0))
    line = pl.BlockSpec((width,), lambda n: (0,))
    return call(
        kernel,
        (count // cut.rows,),
        [
            (own, tile),
            (shared, pl.BlockSpec((cut.rows, width), lambda n: (n, 0))),
            (bias, line),
            (scale, line),
        ],
        (jax.ShapeDtypeStruct(own.shape, own.dtype), tile),
        cut,
    )


def gru_blocks(
    gates: Float[Array, "G N wide"], bias: Float[Array, " gates"], h: Float[Array, "N D"]
) -> tuple[Float[Array, "N D"], Float[Array, "G N own"]]:
    """The next h from the gates without their bias: as rows, and by blocks."""
    blocks, count, wide = gates.shape
    inner = wide // 3
    cut = GRU.within(count, inner)

    def kernel(gates, bias, h, rows, by_block):
        at = [pl.ds(i * inner, inner) for i in range(3)]
        y = (gates[:, a].astype(jnp.float32) + bias[a][None] for a in at)
        after = follow(*y, h[...].astype(jnp.float32)).astype(rows.dtype)
        rows[...] = after
        by_block[...] = after

    row = pl.BlockSpec((cut.rows, inner), lambda n, g: (n, g))
    return call(
        kernel,
        (count // cut.rows, blocks),
        [
            (gates, pl.BlockSpec((None, cut.rows, wide), lambda n, g: (g, n, 0))),
            (bias, pl.BlockSpec((wide,), lambda n, g: (g,))),
            (h, row),
        ],
        [
            (jax.ShapeDtypeStruct(h.shape, h.dtype), row),
            (
                jax.ShapeDtypeStruct((blocks, count, inner), h.dtype),
                pl.BlockSpec((None, cut.rows, inner), lambda n, g: (g, n, 0)),
            ),
        ],
        cut,
    )
