"""The stages of a recurrent step, backwards: from gradients by their outputs to those by their inputs."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float

from gpld.fused.kernels._tiles import (
    At,
    Part,
    Tile,
    call,
    column,
    inverse_rms,
    products,
    silu_slope,
    vjp_norm,
)

DRAW, GRU, ENTERED = Tile(depth=128, warps=8), Tile(depth=256), Tile(depth=256, warps=8)
GATES, HIDDEN = Tile(columns=32), Tile()


class NormSlope(NamedTuple):
    """The derivative of RMS norm and SiLU at one input."""

    slope: Float[Array, "*N width"]
    """Of the SiLU, times the scale."""
    unit: Float[Array, "*N width"]
    """The normed input, before the scale."""
    inverse: Float[Array, "*N 1"]
    """What the norm multiplied by."""

    @classmethod
    def at(cls, x: Float[Array, "*N width"], scale: Float[Array, " width"]) -> "NormSlope":
        """At the input `x`."""
        inverse = inverse_rms(x)
        unit = x.astype(jnp.float32) * inverse
        scale = jnp.broadcast_to(scale, unit.shape)
        normed = unit * scale
        slope = scale * silu_slope(normed, jax.nn.sigmoid(normed))
        return cls(slope.astype(x.dtype), unit.astype(x.dtype), inverse)

    def vjp(self, gradient: Float[Array, "*N width"]) -> Float[Array, "*N width"]:
        """From the gradient by the activations to that by the input."""
        dunit = gradient.astype(jnp.float32) * self.slope.astype(jnp.float32)
        return vjp_norm(dunit, self.unit.astype(jnp.float32), self.inverse).astype(gradient.dtype)


def vjp_draw(
    dz: Float[Array, "N KC"] | At,
    later: Part,
    dlogits: Float[Array, "N KC"] | At,
    probs: Float[Array, "N KC"] | At,
    weight: Float[Array, "hidden KC"],
    stoch: int,
    unimix: float,
) -> Float[Array, "N hidden"]:
    """From gradients by classes (`dz + later`) and by logits to that by what `draw` multiplies."""
    count, inner = probs.shape[0], weight.shape[0]
    columns = min(inner, DRAW.columns)

    def kernel(dz, later, dlogits, probs, weight, out):
        classes = probs.shape[1] // stoch

        def load(at):
            p, *g, dlogit = (x[:, at].astype(jnp.float32) for x in (probs, dz, later, dlogits))
            shape = (DRAW.rows, at.size // classes, classes)
            p, g = p.reshape(shape), (g[0] + g[1]).reshape(shape)
            g = (1 - unimix) * p * (g - jnp.sum(p * g, axis=-1, keepdims=True))
            return dlogit + g.reshape(dlogit.shape)

        out[...] = products(load, [weight], DRAW, transposed=True)[0].astype(out.dtype)

    row = BlockSpec((DRAW.rows, probs.shape[1]), lambda n, j: (n, 0))
    return call(
        kernel,
        (count // DRAW.rows, inner // columns),
        [
            (dz, row),
            (later.array, BlockSpec((DRAW.rows, probs.shape[1]), lambda n, j: (n, later.index))),
            (dlogits, row),
            (probs, row),
            (weight, BlockSpec((columns, weight.shape[1]), lambda n, j: (j, 0))),
        ],
        (Shape((count, inner), weight.dtype), BlockSpec((DRAW.rows, columns), lambda n, j: (n, j))),
        DRAW,
    )


def vjp_gru(
    dactive: Float[Array, "N hidden"],
    slope: NormSlope,
    dfirst: Float[Array, "N hidden"] | At,
    dh: Sequence[Float[Array, "N wide"] | At],
    weight: Float[Array, "D hidden"],
    gates: Sequence[Float[Array, "N D"] | At],
    last: Float[Array, "N D"] | At,
    blocks: int,
) -> tuple[Float[Array, "N gates"], Float[Array, "N D"]]:
    """From gradients by the posterior's first layer and by h (a sum) to those by gates and last h.

    Of what is given of the gradient by h, the first columns count.
    """
    count, width = last.shape
    inner, columns = width // blocks, min(width // blocks, GRU.columns)
    steps = inner // columns

    def kernel(dactive, slope, dfirst, dh, weight, gates, last, dgates, dlast):
        through = _through_activation(slope, dactive)
        (total,) = products(
            lambda at: through(at) + dfirst[:, at].astype(jnp.float32), [weight], GRU, transposed=True
        )
        total += sum(x[...].astype(jnp.float32) for x in dh)
        for i, gate in enumerate(gates):
            dgates[:, i] = (total * gate[...].astype(jnp.float32)).astype(dgates.dtype)
        dlast[...] = (total * last[...].astype(jnp.float32)).astype(dlast.dtype)

    tile = BlockSpec((GRU.rows, columns), lambda n, g, j: (n, g * steps + j))
    row = BlockSpec((GRU.rows, weight.shape[1]), lambda n, g, j: (n, 0))
    dgates, dlast = call(
        kernel,
        (count // GRU.rows, blocks, steps),
        [
            (dactive, row),
            _slope_tiles(slope, row, BlockSpec((GRU.rows, 1), lambda n, g, j: (n, 0))),
            (dfirst, row),
            [(x, tile) for x in dh],
            (weight, BlockSpec((columns, weight.shape[1]), lambda n, g, j: (g * steps + j, 0))),
            [(x, tile) for x in gates],
            (last, tile),
        ],
        (
            (
                Shape((count, blocks, 3, inner), weight.dtype),
                BlockSpec((GRU.rows, None, 3, columns), lambda n, g, j: (n, g, 0, j)),
            ),
            (Shape(last.shape, weight.dtype), tile),
        ),
        GRU,
    )
    return dgates.reshape(count, 3 * width), dlast


def vjp_gates(
    dgates: Float[Array, "N gates"], slope: NormSlope, weight: Float[Array, "G own wide"]
) -> tuple[Float[Array, "N D"], Float[Array, "N tiles"]]:
    """From the gradient by the gates towards that by the hidden layer.

    Returns the gradient by the normed hidden layer, and the parts of its product with the normed layer.
    """
    blocks, inner, _ = weight.shape
    count, columns = dgates.shape[0], min(inner, GATES.columns)
    steps = inner // columns

    def kernel(dgates, slope, unit, weight, out, along):
        (total,) = products(lambda at: dgates[:, at], [weight], GATES, transposed=True)
        total *= slope[...].astype(jnp.float32)
        out[...] = total.astype(out.dtype)
        along[...] = jnp.sum(total * unit[...].astype(jnp.float32), axis=-1, keepdims=True)

    tile = BlockSpec((GATES.rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // GATES.rows, blocks, steps),
        [
            (dgates, BlockSpec((GATES.rows, 3 * inner), lambda n, g, j: (n, g))),
            (slope.slope, tile),
            (slope.unit, tile),
            (weight, BlockSpec((None, columns, 3 * inner), lambda n, g, j: (g, j, 0))),
        ],
        (
            (Shape(slope.slope.shape, weight.dtype), tile),
            (
                Shape((count, blocks * steps), jnp.float32),
                BlockSpec((GATES.rows, 1), lambda n, g, j: (n, g * steps + j)),
            ),
        ),
        GATES,
    )


def vjp_hidden(
    dunit: Float[Array, "N D"],
    along: Float[Array, "N tiles"],
    slope: NormSlope,
    dlast: Float[Array, "N D"],
    own: Float[Array, "G own own"],
) -> tuple[Float[Array, "N D"], Float[Array, "N D"]]:
    """The gradient by the hidden layer, and what it and `dlast` add to the gradient by the last h."""
    count, width = dlast.shape
    blocks, inner, _ = own.shape
    columns = min(inner, HIDDEN.columns)
    steps = inner // columns

    def kernel(block, tile, along, inverse, dlast, own, dhidden, dh):
        mean, inverse = jnp.sum(along[...], axis=-1, keepdims=True) / width, column(inverse)

        def through(pair, at):
            dunit, unit = (x[:, at].astype(jnp.float32) for x in pair)
            return inverse * (dunit - unit * mean)

        dhidden[...] = through(tile, slice(None)).astype(dhidden.dtype)
        (total,) = products(lambda at: through(block, at), [own], HIDDEN, transposed=True)
        dh[...] = (total + dlast[...].astype(jnp.float32)).astype(dh.dtype)

    tile = BlockSpec((HIDDEN.rows, columns), lambda n, g, j: (n, g * steps + j))
    block = BlockSpec((HIDDEN.rows, inner), lambda n, g, j: (n, g))
    one = BlockSpec((HIDDEN.rows, 1), lambda n, g, j: (n, 0))
    shape = Shape(dlast.shape, own.dtype)
    return call(
        kernel,
        (count // HIDDEN.rows, blocks, steps),
        [
            ((dunit, block), (slope.unit, block)),
            ((dunit, tile), (slope.unit, tile)),
            (along, BlockSpec((HIDDEN.rows, along.shape[1]), lambda n, g, j: (n, 0))),
            (slope.inverse, one),
            (dlast, tile),
            (own, BlockSpec((None, columns, inner), lambda n, g, j: (g, j, 0))),
        ],
        ((shape, tile), (shape, tile)),
        HIDDEN,
    )


def vjp_inputs(
    dactive: Float[Array, "N both"],
    slope: NormSlope,
    weight: Float[Array, "wide hidden"],
    dh: Float[Array, "N D"],
    keep: Float[Array, "N 1"] | At,
    record: At,
) -> tuple[Float[Array, "N wide"], Float[Array, "T N wide"]]:
    """From the gradient by what the layers of h and z give to the step to that by [h, z], times `keep`.

    `dactive` and `slope` have those of both layers side by side, `weight` the rows of both. `dh` is added
    to the gradient by h. The second result is the record with the first.
    """
    (total, inner), (count, deter) = weight.shape, dh.shape
    columns = min(ENTERED.columns, math.gcd(total, deter))
    steps = deter // columns

    def kernel(dactive, slope, weight, dh, keep, out, kept):
        (before,) = products(_through_activation(slope, dactive), [weight], ENTERED, transposed=True)
        before += jnp.where(pl.program_id(1) < steps, dh[...].astype(jnp.float32), 0.0)
        before = (before * column(keep)).astype(out.dtype)
        out[...] = before
        kept[...] = before

    def which(j):
        return jnp.minimum(j // steps, 1)

    tile = BlockSpec((ENTERED.rows, columns), lambda n, j: (n, j))
    row = BlockSpec((ENTERED.rows, inner), lambda n, j: (n, which(j)))
    return call(
        kernel,
        (count // ENTERED.rows, total // columns),
        [
            (dactive, row),
            _slope_tiles(slope, row, BlockSpec((ENTERED.rows, 1), lambda n, j: (n, which(j)))),
            (weight, BlockSpec((columns, inner), lambda n, j: (j, 0))),
            (dh, BlockSpec((ENTERED.rows, columns), lambda n, j: (n, jnp.minimum(j, steps - 1)))),
            (keep, BlockSpec((ENTERED.rows, 1), lambda n, j: (n, 0))),
        ],
        ((Shape((count, total), weight.dtype), tile), (record, tile)),
        ENTERED,
    )


def _slope_tiles(slope: NormSlope, row: BlockSpec, one: BlockSpec) -> list[Any]:
    return [(slope.slope, row), (slope.unit, row), (slope.inverse, one)]


def _through_activation(slope: Sequence[Any], dactive: Any) -> Callable[[Any], Float[Array, "rows depth"]]:
    """Loads columns of a gradient, carried back through RMS norm and SiLU."""
    steepness, unit, inverse = *slope[:2], column(slope[2])
    product = (x[...].astype(jnp.float32) for x in (dactive, steepness, unit))
    along = jnp.sum(math.prod(product), axis=-1, keepdims=True) / unit.shape[1]

    def load(at):
        g, steep, direction = (x[:, at].astype(jnp.float32) for x in (dactive, steepness, unit))
        return inverse * (g * steep - direction * along)

    return load
