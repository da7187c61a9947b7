"""How the penalty's weight decays: plain functions of the number of updates.

Each takes the updates made since the penalty started and the initial weight `base`, both numbers or arrays,
and returns the weight. All work inside `jax.jit` and under `jax.vmap` over `base` and `floor`. `coefficient`
chooses one by name and adds the start.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Kind = Literal["sqrt", "none", "linear", "exponential", "cosine", "step", "custom"]


def sqrt(
    updates: ArrayLike, base: ArrayLike, *, scale: ArrayLike = 1000.0, floor: ArrayLike = 0.001
) -> jax.Array:
    """max(base / sqrt(1 + updates / scale), floor): the paper's schedule (Algorithm 2)."""
    return jnp.maximum(_number(base) / jnp.sqrt(1 + _number(updates) / scale), _number(floor))


def none(updates: ArrayLike, base: ArrayLike) -> jax.Array:
    """`base`, always."""
    return _number(base) + 0 * _number(updates)


def linear(
    updates: ArrayLike, base: ArrayLike, *, decay_steps: ArrayLike = 100_000, floor: ArrayLike = 0.001
) -> jax.Array:
    """From `base` to `floor` on a straight line over `decay_steps` updates."""
    floor = _number(floor)
    return floor + (_number(base) - floor) * (1 - _progress(updates, decay_steps))


def exponential(
    updates: ArrayLike, base: ArrayLike, *, decay_steps: ArrayLike = 100_000, floor: ArrayLike = 0.001
) -> jax.Array:
    """Towards `floor` by a factor of e^-5 over `decay_steps` updates, then constant a little above it."""
    floor = _number(floor)
    return floor + (_number(base) - floor) * jnp.exp(-5 * _progress(updates, decay_steps))


def cosine(
    updates: ArrayLike, base: ArrayLike, *, decay_steps: ArrayLike = 100_000, floor: ArrayLike = 0.001
) -> jax.Array:
    """From `base` to `floor` along half a cosine over `decay_steps` updates."""
    floor = _number(floor)
    return floor + (_number(base) - floor) * (1 + jnp.cos(jnp.pi * _progress(updates, decay_steps))) / 2


def step(
    updates: ArrayLike,
    base: ArrayLike,
    *,
    step_interval: ArrayLike = 10_000,
    step_factor: ArrayLike = 0.5,
    floor: ArrayLike = 0.001,
) -> jax.Array:
    """Times `step_factor` every `step_interval` updates, never below `floor`."""
    drops = jnp.floor(_number(updates) / step_interval)
    return jnp.maximum(_number(base) * step_factor**drops, _number(floor))


def custom(
    updates: ArrayLike, base: ArrayLike, *, table: Sequence[tuple[int, float]], floor: ArrayLike = 0.001
) -> jax.Array:
    """The weight of the last pair (update, weight) reached, `base` before the first, never below `floor`."""
    value = none(updates, base)
    for since, weight in sorted(table):
        value = jnp.where(_number(updates) >= since, weight, value)
    return jnp.maximum(value, _number(floor))


def coefficient(
    kind: Kind,
    updates: ArrayLike,
    base: ArrayLike,
    *,
    start: ArrayLike = 0,
    floor: ArrayLike = 0.001,
    scale: ArrayLike = 1000.0,
    decay_steps: ArrayLike = 100_000,
    step_interval: ArrayLike = 10_000,
    step_factor: ArrayLike = 0.5,
    table: Sequence[tuple[int, float]] = (),
) -> jax.Array:
    """Weight of the penalty after `updates` updates, by the schedule called `kind`.

    Args:
        kind: name of a schedule of this module.
        updates: updates made so far.
        base: initial weight; 0 or less is returned as it is, so that a baseline stays one.
        start: updates before the penalty starts; the weight is 0 until then, and the schedule counts from it.
        floor: smallest weight; "none" ignores it.
        scale: updates after which "sqrt" has fallen to 1/sqrt(2).
        decay_steps: length of "linear", "exponential" and "cosine".
        step_interval: updates between the drops of "step".
        step_factor: factor of each drop of "step".
        table: (update, weight) pairs of "custom".
    """
    elapsed, base = _number(updates) - _number(start), _number(base)
    since = jnp.maximum(elapsed, 0)
    match kind:
        case "sqrt":
            value = sqrt(since, base, scale=scale, floor=floor)
        case "none":
            value = none(since, base)
        case "linear":
            value = linear(since, base, decay_steps=decay_steps, floor=floor)
        case "exponential":
            value = exponential(since, base, decay_steps=decay_steps, floor=floor)
        case "cosine":
            value = cosine(since, base, decay_steps=decay_steps, floor=floor)
        case "step":
            value = step(since, base, step_interval=step_interval, step_factor=step_factor, floor=floor)
        case "custom":
            value = custom(since, base, table=table, floor=floor)
        case _:
            raise ValueError(f"schedule must be one of {', '.join(Kind.__args__)}, not {kind!r}")
    value = jnp.where(elapsed < 0, 0, value)
    return jnp.where(base > 0, value, base)


def _progress(updates: ArrayLike, decay_steps: ArrayLike) -> jax.Array:
    return jnp.minimum(_number(updates) / decay_steps, 1)


def _number(x: ArrayLike) -> jax.Array:
    return jnp.asarray(x).astype(jnp.result_type(float))
