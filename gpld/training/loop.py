"""Training from the beginning or from checkpoints, of one run or of many, until it is done or interrupted."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import jax

from gpld import config as options
from gpld import machine, population
from gpld.config import Config
from gpld.population import Member
from gpld.training import _devices, warm_start
from gpld.training._claim import claimed
from gpld.training._interrupt import interruptible
from gpld.training._plan import Group, finished_at, newest, plan
from gpld.training._training import Training, TrainingStopped
from gpld.training.evaluation import Task, make
from gpld.training.progress import tell
from gpld.training.saved import CONFIG

__all__ = ["Result", "TrainingStopped", "train", "train_all"]


def _tell(text: str) -> None:
    if _devices.writes():
        tell(text)


class Result(NamedTuple):
    """How a run ended."""

    folder: Path
    env_steps: int
    finished: bool
    """False if it was interrupted; the same command goes on with it."""
    signal: int | None = None
    """What interrupted it: SIGINT (Ctrl-C) or SIGTERM."""


def train(config: Config, folder: str | Path, *, task: Task | None = None, devices: int = 0) -> Result:
    """Train, or go on with the run in `folder`. `task` makes Gymnasium environments of your own.

    Ctrl-C and SIGTERM let it save and return. A second Ctrl-C ends the process at once. With `devices`, as
    many of JAX's share every batch; the others of the machine are left alone.
    """
    return train_all([Member(config, Path(folder))], task=task, devices=devices)[0]


def train_all(members: Sequence[Member], *, task: Task | None = None, devices: int = 0) -> list[Result]:
    """Train several runs side by side in one program, or go on with them: `population` says which can be.

    Each is what it would be alone, in its own folder. Finished runs are left as they are. Runs that do not
    fit into memory together, or that stand at different steps, are trained in groups, one after the other.
    They are spread over `devices`, all of JAX's on this machine if that is 0.
    """
    for member in members:
        options.validate(member.config)
    shared = population.shared(members)
    machine.use_compilation_cache()
    results: dict[Path, Result] = {}
    try:
        with ExitStack() as stack:
            for member in members if _devices.writes() else []:
                stack.enter_context(claimed(member.config, member.folder))
            interrupted = stack.enter_context(interruptible())
            unfinished = []
            for member in members:
                if (steps := finished_at(member)) is None:
                    unfinished.append(member)
                else:
                    _tell(f"{member.name} was finished at {steps:,} env steps")
                    results[member.folder] = Result(member.folder, steps, finished=True)
            if unfinished:
                for group in _planned(unfinished, shared, task, devices):
                    results |= _train_group(group, task, devices, interrupted)
    except BrokenPipeError:  # whoever looked at the output has gone
        raise
    except OSError as error:
        reason = f"{error.filename or members[0].folder}: {error.strerror or error}"
        raise TrainingStopped(
            f"{reason}. When that is mended, the same command goes on from the last checkpoint"
        ) from error
    return [results[member.folder] for member in members]


def _planned(members: list[Member], shared: Config, task: Task | None, devices: int) -> list[Group]:
    """Groups, checked and told before anything is allocated."""
    with make(shared, 1, task=task, check=True) as env:
        spaces = env.spaces
    groups, messages = plan(members, shared, spaces, _devices.available(devices) if len(members) > 1 else 1)
    if any(group.anew for group in groups):  # the others need their source no more
        warm_start.check(shared, spaces)
    for message in messages:
        _tell(message)
    return groups


def _train_group(
    group: Group, task: Task | None, devices: int, interrupted: Callable[[], int | None]
) -> dict[Path, Result]:
    """Train runs to their end, unless there was a signal."""
    if interrupted() is not None:  # while another group was trained
        stopped = [Result(m.folder, newest(m), finished=False, signal=interrupted()) for m in group.members]
        return {result.folder: result for result in stopped}
    # Shared by this group, which may be of baselines alone: then nothing is compiled that they do not need.
    with Training(group, population.shared(group.members), task=task, devices=devices) as training:
        # Not earlier: options that a run could not even start with shall not bind the next attempt.
        for member in group.members if _devices.writes() else []:
            options.save(member.config, member.folder / CONFIG)
        stop = None
        while not training.finished and stop is None:
            training.advance()
            stop = interrupted() if jax.process_count() == 1 else _together(training, interrupted)
        if not training.finished:
            reached = f"{training.env_steps:,} env steps"
            training.progress.message(f"interrupted at {reached}; the same command goes on")
        training.save()
        why = None if training.finished else stop
        return {m.folder: Result(m.folder, training.env_steps, training.finished, why) for m in group.members}


def _together(training: Training, interrupted: Callable[[], int | None]) -> int | None:
    """What interrupts a run of several processes; asked seldom, because they wait for each other to agree."""
    return _devices.agreed(interrupted()) if training.iterations % 100 == 0 else None
