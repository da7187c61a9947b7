"""The heavy steps of the closed form, with derivatives written out.

Automatic differentiation gets them right too. Written out they take fewer products, and fewer passes over
large arrays: on a GPU, moving those is what takes the time. Two habits keep XLA's kernels fast. Vectors are
the lines of one matrix, whose order in memory leaves no choice: of arrays of three axes it makes transposed
copies. And sums of large arrays stand behind barriers: fused with what surrounds them, they take several
times as long.
"""

from functools import partial

import jax
import jax.numpy as jnp

from gpld.penalty._head import dot


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def gram(kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`kernel' kernel [width, width]` of a kernel `[d, width]`."""
    return dot(kernel.T, kernel, dtype)


def _gram_forward(kernel: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    return gram(kernel, dtype), kernel


def _gram_backward(dtype: jnp.dtype, kernel: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    return (dot(kernel, cotangent + cotangent.T, dtype),)


gram.defvjp(_gram_forward, _gram_backward)


def for_all_vectors(x: jax.Array, v: jax.Array) -> jax.Array:
    """`x [N, width]`, one line a state, repeated for vectors `v [M * N, width]`."""
    return jnp.tile(x, (v.shape[0] // x.shape[0], 1))


def _over_vectors(x: jax.Array, states: int) -> jax.Array:
    """Sum `[N, width]` over the M vectors `x [M * N, width]` at each state."""
    return jnp.sum(x.reshape(-1, states, x.shape[1]), axis=0)


@jax.custom_vjp
def squared_norms(v: jax.Array, diag: jax.Array | None, metric: jax.Array) -> jax.Array:
    """`(diag v)' metric (diag v)` of M vectors at each of N states, for a symmetric metric.

    Args:
        v: `[M * N, width]`, in the type that products are to be made in.
        diag: `[N, width]`, or None for ones.
        metric: `[width, width]`.

    Returns:
        `[M * N]`.
    """
    return _squared_norms_forward(v, diag, metric)[0]


def _squared_norms_forward(
    v: jax.Array, diag: jax.Array | None, metric: jax.Array
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    w = v if diag is None else (for_all_vectors(diag, v) * v.astype(diag.dtype)).astype(v.dtype)
    lowered = w @ metric.astype(v.dtype)
    value = jnp.sum(w.astype(metric.dtype) * lowered.astype(metric.dtype), axis=1)
    return value, (v, w, lowered, diag)


def _squared_norms_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array | None, ...]:
    v, w, lowered, diag = residuals

    def gradient(cotangent: jax.Array, lowered: jax.Array) -> jax.Array:
        return 2 * cotangent[:, None] * lowered.astype(cotangent.dtype)

    weighted = (cotangent[:, None] * w.astype(cotangent.dtype)).astype(v.dtype)
    d_metric = jnp.matmul(w.T, weighted, preferred_element_type=cotangent.dtype)
    d_w = gradient(cotangent, lowered)
    if diag is None:
        return d_w.astype(v.dtype), None, d_metric
    d_v = (for_all_vectors(diag, v) * d_w).astype(v.dtype)
    v, lowered, cotangent = jax.lax.optimization_barrier((v, lowered, cotangent))
    d_diag = _over_vectors(gradient(cotangent, lowered) * v.astype(diag.dtype), diag.shape[0])
    return d_v, d_diag, d_metric


squared_norms.defvjp(_squared_norms_forward, _squared_norms_backward)


@jax.custom_vjp
def through_norm(v: jax.Array, diag: jax.Array, unit: jax.Array) -> jax.Array:
    """`(I - unit unit') diag v` of M vectors at each of N states.

    Args:
        v: `[M * N, width]`.
        diag: `[N, width]`.
        unit: `[N, width]`.

    Returns:
        `[M * N, width]`, in the type of `v`.
    """
    return _through_norm_forward(v, diag, unit)[0]


def _through_norm_forward(v: jax.Array, diag: jax.Array, unit: jax.Array) -> tuple[jax.Array, tuple]:
    w, units = for_all_vectors(diag, v) * v.astype(diag.dtype), for_all_vectors(unit, v)
    along = jnp.sum(units * w, axis=1, keepdims=True)
    return (w - units * along).astype(v.dtype), (v, diag, unit, along)


def _through_norm_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, ...]:
    v, diag, unit, along = residuals
    units = for_all_vectors(unit, v)
    back = jnp.sum(units * cotangent.astype(unit.dtype), axis=1, keepdims=True)
    d_v = for_all_vectors(diag, v) * (cotangent.astype(unit.dtype) - units * back)
    v, cotangent, along, back = jax.lax.optimization_barrier((v, cotangent, along, back))
    d_w, wide = cotangent.astype(unit.dtype), v.astype(unit.dtype)
    d_diag = _over_vectors((d_w - units * back) * wide, unit.shape[0])
    d_unit = _over_vectors(along * d_w, unit.shape[0]) + diag * _over_vectors(back * wide, unit.shape[0])
    return d_v.astype(v.dtype), d_diag, -d_unit


through_norm.defvjp(_through_norm_forward, _through_norm_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def column_norms(diag: jax.Array, kernel: jax.Array, metric: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`(diag k_j)' metric (diag k_j)` of all J columns of a kernel at each of N states.

    Written as one matrix product over pairs (a, b) of units, of `diag_a diag_b`, which knows the states,
    with `metric_ab k_aj k_bj`, which knows the columns, it never forms the `[N, width, J]` array of scaled
    columns; and as the pairs are symmetric, only one of the two off-diagonal quarters is needed.

    Args:
        diag: `[N, width]`.
        kernel: `[width, J]`.
        metric: `[width, width]`, symmetric.
        dtype: type of the operands of the product.

    Returns:
        `[N, J]`.
    """
    blocks = _pair_blocks(diag, kernel, metric, dtype)
    return sum(jnp.matmul(s, c, preferred_element_type=diag.dtype) for _, _, s, c in blocks)


def _pair_blocks(
    diag: jax.Array, kernel: jax.Array, metric: jax.Array, dtype: jnp.dtype
) -> list[tuple[slice, slice, jax.Array, jax.Array]]:
    """For each block of pairs: the slices of a and b, and the operands `[N, ab]` and `[ab, J]`."""
    (states, width), columns = diag.shape, kernel.shape[1]
    low, high = slice(0, width // 2), slice(width // 2, width)
    blocks = []
    for a, b in ((low, low), (high, high), (low, high)) if width > 1 else ((high, high),):
        weight = metric[a, b] * (1 if a == b else 2)
        by_state = (diag[:, a, None] * diag[:, None, b]).astype(dtype)
        by_column = (weight[:, :, None] * kernel[a, None] * kernel[None, b]).astype(dtype)
        blocks.append((a, b, by_state.reshape(states, weight.size), by_column.reshape(weight.size, columns)))
    return blocks


def _column_norms_forward(
    diag: jax.Array, kernel: jax.Array, metric: jax.Array, dtype: jnp.dtype
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return column_norms(diag, kernel, metric, dtype), (diag, kernel, metric)


def _column_norms_backward(
    dtype: jnp.dtype, residuals: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, ...]:
    diag, kernel, metric = residuals
    d_diag, d_kernel, d_metric = map(jnp.zeros_like, residuals)
    cotangent = cotangent.astype(dtype)
    for a, b, by_state, by_column in _pair_blocks(diag, kernel, metric, dtype):
        shape, times = metric[a, b].shape, 1 if a == b else 2
        d_state = (cotangent @ by_column.T).reshape(-1, *shape)
        d_column = (by_state.T @ cotangent).reshape(*shape, -1)
        d_column, left, right, pairs = jax.lax.optimization_barrier(
            (d_column, kernel[a], kernel[b], times * metric[a, b])
        )
        d_column, left, right = d_column.astype(kernel.dtype), left[:, None], right[None]
        weighted = d_column * pairs[:, :, None]
        d_diag_a, d_kernel_a = _sum_over_b(d_state, diag[:, b]), jnp.sum(weighted * right, axis=1)
        if a == b:  # symmetric: the other half is the same
            d_diag_b, d_kernel_b = d_diag_a, d_kernel_a
        else:
            d_diag_b, d_kernel_b = _sum_over_a(d_state, diag[:, a]), jnp.sum(weighted * left, axis=0)
        d_diag = d_diag.at[:, a].add(d_diag_a).at[:, b].add(d_diag_b)
        d_kernel = d_kernel.at[a].add(d_kernel_a).at[b].add(d_kernel_b)
        d_metric = d_metric.at[a, b].add(times * jnp.sum(d_column * left * right, axis=2))
    return jax.lax.optimization_barrier((d_diag, d_kernel, d_metric))


def _sum_over_b(d_state: jax.Array, diag: jax.Array) -> jax.Array:
    """Sum of `d_state [N, a, b]` weighted by `diag [N, b]`."""
    d_state, diag = jax.lax.optimization_barrier((d_state, diag))
    return jnp.sum(d_state.astype(diag.dtype) * diag[:, None], axis=2)


def _sum_over_a(d_state: jax.Array, diag: jax.Array) -> jax.Array:
    """Sum of `d_state [N, a, b]` weighted by `diag [N, a]`."""
    shape = d_state.shape
    flat, diag = jax.lax.optimization_barrier((d_state.reshape(shape[0], -1), diag))
    # Weighted as matrices, whose order in memory leaves no choice.
    weighted = flat.astype(diag.dtype) * jnp.repeat(diag, shape[2], axis=1)
    return jnp.sum(weighted.reshape(shape), axis=1)


column_norms.defvjp(_column_norms_forward, _column_norms_backward)
