"""Reuse of runs that another study in the same folder has trained: they are not trained again."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpld import config as options, files, population, results
from gpld.analysis import rollouts
from gpld.config import Config, ConfigError
from gpld.files import DamagedFile
from gpld.studies import _state
from gpld.studies._plan import PLAN, Plan, Run, read_plan
from gpld.training import checkpoints, saved

FILMS = ("film", "open-loop")
"""Prefixes of the pictures of a run's last model."""


class ReusableRun(NamedTuple):
    """A run of this study that another study has."""

    run: Run
    source: Path
    """The run's folder there."""
    study: str
    """The study that trained it."""


def identity(config: Config) -> str:
    """The options that decide what a run computes: runs of the same identity differ in their length alone.

    Task, seed and all options but `saved.FREE`; without a penalty, also without the penalty's options.
    """
    no_penalty = population.method_of(config) == "dreamerv3"
    free = (*saved.FREE, "env_steps", *(["agent.penalty."] if no_penalty else []))
    values = {name: value for name, value in options.flat(config).items() if not name.startswith(free)}
    return json.dumps(values, sort_keys=True)


def find_reusable(folder: Path, plan: Plan) -> list[ReusableRun]:
    """Runs not started here that a study in a folder beside this one has for as long as this one needs."""
    if plan.study.work == "time" or plan.study.start.env_steps:
        return []
    missing: dict[str, list[Run]] = {}
    for run in plan.runs:
        if not any(_state.run_folder(folder, run).glob("*")):  # not started
            missing.setdefault(identity(run.config), []).append(run)
    found: dict[str, ReusableRun] = {}
    for other, theirs in _sibling_studies(folder) if missing else ():
        for source, study, config in _finished(other, theirs, plan):
            for run in missing.get(identity(config), ()):
                if run.name not in found and _has_enough(source, config, plan, run):
                    found[run.name] = ReusableRun(run, source, study)
    return [*found.values()]


def reused(folder: Path, plan: Plan) -> dict[str, str]:
    """Runs that are reused, or would be if the study were run now, and the studies that trained them."""
    before = {run.name: _state.taken_from(folder, run) for run in plan.runs}
    return {name: study for name, study in before.items() if study} | {
        found.run.name: found.study for found in find_reusable(folder, plan)
    }


def reuse(folder: Path, plan: Plan) -> None:
    """Copy all reusable runs into the study's folder, each in one move."""
    place = folder / _state.STATE / "taking"
    shutil.rmtree(place, ignore_errors=True)  # a kill may have left something
    for found in find_reusable(folder, plan):
        partial, path = place / found.run.name, _state.run_folder(folder, found.run)
        try:
            _copy_run(found, partial, keep_replay=plan.study.keep_replay)
        except FileNotFoundError:  # it is trained further there, and a checkpoint has just been replaced
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(path)
        _state.store(folder, plan, found.run)
    shutil.rmtree(place, ignore_errors=True)


def _sibling_studies(folder: Path) -> Iterator[tuple[Path, Plan]]:
    """Folders of other studies beside this study's folder, and their plans."""
    folder = folder.absolute()
    for path in sorted(folder.parent.glob(f"*/{PLAN}")):
        if path.parent.resolve() != folder.resolve():
            with suppress(ConfigError, DamagedFile, OSError):  # not a plan of this version
                yield path.parent, read_plan(path.parent)


def _finished(folder: Path, theirs: Plan, plan: Plan) -> Iterator[tuple[Path, str, Config]]:
    """Finished runs of another study that this one may have too, who trained them, and their options."""
    pairs = {(run.task, run.seed) for run in plan.runs}
    if theirs.study.work == "time":
        return
    for run in theirs.runs:
        source = _state.run_folder(folder, run)
        if (run.task, run.seed) in pairs and _state.scored(folder, run) >= {*plan.study.env_steps}:
            with suppress(ConfigError, OSError):
                config = options.load(source / saved.CONFIG)
                if not config.init_from:
                    yield source, _state.taken_from(folder, run) or theirs.study.name, config


def _has_enough(source: Path, config: Config, plan: Plan, run: Run) -> bool:
    """Whether a run of the same identity has all that this study needs of it."""
    study, own = plan.study, run.config
    episodes = {score["env_steps"]: len(score["returns"]) for score in results.read_scores(source)}
    models = {*saved.steps(source)}
    measured = [models | rollouts.measured_steps(source, name) for name in study.measures]
    whole = max(models, default=0) == own.env_steps
    replay = whole and (source / saved.CHECKPOINTS / checkpoints.STEPS).exists()
    return (
        all(episodes.get(step) == study.score_episodes for step in study.env_steps)
        and all(steps >= {*study.env_steps} for steps in measured)
        and own.checkpoint.milestones in (0, config.checkpoint.milestones)
        and (replay or not study.keep_replay)
    )


def _copy_run(found: ReusableRun, folder: Path, *, keep_replay: bool) -> None:
    """Assemble a run: links to its models up to this study's env steps, copies of what may still change."""
    goal = found.run.config.env_steps
    longer = max(saved.steps(found.source), default=0) > goal
    for path in sorted(found.source.rglob("*")):
        inside = path.relative_to(found.source)
        first, *rest = inside.parts
        if not files.is_file(path) or any(part.startswith(".") for part in inside.parts):
            continue
        if first in saved.PLACES:
            later = rest[0].isdigit() and int(rest[0]) > goal
            if not later and (keep_replay or not checkpoints.is_replay(Path(*rest))):
                _link(path, folder / inside)
        elif path.suffix != ".partial" and not (longer and first.startswith(FILMS)):
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / inside)
    config = options.load(found.source / saved.CONFIG)
    options.save(replace(config, env_steps=goal), folder / saved.CONFIG)
    origin = {"study": found.study, "run": "/".join(found.source.parts[-3:])}
    files.write_text(folder / _state.TAKEN, json.dumps(origin, indent=1) + "\n")


def _link(path: Path, to: Path) -> None:
    """A hard link to a file, or a copy where there are no links or on another file system."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, to)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, to)
