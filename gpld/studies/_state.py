"""The state of a study in files that its workers write and any process on any machine can read."""

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpld import files, results
from gpld.analysis import rollouts
from gpld.files import DamagedFile
from gpld.studies._plan import RUNS, Group, Plan, Run
from gpld.training import logs, saved
from gpld.training.checkpoints import saved_steps
from gpld.training.checkpoints.milestones import MILESTONES

STATE = "state"
LOGS = "logs"
TIMES = "cost.csv"
"""The times of a run's updates, in its folder."""
TAKEN = "taken.json"
"""In the folder of a run that was taken from another study: the study."""
HEARTBEAT_SECONDS = 5.0
LOST_SECONDS = 60.0
"""A worker without a heartbeat for so long has died."""

Kind = Literal["done", "running", "failed", "interrupted", "waiting"]


@dataclass(frozen=True)
class GroupState:
    """The last report of a group's worker."""

    kind: Kind = "waiting"
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Time of its start, in seconds."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why runs failed, by their names."""


@dataclass(frozen=True)
class RunState:
    """The state of a run."""

    run: Run
    kind: Kind
    env_steps: int
    rate: float = 0.0
    """Env steps a second, while it is running."""
    reason: str = ""
    log: str = ""
    """The log of its worker, if it failed."""
    taken: str = ""
    """The study that trained it, if it is another."""


def run_folder(folder: Path, run: Run) -> Path:
    """The folder of a run of the study in `folder`."""
    return folder / RUNS / run.name


def log_path(folder: Path, group: Group) -> Path:
    """The log of a group's workers."""
    return folder / LOGS / f"{group.name}.log"


def scored(folder: Path, run: Run) -> set[int]:
    """Env steps at which a run has been scored."""
    return {score["env_steps"] for score in results.read_scores(run_folder(folder, run))}


def taken_from(folder: Path, run: Run) -> str:
    """The study that a run was taken from, or nothing."""
    path = run_folder(folder, run) / TAKEN
    try:
        return str(json.loads(files.read_text(path))["study"]) if path.exists() else ""
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path}: does not name a study ({error!r}); move it away to continue") from error


def unmeasured(folder: Path, plan: Plan, run: Run) -> list[int]:
    """Env steps of saved models (scored ones, milestones) still to be measured, the latest first."""
    if not plan.study.measures:
        return []
    path = run_folder(folder, run)
    models = {*plan.study.env_steps} & {*saved.steps(path)} | {*saved_steps(path / MILESTONES)}
    done = set.intersection(*(rollouts.measured_steps(path, name) for name in plan.study.measures))
    return sorted((step for step in models - done if step <= run.config.env_steps), reverse=True)


def is_done(folder: Path, plan: Plan, run: Run) -> bool:
    """Whether nothing is left to do for a run."""
    if plan.study.work == "time":
        return (run_folder(folder, run) / TIMES).exists()
    if run in plan.starts:
        return run.config.env_steps in scored(folder, run)
    return scored(folder, run) >= {*plan.study.env_steps} and not unmeasured(folder, plan, run)


def store(folder: Path, plan: Plan, run: Run) -> None:
    """Add what a run has found to the study's results, on a machine that can write them."""
    path = run_folder(folder, run)
    if (path / saved.CONFIG).exists() and results.can_write():
        rows = results.collect(path, run=run.name, study=plan.study.name, method=run.method)
        rows = rows.loc[rows["env_steps"] <= run.config.env_steps]
        if len(rows):
            results.write(folder / results.FOLDER, rows)


def pending(folder: Path, plan: Plan) -> list[Group]:
    """Groups with runs that are not done."""
    return [group for group in plan.groups if not all(is_done(folder, plan, run) for run in group.runs)]


@contextmanager
def report_running(folder: Path, group: Group) -> Iterator[dict[str, str]]:
    """Report that a group is running, until the block ends; failures are to be added to the result."""
    path, failures, stop = _path(folder, group), {}, threading.Event()
    state = GroupState("running", platform.node(), os.getpid(), time.time(), failures)
    _write(path, state)

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a file system that is unavailable for a moment
                os.utime(path)

    heartbeat = threading.Thread(target=beat, daemon=True)
    heartbeat.start()
    kind: Kind = "interrupted"
    try:
        yield failures
        kind = "failed" if failures else "done"
    finally:
        stop.set()
        heartbeat.join()
        _write(path, replace(state, kind=kind))


def report_failure(folder: Path, group: Group, reason: str) -> None:
    """Report why all runs of a group failed, for a worker that cannot."""
    failures = {run.name: reason for run in group.runs}
    _write(_path(folder, group), GroupState("failed", failures=failures))


def read_group(folder: Path, group: Group) -> GroupState:
    """The last report of a group's worker, or that there is none."""
    path = _path(folder, group)
    try:
        state = GroupState(**json.loads(files.read_text(path)))
        silent = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return GroupState()
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"{path}: not the state of a worker ({error!r}); move it away to continue"
        raise DamagedFile(reason) from error
    lost = state.kind == "running" and silent > LOST_SECONDS
    return replace(state, kind="interrupted", failures={}) if lost else state


def clear_report(folder: Path, group: Group) -> None:
    """Remove the report of a group's last worker, before another one starts."""
    if read_group(folder, group).kind != "running":
        _path(folder, group).unlink(missing_ok=True)


def run_states(folder: Path, plan: Plan) -> list[RunState]:
    """The state of every run."""
    states: dict[str, RunState] = {}
    for group in plan.groups:
        reported = read_group(folder, group)
        for run in (*([group.start] if group.start else []), *group.runs):
            # Groups may share a start: the first that is running reports it.
            if run.name not in states or states[run.name].kind == "waiting":
                states[run.name] = _run_state(folder, plan, group, run, reported)
    return [*states.values()]


def _run_state(folder: Path, plan: Plan, group: Group, run: Run, reported: GroupState) -> RunState:
    goal = run.config.env_steps
    if is_done(folder, plan, run):
        return RunState(run, "done", goal, taken=taken_from(folder, run))
    env_steps, rate = _progress(run_folder(folder, run), reported.started)
    if reason := reported.failures.get(run.name):
        return RunState(run, "failed", env_steps, 0.0, reason, str(log_path(folder, group)))
    kind = "waiting" if reported.kind in ("done", "failed") else reported.kind
    return RunState(run, kind, min(env_steps, goal), rate if kind == "running" else 0.0)


def _progress(folder: Path, since: float) -> tuple[int, float]:
    """Env steps that a run has logged, and how many of them a second since some time."""
    try:
        with files.open_to_read(folder / logs.TIMING) as file:
            lines = file.readlines()
    except FileNotFoundError:
        return 0, 0.0
    points = []
    for line in lines:
        with suppress(ValueError):  # the last may be half written
            point = json.loads(line)
            points.append((point["time"], point["env_steps"]))
    env_steps = points[-1][1] if points else 0
    recent = [point for point in points if point[0] >= since][-200:]
    if not recent or recent[-1][0] <= recent[0][0]:
        return env_steps, 0.0
    return env_steps, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


def _path(folder: Path, group: Group) -> Path:
    return folder / STATE / f"{group.name}.json"


def _write(path: Path, state: GroupState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(asdict(state), indent=1) + "\n")
