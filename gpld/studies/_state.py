"""How far a study is, as its workers leave it on the disk: any process on any machine can ask."""

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from gpld import files, results
from gpld.analysis import rollouts
from gpld.studies._plan import RUNS, Group, Plan, Run
from gpld.training import saved
from gpld.training.checkpoints import saved_steps
from gpld.training.milestones import MILESTONES

STATE = "state"
LOGS = "logs"
TIMES = "cost.csv"
"""What was found about a run that was timed, in its folder."""
TAKEN = "taken.json"
"""In the folder of a run that was taken from another study: which."""
BEAT_SECONDS = 5.0
LOST_SECONDS = 60.0
"""A worker that has not been heard of for so long has ended without a word."""

Kind = Literal["done", "running", "failed", "interrupted", "waiting"]


@dataclass(frozen=True)
class GroupState:
    """What the worker of a group said last."""

    kind: Kind = "waiting"
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Time of its start, in seconds."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why runs failed, by their names."""


@dataclass(frozen=True)
class RunState:
    """Where a run stands."""

    run: Run
    kind: Kind
    env_steps: int
    rate: float = 0.0
    """Env steps a second, while it is running."""
    reason: str = ""
    log: str = ""
    """Where its worker wrote what happened, if it failed."""
    taken: str = ""
    """The study that trained it, if it is another."""


def run_folder(folder: Path, run: Run) -> Path:
    """Where a run of the study in `folder` lives."""
    return folder / RUNS / run.name


def log_path(folder: Path, group: Group) -> Path:
    """What the workers of a group say, attempt after attempt."""
    return folder / LOGS / f"{group.name}.log"


def scored(folder: Path, run: Run) -> set[int]:
    """Env steps at which a run has been scored."""
    return {score["env_steps"] for score in results.read_scores(run_folder(folder, run))}


def taken_from(folder: Path, run: Run) -> str:
    """The study that a run was taken from, or nothing."""
    path = run_folder(folder, run) / TAKEN
    return json.loads(path.read_text())["study"] if path.exists() else ""


def unmeasured(folder: Path, plan: Plan, run: Run) -> list[int]:
    """Env steps of models that a run has kept and that are still to be measured, the latest first.

    Those of models that are scored, and of milestones.
    """
    if not plan.study.measures:
        return []
    path = run_folder(folder, run)
    kept = {*plan.study.env_steps} & {*saved.steps(path)} | {*saved_steps(path / MILESTONES)}
    done = set.intersection(*(rollouts.measured_steps(path, name) for name in plan.study.measures))
    return sorted((step for step in kept - done if step <= run.config.env_steps), reverse=True)


def is_done(folder: Path, plan: Plan, run: Run) -> bool:
    """Whether nothing is left to do for a run."""
    if plan.study.work == "time":
        return (run_folder(folder, run) / TIMES).exists()
    if run in plan.starts:
        return run.config.env_steps in scored(folder, run)
    return scored(folder, run) >= {*plan.study.env_steps} and not unmeasured(folder, plan, run)


def store(folder: Path, plan: Plan, run: Run) -> None:
    """Put what a run has found so far, and no further than it goes here, into the study's results.

    Nothing happens on a machine that cannot write them: one that can does it before it shows them.
    """
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
def at_work(folder: Path, group: Group) -> Iterator[dict[str, str]]:
    """Say that a group is being worked on, until it is not; failures are added to what this gives."""
    path, failures = _path(folder, group), {}
    path.parent.mkdir(parents=True, exist_ok=True)
    state = GroupState("running", platform.node(), os.getpid(), time.time(), failures)
    _write(path, state)
    stop = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, stop), daemon=True)
    beating.start()
    kind: Kind = "interrupted"
    try:
        yield failures
        kind = "failed" if failures else "done"
    finally:
        stop.set()
        beating.join()
        _write(path, GroupState(kind, state.host, state.pid, state.started, failures))


def fail(folder: Path, group: Group, reason: str) -> None:
    """Say of all runs of a group why they failed, in the place of a worker that cannot."""
    path = _path(folder, group)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, GroupState("failed", failures={run.name: reason for run in group.runs}))


def read_group(folder: Path, group: Group) -> GroupState:
    """What the worker of a group said last, or that it has not been heard of."""
    path = _path(folder, group)
    try:
        state = GroupState(**json.loads(path.read_text()))
        silent = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return GroupState()
    if state.kind == "running" and silent > LOST_SECONDS:
        return GroupState("interrupted", state.host, state.pid, state.started)
    return state


def forget(folder: Path, group: Group) -> None:
    """Forget how a group's last worker ended, before there is another."""
    if read_group(folder, group).kind != "running":
        _path(folder, group).unlink(missing_ok=True)


def run_states(folder: Path, plan: Plan) -> list[RunState]:
    """Where every run stands."""
    states: dict[str, RunState] = {}
    for group in plan.groups:
        said = read_group(folder, group)
        for run in (*([group.start] if group.start else []), *group.runs):
            # Groups may share a start: the first that is at work speaks for it.
            if run.name not in states or states[run.name].kind == "waiting":
                states[run.name] = _run_state(folder, plan, group, run, said)
    return [*states.values()]


def _run_state(folder: Path, plan: Plan, group: Group, run: Run, said: GroupState) -> RunState:
    goal = run.config.env_steps
    if is_done(folder, plan, run):
        return RunState(run, "done", goal, taken=taken_from(folder, run))
    env_steps, rate = _progress(run_folder(folder, run), said.started)
    if run.name in said.failures:
        return RunState(run, "failed", env_steps, 0.0, said.failures[run.name], str(log_path(folder, group)))
    kind = "waiting" if said.kind in ("done", "failed") else said.kind
    return RunState(run, kind, min(env_steps, goal), rate if kind == "running" else 0.0)


def _progress(folder: Path, since: float) -> tuple[int, float]:
    """Env steps that a run has logged, and how many of them a second since some time."""
    try:
        with files.open_to_read(folder / "timing.jsonl") as file:
            lines = file.readlines()
    except FileNotFoundError:
        return 0, 0.0
    points = []
    for line in lines:
        with suppress(ValueError):  # the last may be half written
            point = json.loads(line)
            points.append((point["time"], point["env_steps"]))
    recent = [point for point in points if point[0] >= since][-200:]
    env_steps = points[-1][1] if points else 0
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return env_steps, 0.0
    return env_steps, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


def _path(folder: Path, group: Group) -> Path:
    return folder / STATE / f"{group.name}.json"


def _write(path: Path, state: GroupState) -> None:
    files.write_text(path, json.dumps(asdict(state), indent=1) + "\n")


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        with suppress(OSError):  # a file system that is away for a moment
            os.utime(path)
