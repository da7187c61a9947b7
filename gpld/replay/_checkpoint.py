"""Replays in checkpoints: steps never change once appended, latents do, so they are saved apart.

Every array has the layout of the rings, `[S, n, ...]` for n consecutive steps in the order of time, with a
leading axis if the replay holds several runs. Chunks are joined on axis -2.
"""

from collections.abc import Sequence
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


def export(
    replay: Replay, begin: int, end: int, rings: Sequence[str], size: int = 0
) -> dict[str, Shaped[Array | np.ndarray, "*R S n _"]]:
    """A copy of the steps [`begin`, `end`) in the rings named, "steps", "h" or "z", as they are stored.

    It is where the replay is, on the device or the host, and another thread can fetch it while training
    changes the replay. With `size`, a device copies at least so many steps, the last several times: ranges of
    many lengths then need one program.
    """
    held = stored(replay)
    if not held.start <= begin <= end <= held.stop:
        raise ValueError(
            f"steps [{begin}, {end}) were requested; the replay holds [{held.start}, {held.stop})"
        )
    last = end if replay.host else max(end, begin + size)
    slots = np.minimum(np.arange(begin, last, dtype=np.int32), end - 1) % replay.slots
    return {name: _read(getattr(replay, name), slots) for name in rings}


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
    slots = np.arange(begin, begin + count, dtype=np.int32) % replay.slots
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
