"""What is drawn at random: states, rows and probes. And the mean over what was drawn."""

from typing import Literal

import jax
import jax.numpy as jnp

Noise = Literal["rademacher", "gaussian"]
Scaling = Literal["sampled", "all"]


def sampled_count(total: int, rho: float) -> int:
    """Number of states that a fraction `rho` of `total` amounts to: rounded down, at least one."""
    if not 0 < rho <= 1:
        raise ValueError(f"rho must be above 0 and at most 1, not {rho}")
    return max(1, int(rho * total))


def sample_states(key: jax.Array, total: int, rho: float) -> jax.Array:
    """Indices of a fraction `rho` of `total` states, uniformly and without replacement.

    Returns `[sampled_count(total, rho)]` distinct integers below `total`. Sorting random numbers of a
    thousand states takes a GPU 8 microseconds, whatever the number of runs: no cleverness pays.
    """
    count = sampled_count(total, rho)
    if count == total:
        return jnp.arange(total)
    return jax.random.permutation(key, total)[:count]


def sample_rows(key: jax.Array, rows: int, count: int) -> jax.Array:
    """Indices of `count` of `rows` rows, uniformly and without replacement: `[count]`."""
    if not 0 < count <= rows:
        raise ValueError(f"count must be between 1 and the number of rows, {rows}, not {count}")
    return jax.random.permutation(key, rows)[:count]


def take_states(x: jax.Array, indices: jax.Array) -> jax.Array:
    """The sampled states of `x [total, ...]`: `[n, ...]`.

    Like `x[indices]` for the distinct, valid indices of `sample_states`; saying that they are spares the
    backward pass its atomic additions.
    """
    return x.at[indices].get(unique_indices=True, mode="promise_in_bounds")


def draw_probes(
    key: jax.Array, shape: tuple[int, ...], noise: Noise = "rademacher", dtype: jnp.dtype | type = jnp.float32
) -> jax.Array:
    """Random probes of identity covariance: signs, or standard normal numbers.

    Either gives an unbiased estimate; signs give the one of smaller variance (`docs/penalty.md`).
    """
    if noise == "gaussian":
        return jax.random.normal(key, shape, dtype)
    if noise != "rademacher":
        raise ValueError(f"noise must be 'rademacher' or 'gaussian', not {noise!r}")
    size = 1
    for axis in shape:
        size *= axis
    # A sign needs one random bit, and random words are what costs time.
    words = jax.random.bits(key, ((size + 31) // 32, 1), jnp.uint32)
    bits = (words >> jnp.arange(32, dtype=jnp.uint32)[None]) & jnp.uint32(1)
    return (2 * bits.reshape(-1)[:size].astype(dtype) - 1).reshape(shape)


def average(values: jax.Array, total: int, scaling: Scaling = "sampled") -> jax.Array:
    """Mean penalty of a batch of `total` states from the values `[n]` of the sampled ones.

    "sampled" divides by n, as Algorithm 1 of the paper does. "all" divides by `total`, which is what the
    authors' code does: its effective weight is n/total times the coefficient.
    """
    if scaling == "sampled":
        return jnp.mean(values)
    if scaling != "all":
        raise ValueError(f"scaling must be 'sampled' or 'all', not {scaling!r}")
    return jnp.sum(values) / total
