import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float

from gpld.fused.kernels._tiles import Part, Tile, activated, call, inverse_rms, sigmoid, silu_slope, vjp_norm

FORWARD, BACKWARD = Tile(rows=8), Tile(rows=16)
TURNS, MANY = 4, 8192
"""Tiles that one program works on backwards, for fewer partial sums, and from how many rows on."""


@jax.custom_vjp
def activate(
    x: Float[Array, "N width"], bias: Float[Array, " width"], scale: Float[Array, " width"]
) -> Float[Array, "N width"]:
    """SiLU of the RMS norm of `x + bias`, for many rows; one kernel forwards, and one backwards."""
    return activate_part(Part(x), bias, scale)


def activate_part(
    x: Part, bias: Float[Array, " width"], scale: Float[Array, " width"]
) -> Float[Array, "N width"]:
    """What `activate` gives, of a part of an array. Not differentiable."""

    def kernel(x, bias, scale, out):
        y = x[...].astype(jnp.float32) + bias[...][None]
        out[...] = activated(y, scale[...]).astype(out.dtype)

    count, width = x.array.shape[0], scale.shape[0]
    cut = FORWARD.within(count, width)
    part, rows, line = _tiles(x, width, cut.rows)
    inputs = [(x.array, part), (bias, line), (scale, line)]
    return call(kernel, (count // cut.rows,), inputs, (_like(x, scale), rows), cut)


def vjp_activation(
    x: Part, bias: Float[Array, " width"], scale: Float[Array, " width"], gradient: Float[Array, "N width"]
) -> tuple[Float[Array, "N width"], Float[Array, " width"], Float[Array, " width"]]:
    """Gradients by the part, the bias and the scale from that by what `activate_part` gives.

    Those by bias and scale are sums over rows. Their parts are formed where the gradient by `x` is, so that
    nothing is read twice.
    """

    rows, width = x.array.shape[0], scale.shape[0]
    cut = BACKWARD.within(rows, width)
    turns = TURNS if rows >= MANY and rows % (TURNS * cut.rows) == 0 else 1

    def kernel(x, bias, scale, gradient, dx, sums):
        def turn(i, totals):
            at = pl.ds(i * cut.rows, cut.rows)
            y = x[at, :].astype(jnp.float32) + bias[...][None]
            inverse = inverse_rms(y)
            unit = y * inverse
            normed = unit * scale[...][None]
            dnormed = gradient[at, :].astype(jnp.float32) * silu_slope(normed, sigmoid(normed))
            dy = vjp_norm(dnormed * scale[...][None], unit, inverse)
            dx[at, :] = dy.astype(dx.dtype)
            terms = dy, dnormed * unit
            return [total + jnp.sum(term, axis=0) for total, term in zip(totals, terms, strict=True)]

        for i, total in enumerate(jax.lax.fori_loop(0, turns, turn, [jnp.zeros(width)] * 2)):
            sums[0, pl.ds(i * width, width)] = total

    part, all_rows, line = _tiles(x, width, turns * cut.rows)
    count = rows // (turns * cut.rows)
    dx, sums = call(
        kernel,
        (count,),
        [(x.array, part), (bias, line), (scale, line), (gradient, all_rows)],
        [
            (_like(x, scale), all_rows),
            (Shape((count, 2 * width), jnp.float32), BlockSpec((1, 2 * width), lambda n: (n, 0))),
        ],
        cut,
    )
    dbias, dscale = jnp.split(sums.sum(0), 2)
    return dx, dbias.astype(bias.dtype), dscale.astype(scale.dtype)


activate.defvjp(
    lambda x, bias, scale: (activate_part(Part(x), bias, scale), (x, bias, scale)),
    lambda residuals, gradient: vjp_activation(Part(residuals[0]), *residuals[1:], gradient),
)


def _tiles(x: Part, width: int, rows: int) -> tuple[BlockSpec, BlockSpec, BlockSpec]:
    """Tiles of so many rows of the part, of as many of an array of its size, and of a vector."""
    return (
        BlockSpec((rows, width), lambda n: (n, x.index)),
        BlockSpec((rows, width), lambda n: (n, 0)),
        BlockSpec((width,), lambda n: (0,)),
    )


def _like(x: Part, scale: Float[Array, " width"]) -> Shape:
    return Shape((x.array.shape[0], scale.shape[0]), x.array.dtype)
