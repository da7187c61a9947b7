from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float, Int

from gpld.fused.kernels._tiles import Tile, call, exp

MEAN, VJP = Tile(rows=4, warps=1), Tile(rows=16, warps=8)


class Target(NamedTuple):
    """What a cross-entropy to two neighbouring bins needs of every row backwards."""

    below: Int[Array, " N"]
    """The lower bin."""
    share: Float[Array, " N"]
    """The weight of the upper one."""
    gradient: Float[Array, " N"]
    """By the cross-entropy."""


def twohot_mean(
    logits: Float[Array, "N bins"], bias: Float[Array, " bins"], positive: Float[Array, " half"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Mean of a softmax of `logits + bias` over bins that are symmetric about zero, and its log-normaliser.

    `positive` are the bins above zero. The number of bins is one less than a power of two. Bins of opposite
    sign are paired, so that uniform logits give exactly 0. Not differentiable.
    """
    half = positive.shape[0]
    cut = MEAN.within(*logits.shape)
    rows = cut.rows

    def kernel(logits, bias, bins, mean, normaliser):
        row = jax.lax.broadcasted_iota(jnp.int32, (rows, half + 1), 0)
        away = jax.lax.broadcasted_iota(jnp.int32, (rows, half + 1), 1)
        column = jax.lax.broadcasted_iota(jnp.int32, (half + 1,), 0)
        upper, lower = (
            logits[row, half + sign * away].astype(jnp.float32) + bias[half + sign * column][None]
            for sign in (1, -1)
        )
        top = jnp.max(jnp.maximum(upper, lower), axis=-1, keepdims=True)
        upper, lower = exp(upper - top), jnp.where(away == 0, 0.0, exp(lower - top))
        # The bin at zero, which has no partner, counts for the sum alone.
        total = jnp.sum(upper + lower, axis=-1)
        mean[...] = jnp.sum((upper - lower) * bins[...][None], axis=-1) / total
        normaliser[...] = top[:, 0] + jnp.log(total)

    bins = jnp.concatenate([jnp.zeros(1), positive])
    out = (Shape((logits.shape[0],), jnp.float32), BlockSpec((rows,), lambda n: (n,)))
    return call(
        kernel,
        (logits.shape[0] // rows,),
        [
            (logits, BlockSpec((rows, logits.shape[1]), lambda n: (n, 0))),
            (bias, BlockSpec(bias.shape, lambda n: (0,))),
            (bins, BlockSpec((half + 1,), lambda n: (0,))),
        ],
        (out, out),
        cut,
    )


def vjp_twohot(
    logits: Float[Array, "N bins"],
    bias: Float[Array, " bins"],
    normaliser: Float[Array, " N"],
    targets: Sequence[Target],
    count: int,
) -> tuple[Float[Array, "N bins"], Float[Array, " bins"]]:
    """Gradients by logits and bias of cross-entropies to several targets. Only `count` columns are bins."""
    cut = VJP.within(*logits.shape)
    rows, width = cut.rows, logits.shape[1]

    def kernel(logits, bias, normaliser, targets, out, dbias):
        column = jax.lax.broadcasted_iota(jnp.int32, (rows, width), 1)
        probs = exp(logits[...].astype(jnp.float32) + bias[...][None] - normaliser[...][:, None])
        total = jnp.zeros((rows, width), jnp.float32)
        for below, share, gradient in targets:
            below, share, gradient = (x[...][:, None] for x in (below, share, gradient))
            after = column - below
            weight = jnp.where(after == 0, 1 - share, jnp.where(after == 1, share, 0.0))
            total += gradient * (probs - weight)
        total = jnp.where(column < count, total, 0.0)
        out[...] = total.astype(out.dtype)
        dbias[...] = jnp.sum(total, axis=0, keepdims=True)

    tile = BlockSpec((rows, width), lambda n: (n, 0))
    steps = logits.shape[0] // rows

    line = BlockSpec((rows,), lambda n: (n,))
    dlogits, dbias = call(
        kernel,
        (steps,),
        [
            (logits, tile),
            (bias, BlockSpec((width,), lambda n: (0,))),
            (normaliser, line),
            [tuple((x, line) for x in target) for target in targets],
        ],
        [
            (Shape(logits.shape, logits.dtype), tile),
            (Shape((steps, width), jnp.float32), BlockSpec((1, width), lambda n: (n, 0))),
        ],
        cut,
    )
    return dlogits, dbias.sum(0).astype(bias.dtype)
