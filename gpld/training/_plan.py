"""Which runs go on together: those that stand at the same step, as many of them as fit into memory."""

from collections.abc import Sequence
from typing import NamedTuple

from gpld import machine
from gpld.config import Config
from gpld.memory import fit, memory_estimate
from gpld.population import Member
from gpld.replay import Storage
from gpld.training.checkpoints import saved_steps
from gpld.training.saved import CHECKPOINTS, CONFIG
from gpld.types import Spaces


class Group(NamedTuple):
    """Runs that are trained together."""

    members: list[Member]
    anew: bool
    """Whether they begin from nothing, and not from a checkpoint that all of them have."""
    storage: Storage
    """Where their replays are."""


def newest(member: Member) -> int:
    """Env steps of a run's newest checkpoint; 0 if it has none."""
    return max(saved_steps(member.folder / CHECKPOINTS), default=0)


def finished_at(member: Member) -> int | None:
    """Env steps at which a run was finished, or None if it is not."""
    steps, config = newest(member), member.config
    return steps if steps // config.env.action_repeat >= config.agent_steps else None


def by_step(members: Sequence[Member]) -> list[list[Member]]:
    """Runs that can go on together, those furthest behind first.

    A kill while checkpoints were written leaves some runs with the last step and all with the one before it,
    which they then go back to. The same goes for the first checkpoint and the beginning.
    """
    left, groups = list(members), []
    while left:
        saved = {member.folder: saved_steps(member.folder / CHECKPOINTS) for member in left}
        start = min(max(steps, default=0) for steps in saved.values())
        torn = any(not saved[member.folder] and (member.folder / CONFIG).exists() for member in left)

        def can_start(member: Member, saved=saved, start=start, torn=torn) -> bool:
            steps = saved[member.folder]
            return start in steps if start else not steps or (torn and len(steps) == 1)

        groups.append([member for member in left if can_start(member)])
        left = [member for member in left if not can_start(member)]
    return groups


def plan(
    members: Sequence[Member], shared: Config, spaces: Spaces, devices: int
) -> tuple[list[Group], list[str]]:
    """Groups to be trained one after the other, and what to say about them."""
    estimate = memory_estimate(shared, spaces)
    free = machine.device_memory().free, machine.host_memory().free
    groups, messages = [], []
    parts = by_step(members)
    if len(parts) > 1:
        standing = "; ".join(f"{_names(part)} at {_start(part):,}" for part in parts)
        messages.append(f"runs that stand at different env steps are trained in turn: {standing}")
    for part in parts:
        found = fit(shared, estimate, len(part), devices, *free)
        messages.append(found.message)
        anew, rest = not _start(part), list(part)
        for size in found.groups:
            groups.append(Group(rest[:size], anew, found.storage))
            rest = rest[size:]
    return groups, list(dict.fromkeys(messages))


def _start(part: Sequence[Member]) -> int:
    common = set.intersection(*(set(saved_steps(member.folder / CHECKPOINTS)) for member in part))
    return max(common, default=0)


def _names(part: Sequence[Member]) -> str:
    return ", ".join(member.name for member in part)
