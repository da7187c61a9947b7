"""Replays in checkpoints: steps never change once appended, latents do, so they are saved apart.

Every array has the layout of the rings, `[S, n, ...]` for n consecutive steps in the order of time, with a
leading axis if the replay holds several runs. Chunks are joined on axis -2.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Shaped

from gpld.replay._ring import Replay


def stored(replay: Replay) -> range:
    """The steps that every stream holds now, the oldest first. Runs in one replay move in lock-step."""
    (appended,) = set(np.ravel(np.asarray(replay.appended)).tolist())
    return range(max(appended - replay.slots, 0), appended)


def export_steps(replay: Replay, begin: int, end: int) -> Shaped[Array | np.ndarray, "*R S n F"]:
    """A copy of the steps [`begin`, `end`), without latents, where the replay is: on the device or the host.

    Being a copy, it can be fetched by another thread while training changes the replay.
    """
    return _read(replay.steps, _held_slots(replay, begin, end))


def export_latents(replay: Replay, begin: int, end: int) -> dict[str, Shaped[Array | np.ndarray, "*R S n _"]]:
    """A copy of the latents of the steps [`begin`, `end`), "h" and "z" in the types they are stored in."""
    slots = _held_slots(replay, begin, end)
    return {"h": _read(replay.h, slots), "z": _read(replay.z, slots)}


def restore(
    replay: Replay,
    begin: int,
    steps: Shaped[Array | np.ndarray, "*R S n F"],
    latents: dict[str, Shaped[Array | np.ndarray, "*R S n _"]],
    consumed: int | Int32[Array | np.ndarray, "*R"],
) -> Replay:
    """Put n exported steps and their latents back, and the counters as they were after the last of them.

    Starting from an empty replay, one call with all `stored` steps, or several with consecutive chunks of
    them, gives the same bits as the replay exported from. It must have as many slots, or more if that one
    never came around its rings. A replay on the device is donated.
    """
    count = steps.shape[-2]
    if count > replay.slots:
        raise ValueError(f"{count} steps a stream do not fit in a replay of {replay.slots} slots")
    for name, ring, values in (
        ("steps", replay.steps, steps),
        ("h", replay.h, latents["h"]),
        ("z", replay.z, latents["z"]),
    ):
        expected = (*ring.shape[:-2], count, ring.shape[-1])
        if values.shape != expected or values.dtype != ring.dtype:
            raise ValueError(
                f"the checkpoint's {name} are {values.dtype}{list(values.shape)}, "
                f"but the replay needs {ring.dtype}{list(expected)}"
            )
    slots = _slots(replay, begin, begin + count)
    xp = np if replay.host else jnp
    shape = replay.appended.shape
    return replace(
        replay,
        steps=_write(replay.steps, slots, steps),
        h=_write(replay.h, slots, latents["h"]),
        z=_write(replay.z, slots, latents["z"]),
        appended=xp.full(shape, begin + count, np.int32),
        consumed=xp.full(shape, np.asarray(consumed), np.int32),
    )


def _slots(replay: Replay, begin: int, end: int) -> Int32[np.ndarray, "n"]:
    return np.arange(begin, end, dtype=np.int32) % replay.slots


def _held_slots(replay: Replay, begin: int, end: int) -> Int32[np.ndarray, "n"]:
    held = stored(replay)
    if not held.start <= begin <= end <= held.stop:
        raise ValueError(
            f"steps [{begin}, {end}) were requested; the replay holds [{held.start}, {held.stop})"
        )
    return _slots(replay, begin, end)


def _read(ring: Array | np.ndarray, slots: np.ndarray) -> Array | np.ndarray:
    return ring[..., slots, :] if isinstance(ring, np.ndarray) else _gather(ring, slots)


def _write(ring: Array | np.ndarray, slots: np.ndarray, values: Array | np.ndarray) -> Array | np.ndarray:
    if not isinstance(ring, np.ndarray):
        return _scatter(ring, slots, values)
    ring[..., slots, :] = np.asarray(values)
    return ring


@jax.jit
def _gather(ring: Array, slots: Array) -> Array:
    return jnp.take(ring, slots, axis=-2, mode="clip")


@partial(jax.jit, donate_argnums=0)
def _scatter(ring: Array, slots: Array, values: Array) -> Array:
    return ring.at[..., slots, :].set(values, unique_indices=True)
