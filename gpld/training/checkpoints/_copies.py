"""Copies of arrays that training goes on to change: made on the device, and fetched later by a thread."""

from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Array, Shaped

from gpld import machine

PINNED = "pinned_host"
"""Host memory that a GPU writes to by itself, several times as fast as to other memory."""

AnyArray = Shaped[Array | np.ndarray, "..."]


@dataclass(frozen=True)
class Copied:
    """An array that nothing changes, or a part of it."""

    array: AnyArray
    """On the device, or in host memory."""
    run: int | None = None
    """The run whose part it is; if None, of all."""
    count: int | None = None
    """How many of the steps on axis -2 it has; if None, all."""

    def of(self, run: int) -> "Copied":
        """The part of a run, of an array with a leading run axis."""
        return replace(self, run=run)

    def fetch(self) -> np.ndarray:
        """The array in host memory. Any thread may call this, while programs are started in others."""
        array = self.array if self.run is None else _part(self.array, self.run)
        values = array if isinstance(array, np.ndarray) else _to_host(array)
        return values if self.count is None else values[..., : self.count, :]


class Room:
    """The device's free memory, for copies; what does not fit goes to host memory at once."""

    def __init__(self):
        self._left = machine.spare_device_memory()

    def keep(self, array: AnyArray, count: int | None = None) -> Copied:
        """Keep an array that nobody else has, or the first `count` of its steps."""
        if isinstance(array, jax.Array):
            self._left -= array.addressable_shards[0].data.nbytes
            if self._left < 0:
                array = np.asarray(array)
        return Copied(array, count=count)


def _part(array: AnyArray, run: int) -> AnyArray:
    """A run's part, by the device that has it: a program on several would wait for those of other threads."""
    if isinstance(array, np.ndarray):
        return np.asarray(array[run])
    for shard in array.addressable_shards:
        runs = range(*shard.index[0].indices(len(array)))
        if run in runs:
            return shard.data[run - runs.start]
    raise IndexError(f"run {run} of {len(array)} is not on a device of this process")


def _to_host(array: jax.Array) -> np.ndarray:
    (device, *_) = array.devices()
    if device.platform != "cpu" and PINNED in {memory.kind for memory in device.addressable_memories()}:
        array = jax.device_put(array, array.sharding.with_memory_kind(PINNED))
    return np.asarray(array)
