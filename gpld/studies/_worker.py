"""The process that works on one group: train its runs as far as they are to be scored, score them, go on.

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

from gpld import results
from gpld.studies import _state
from gpld.studies._plan import Group, Plan, Run, read_plan
from gpld.studies._train import train_group


class Interrupted(Exception):  # noqa: N818
    """A signal that ends a worker, once everything is saved."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def work(folder: Path, group: Group, plan: Plan) -> int:
    """Do what is left of a group; the exit status."""
    try:
        with _state.at_work(folder, group) as failures:
            for env_steps in plan.study.env_steps:
                left = [run for run in group.runs if env_steps not in _state.scored(folder, run)]
                _advance(folder, plan, [run for run in left if run.name not in failures], env_steps, failures)
    except Interrupted as interrupted:
        print(f"interrupted by {interrupted}; the runs are saved", flush=True)
        return 128 + interrupted.number
    return int(bool(failures))


def _advance(folder: Path, plan: Plan, runs: Sequence[Run], env_steps: int, failures: dict[str, str]) -> None:
    """Train some runs to `env_steps` and score them there. Failures, in words, are added by run."""
    configs = [replace(run.config, env_steps=env_steps) for run in runs]
    outcomes = train_group(configs, [_state.run_folder(folder, run) for run in runs])
    for run, outcome in zip(runs, outcomes, strict=True):
        if outcome.signal is not None:
            _store(folder, plan, run)
            raise Interrupted(outcome.signal)
        try:
            if outcome.error is not None:
                raise outcome.error
            _score(folder, plan, run, env_steps)
        except Exception as error:
            traceback.print_exception(error)
            failures[run.name] = f"{type(error).__name__}: {error}"
        _store(folder, plan, run)


def _score(folder: Path, plan: Plan, run: Run, env_steps: int) -> None:
    from gpld.analysis import sensitivity
    from gpld.training import saved, score

    path = _state.run_folder(folder, run)
    trained = saved.load(path)
    if trained.env_steps != env_steps:
        raise RuntimeError(f"the newest checkpoint is of {trained.env_steps:,} env steps, not {env_steps:,}")
    found = score.score(trained, episodes=plan.study.score_episodes)
    print(f"{run.name}: {found.mean:.1f} after {env_steps:,} env steps", flush=True)
    if "sensitivity" in plan.study.measures:
        sensitivity.measure_run(path)
    results.add_score(path, found)  # last: what is scored needs nothing more
    if env_steps == plan.study.env_steps[-1] and not plan.study.keep_replay:
        _discard_replay(path / saved.CHECKPOINTS)


def _discard_replay(checkpoints: Path) -> None:
    """Give back the disk that only a longer run would need; agents can still be loaded."""
    for path in [checkpoints / "steps", *checkpoints.glob("*/latents")]:
        shutil.rmtree(path, ignore_errors=True)


def _store(folder: Path, plan: Plan, run: Run) -> None:
    path = _state.run_folder(folder, run)
    if (path / "config.json").exists():
        rows = results.collect(path, run=run.name, study=plan.study.name, method=run.method)
        if len(rows):
            results.write(folder / results.FOLDER, rows)


@contextmanager
def _alone(folder: Path, group: Group) -> Iterator[None]:
    """Wait until no other worker has the group: one whose keeper died may still be saving."""
    path = folder / _state.STATE / f"{group.name}.lock"
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
    with _alone(folder, group):
        return work(folder, group, plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
