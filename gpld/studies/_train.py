"""Where studies meet training: the one function that trains the runs of a group."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpld.config import Config
from gpld.population import Member


class Outcome(NamedTuple):
    """How the training of one run ended: finished if both are None."""

    signal: int | None = None
    """The signal that interrupted it; it is saved."""
    error: Exception | None = None


def train_group(configs: Sequence[Config], folders: Sequence[Path]) -> list[Outcome]:
    """Train runs side by side, each in its folder, or go on with them."""
    from gpld.training import train_all

    if not configs:
        return []
    members = [Member(config, folder) for config, folder in zip(configs, folders, strict=True)]
    try:
        return [Outcome(signal=result.signal) for result in train_all(members)]
    except Exception as error:
        if len(members) == 1:
            return [Outcome(error=error)]
    # One run must not end the others: alone, only that one fails.
    return [train_group([member.config], [member.folder])[0] for member in members]
