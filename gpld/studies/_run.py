"""Running a study, or what is left of it, wherever it shall run."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live

from gpld import results
from gpld.config import ConfigError
from gpld.studies import _plan, _share, _state, _status
from gpld.studies._local import Local, LocalOptions
from gpld.studies._plan import Plan
from gpld.studies._ray import OnRay, RayOptions
from gpld.studies._slurm import OnSlurm, SlurmOptions
from gpld.studies._study import Study
from gpld.studies._supervise import Ending

Place = Literal["local", "slurm", "ray"]


@dataclass(frozen=True)
class RunOptions:
    """Where a study runs, and how."""

    on: Place = "local"
    """This machine, a Slurm cluster, or a Ray cluster."""
    tasks: tuple[str, ...] = ()
    """Tasks of the study that are run; all of them if none is named."""
    members: int = 10
    """Most runs that are trained in one program."""
    retries: int = 2
    """How often a worker that is killed is started again."""
    wait: bool = True
    """Watch until all is done; otherwise return once Slurm has the jobs."""
    local: LocalOptions = field(default_factory=LocalOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    ray: RayOptions = field(default_factory=RayOptions)


@runtime_checkable
class Runner(Protocol):
    """Groups at work somewhere."""

    goes_on: bool

    def endings(self) -> dict[str, Ending]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


def default_folder(study: Study) -> Path:
    """Where a study is kept unless a folder is named."""
    return Path("studies") / study.name


def run(study: Study, folder: Path | None = None, options: RunOptions | None = None) -> list[_state.RunState]:
    """Run what is left of a study, show how far it is, and say where every run stands in the end.

    Everything is kept in `folder`: runs, results, logs and the state of the workers. A study that was
    stopped, in any way and anywhere, goes on. Runs that a study in a folder beside it has already are taken.
    Ctrl-C and SIGTERM let workers save; Slurm's jobs go on.
    """
    options, folder = options or RunOptions(), (folder or default_folder(study)).absolute()
    _check(options)
    whole = _plan.plan(study, members=options.members)
    plan = whole.only(options.tasks)
    whole.write(folder)
    _share.take(folder, plan)
    left = _state.pending(folder, plan)
    for group in left:
        _state.forget(folder, group)
    if left:
        runner = _runner(folder, plan, options)
        with _sigterm_as_interrupt():
            try:
                if options.wait or not runner.goes_on:
                    _watch(folder, plan, runner)
            except KeyboardInterrupt:
                _say_goodbye(runner)
                raise
            finally:
                runner.close()
    if results.can_write() and not _state.pending(folder, whole):
        results.compact(folder / results.FOLDER)
    return _state.run_states(folder, plan)


def _check(options: RunOptions) -> None:
    least = {
        "members": (options.members, 1),
        "retries": (options.retries, 0),
        "local.jobs": (options.local.jobs, 0),
        "local.per_gpu": (options.local.per_gpu, 1),
    }
    for name, (value, smallest) in least.items():
        if value < smallest:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least {smallest}")


def _runner(folder: Path, plan: Plan, options: RunOptions) -> Runner:
    left = _state.pending(folder, plan)
    if options.on == "slurm":
        return OnSlurm(folder, left, options.slurm, retries=options.retries)
    if options.on == "ray":
        return OnRay(folder, left, options.ray, retries=options.retries)
    return Local(folder, left, options.local, retries=options.retries)


def _watch(folder: Path, plan: Plan, runner: Runner) -> None:
    """Show how far the study is until no group is at work."""
    console = Console()
    wanted = {group.name for group in _state.pending(folder, plan)}
    said = ""
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            endings = runner.endings()
            states = _state.run_states(folder, plan)
            if live is not None:
                live.update(_status.status_table(plan, states), refresh=True)
            elif (now := _status.line(states).partition(";")[0]) != said:
                said = now
                print(_status.line(states), flush=True)
            if endings.keys() >= wanted:
                return
            time.sleep(1.0)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Stop in the same orderly way when a batch system ends this process."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say_goodbye(runner: Runner) -> None:
    if runner.goes_on:
        print("the jobs go on; `gpld study status` says how far they are", file=sys.stderr)
        return
    print("letting the workers save; the same command goes on", file=sys.stderr)
    runner.stop()
