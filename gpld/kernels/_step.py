"""The stages of a recurrent step of few states, forwards."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from gpld.kernels._tiles import NORM_EPS, Part, Tile, activated, call, inverse_rms, products, silu, tanh

HIDDEN, GRU, DRAW = Tile(warps=8), Tile(warps=4), Tile(columns=32)
DRAW_MANY = Tile(rows=64, columns=128, warps=8)


class Activation(NamedTuple):
    """What a kernel does to the rows it reads: add a bias, RMS norm with a scale, SiLU."""

    bias: Float[Array, " width"]
    scale: Float[Array, " width"]


def hidden(
    h: Float[Array, "N D"],
    entered: Sequence[Part],
    activations: Sequence[Activation],
    rest: Float[Array, "N D"],
    own: Float[Array, "G own own"],
    shared: Float[Array, "wide D"],
    keep: Float[Array, "N 1"],
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
        kept = keep[...]
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

    tile = pl.BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (h, pl.BlockSpec((rows, inner), lambda n, g, j: (n, g))),
            (rest, tile),
            (own, pl.BlockSpec((None, inner, columns), lambda n, g, j: (g, 0, j))),
            [
                (shared, pl.BlockSpec((width, columns), lambda n, g, j, i=i: (i, g * steps + j)))
                for i in range(len(entered))
            ],
            [(x.array, pl.BlockSpec((rows, width), lambda n, g, j, i=x.index: (n, i))) for x in entered],
            [tuple((x, pl.BlockSpec((width,), lambda n, g, j: (0,))) for x in pair) for pair in activations],
            (keep, pl.BlockSpec((rows, 1), lambda n, g, j: (n, 0))),
        ],
        [
            (jax.ShapeDtypeStruct(h.shape, h.dtype), tile),
            (
                jax.ShapeDtypeStruct((count, blocks * steps), jnp.float32),
                pl.BlockSpec((rows, 1), lambda n, g, j: (n, g * steps + j)),
            ),
        ],
        cut,
    )


def gru(
    x: Float[Array, "N D"],
    squares: Float[Array, "N tiles"],
    scale: Float[Array, " D"],
    h: Float[Array, "N D"],
    weight: Float[Array, "G own wide"],
    bias: Float[Array, " gates"],
    keep: Float[Array, "N 1"],
) -> Float[Array, "N D"]:
    """The next h from what `hidden` gives."""
    count, width = h.shape
    blocks, inner, _ = weight.shape
    cut = GRU.within(count, inner)
    rows, columns, steps = cut.rows, cut.columns, inner // cut.columns

    def kernel(x, squares, scale, h, weights, biases, keep, out):
        mean = jnp.sum(squares[...], axis=-1, keepdims=True) / width
        inverse = jax.lax.rsqrt(mean + NORM_EPS)
        sums = products(
            lambda at: silu(x[:, at].astype(jnp.float32) * inverse * scale[at][None]), weights, cut
        )
        gates = (y + b[...][None] for y, b in zip(sums, biases, strict=True))
        out[...] = follow(*gates, h[...].astype(jnp.float32) * keep[...]).astype(out.dtype)

    tile = pl.BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (x, pl.BlockSpec((rows, inner), lambda n, g, j: (n, g))),
            (squares, pl.BlockSpec((rows, squares.shape[1]), lambda n, g, j: (n, 0))),
            (scale, pl.BlockSpec((inner,), lambda n, g, j: (g,))),
            (h, tile),
            [
                (weight, pl.BlockSpec((None, inner, columns), lambda n, g, j, i=i: (g, 0, i * steps + j)))
                for i in range(3)
            ],
            [
                (bias, pl.BlockSpec((columns,), lambda n, g, j, i=i: ((3 * g + i) * steps + j,)))
                for i in range(3)
            ],
            (keep, pl.BlockSpec((rows, 1), lambda n, g, j: (n, 0))),
        ],
        (jax.ShapeDtypeStruct(h.shape, h.dtype), tile),
        cut,
    )


def follow(
    reset: Float[Array, "..."],
    candidate: Float[Array, "..."],
    update: Float[Array, "..."],
    h: Float[Array, "..."],
) -> Float[Array, "..."]:
    """The next h from gates and the last."""
    candidate = tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1)
    return update * candidate + (1 - update) * h


def draw(
    x: Part,
    add: Float[Array, "N hidden"] | None,
    scale: Float[Array, " hidden"],
    weight: Float[Array, "hidden KC"],
    bias: Float[Array, " KC"],
    uniform: Float[Array, "N K"],
    unimix: float,
) -> Float[Array, "N KC"]:
    """Classes sampled from a softmax over `weight(act(x + add)) + bias`, one-hot and flat."""
    count, inner = x.array.shape[0], weight.shape[0]
    classes = weight.shape[1] // uniform.shape[1]
    cut = (DRAW if count < DRAW_MANY.rows else DRAW_MANY).within(count, weight.shape[1])
    cut = cut._replace(depth=inner, columns=max(cut.columns, classes))
    rows, columns, variables = cut.rows, cut.columns, cut.columns // classes

    def kernel(x, add, scale, weight, bias, uniform, out):
        y = x[...].astype(jnp.float32)
        y = y if add is None else y + add[...].astype(jnp.float32)
        y = activated(y, scale[...])
        logits = products(lambda _: y, [weight], cut)[0] + bias[...][None]
        logits = logits.reshape(rows, variables, classes)
        weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        probs = (1 - unimix) * weights / jnp.sum(weights, axis=-1, keepdims=True) + unimix / classes
        below = (jnp.cumsum(probs, axis=-1) <= uniform[...][..., None]).astype(jnp.int32)
        # The last class takes what rounding leaves of the unit interval.
        index = jnp.minimum(jnp.sum(below, axis=-1, keepdims=True), classes - 1)
        one_hot = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == index
        out[...] = one_hot.astype(jnp.float32).reshape(rows, columns).astype(out.dtype)

    return call(
        kernel,
        (count // rows, weight.shape[1] // columns),
        [
            (x.array, pl.BlockSpec((rows, inner), lambda n, j: (n, x.index))),
            add if add is None else (add, pl.BlockSpec((rows, inner), lambda n, j: (n, 0))),
            (scale, pl.BlockSpec((inner,), lambda n, j: (0,))),
            (weight, pl.BlockSpec((inner, columns), lambda n, j: (0, j))),
            (bias, pl.BlockSpec((columns,), lambda n, j: (j,))),
            (uniform, pl.BlockSpec((rows, variables), lambda n, j: (n, j))),
        ],
        (
            jax.ShapeDtypeStruct((count, weight.shape[1]), weight.dtype),
            pl.BlockSpec((rows, columns), lambda n, j: (n, j)),
        ),
        cut,
    )
