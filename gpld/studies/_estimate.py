"""Estimates of a study's GPU-hours and disk, before it starts."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from gpld import envs, memory
from gpld.analysis import cost
from gpld.config import Config, EnvConfig
from gpld.studies._plan import Plan
from gpld.types import Spaces


class Measured(NamedTuple):
    """Milliseconds of an update of the 12M agent on an H200, by what it observes; see results/README.md."""

    run: float
    """Of each run."""
    program: float
    """Of a program, however many runs it holds."""
    parameters: int
    """Of that agent."""


STATES = Measured(2.37, 5.03, 9_738_019)
"""7.40 ms were measured with one run, and 3.00 ms a run with eight."""
IMAGES = Measured(7.48, 5.81, 10_494_158)
"""13.30 ms were measured with one run, and 8.94 ms a run with four."""
REFERENCE_STATES = 16 * 64 * 26
"""B * T * (H + 1): states that heads see in one of those updates."""


class CostEstimate(NamedTuple):
    """Rough figures."""

    runs: int
    groups: int
    updates: int
    gpu_hours: float
    """On one H200, from the time of its updates alone."""
    disk: int
    """Bytes when all is done, without what is taken."""
    disk_at_work: int
    """Bytes that the largest group takes while it is trained, checkpoints and their replay included."""
    taken: int = 0
    """Runs that other studies have, and that come on top."""
    sources: tuple[str, ...] = ()
    """Those studies."""

    def __str__(self) -> str:
        hours = f"about {self.gpu_hours:,.1f}" if self.gpu_hours >= 0.1 else "less than 0.1"
        others = f" ({self.taken} more are taken from {', '.join(self.sources)})" if self.taken else ""
        return (
            f"{self.runs} runs in {self.groups} groups{others}, {self.updates:,} updates: {hours} "
            f"GPU-hours on an H200; disk: {_size(self.disk)} in the end, and "
            f"{_size(self.disk_at_work)} for the largest group at work"
        )


def estimate(plan: Plan, taken: Mapping[str, str] | None = None) -> CostEstimate:
    """The cost of a whole plan. `taken` are runs that other studies have trained, by name."""
    seconds, disk, largest, updates = 0.0, 0, 0, 0
    trained = plan.study.work == "train"
    taken = taken or {}
    starts = [(start.config, 1) for start in plan.starts]
    lefts = [[run for run in group.runs if run.name not in taken] for group in plan.groups]
    groups = [(left[0].config, len(left)) for left in lefts if left]
    for config, count in [*starts, *groups]:
        needed = memory.memory_estimate(config, spaces_of(config))
        per_run = config.updates_at(config.agent_steps) if trained else cost.UPDATES * cost.REPEATS
        updates += count * per_run
        seconds += count * per_run * update_ms(config, needed.gradients // 8, count if trained else 1) / 1000
        if trained:
            model = needed.parameters + needed.optimizer
            # A checkpoint is written before the oldest is removed, and keeps an evaluation under way.
            most = model + needed.played + needed.replay
            largest = max(largest, count * (config.checkpoint.keep + 1) * most)
            checkpoint = model + (needed.replay if plan.study.keep_replay else 0)
            every = config.checkpoint.milestones
            milestones = config.agent_steps // every if every else 0
            disk += count * (checkpoint * config.checkpoint.keep + milestones * needed.gradients // 2)
    return CostEstimate(
        runs=sum(count for _, count in [*starts, *groups]),
        groups=len(groups),
        updates=updates,
        gpu_hours=seconds / 3600,
        disk=disk,
        disk_at_work=largest,
        taken=len(taken),
        sources=tuple(sorted({*taken.values()})),
    )


def update_ms(config: Config, parameters: int, members: int) -> float:
    """Milliseconds of an update of one of `members` runs, in proportion to what was measured."""
    states = config.replay.batch * config.replay.length * (config.agent.behavior.horizon + 1)
    measured = IMAGES if config.env.pixels else STATES
    work = parameters * states / (measured.parameters * REFERENCE_STATES)
    return measured.run * work + measured.program / members


def spaces_of(config: Config) -> Spaces:
    """The spaces of a task, from one environment."""
    spaces = _vector_spaces(config.task, config.backend, EnvConfig(kwargs=config.env.kwargs))
    # Known without drawing one, which the machine that a study is started on may not be able to.
    return envs.pixel_spaces(spaces.actions) if config.env.pixels else spaces


@cache
def _vector_spaces(task: str, backend: str, own: EnvConfig) -> Spaces:
    with envs.make(task, count=1, seed=0, backend=backend, kwargs=own.keyword_arguments) as env:
        return env.spaces


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
