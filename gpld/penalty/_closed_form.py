"""The penalty of an MLP head in closed form: first-order code, no Jacobian, no double backward.

Row i's cotangent is pulled back by hand through softmax, output layer and hidden layers to a vector g in the
space of the first preactivation y = W'u + b. There the squared norm of the pull-back to the state is

    || W g ||^2 = g' (W'W) g

so the wide state never appears: only the Gram matrix of the first kernel does. With A = W'W, and a first
layer whose slope is (I - unit unit') diag,

    (I - unit unit') A (I - unit unit') = A - unit c' - c unit',   c = A unit - (unit' A unit) / 2 * unit

so with one hidden layer the norm adds two inner products to the squared norm of each vector scaled by `diag`,
and they come from small tables. `docs/penalty.md` has the derivation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpld.penalty._estimators import Rows
from gpld.penalty._forms import column_norms, for_all_vectors, gram, squared_norms, through_norm
from gpld.penalty._head import Head, Slope, centred, dot, hidden_layers, restrict


def closed_form(
    head: Head,
    y: jax.Array,
    epsilon: jax.Array | None = None,
    *,
    rows: Rows = None,
    dtype: jnp.dtype | type | None = None,
) -> jax.Array:
    """Mean over rows of the squared Frobenius norm of row i's Jacobian by the state, for each state.

    Args:
        head: the head; its gradient is that of differentiating the full Jacobian.
        y: first preactivation `[N, hidden]` (`first_preactivation(head, u)`), which a model has computed
            anyway; differentiating by it reaches the state.
        epsilon: probes `[P, N, rows, C]` (`draw_probes`) for an unbiased estimate, or None for the exact
            value.
        rows: all rows (None), the first `rows`, or the rows of an index array.
        dtype: type of the operands of matrix products, such as `jnp.bfloat16`; the parameters' by default.
            Sums, probabilities and the result keep the parameters' type.

    Returns:
        `[N]`.
    """
    return jnp.mean(closed_form_rows(head, y, epsilon, rows=rows, dtype=dtype), axis=1)


def closed_form_rows(
    head: Head,
    y: jax.Array,
    epsilon: jax.Array | None = None,
    *,
    rows: Rows = None,
    dtype: jnp.dtype | type | None = None,
) -> jax.Array:
    """Squared Frobenius norm of every row's Jacobian at each state, `[N, rows]`: see `closed_form`."""
    states = _evaluate(head, y, rows, jnp.dtype(head.out.kernel.dtype if dtype is None else dtype))
    if epsilon is not None:
        epsilon = epsilon.astype(states.logits.dtype)
        value = jnp.mean(_pulled_back(states, _through_softmax(states.probs, epsilon)), axis=0)
    elif len(head.layers) == 1:
        value = _exact_one_layer(states)
    else:
        value = _exact_by_class(states)
    return (1 - head.unimix) ** 2 * value


class _Evaluated(NamedTuple):
    """What the forward pass leaves behind for the pull-back."""

    logits: jax.Array
    """`[N, rows, C]`."""
    kernel: jax.Array
    """Output layer, `[width, rows, C]`."""
    between: list[tuple[jax.Array, Slope]]
    """Kernel and slope of every hidden layer but the first, the last one first."""
    first: Slope
    """Slope of the first hidden layer."""
    metric: jax.Array
    """Gram matrix of the first kernel, `[hidden, hidden]`."""
    table: tuple[jax.Array, jax.Array] | None
    """With one hidden layer and a norm, diag * unit and diag * c times the output kernel: `[N, rows, C]`."""
    dtype: jnp.dtype

    @property
    def probs(self) -> jax.Array:
        return jax.nn.softmax(self.logits, axis=-1)


def _evaluate(head: Head, y: jax.Array, rows: Rows, dtype: jnp.dtype) -> _Evaluated:
    kernel, bias = restrict(head, rows)
    kernels = [centred(head, layer.kernel) for layer in head.layers]
    a, (first, *slopes) = hidden_layers(head, y.astype(kernel.dtype), dtype)
    metric, table = gram(kernels[0], dtype), None
    if slopes or first.unit is None:
        logits = _read_out(a, kernel, dtype)
    else:  # one product for the logits and the table
        lowered = dot(first.unit, metric, dtype)
        c = lowered - jnp.sum(first.unit * lowered, axis=1, keepdims=True) * first.unit / 2
        stacked = jnp.stack([a, first.diag * first.unit, first.diag * c])
        logits, *table = _read_out(stacked, kernel, dtype)
    between = list(zip(kernels[1:], slopes, strict=True))[::-1]
    return _Evaluated(logits + bias[None], kernel, between, first, metric, table, dtype)


def _read_out(a: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    width, *out = kernel.shape
    flat = dot(a.reshape(-1, width), kernel.reshape(width, -1), dtype)
    return flat.reshape(*a.shape[:-1], *out)


def _through_softmax(probs: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Cotangents of the probabilities, `[P, N, rows, C]`, pulled back to the logits."""
    probs = jnp.broadcast_to(probs, epsilon.shape)
    return probs * (epsilon - jnp.sum(probs * epsilon, axis=-1, keepdims=True))


def _pulled_back(states: _Evaluated, cotangents: jax.Array) -> jax.Array:
    """Squared norms `[P, N, rows]`, at the state, of cotangents `[P, N, rows, C]` of the logits."""
    probes, number, rows, classes = cotangents.shape
    by_row = cotangents.transpose(0, 2, 1, 3).reshape(probes * rows, number, classes).astype(states.dtype)
    kernel = jnp.tile(states.kernel.transpose(1, 2, 0), (probes, 1, 1)).astype(states.dtype)
    v = (by_row @ kernel).reshape(probes * rows * number, -1)
    for kernel, slope in states.between:
        v = _through_layer(v, slope) @ kernel.T.astype(states.dtype)
    if states.table is None:
        value = squared_norms(_through_layer(v, states.first), None, states.metric)
    else:
        value = squared_norms(v, states.first.diag, states.metric)
    value = value.reshape(probes, rows, number).transpose(0, 2, 1)
    if states.table is None:
        return value
    along_unit, along_c = (jnp.sum(cotangents * table[None], axis=-1) for table in states.table)
    return value - 2 * along_unit * along_c


def _through_layer(v: jax.Array, slope: Slope) -> jax.Array:
    """Cotangents `[M * N, width]` of a hidden layer's output, pulled back to its preactivation."""
    if slope.unit is not None:
        return through_norm(v, slope.diag, slope.unit)
    return (for_all_vectors(slope.diag, v) * v.astype(slope.diag.dtype)).astype(v.dtype)


def _exact_by_class(states: _Evaluated) -> jax.Array:
    """The sum over all C basis vectors as probes, one at a time to hold no more than one in memory."""
    probs = states.probs

    def add(total: jax.Array, basis: jax.Array) -> tuple[jax.Array, None]:
        epsilon = jnp.broadcast_to(basis, (1, *probs.shape))
        return total + _pulled_back(states, _through_softmax(probs, epsilon))[0], None

    basis = jnp.eye(probs.shape[-1], dtype=probs.dtype)
    return jax.lax.scan(jax.checkpoint(add), jnp.zeros_like(probs[..., 0]), basis)[0]


def _exact_one_layer(states: _Evaluated) -> jax.Array:
    """The sum over all classes by the structure of softmax's Jacobian.

    Row c of the Jacobian is p_c (x_c - mean), with x_c the pull-back of logit c and mean = sum_c p_c x_c.
    Rows sum to zero, so the likeliest class' row follows from the others'; leaving it out keeps the sum of
    squares free of cancellation for confident rows:

        sum_c p_c^2 |x_c - mean|^2
            = sum_others p_c^2 |x_c|^2 + s (|m - mean|^2 - |m|^2) + p_top^2 |x_top - mean|^2

    with s = sum_others p_c^2 and m the mean of the others weighted by p_c^2. All |x_c|^2 come from one matrix
    product, and the three vectors are pulled back like probes.
    """
    probs, (width, rows, classes) = states.probs, states.kernel.shape
    columns = column_norms(states.first.diag, states.kernel.reshape(width, -1), states.metric, states.dtype)
    columns = jnp.reshape(columns, (-1, rows, classes))
    if states.table is not None:
        columns = columns - 2 * states.table[0] * states.table[1]

    top = jax.nn.one_hot(jnp.argmax(states.logits, axis=-1), classes, dtype=probs.dtype)
    squares = jnp.square(probs * (1 - top))
    total = jnp.sum(squares, axis=-1)
    others = jnp.where(top > 0, jnp.finfo(probs.dtype).min, 2 * states.logits)
    weights = jax.nn.softmax(others, axis=-1)  # squares / total, safe where total underflows
    vectors = weights, weights - probs, top - probs
    mean_others, to_others, to_top = (_pulled_back(states, v[None])[0] for v in vectors)
    top_probs = jnp.sum(top * probs, axis=-1)
    return (
        jnp.sum(squares * columns, axis=-1)
        + total * (to_others - mean_others)
        + jnp.square(top_probs) * to_top
    )
