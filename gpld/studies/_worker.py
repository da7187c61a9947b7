"""The process that works on one group: train its runs up to each score, score them, continue.

What is known is written at once, and what matters most comes first: the runs' metrics, their scores, and then
what is measured of their models, of the last of all runs before any earlier one.

    python -m gpld.studies._worker FOLDER GROUP

It exits with 0 if all runs are done, 1 if some failed, and 128 plus the number of the signal that interrupted
it; everything is saved then, and another worker continues.
"""

import fcntl
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpld import config as options, files, machine, results, training
from gpld.analysis import quality, rollouts, sensitivity
from gpld.config import ConfigError
from gpld.population import Member
from gpld.studies import _state, _times
from gpld.studies._plan import RUNS, Group, Plan, Run, read_plan
from gpld.training import Result, TrainingStopped, saved, score
from gpld.training.checkpoints import discard_replay
from gpld.training.score import Score

Done = TypeVar("Done")


class Interrupted(BaseException):
    """A signal that ends a worker, once everything is saved."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class OneRunError(Exception):
    """The error of one of several runs that were trained together."""

    def __init__(self, run: Run, error: Exception):
        super().__init__(str(error))
        self.run, self.error = run, error


def work(folder: Path, group: Group, plan: Plan) -> int:
    """Do the rest of a group's work; the exit status."""
    try:
        with _state.report_running(folder, group) as failures:
            if plan.study.work == "time":
                _time(folder, plan, group, failures)
            else:
                _train(folder, plan, group, failures)
    except Interrupted as interrupted:
        print(f"interrupted by {interrupted}; the runs are saved", flush=True)
        return 128 + interrupted.number
    return int(bool(failures))


def _time(folder: Path, plan: Plan, group: Group, failures: dict[str, str]) -> None:
    """Time all runs; they are timed by turns, so that they fail together."""
    try:
        _times.measure(folder, plan, group)
    except Exception as error:
        traceback.print_exception(error)
        failures |= {run.name: _named(error) for run in group.runs}


def _train(folder: Path, plan: Plan, group: Group, failures: dict[str, str]) -> None:
    """Train and score what is left of a group, after the run that its runs start from."""
    begin = {}
    if (start := group.start) is not None:
        with _exclusive(folder, start.name.replace("/", "-")):  # workers of other groups wait for it
            if not _state.is_done(folder, plan, start):
                _advance(folder, plan, [start], start.config.env_steps, failures)
        if start.name in failures:
            failures |= {run.name: f"{start.name}, which it starts from, failed" for run in group.runs}
        begin = {"init_from": str(_state.run_folder(folder, start)), "init": plan.study.start.init}
    for env_steps in plan.study.env_steps:
        left = [run for run in group.runs if env_steps not in _state.scored(folder, run)]
        left = [replace(run, config=replace(run.config, **begin)) for run in left if run.name not in failures]
        for run in left if start else ():
            _update_init_from(_state.run_folder(folder, run) / saved.CONFIG, folder, start)
        _advance(folder, plan, left, env_steps, failures)
        # Before training continues: the checkpoint will be replaced.
        _measure(folder, plan, group, failures, only=env_steps)
    _measure(folder, plan, group, failures)


def _update_init_from(config: Path, folder: Path, start: Run) -> None:
    """Update the source of a run's warm start in its options: the study's folder may have been moved."""
    inside = Path(RUNS, start.name).parts
    with suppress(ConfigError):  # training reports what is wrong with them
        before = options.load(config) if config.exists() else None
        if before and Path(before.init_from).parts[-len(inside) :] == inside:
            options.save(replace(before, init_from=str(folder.joinpath(*inside))), config)


def _advance(folder: Path, plan: Plan, runs: Sequence[Run], env_steps: int, failures: dict[str, str]) -> None:
    """Train some runs to `env_steps` and score them there. Failures are added as messages, by run."""

    def train(some: Sequence[Run]) -> list[Result]:
        configs = [replace(run.config, env_steps=env_steps) for run in some]
        folders = [_state.run_folder(folder, run) for run in some]
        try:
            return training.train_all(list(map(Member, configs, folders)))
        except TrainingStopped as error:
            if error.member is None or len(some) == 1:
                raise
            raise OneRunError(some[folders.index(error.member.folder)], error) from error

    ended = _together(train, runs, failures)
    signals = [result.signal for result in ended if result.signal is not None]
    if not signals:
        trained = [run for run in runs if run.name not in failures]
        _together(lambda some: _score(folder, plan, some, env_steps), trained, failures)
    for run in runs:
        _state.store(folder, plan, run)
        done = env_steps == run.config.env_steps and env_steps in _state.scored(folder, run)
        if done and not plan.study.keep_replay:  # only a longer run would need it
            discard_replay(_state.run_folder(folder, run) / saved.CHECKPOINTS)
    if signals:
        raise Interrupted(signals[0])


def _together(
    do: Callable[[Sequence[Run]], list[Done]], runs: Sequence[Run], failures: dict[str, str]
) -> list[Done]:
    """What `do` returns for some runs. One must not end the others.

    They go on without the one that failed, if it is known, and otherwise alone, until a signal ends them.
    """
    try:
        return do(runs) if runs else []
    except OneRunError as failed:
        _record_failure(failures, failed.run, failed.error)
        return _together(do, [run for run in runs if run is not failed.run], failures)
    except Exception as error:
        if len(runs) == 1:
            _record_failure(failures, runs[0], error)
            return []
    found: list[Done] = []
    for run in runs:
        found += _together(do, [run], failures)
        if any(getattr(done, "signal", None) is not None for done in found):
            break
    return found


def _score(folder: Path, plan: Plan, runs: Sequence[Run], env_steps: int) -> list[Score]:
    """Score the newest checkpoints of some runs in one program."""
    trained = [saved.load(_state.run_folder(folder, run)) for run in runs]
    for one in trained:
        if one.env_steps != env_steps:
            raise RuntimeError(f"the newest checkpoint is of {one.env_steps:,} env steps, not {env_steps:,}")
    found = score.score_all(trained, episodes=plan.study.score_episodes)
    for run, own in zip(runs, found, strict=True):
        results.add_score(_state.run_folder(folder, run), own)
        print(f"{run.name}: {own.mean:.1f} after {env_steps:,} env steps", flush=True)
    return found


def _measure(
    folder: Path, plan: Plan, group: Group, failures: dict[str, str], *, only: int | None = None
) -> None:
    """Measure all saved models that are left, or those of some env steps, the latest first."""
    models = [
        (step, run)
        for run in group.runs
        for step in _state.unmeasured(folder, plan, run)
        if run.name not in failures and only in (None, step)
    ]
    kinds = {kind.NAME: kind.measure for kind in (sensitivity, quality)}
    for step, run in sorted(models, key=lambda model: -model[0]):
        path = _state.run_folder(folder, run)
        left = [name for name in plan.study.measures if step not in rollouts.measured_steps(path, name)]
        try:
            rollouts.measure_all(path, {name: kinds[name] for name in left}, step=step)
        except Exception as error:
            _record_failure(failures, run, error)


def _record_failure(failures: dict[str, str], run: Run, error: Exception) -> None:
    traceback.print_exception(error)
    failures[run.name] = _named(error)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _exclusive(folder: Path, name: str) -> Iterator[None]:
    """Wait until no other worker has a group, or a start: one whose supervisor died may still be saving."""
    path = folder / _state.STATE / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(files.open_here(path, os.O_WRONLY | os.O_CREAT), "w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _stop_with_parent() -> None:
    """Save and stop if the supervisor of this process dies: another will start a new worker."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            stop.wait(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    stop = threading.Event()
    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """Run a worker."""
    _stop_with_parent()
    folder = Path(arguments[0])
    try:
        with machine.sigterm_raises(Interrupted(signal.SIGTERM)):  # but in training, which saves first
            plan = read_plan(folder)
            group = plan.group(arguments[1])
            with _exclusive(folder, group.name):
                try:
                    return work(folder, group, plan)
                except Exception as error:  # besides those of runs: a full disk, a damaged file
                    traceback.print_exception(error)
                    _state.report_failure(folder, group, _named(error))
                    return 1
    except Interrupted as interrupted:
        return 128 + interrupted.number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
