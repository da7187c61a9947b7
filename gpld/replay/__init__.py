"""Replay: what the agent has lived through, in preallocated rings, on the device or in host memory."""

from gpld.replay._checkpoint import export_latents, export_steps, restore, stored
from gpld.replay._memory import choose_storage, nbytes, slots_for
from gpld.replay._ring import Indices, Replay, Storage, append, init, ready, sample, write_back
from gpld.replay._rows import Record

__all__ = [
    "Indices",
    "Record",
    "Replay",
    "Storage",
    "append",
    "choose_storage",
    "export_latents",
    "export_steps",
    "init",
    "nbytes",
    "ready",
    "restore",
    "sample",
    "slots_for",
    "stored",
    "write_back",
]
