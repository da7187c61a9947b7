"""Running a study, or what is left of it, on this machine, Slurm or Ray."""

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live

from gpld import machine, results
from gpld.config import ConfigError
from gpld.display.options import shown
from gpld.studies import _plan, _reuse, _state, _status
from gpld.studies._local import LocalOptions, LocalRunner
from gpld.studies._plan import Plan
from gpld.studies._ray import RayOptions, RayRunner
from gpld.studies._slurm import SlurmOptions, SlurmRunner
from gpld.studies._study import Study
from gpld.studies._supervise import Ending

Place = Literal["local", "slurm", "ray"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a study runs, and how."""

    on: Place = "local"
    """This machine, a Slurm cluster, or a Ray cluster."""
    tasks: Annotated[tuple[str, ...], shown("TASK [TASK ...]")] = ()
    """Tasks of the study that are run; all of them if none is named."""
    members: int = 10
    """The most runs that are trained in one program."""
    retries: int = 2
    """The most times that a killed worker is started again."""
    wait: bool = True
    """Watch until all is done; otherwise return once Slurm has the jobs."""
    local: LocalOptions = field(default_factory=LocalOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    ray: RayOptions = field(default_factory=RayOptions)


@runtime_checkable
class Runner(Protocol):
    """Runs groups on this machine or a cluster."""

    outlives: bool

    def endings(self) -> dict[str, Ending]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


def default_folder(study: Study) -> Path:
    """The folder of a study unless another is named."""
    return Path("studies") / study.name


def run(study: Study, folder: Path | None = None, options: RunOptions | None = None) -> list[_state.RunState]:
    """Run what is left of a study and show its progress; the final state of every run.

    Everything is in `folder`: runs, results, logs and the state of the workers. A study that was stopped, in
    any way and anywhere, is resumed. Runs that a study in a folder beside it already has are reused. Ctrl-C
    and SIGTERM let workers save; Slurm's jobs continue.
    """
    options, folder = options or RunOptions(), (folder or default_folder(study)).absolute()
    _check(options)
    whole = _plan.plan(study, members=options.members)
    plan = whole.only(options.tasks)
    whole.write(folder)
    _reuse.reuse(folder, plan)
    left = _state.pending(folder, plan)
    for group in left:
        _state.clear_report(folder, group)
    if left:
        own = getattr(options, options.on)
        runner: Runner = RUNNERS[options.on](folder, left, own, retries=options.retries)
        with machine.sigterm_raises(KeyboardInterrupt()):
            try:
                if options.wait or not runner.outlives:
                    _watch(folder, plan, runner)
            except KeyboardInterrupt:
                if runner.outlives:
                    print("the jobs continue; `gpld study status` shows their progress", file=sys.stderr)
                else:
                    print("letting the workers save; the same command resumes", file=sys.stderr)
                    runner.stop()
                raise
            finally:
                runner.close()
    if results.can_write() and not _state.pending(folder, whole):
        results.compact(folder / results.FOLDER)
    return _state.run_states(folder, plan)


def _check(options: RunOptions) -> None:
    least = {
        "retries": (options.retries, 0),
        "local.jobs": (options.local.jobs, 0),
        "local.per_gpu": (options.local.per_gpu, 1),
    }
    for name, (value, smallest) in least.items():
        if value < smallest:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least {smallest}")


RUNNERS = {"local": LocalRunner, "slurm": SlurmRunner, "ray": RayRunner}


def _watch(folder: Path, plan: Plan, runner: Runner) -> None:
    """Show the study's progress until no group is at work."""
    console, printed = Console(), ""
    pending = {group.name for group in _state.pending(folder, plan)}
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            endings = runner.endings()
            states = _state.run_states(folder, plan)
            if live is not None:
                live.update(_status.status_table(plan, states), refresh=True)
            elif (now := _status.line(states).partition(";")[0]) != printed:
                printed = now
                print(_status.line(states), flush=True)
            if endings.keys() >= pending:
                return
            time.sleep(1.0)
