"""Which runs are trained together: those at the same step, as many of them as fit into memory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpld import machine
from gpld.config import Config
from gpld.memory import fit, memory_estimate
from gpld.population import Member
from gpld.replay import Storage
from gpld.training.checkpoints import complete, newest_good, saved_steps
from gpld.training.checkpoints._manifest import Manifest
from gpld.training.logs import evaluations
from gpld.training.saved import CHECKPOINTS
from gpld.types import Spaces

POSTPONED = "evaluation is owed"
"""The name in checkpoints of whether the result of an evaluation was missing."""


class RunGroup(NamedTuple):
    """Runs that are trained together."""

    members: list[Member]
    fresh: bool
    """Whether they start from nothing: none of them has a checkpoint, good or damaged."""
    storage: Storage
    """Where their replays are stored."""


def newest(member: Member) -> int:
    """Env steps of a run's newest checkpoint; 0 if it has none."""
    return max(saved_steps(member.folder / CHECKPOINTS), default=0)


def finished_at(member: Member, until: int | None = None) -> int | None:
    """Env steps at which a run was finished, or was saved at `until` or later; None if it was not."""
    steps, config = newest(member), member.config
    if steps // config.env.action_repeat < config.agent_steps and steps < (until or math.inf):
        return None
    manifest = Manifest.try_read(member.folder / CHECKPOINTS / f"{steps:012d}", steps)
    owed = manifest and manifest.info.get(POSTPONED)
    # The last one is made without a step after it, so no newer checkpoint says that it was.
    return None if owed and steps not in evaluations(member.folder)[0] else steps


def resume_steps(members: Sequence[Member]) -> dict[Path, int]:
    """Env steps that each run resumes from: those of its newest good checkpoint, whatever the others have."""
    complete([member.folder / CHECKPOINTS for member in members])
    if len(members) == 1:  # its checkpoints are verified when it is restored
        return {members[0].folder: newest(members[0])}
    return {member.folder: newest_good(member.folder / CHECKPOINTS) for member in members}


def by_step(steps: dict[Path, int], members: Sequence[Member]) -> dict[int, list[Member]]:
    """Runs by the env steps that they resume from, those that are furthest behind first."""
    return {step: [m for m in members if steps[m.folder] == step] for step in sorted(set(steps.values()))}


def plan(
    members: Sequence[Member], shared: Config, spaces: Spaces, devices: int
) -> tuple[list[RunGroup], list[str]]:
    """Groups to be trained one after the other, and messages about them."""
    estimate = memory_estimate(shared, spaces)
    free = machine.device_memory().free, machine.host_memory().free
    groups, messages = [], []
    steps = resume_steps(members)
    parts = by_step(steps, members)
    if len(parts) > 1:
        names = {step: ", ".join(member.name for member in part) for step, part in parts.items()}
        where = "; ".join(f"{some} at {step:,}" for step, some in names.items())
        messages.append(f"runs at different env steps are trained in turn: {where}")
    for part in parts.values():
        found = fit(shared, estimate, len(part), devices, *free)
        messages.append(found.message)
        fresh, rest = not any(newest(member) for member in part), list(part)
        for size in found.groups:
            groups.append(RunGroup(rest[:size], fresh, found.storage))
            rest = rest[size:]
    return groups, list(dict.fromkeys(messages))
