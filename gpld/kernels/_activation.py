import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from gpld.kernels._tiles import Part, Tile, activated, call, inverse_rms, pull_norm, silu_slope

FORWARD, BACKWARD = Tile(rows=8, warps=2), Tile(rows=16)


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

    cut, part, rows, line = _tiles(x, scale, FORWARD)
    grid = (x.array.shape[0] // cut.rows,)
    return call(kernel, grid, [(x.array, part), (bias, line), (scale, line)], (_like(x, scale), rows), cut)


def pull_activation(
    x: Part,
    bias: Float[Array, " width"],
    scale: Float[Array, " width"],
    gradient: Float[Array, "N width"],
) -> tuple[Float[Array, "N width"], Float[Array, " width"], Float[Array, " width"]]:
    """Gradients by the part, the bias and the scale from that by what `activate_part` gives.

    Those by bias and scale are sums over rows. Their parts are formed where the gradient by `x` is, so that
    nothing is read twice.
    """

    width = scale.shape[0]

    def kernel(x, bias, scale, gradient, by_x, sums):
        y = x[...].astype(jnp.float32) + bias[...][None]
        inverse = inverse_rms(y)
        unit = y * inverse
        normed = unit * scale[...][None]
        by_normed = gradient[...].astype(jnp.float32) * silu_slope(normed)
        by_y = pull_norm(by_normed * scale[...][None], unit, inverse)
        by_x[...] = by_y.astype(by_x.dtype)
        for i, term in enumerate((by_y, by_normed * unit)):
            sums[:, pl.ds(i * width, width)] = jnp.sum(term, axis=0, keepdims=True)

    cut, part, rows, line = _tiles(x, scale, BACKWARD)
    count = x.array.shape[0] // cut.rows
    by_x, sums = call(
        kernel,
        (count,),
        [(x.array, part), (bias, line), (scale, line), (gradient, rows)],
        [
            (_like(x, scale), rows),
            (
                jax.ShapeDtypeStruct((count, 2 * width), jnp.float32),
                pl.BlockSpec((1, 2 * width), lambda n: (n, 0)),
            ),
        ],
        cut,
    )
    by_bias, by_scale = jnp.split(sums.sum(0), 2)
    return by_x, by_bias.astype(bias.dtype), by_scale.astype(scale.dtype)


activate.defvjp(
    lambda x, bias, scale: (activate_part(Part(x), bias, scale), (x, bias, scale)),
    lambda residuals, gradient: pull_activation(Part(residuals[0]), *residuals[1:], gradient),
)


def _tiles(
    x: Part, scale: Float[Array, " width"], tile: Tile
) -> tuple[Tile, pl.BlockSpec, pl.BlockSpec, pl.BlockSpec]:
    """How rows are cut; tiles of the part, of an array of its size, and of a vector."""
    width = scale.shape[0]
    cut = tile.within(x.array.shape[0], width)
    return (
        cut,
        pl.BlockSpec((cut.rows, width), lambda n: (n, x.index)),
        pl.BlockSpec((cut.rows, width), lambda n: (n, 0)),
        pl.BlockSpec((width,), lambda n: (0,)),
    )


def _like(x: Part, scale: Float[Array, " width"]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((x.array.shape[0], scale.shape[0]), x.array.dtype)
