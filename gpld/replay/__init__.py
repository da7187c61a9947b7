"""The replay buffer: preallocated rings of steps and latents, on the device or in host memory."""

from gpld.replay._checkpoint import export_latents, export_steps, restore, stored
from gpld.replay._ring import (
    Choice,
    Indices,
    Replay,
    Storage,
    append,
    choose,
    complete,
    for_run,
    init,
    join,
    read,
    sample,
    slots_for,
    split,
    write_back,
)
from gpld.replay._rows import Record

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
    "restore",
    "sample",
    "slots_for",
    "split",
    "stored",
    "write_back",
]
