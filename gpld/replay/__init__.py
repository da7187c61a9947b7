"""Replay: what the agent has lived through, in preallocated rings, on the device or in host memory."""

from gpld.replay._checkpoint import export_latents, export_steps, restore, stored
from gpld.replay._ring import (
    Choice,
    Indices,
    Replay,
    Storage,
    append,
    choose,
    complete,
    init,
    read,
    ready,
    sample,
    write_back,
)
from gpld.replay._rows import Record
from gpld.replay._runs import join, split
from gpld.replay._size import for_run, slots_for

__all__ = [
    "Choice",
    "Indices",
    "Record",
    "Replay",
    "Storage",
    "append",
    "choose",
    "complete",
    "export_latents",
    "export_steps",
    "for_run",
    "init",
    "join",
    "read",
    "ready",
    "restore",
    "sample",
    "slots_for",
    "split",
    "stored",
    "write_back",
]
