"""Which runs go on together: those that stand at the same step, as many of them as fit into memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpld import machine
from gpld.config import Config
from gpld.memory import fit, memory_estimate
from gpld.population import Member
from gpld.replay import Storage
from gpld.training.checkpoints import complete, newest_good, saved_steps
from gpld.training.saved import CHECKPOINTS
from gpld.types import Spaces


class Group(NamedTuple):
    """Runs that are trained together."""

    members: list[Member]
    anew: bool
    """Whether they begin from nothing: none of them has a checkpoint, good or damaged."""
    storage: Storage
    """Where their replays are."""


def newest(member: Member) -> int:
    """Env steps of a run's newest checkpoint; 0 if it has none."""
    return max(saved_steps(member.folder / CHECKPOINTS), default=0)


def finished_at(member: Member) -> int | None:
    """Env steps at which a run was finished, or None if it is not."""
    steps, config = newest(member), member.config
    return steps if steps // config.env.action_repeat >= config.agent_steps else None


def by_step(stand: Mapping[Path, int], members: Sequence[Member]) -> list[list[Member]]:
    """Runs that go on together because they stand at the same step, those furthest behind first."""
    return [[m for m in members if stand[m.folder] == step] for step in sorted(set(stand.values()))]


def standing(members: Sequence[Member]) -> dict[Path, int]:
    """Env steps that each run goes on from: those of its newest good checkpoint, whatever the others have."""
    if len(members) == 1:  # whose checkpoints are looked through when it goes on
        return {members[0].folder: newest(members[0])}
    complete([member.folder / CHECKPOINTS for member in members])
    return {member.folder: newest_good(member.folder / CHECKPOINTS) for member in members}


def plan(
    members: Sequence[Member], shared: Config, spaces: Spaces, devices: int
) -> tuple[list[Group], list[str]]:
    """Groups to be trained one after the other, and what to say about them."""
    estimate = memory_estimate(shared, spaces)
    free = machine.device_memory().free, machine.host_memory().free
    groups, messages = [], []
    stand = standing(members)
    parts = by_step(stand, members)
    if len(parts) > 1:
        where = "; ".join(f"{_names(part)} at {stand[part[0].folder]:,}" for part in parts)
        messages.append(f"runs that stand at different env steps are trained in turn: {where}")
    for part in parts:
        found = fit(shared, estimate, len(part), devices, *free)
        messages.append(found.message)
        anew, rest = not any(newest(member) for member in part), list(part)
        for size in found.groups:
            groups.append(Group(rest[:size], anew, found.storage))
            rest = rest[size:]
    return groups, list(dict.fromkeys(messages))


def _names(part: Sequence[Member]) -> str:
    return ", ".join(member.name for member in part)
