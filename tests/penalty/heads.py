"""Random heads, and their probabilities by plain code that shares nothing with the library."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpld.penalty import Head, Hidden, Output


def random_head(
    key: jax.Array,
    *,
    inputs: int = 7,
    hidden: tuple[int, ...] = (6,),
    rows: int = 3,
    classes: int = 4,
    norm: str | None = "rms",
    activation: str | Callable[[jax.Array], jax.Array] = "silu",
    unimix: float = 0.01,
    bias: bool = True,
    sharpness: float = 2.0,
    dtype: jnp.dtype | type | None = None,
) -> Head:
    keys = iter(jax.random.split(key, 5 * len(hidden) + 2))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype)

    layers, width = [], inputs
    for out in hidden:
        kernel = normal(width, out) / width**0.5
        affine = (1 + normal(out) / 3, normal(out) / 3) if norm is not None else (None, None)
        layers.append(Hidden(kernel, normal(out) / 3 if bias else None, *affine))
        width = out
    out = Output(
        sharpness * normal(width, rows * classes) / width**0.5, normal(rows * classes) if bias else None
    )
    return Head(tuple(layers), out, rows, norm, 1e-3, activation, unimix)


def probabilities(head: Head, u: jax.Array) -> jax.Array:
    """Probabilities `[K, C]` at one state `u [d]`."""
    activation = getattr(jax.nn, head.activation) if isinstance(head.activation, str) else head.activation
    x = u
    for kernel, bias, scale, shift in head.layers:
        x = x @ kernel
        x = x if bias is None else x + bias
        if head.norm == "layer":
            x = x - jnp.mean(x)
        if head.norm is not None:
            x = x / jnp.sqrt(jnp.mean(x * x) + head.eps)
            x = x if scale is None else x * scale
            x = x if shift is None else x + shift
        x = activation(x)
    logits = x @ head.out.kernel
    logits = logits if head.out.bias is None else logits + head.out.bias
    probs = jax.nn.softmax(logits.reshape(head.rows, -1), axis=-1)
    return (1 - head.unimix) * probs + head.unimix / probs.shape[-1]


def full_jacobian(head: Head, u: jax.Array) -> jax.Array:
    """Jacobian `[K, C, d]` at one state."""
    return jax.jacrev(lambda u: probabilities(head, u))(u)


def penalty_rows(head: Head, u: jax.Array) -> jax.Array:
    """Squared Frobenius norm of each row's Jacobian, `[K]`, at one state."""
    return jnp.sum(jnp.square(full_jacobian(head, u)), axis=(1, 2))


def relative_error(actual, expected) -> float:
    """Largest difference over largest entry, the worst of all leaves of two trees."""
    errors = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))), actual, expected)
    return max(jax.tree.leaves(errors))
