import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from gpld.kernels._tiles import Tile, activated, call, inverse_rms, pull_norm, silu_slope

FORWARD, BACKWARD = Tile(rows=8, warps=2), Tile(rows=16)


@jax.custom_vjp
def activate(
    x: Float[Array, "N width"], bias: Float[Array, " width"], scale: Float[Array, " width"]
) -> Float[Array, "N width"]:
    """SiLU of the RMS norm of `x + bias`, for many rows; one kernel forwards, and one backwards.

    The gradients by bias and scale are sums over rows. Their parts are formed where the gradient by `x` is,
    so that nothing is read twice.
    """
    return _forward(x, bias, scale)[0]


def _forward(x, bias, scale):
    def kernel(x, bias, scale, out):
        y = x[...].astype(jnp.float32) + bias[...][None]
        out[...] = activated(y, scale[...]).astype(out.dtype)

    cut, tile, line = _tiles(x, FORWARD)
    grid = (x.shape[0] // cut.rows,)
    out = call(kernel, grid, [(x, tile), (bias, line), (scale, line)], (_like(x), tile), cut)
    return out, (x, bias, scale)


def _backward(residuals, gradient):
    x, bias, scale = residuals

    def kernel(x, bias, scale, gradient, by_x, by_bias, by_scale):
        y = x[...].astype(jnp.float32) + bias[...][None]
        inverse = inverse_rms(y)
        unit = y * inverse
        normed = unit * scale[...][None]
        by_normed = gradient[...].astype(jnp.float32) * silu_slope(normed)
        by_y = pull_norm(by_normed * scale[...][None], unit, inverse)
        by_x[...] = by_y.astype(by_x.dtype)
        by_bias[...] = jnp.sum(by_y, axis=0, keepdims=True)
        by_scale[...] = jnp.sum(by_normed * unit, axis=0, keepdims=True)

    cut, tile, line = _tiles(x, BACKWARD)
    count = x.shape[0] // cut.rows
    part = (
        jax.ShapeDtypeStruct((count, x.shape[1]), jnp.float32),
        pl.BlockSpec((1, x.shape[1]), lambda n: (n, 0)),
    )
    by_x, by_bias, by_scale = call(
        kernel,
        (count,),
        [(x, tile), (bias, line), (scale, line), (gradient, tile)],
        [(_like(x), tile), part, part],
        cut,
    )
    return by_x, by_bias.sum(0).astype(bias.dtype), by_scale.sum(0).astype(scale.dtype)


activate.defvjp(_forward, _backward)


def _tiles(x: Float[Array, "N width"], tile: Tile) -> tuple[Tile, pl.BlockSpec, pl.BlockSpec]:
    width = x.shape[1]
    cut = tile.within(*x.shape)
    return cut, pl.BlockSpec((cut.rows, width), lambda n: (n, 0)), pl.BlockSpec((width,), lambda n: (0,))


def _like(x: Float[Array, "N width"]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
