"""How large a replay is."""

from gpld.config import Config
from gpld.replay._ring import Replay, Storage, init
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


def for_run(config: Config, spaces: Spaces, storage: Storage = "device") -> Replay:
    """The empty replay of a run."""
    sizes, count = config.agent.model, config.env.count
    slots = slots_for(config.replay.capacity, config.agent_steps, count, config.replay.length)
    return init(spaces, count, slots, sizes.deter, sizes.stoch, config.agent.compute, storage)
