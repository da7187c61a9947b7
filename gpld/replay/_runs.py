"""Replays of several runs in host memory, taken apart and put together."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from gpld.replay._ring import Replay


def split(replay: Replay) -> list[Replay]:
    """The replay of each run, in the same memory: what is written there is written here."""
    return [jax.tree.map(lambda x, r=r: np.asarray(x[r]), replay) for r in range(len(replay.steps))]


def join(replay: Replay, runs: Sequence[Replay]) -> Replay:
    """The replay that was split, with the counters that its runs have reached."""
    appended, consumed = (np.stack([getattr(run, name) for run in runs]) for name in ("appended", "consumed"))
    return replace(replay, appended=appended, consumed=consumed)
