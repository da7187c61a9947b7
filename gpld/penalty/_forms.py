"""The three heavy products of the closed form, with derivatives written out.

Automatic differentiation gets all three right too. Written out, they do fewer products, and XLA finds fewer
large arrays to move: on a GPU, moving them is what takes the time.
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


@jax.custom_vjp
def squared_norms(v: jax.Array, diag: jax.Array, metric: jax.Array) -> jax.Array:
    """`(diag v)' metric (diag v)` of M vectors at each of N states, for a symmetric metric.

    Args:
        v: `[M, N, width]`, in the type that products are to be made in.
        diag: `[N, width]`.
        metric: `[width, width]`.

    Returns:
        `[M, N]`.
    """
    return _squared_norms_forward(v, diag, metric)[0]


def _squared_norms_forward(v: jax.Array, diag: jax.Array, metric: jax.Array) -> tuple[jax.Array, tuple]:
    w = (diag[None] * v.astype(diag.dtype)).astype(v.dtype)
    lowered = w @ metric.astype(v.dtype)
    value = jnp.sum(w.astype(diag.dtype) * lowered.astype(diag.dtype), axis=-1)
    return value, (v, w, lowered, diag)


def _squared_norms_backward(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, ...]:
    v, w, lowered, diag = residuals

    def gradient(cotangent: jax.Array, lowered: jax.Array) -> jax.Array:
        return 2 * cotangent[..., None] * lowered.astype(diag.dtype)

    d_v = (diag[None] * gradient(cotangent, lowered)).astype(v.dtype)
    weighted = (cotangent[..., None] * w.astype(diag.dtype)).astype(v.dtype)
    d_metric = jnp.einsum("mna,mnb->ab", w, weighted, preferred_element_type=diag.dtype)
    # The barrier keeps XLA from fusing this sum with the arrays above into one slow kernel.
    v, lowered, cotangent = jax.lax.optimization_barrier((v, lowered, cotangent))
    d_diag = jnp.sum(gradient(cotangent, lowered) * v.astype(diag.dtype), axis=0)
    return d_v, d_diag, d_metric


squared_norms.defvjp(_squared_norms_forward, _squared_norms_backward)


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
        times = 1 if a == b else 2
        left, right, weight = kernel[a, None], kernel[None, b], (times * metric[a, b])[:, :, None]
        d_state = (cotangent @ by_column.T).reshape(-1, *weight.shape[:2])
        d_column = (by_state.T @ cotangent).reshape(*weight.shape[:2], -1).astype(kernel.dtype)
        d_diag_a, d_kernel_a = _sum_over_b(d_state, diag[:, b]), jnp.sum(d_column * weight * right, axis=1)
        if a == b:  # symmetric: the other half is the same
            d_diag_b, d_kernel_b = d_diag_a, d_kernel_a
        else:
            d_diag_b, d_kernel_b = _sum_over_a(d_state, diag[:, a]), jnp.sum(d_column * weight * left, axis=0)
        d_diag = d_diag.at[:, a].add(d_diag_a).at[:, b].add(d_diag_b)
        d_kernel = d_kernel.at[a].add(d_kernel_a).at[b].add(d_kernel_b)
        d_metric = d_metric.at[a, b].add(times * jnp.sum(d_column * left * right, axis=2))
    return jax.lax.optimization_barrier((d_diag, d_kernel, d_metric))


def _sum_over_b(d_state: jax.Array, diag: jax.Array) -> jax.Array:
    d_state, diag = jax.lax.optimization_barrier((d_state, diag))
    return jnp.sum(d_state.astype(diag.dtype) * diag[:, None], axis=2)


def _sum_over_a(d_state: jax.Array, diag: jax.Array) -> jax.Array:
    d_state, diag = jax.lax.optimization_barrier((d_state, diag))
    return jnp.sum(d_state.astype(diag.dtype) * diag[:, :, None], axis=1)


column_norms.defvjp(_column_norms_forward, _column_norms_backward)
