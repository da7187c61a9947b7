"""How much memory a replay takes, and where it goes."""

from functools import partial
from typing import Literal

import jax

from gpld.replay._ring import Storage, init
from gpld.types import Spaces


def slots_for(capacity: int, planned: int, streams: int, length: int) -> int:
    """Slots per stream for min(`capacity`, `planned`) agent steps of all streams together."""
    slots = -(-min(capacity, planned) // streams)
    if slots <= length:
        raise ValueError(
            f"replay.capacity = {capacity} and {planned} planned agent steps leave {slots} steps for each of "
            f"{streams} streams; sequences of replay.length = {length} need at least {length + 1}"
        )
    return slots


def nbytes(
    spaces: Spaces, streams: int, slots: int, deter: int, stoch: int, dtype: Literal["float32", "bfloat16"]
) -> int:
    """Bytes of the arrays that `init` allocates with these arguments."""
    shapes = jax.eval_shape(partial(init, spaces, streams, slots, deter, stoch, dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def choose_storage(bytes_needed: int, device_free: int, host_free: int) -> tuple[Storage, str]:
    """Where a replay fits, the device before the host, and a line that says so.

    `device_free` and `host_free` are the bytes that training leaves to the replay.
    """
    need, device, host = (f"{n / 2**30:.2f} GiB" for n in (bytes_needed, device_free, host_free))
    if bytes_needed <= device_free:
        return "device", f"replay: {need} on the device, which has {device} free for it"
    if bytes_needed <= host_free:
        return "host", (
            f"replay: {need} in host memory, because the device has only {device} free for it; "
            "updates wait for copies, so training is slower"
        )
    raise ValueError(
        f"replay.capacity: the replay needs {need}, but the device has {device} and the host {host} free for "
        "it; lower replay.capacity, train for fewer steps or fewer runs at once, or choose a smaller model"
    )
