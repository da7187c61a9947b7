"""The replay: rings of steps, one per stream, sampled, trained on and written back inside compiled programs.

A record is named by its stream and its step, the number of records that came before it in that stream; it
lies in slot `step % slots`. Environments move in lock-step, so one counter serves all streams. A sequence is
T + 1 consecutive steps of one stream, named by its first, the context. It may continue in slot 0 after the
last slot; it never crosses the seam where the newest record lies beside the oldest.

The functions are pure and made for one outer `jit` with the replay donated, which then changes in place. They
work under `jax.vmap` over runs. If the rings are numpy arrays (storage "host"), the same functions, called
outside of `jit`, change them in place and give the same bits: what is read and where it is written is decided
by the same compiled integer arithmetic.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PRNGKeyArray, Shaped, UInt8, UInt16, UInt32

from gpld.config import Config
from gpld.replay._rows import Record, pack, row_type, unpack, width
from gpld.types import Batch, Latent, Spaces

Storage = Literal["device", "host"]
"""Where the rings are."""

STORED = {"float32": np.float32, "bfloat16": np.uint16}
"""Type that holds h: of bfloat16 the bits, because XLA on CPUs would convert all of a bfloat16 ring to
float32 and back around each write to it, and because any file format can hold them."""


class Replay(eqx.Module):
    """The last N steps of S streams; with a leading axis everywhere if it holds several runs."""

    steps: Float32[Array | np.ndarray, "*R S N F"] | UInt32[Array | np.ndarray, "*R S N F"]
    """Observations, action, reward and flags of each step; as words of bits if some are images."""
    h: Float32[Array | np.ndarray, "*R S N D"] | UInt16[Array | np.ndarray, "*R S N D"]
    """Deterministic latents, the bits of those that are bfloat16."""
    z: UInt8[Array | np.ndarray, "*R S N K"]
    appended: Int32[Array | np.ndarray, "*R"]
    """Steps ever appended to each stream."""
    consumed: Int32[Array | np.ndarray, "*R"]
    """Sequences that have left the online queue, trained on or overwritten before that."""
    spaces: Spaces = eqx.field(static=True)
    dtype: Literal["float32", "bfloat16"] = eqx.field(static=True)
    """The compute type, that of h outside the replay."""

    @property
    def host(self) -> bool:
        """Whether the rings are in host memory."""
        return isinstance(self.steps, np.ndarray)

    @property
    def streams(self) -> int:
        """S."""
        return self.steps.shape[-3]

    @property
    def slots(self) -> int:
        """N."""
        return self.steps.shape[-2]


class Indices(NamedTuple):
    """Which sequences a batch holds: where its latents are to be written back."""

    stream: Int32[Array | np.ndarray, "B"]
    start: Int32[Array | np.ndarray, "B"]
    """Step of the context."""


class Choice(NamedTuple):
    """A batch that has been chosen but not read yet."""

    indices: Indices
    slot: Int32[Array | np.ndarray, "L B"]
    """Where its L = T + 1 steps lie."""


def init(
    spaces: Spaces,
    streams: int,
    slots: int,
    deter: int,
    stoch: int,
    dtype: Literal["float32", "bfloat16"],
    storage: Storage = "device",
) -> Replay:
    """An empty replay of `streams` rings of `slots` steps, h in `dtype`."""
    # Sampled numbers and online items count records in int32.
    if streams * slots >= 2**31:
        raise ValueError(f"replay.capacity is {streams * slots} agent steps; it must be below 2**31")
    xp = np if storage == "host" else jnp
    return Replay(
        steps=xp.zeros((streams, slots, width(spaces)), row_type(spaces)),
        h=xp.zeros((streams, slots, deter), STORED[dtype]),
        z=xp.zeros((streams, slots, stoch), np.uint8),
        appended=xp.zeros((), np.int32),
        consumed=xp.zeros((), np.int32),
        spaces=spaces,
        dtype=dtype,
    )


def append(replay: Replay, record: Record) -> Replay:
    """Add one step to every stream, over the oldest one once the ring is full."""
    rows = pack(replay.spaces, record, replay.streams, replay.host)
    h, z = _as_stored(replay, record.latent)
    slot = replay.appended % replay.slots

    def put(ring: Array | np.ndarray, values: Array | np.ndarray) -> Array | np.ndarray:
        if isinstance(ring, np.ndarray):
            ring[:, slot] = values
            return ring
        return ring.at[:, slot].set(values, mode="promise_in_bounds")

    return replace(
        replay,
        steps=put(replay.steps, rows),
        h=put(replay.h, h),
        z=put(replay.z, z),
        appended=_counter(replay, replay.appended + 1),
    )


def sample(
    replay: Replay, key: PRNGKeyArray, batch: int, length: int, online: bool = True
) -> tuple[Replay, Batch, Indices]:
    """A batch of `batch` sequences of T = `length` steps, on the device, and where they came from.

    The first are those waiting in the online queue (unless `online` is off): each stream's sequences that
    start at 0, T + 1, 2(T + 1), ..., in the order of their ends and then of their streams, each once. The
    rest are drawn uniformly from all sequences stored. `length` must not change during a run, and the replay
    must have more than `length` steps: a compiled program cannot raise.
    """
    replay, choice = choose(replay, key, batch, length, online)
    return replay, complete(replay, choice, read(replay, choice)), choice.indices


def choose(
    replay: Replay, key: PRNGKeyArray, batch: int, length: int, online: bool = True
) -> tuple[Replay, Choice]:
    """The first part of `sample`: which sequences. Updates do not change what the next ones will be."""
    if replay.slots <= length:
        raise ValueError(f"replay.capacity leaves {replay.slots} steps a stream; it must leave {length + 1}")
    indices, slot, consumed = _choose(
        replay.appended, replay.consumed, key, replay.streams, replay.slots, batch, length, online
    )
    choice = Choice(indices, slot)
    if replay.host:
        choice = jax.tree.map(np.asarray, choice)
    return replace(replay, consumed=_counter(replay, consumed)), choice


def read(replay: Replay, choice: Choice) -> Float32[Array, "L B F"] | UInt32[Array, "L B F"]:
    """The second part: their steps, on their way to the device. Updates do not change these either."""
    return jnp.asarray(_take(replay.steps, choice.indices.stream[None], choice.slot))


def complete(replay: Replay, choice: Choice, rows: Float32[Array, "L B F"] | UInt32[Array, "L B F"]) -> Batch:
    """The last part: the steps that were read, with the latents of their contexts as updates left them."""
    stream, slot = choice.indices.stream, choice.slot[0]
    h, z = _take(replay.h, stream, slot), _take(replay.z, stream, slot)
    return _to_batch(replay.spaces, replay.dtype, rows=rows, h=h, z=z)


def write_back(replay: Replay, indices: Indices, latent: Latent, keep: Bool[Array, ""] | bool) -> Replay:
    """Store the latents `[T, B]` that an update computed for the steps of its batch, unless not `keep`.

    Where sequences of the batch overlap, the one with the highest index in the batch wins. Steps overwritten
    by the ring since they were sampled are left alone.
    """
    h, z = _as_stored(replay, latent)
    stream = indices.stream[None]
    slot = _write_slots(replay.appended, indices, keep, replay.slots, length=h.shape[0])

    def put(ring: Array | np.ndarray, values: Array | np.ndarray) -> Array | np.ndarray:
        if isinstance(ring, np.ndarray):
            inside = np.asarray(slot) < replay.slots
            ring[np.broadcast_to(stream, slot.shape)[inside], np.asarray(slot)[inside]] = values[inside]
            return ring
        return ring.at[stream, slot].set(values, mode="drop", unique_indices=True)

    return replace(replay, h=put(replay.h, h), z=put(replay.z, z))


@partial(jax.jit, static_argnames=("streams", "slots", "batch", "length", "online"))
def _choose(
    appended: Int32[Array, ""],
    consumed: Int32[Array, ""],
    key: PRNGKeyArray,
    streams: int,
    slots: int,
    batch: int,
    length: int,
    online: bool,
) -> tuple[Indices, Int32[Array, "{length}+1 {batch}"], Int32[Array, ""]]:
    """The sequences of the next batch, the slots they lie in, and `consumed` after it."""
    period = length + 1
    oldest = jnp.maximum(appended - slots, 0)
    starts = jnp.maximum(appended - oldest - length, 1)  # in each stream
    drawn = jax.random.randint(key, (batch,), 0, starts * streams, np.int32)
    stream, start = drawn // starts, oldest + drawn % starts
    if online:
        # Item q of the queue is stream q % S from step (q // S)(T + 1) on.
        consumed = jnp.maximum(consumed, -(-oldest // period) * streams)
        waiting = appended // period * streams - consumed
        place = jnp.arange(batch, dtype=np.int32)
        item = consumed + place
        stream = jnp.where(place < waiting, item % streams, stream)
        start = jnp.where(place < waiting, item // streams * period, start)
        consumed = consumed + jnp.minimum(waiting, batch)
    slot = (start[None] + jnp.arange(period, dtype=np.int32)[:, None]) % slots
    return Indices(stream, start), slot, consumed


@partial(jax.jit, static_argnames=("slots", "length"))
def _write_slots(
    appended: Int32[Array, ""], indices: Indices, keep: Bool[Array, ""], slots: int, length: int
) -> Int32[Array, "T B"]:
    """Where each latent of a batch goes; one that is not to be stored gets its own place outside the ring.

    No place is given twice, because the order of a scatter is not deterministic on GPUs.
    """
    batch = len(indices.start)
    step = indices.start[None] + jnp.arange(1, length + 1, dtype=np.int32)[:, None]
    after = step[:, :, None] - indices.start[None, None]  # by how much it follows each sequence's context
    later = (indices.stream[:, None] == indices.stream[None]) & np.triu(np.ones((batch, batch), bool), 1)
    taken = ((after >= 1) & (after <= length) & later[None]).any(axis=-1)
    outside = slots + jnp.arange(length * batch, dtype=np.int32).reshape(length, batch)
    return jnp.where(keep & ~taken & (step >= appended - slots), step % slots, outside)


@partial(jax.jit, static_argnames=("spaces", "dtype"))
def _to_batch(
    spaces: Spaces,
    dtype: str,
    rows: Float32[Array, "L B F"] | UInt32[Array, "L B F"],
    h: Shaped[Array, "B D"],
    z: UInt8[Array, "B K"],
) -> Batch:
    """The batch made of sequences' L = T + 1 rows and their contexts' latents as stored."""
    context, trained = unpack(spaces, rows[:-1]), unpack(spaces, rows[1:])
    return Batch(
        obs=trained.obs,
        prev_action=context.action,
        reward=trained.reward,
        is_first=trained.is_first,
        is_last=trained.is_last,
        is_terminal=trained.is_terminal,
        start=Latent(h.view(dtype), z),
    )


def _as_stored(replay: Replay, latent: Latent) -> tuple[Array | np.ndarray, Array | np.ndarray]:
    """h and z in the types, and the memory, of the replay."""
    h, z = map(np.asarray, latent) if replay.host else latent
    return h.astype(replay.dtype).view(replay.h.dtype), z.astype(np.uint8)


def _take(
    ring: Array | np.ndarray, stream: Array | np.ndarray, slot: Array | np.ndarray
) -> Array | np.ndarray:
    """Rows of a ring, `[*slot.shape, ...]`."""
    if isinstance(ring, np.ndarray):
        return ring[stream, slot]
    return ring.at[stream, slot].get(mode="promise_in_bounds")


def _counter(replay: Replay, value: Array | np.ndarray | np.int32) -> Int32[Array | np.ndarray, "*R"]:
    """A counter where the replay keeps its own."""
    return np.asarray(value) if replay.host else jnp.asarray(value)


def slots_for(capacity: int, planned: int, streams: int, length: int) -> int:
    """Slots per stream for min(`capacity`, `planned`) agent steps of all streams together."""
    slots = -(-min(capacity, planned) // streams)
    if slots <= length:
        raise ValueError(
            f"replay.capacity = {capacity} and {planned} planned agent steps leave {slots} steps for each of "
            f"{streams} streams; sequences of replay.length = {length} need at least {length + 1}"
        )
    return slots


def for_run(config: Config, spaces: Spaces, storage: Storage = "device") -> Replay:
    """The empty replay of a run."""
    sizes, count = config.agent.model, config.env.count
    slots = slots_for(config.replay.capacity, config.agent_steps, count, config.replay.length)
    return init(spaces, count, slots, sizes.deter, sizes.stoch, config.agent.compute, storage)


def split(replay: Replay) -> list[Replay]:
    """The replay of each run, in the same memory: what is written there is written here."""
    return [jax.tree.map(lambda x, r=r: np.asarray(x[r]), replay) for r in range(len(replay.steps))]


def join(replay: Replay, runs: Sequence[Replay]) -> Replay:
    """The replay that was split, with the counters that its runs have reached."""
    appended, consumed = (np.stack([getattr(run, name) for run in runs]) for name in ("appended", "consumed"))
    return replace(replay, appended=appended, consumed=consumed)
