import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from gpld.kernels._tiles import Tile, call

TILE = Tile(rows=4, warps=1)


def twohot_mean(
    logits: Float[Array, "N bins"], bias: Float[Array, " bins"], positive: Float[Array, " half"]
) -> Float[Array, " N"]:
    """Mean of a softmax of `logits + bias` over bins that are symmetric about zero.

    `positive` are the bins above zero. The number of bins is one less than a power of two. Bins of opposite
    sign are paired, so that uniform logits give exactly 0. Not differentiable.
    """
    half = positive.shape[0]
    cut = TILE.within(*logits.shape)
    rows = cut.rows

    def kernel(logits, bias, bins, out):
        row = jax.lax.broadcasted_iota(jnp.int32, (rows, half + 1), 0)
        away = jax.lax.broadcasted_iota(jnp.int32, (rows, half + 1), 1)
        column = jax.lax.broadcasted_iota(jnp.int32, (half + 1,), 0)
        upper, lower = (
            logits[row, half + sign * away].astype(jnp.float32) + bias[half + sign * column][None]
            for sign in (1, -1)
        )
        top = jnp.max(jnp.maximum(upper, lower), axis=-1, keepdims=True)
        upper, lower = jnp.exp(upper - top), jnp.where(away == 0, 0.0, jnp.exp(lower - top))
        # The bin at zero, which has no partner, counts for the sum alone.
        total = jnp.sum((upper - lower) * bins[...][None], axis=-1, keepdims=True)
        out[...] = total / jnp.sum(upper + lower, axis=-1, keepdims=True)

    bins = jnp.concatenate([jnp.zeros(1), positive])
    mean = call(
        kernel,
        (logits.shape[0] // rows,),
        [
            (logits, pl.BlockSpec((rows, logits.shape[1]), lambda n: (n, 0))),
            (bias, pl.BlockSpec(bias.shape, lambda n: (0,))),
            (bins, pl.BlockSpec((half + 1,), lambda n: (0,))),
        ],
        (jax.ShapeDtypeStruct((logits.shape[0], 1), jnp.float32), pl.BlockSpec((rows, 1), lambda n: (n, 0))),
        cut,
    )
    return mean[:, 0]
