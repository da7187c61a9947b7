"""Where studies meet training: the one function that trains the runs of a group."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpld.config import Config


class Outcome(NamedTuple):
    """How the training of one run ended: finished if both are None."""

    signal: int | None = None
    """The signal that interrupted it; it is saved."""
    error: Exception | None = None


def train_group(configs: Sequence[Config], folders: Sequence[Path]) -> list[Outcome]:
    """Train runs that differ in `SCALARS` alone, each in its folder, or go on with them."""
    from gpld.training import train

    outcomes: list[Outcome] = []
    for config, folder in zip(configs, folders, strict=True):
        if outcomes and outcomes[-1].signal is not None:
            outcomes.append(outcomes[-1])  # nothing more is begun
            continue
        try:
            outcomes.append(Outcome(signal=train(config, folder).signal))
        except Exception as error:  # of one run, which must not end the others
            outcomes.append(Outcome(error=error))
    return outcomes
