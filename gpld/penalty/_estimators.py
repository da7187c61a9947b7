"""The penalty of any differentiable map from one state `u [d]` to rows `[K, C]`. Batches by `jax.vmap`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpld.penalty._sampling import Noise, draw_probes

Map = Callable[[jax.Array], jax.Array]
Rows = int | jax.Array | None


def hutchinson(
    fn: Map, u: jax.Array, key: jax.Array, *, probes: int = 1, rows: Rows = None, noise: Noise = "rademacher"
) -> jax.Array:
    """Unbiased estimate of the mean over rows of the squared Frobenius norm of row i's Jacobian.

    Args:
        fn: the map from `u [d]` to `[K, C]`; parameters may be closed over and differentiated by.
        u: one state, `[d]`.
        key: random key.
        probes: random probes per row; the estimate is their mean.
        rows: all rows (None), the first `rows`, or the rows of an index array.
        noise: distribution of the probes.

    Returns:
        A scalar. One evaluation of `fn` serves all rows and probes.
    """
    fn = _select(fn, rows)
    shape = jax.eval_shape(fn, u)
    return probed(fn, u, draw_probes(key, (probes, *shape.shape), noise, shape.dtype))


def probed(fn: Map, u: jax.Array, epsilon: jax.Array, *, rows: Rows = None) -> jax.Array:
    """The estimate of `hutchinson` from given probes `epsilon [P, rows, C]`: a scalar."""
    q, vjp = jax.vjp(_select(fn, rows), u)
    own_row = jnp.eye(q.shape[0], dtype=q.dtype)[None, :, :, None]
    cotangents = own_row * epsilon.astype(q.dtype)[:, :, None]  # [P, row, K, C], zero in other rows
    (gradients,) = jax.vmap(jax.vmap(vjp))(cotangents)
    return jnp.sum(jnp.square(gradients)) / (epsilon.shape[0] * q.shape[0])


def exact(fn: Map, u: jax.Array, *, rows: Rows = None) -> jax.Array:
    """Mean over rows of the squared Frobenius norm of row i's Jacobian, by the full Jacobian.

    Forward mode where `u` is narrower than the output, reverse mode elsewhere.

    Args:
        fn: the map from `u [d]` to `[K, C]`.
        u: one state, `[d]`.
        rows: all rows (None), the first `rows`, or the rows of an index array.

    Returns:
        A scalar.
    """
    fn = _select(fn, rows)
    shape = jax.eval_shape(fn, u)
    jacobian = jax.jacfwd if u.size < shape.size else jax.jacrev
    return jnp.sum(jnp.square(jacobian(fn)(u))) / shape.shape[0]


def _select(fn: Map, rows: Rows) -> Map:
    """The map to some rows, which checks that it is one to rows at all."""

    def selected(u: jax.Array) -> jax.Array:
        q = fn(u)
        if jnp.ndim(q) != 2:
            raise ValueError(
                f"the map must return [K, C] of one state, not {list(jnp.shape(q))}; batches go by jax.vmap"
            )
        return take_rows(q, rows)

    return selected


def take_rows(x: jax.Array, rows: Rows, axis: int = 0) -> jax.Array:
    """All rows of an axis, its first `rows`, or the rows of an index array."""
    if rows is None:
        return x
    if not isinstance(rows, int):
        return jnp.take(x, rows, axis=axis)
    if not 0 < rows <= x.shape[axis]:
        raise ValueError(f"rows must be between 1 and {x.shape[axis]}, not {rows}")
    return jax.lax.slice_in_dim(x, 0, rows, axis=axis)
