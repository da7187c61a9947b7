"""The stages of a recurrent step of few states, forwards."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float

from gpld.fused.kernels._tiles import (
    At,
    Part,
    Tile,
    activated_sum,
    call,
    column,
    dot,
    exp,
    inverse_rms,
    products,
    sigmoid,
    silu,
    tanh,
    with_runs,
)
from gpld.nets import NORM_EPS

HIDDEN, GRU, READ = Tile(depth=256, warps=8), Tile(warps=8), Tile(columns=32, depth=128, stages=9)
MANY, DRAW, DRAW_MANY = 64, Tile(columns=32), Tile(rows=64, columns=256, warps=8)


class Activation(NamedTuple):
    """What a kernel does to the rows it reads: add a bias, RMS norm with a scale, SiLU."""

    bias: Float[Array, " width"] | None
    scale: Float[Array, " width"]


def hidden(
    h: Float[Array, "N D"],
    entered: Sequence[Part],
    activations: Sequence[Activation],
    rest: Float[Array, "N D"] | At,
    own: Float[Array, "G own own"],
    shared: Float[Array, "wide D"],
    keep: Float[Array, "N 1"] | At,
) -> tuple[Float[Array, "N D"], Float[Array, "N tiles"]]:
    """`own(h) + shared(act(entered)) + rest`, and the sums of squares of its tiles.

    Where `keep` is zero, so are h and `entered`.
    """
    count = h.shape[0]
    blocks, inner, _ = own.shape
    width = shared.shape[0] // len(entered)
    cut = HIDDEN.within(count, inner)
    rows, columns, steps = cut.rows, cut.columns, inner // cut.columns

    def kernel(h, rest, own, shared, entered, activations, keep, out, squares):
        kept = column(keep)
        (total,) = products(lambda at: h[:, at].astype(jnp.float32) * kept, [own], cut)
        for x, (bias, scale), weight in zip(entered, activations, shared, strict=True):
            inverse = inverse_rms(x[...].astype(jnp.float32) * kept + bias[...][None])

            def load(at, x=x, bias=bias, scale=scale, inverse=inverse):
                y = x[:, at].astype(jnp.float32) * kept + bias[at][None]
                return silu(y * inverse * scale[at][None])

            total += products(load, [weight], cut)[0]
        total += rest[...].astype(jnp.float32)
        out[...] = total.astype(out.dtype)
        squares[...] = jnp.sum(jnp.square(total), axis=-1, keepdims=True)

    tile = BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (h, BlockSpec((rows, inner), lambda n, g, j: (n, g))),
            (rest, tile),
            (own, BlockSpec((None, inner, columns), lambda n, g, j: (g, 0, j))),
            [
                (shared, BlockSpec((width, columns), lambda n, g, j, i=i: (i, g * steps + j)))
                for i in range(len(entered))
            ],
            [(x.array, BlockSpec((rows, width), lambda n, g, j, i=x.index: (n, i))) for x in entered],
            [tuple((x, BlockSpec((width,), lambda n, g, j: (0,))) for x in pair) for pair in activations],
            (keep, BlockSpec((rows, 1), lambda n, g, j: (n, 0))),
        ],
        (
            (Shape(h.shape, h.dtype), tile),
            (
                Shape((count, blocks * steps), jnp.float32),
                BlockSpec((rows, 1), lambda n, g, j: (n, g * steps + j)),
            ),
        ),
        cut,
    )


def gru(
    x: Float[Array, "N D"],
    squares: Float[Array, "N tiles"],
    scale: Float[Array, " D"],
    h: Float[Array, "N D"],
    weight: Float[Array, "G own wide"],
    bias: Float[Array, " gates"],
    keep: Float[Array, "N 1"] | At,
    record: At,
) -> tuple[Float[Array, "N D"], Float[Array, "T N D"]]:
    """The next h from what `hidden` gives, and the record with it."""
    count, width = h.shape
    blocks, inner, _ = weight.shape
    cut = GRU.within(count, inner)
    rows, columns, steps = cut.rows, cut.columns, inner // cut.columns

    def kernel(x, squares, scale, h, weights, biases, keep, out, kept):
        mean = jnp.sum(squares[...], axis=-1, keepdims=True) / width
        inverse = jax.lax.rsqrt(mean + NORM_EPS)
        sums = products(
            lambda at: silu(x[:, at].astype(jnp.float32) * inverse * scale[at][None]), weights, cut
        )
        gates = (y + b[...][None] for y, b in zip(sums, biases, strict=True))
        after = follow(*gates, h[...].astype(jnp.float32) * column(keep)).astype(out.dtype)
        out[...] = after
        kept[...] = after

    tile = BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (x, BlockSpec((rows, inner), lambda n, g, j: (n, g))),
            (squares, BlockSpec((rows, squares.shape[1]), lambda n, g, j: (n, 0))),
            (scale, BlockSpec((inner,), lambda n, g, j: (g,))),
            (h, tile),
            [
                (weight, BlockSpec((None, inner, columns), lambda n, g, j, i=i: (g, 0, i * steps + j)))
                for i in range(3)
            ],
            [
                (bias, BlockSpec((columns,), lambda n, g, j, i=i: ((3 * g + i) * steps + j,)))
                for i in range(3)
            ],
            (keep, BlockSpec((rows, 1), lambda n, g, j: (n, 0))),
        ],
        ((Shape(h.shape, h.dtype), tile), (record, tile)),
        cut,
    )


def follow(
    reset: Float[Array, "..."],
    candidate: Float[Array, "..."],
    update: Float[Array, "..."],
    h: Float[Array, "..."],
) -> Float[Array, "..."]:
    """The next h from gates and the last."""
    candidate = tanh(sigmoid(reset) * candidate)
    update = sigmoid(update - 1)
    return update * candidate + (1 - update) * h


@with_runs
def read(
    x: Float[Array, "N D"], weight: Float[Array, "..."], *, transposed: bool = False, runs: int = 1
) -> Float[Array, "N out"]:
    """`x @ weight`, or `x @ weight.T`, of few rows.

    XLA cuts the sum, and adds its parts in a second kernel. That is right for one run, of which few tiles can
    be made otherwise; several runs have tiles enough without.
    """
    (count, inner), width = x.shape, weight.shape[0 if transposed else 1]
    cut = READ.within(count, width)
    rows, columns = cut.rows, cut.columns
    if cut.few(count, width, runs):
        return x @ (weight.T if transposed else weight)

    def kernel(x, weight, out):
        (product,) = products(lambda at: x[:, at], [weight], cut, transposed=transposed)
        out[...] = product.astype(out.dtype)

    by_rows = BlockSpec((inner, columns), lambda n, j: (0, j))
    by_columns = BlockSpec((columns, inner), lambda n, j: (j, 0))
    return call(
        kernel,
        (count // rows, width // columns),
        [(x, BlockSpec((rows, inner), lambda n, j: (n, 0))), (weight, by_columns if transposed else by_rows)],
        (Shape((count, width), x.dtype), BlockSpec((rows, columns), lambda n, j: (n, j))),
        cut,
    )


@with_runs
def draw(
    x: Sequence[Part],
    activation: Activation,
    weight: Float[Array, "hidden KC"],
    bias: Float[Array, " KC"],
    uniform: Float[Array, "N K"] | At,
    unimix: float,
    record: At,
    *,
    runs: int = 1,
) -> tuple[Float[Array, "N KC"], Float[Array, "T N F"]]:
    """Classes sampled from a softmax over `weight(act(sum(x))) + bias`, one-hot and flat.

    The second result is the record, whose last columns those classes are.
    """
    (count, variables), (inner, width) = uniform.shape, weight.shape
    classes = width // variables
    cut = (DRAW if count < MANY else DRAW_MANY).enough(count, width, runs)
    cut = cut._replace(columns=max(cut.columns, classes))
    rows, columns = cut.rows, cut.columns
    before = (record.shape[-1] - width) // columns

    def kernel(x, activation, weight, bias, uniform, out, kept):
        logits = dot(activated_sum(x, *activation), weight[...]) + bias[...][None]
        z = _sampled(logits, uniform[...], unimix).astype(out.dtype)
        out[...] = z
        kept[...] = z

    line = BlockSpec((inner,), lambda n, j: (0,))
    return call(
        kernel,
        (count // rows, width // columns),
        [
            [(part.array, BlockSpec((rows, inner), lambda n, j, i=part.index: (n, i))) for part in x],
            [vector if vector is None else (vector, line) for vector in activation],
            (weight, BlockSpec((inner, columns), lambda n, j: (0, j))),
            (bias, BlockSpec((columns,), lambda n, j: (j,))),
            (uniform, BlockSpec((rows, columns // classes), lambda n, j: (n, j))),
        ],
        (
            (Shape((count, width), weight.dtype), BlockSpec((rows, columns), lambda n, j: (n, j))),
            (record, BlockSpec((rows, columns), lambda n, j: (n, before + j))),
        ),
        cut,
    )


def _sampled(
    logits: Float[Array, "rows columns"], uniform: Float[Array, "rows variables"], unimix: float
) -> Float[Array, "rows columns"]:
    """Classes by the inverse of the cumulative distribution, one-hot."""
    shape = (*uniform.shape, logits.shape[1] // uniform.shape[1])
    logits, classes = logits.reshape(shape), shape[-1]
    weights = exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    probs = weights * ((1 - unimix) / jnp.sum(weights, axis=-1, keepdims=True)) + unimix / classes
    below = (jnp.cumsum(probs, axis=-1) <= uniform[..., None]).astype(jnp.int32)
    # The last class takes what rounding leaves of the unit interval.
    index = jnp.minimum(jnp.sum(below, axis=-1, keepdims=True), classes - 1)
    one_hot = jax.lax.broadcasted_iota(jnp.int32, shape, 2) == index
    return one_hot.astype(jnp.float32).reshape(shape[0], -1)
