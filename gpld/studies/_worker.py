"""The process that works on one group: train its runs as far as they are to be scored, score them, go on.

What is known is kept at once, and what matters most comes first: the runs' metrics, their scores, and then
what is measured of their models, of the last of all runs before any earlier one.

    python -m gpld.studies._worker FOLDER GROUP

It exits with 0 if all runs are done, 1 if some failed, and 128 plus the number of the signal that interrupted
it; everything is saved then, and another worker goes on.
"""

import fcntl
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gpld import config as options
from gpld import results
from gpld.config import ConfigError
from gpld.studies import _state, _times
from gpld.studies._plan import RUNS, Group, Plan, Run, read_plan
from gpld.studies._train import train_group
from gpld.training import saved


class Interrupted(BaseException):
    """A signal that ends a worker, once everything is saved."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def work(folder: Path, group: Group, plan: Plan) -> int:
    """Do what is left of a group; the exit status."""
    try:
        with _state.at_work(folder, group) as failures:
            if plan.study.work == "time":
                _times.measure(folder, plan, group)
            else:
                _train(folder, plan, group, failures)
    except Interrupted as interrupted:
        print(f"interrupted by {interrupted}; the runs are saved", flush=True)
        return 128 + interrupted.number
    return int(bool(failures))


def _train(folder: Path, plan: Plan, group: Group, failures: dict[str, str]) -> None:
    """Train and score what is left of a group, and before it what its runs begin with."""
    begin = {}
    if group.start is not None:
        _make_start(folder, plan, group.start, failures)
        if group.start.name in failures:
            failures |= {run.name: f"{group.start.name}, which it begins with, failed" for run in group.runs}
        begin = {
            "init_from": str(_state.run_folder(folder, group.start)),
            "init": plan.study.start.init,
        }
    for env_steps in plan.study.env_steps:
        left = [run for run in group.runs if env_steps not in _state.scored(folder, run)]
        left = [replace(run, config=replace(run.config, **begin)) for run in left if run.name not in failures]
        if group.start is not None:
            for run in left:
                _follow(_state.run_folder(folder, run) / saved.CONFIG, folder, group.start)
        _advance(folder, plan, left, env_steps, failures)
        # Before training goes on: the checkpoint will be replaced.
        _measure(folder, plan, group, failures, only=env_steps)
    _measure(folder, plan, group, failures)


def _follow(config: Path, folder: Path, start: Run) -> None:
    """Say in a run's options where what it began with is now: the study's folder may have been moved."""
    inside = Path(RUNS, start.name).parts
    with suppress(ConfigError):  # training tells what is wrong with them
        before = options.load(config) if config.exists() else None
        if before and Path(before.init_from).parts[-len(inside) :] == inside:
            options.save(replace(before, init_from=str(folder.joinpath(*inside))), config)


def _make_start(folder: Path, plan: Plan, start: Run, failures: dict[str, str]) -> None:
    """Train a run that others begin with: whoever comes first does, and other groups' workers wait."""
    with _alone(folder, start.name.replace("/", "-")):
        if not _state.is_done(folder, plan, start):
            _advance(folder, plan, [start], start.config.env_steps, failures)


def _advance(folder: Path, plan: Plan, runs: Sequence[Run], env_steps: int, failures: dict[str, str]) -> None:
    """Train some runs to `env_steps` and score them there. Failures, in words, are added by run."""
    configs = [replace(run.config, env_steps=env_steps) for run in runs]
    outcomes = train_group(configs, [_state.run_folder(folder, run) for run in runs])
    signals = [outcome.signal for outcome in outcomes if outcome.signal is not None]
    for run, outcome in zip(runs, outcomes, strict=True):
        if outcome.error is not None:
            _note(failures, run, outcome.error)
    if not signals:
        _score_apart(folder, plan, [run for run in runs if run.name not in failures], env_steps, failures)
    for run in runs:
        _state.store(folder, plan, run)
        if env_steps == run.config.env_steps and env_steps in _state.scored(folder, run):
            _discard_replay(folder, plan, run)
    if signals:
        raise Interrupted(signals[0])


def _score_apart(
    folder: Path, plan: Plan, runs: Sequence[Run], env_steps: int, failures: dict[str, str]
) -> None:
    """Score runs together. One must not end the others: if they cannot be, only that one fails."""
    try:
        if runs:
            _score(folder, plan, runs, env_steps)
    except Exception as error:
        if len(runs) == 1:
            _note(failures, runs[0], error)
            return
        for run in runs:
            _score_apart(folder, plan, [run], env_steps, failures)


def _score(folder: Path, plan: Plan, runs: Sequence[Run], env_steps: int) -> None:
    """Score the newest checkpoints of some runs in one program."""
    from gpld.training import score

    trained = [saved.load(_state.run_folder(folder, run)) for run in runs]
    for one in trained:
        if one.env_steps != env_steps:
            raise RuntimeError(f"the newest checkpoint is of {one.env_steps:,} env steps, not {env_steps:,}")
    found = score.score_all(trained, episodes=plan.study.score_episodes)
    for run, own in zip(runs, found, strict=True):
        results.add_score(_state.run_folder(folder, run), own)
        print(f"{run.name}: {own.mean:.1f} after {env_steps:,} env steps", flush=True)


def _measure(
    folder: Path, plan: Plan, group: Group, failures: dict[str, str], *, only: int | None = None
) -> None:
    """Measure what is left of all models that are kept, or of those of some env steps, the latest first."""
    models = [
        (step, run)
        for run in group.runs
        for step in _state.unmeasured(folder, plan, run)
        if run.name not in failures and only in (None, step)
    ]
    for step, run in sorted(models, key=lambda model: -model[0]):
        try:
            _measure_one(_state.run_folder(folder, run), plan, step)
        except Exception as error:
            _note(failures, run, error)


def _measure_one(path: Path, plan: Plan, step: int) -> None:
    """Measure what has not been of a run's model of `step`."""
    from gpld.analysis import quality, rollouts, sensitivity

    kinds = {kind.NAME: kind.measure for kind in (sensitivity, quality)}
    left = [name for name in plan.study.measures if step not in rollouts.measured_steps(path, name)]
    rollouts.measure_all(path, {name: kinds[name] for name in left}, step=step)


def _note(failures: dict[str, str], run: Run, error: Exception) -> None:
    traceback.print_exception(error)
    failures[run.name] = f"{type(error).__name__}: {error}"


def _discard_replay(folder: Path, plan: Plan, run: Run) -> None:
    """Give back the disk that only a longer run would need; agents can still be loaded."""
    if plan.study.keep_replay:
        return
    checkpoints = _state.run_folder(folder, run) / saved.CHECKPOINTS
    for path in [checkpoints / "steps", *checkpoints.glob("*/latents")]:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Wait until no other worker has a group, or a run to begin with: a lost keeper's may still be saving."""
    path = folder / _state.STATE / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _stop_with_parent() -> None:
    """Save and stop if the process that watches over this one dies: another will start a new worker."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            stop.wait(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    stop = threading.Event()
    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """What the process does."""
    _stop_with_parent()
    folder = Path(arguments[0])
    plan = read_plan(folder)
    group = plan.group(arguments[1])
    with _alone(folder, group.name):
        return work(folder, group, plan)


def _interrupt(number: int, _: object) -> None:
    raise Interrupted(number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # where nothing is trained, which answers for itself
    try:
        sys.exit(main(sys.argv[1:]))
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.number)
