"""An evaluation under way, and the lines of metrics that wait for it: as bytes, for checkpoints."""

import io
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from gpld.training.checkpoints import Copied

EVALUATION = "evaluation"
"""The name of these bytes among the blobs of a checkpoint."""


class Pending(NamedTuple):
    """An evaluation of R runs whose result is missing."""

    agent_steps: int
    updates: int
    """When it was asked for."""
    model: PyTree
    """The models as they were, `[R, ...]`."""
    clock: float
    """`time.monotonic` then, or when this process resumed it."""


class Line(NamedTuple):
    """A line of metrics of each run."""

    env_steps: int
    updates: int
    values: list[dict[str, float]]
    clock: float
    """`time.monotonic` when it was made, or when this process read it."""


def dumps(pending: Pending, held: Sequence[Line], run: int) -> bytes:
    """What one run needs to go on with its evaluation."""
    lines = [(line.env_steps, line.updates, line.values[run]) for line in held]
    about = json.dumps({"agent_steps": pending.agent_steps, "updates": pending.updates, "lines": lines})
    file = io.BytesIO()
    leaves = [Copied(leaf, run).fetch() for leaf in jax.tree.leaves(pending.model)]
    np.savez(file, np.frombuffer(about.encode(), np.uint8), *leaves)
    return file.getvalue()


def loads(runs: Sequence[bytes], like: PyTree) -> tuple[Pending, list[Line]]:
    """What all runs need, with their models in host memory; `like` has the structure of those."""
    models, abouts = [], []
    for data in runs:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            about, *leaves = (file[name] for name in file.files)
        abouts.append(json.loads(about.tobytes()))
        models.append(jax.tree.unflatten(jax.tree.structure(like), leaves))
    now = time.monotonic()
    held = [
        Line(*lines[0][:2], [values for *_, values in lines], now)
        for lines in zip(*(about["lines"] for about in abouts), strict=True)
    ]
    model = jax.tree.map(lambda *x: np.stack(x), *models)
    return Pending(abouts[0]["agent_steps"], abouts[0]["updates"], model, now), held
