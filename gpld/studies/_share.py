"""Runs that a study beside this one has trained already: they are taken, not trained again."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpld import config as options
from gpld import population, results
from gpld.analysis import rollouts
from gpld.config import Config, ConfigError
from gpld.studies import _state
from gpld.studies._plan import PLAN, Plan, Run, read_plan
from gpld.training import saved

TAKING = "taking"
"""Where a run that is taken is put together, in the folder of the state, before it is moved."""
FILMS = ("film", "open-loop")
"""How the names of pictures of a run's last model begin."""


class Found(NamedTuple):
    """A run of this study, and where another has it."""

    run: Run
    source: Path
    """The run's folder there."""
    study: str
    """The study that trained it."""


def identity(config: Config) -> str:
    """What a run computes, its length aside: runs of the same identity are the same run, as far as both go.

    Task, seed and all options but those on which no bit of training depends (`saved.FREE`); without a penalty
    also not those that would shape it.
    """
    no_penalty = population.method_of(config) == "dreamerv3"
    free = (*saved.FREE, "agent.penalty.") if no_penalty else saved.FREE
    decisive = {
        name: value
        for name, value in options.flat(config).items()
        if name != "env_steps" and not name.startswith(free)
    }
    return json.dumps(decisive, sort_keys=True)


def find(folder: Path, plan: Plan) -> list[Found]:
    """Runs not begun here that a study in a folder beside this one has as far as this study needs them."""
    if plan.study.work == "time" or plan.study.start.env_steps:
        return []
    wanted: dict[str, list[Run]] = {}
    for run in plan.runs:
        if not _begun(_state.run_folder(folder, run)):
            wanted.setdefault(identity(run.config), []).append(run)
    found: dict[str, Found] = {}
    for other, theirs in _beside(folder) if wanted else ():
        for source, study, config in _finished(other, theirs, plan):
            for run in wanted.get(identity(config), ()):
                if run.name not in found and _has_all(source, config, plan, run):
                    found[run.name] = Found(run, source, study)
    return [*found.values()]


def taken(folder: Path, plan: Plan) -> dict[str, str]:
    """Runs that are taken, or would be if the study were run now, and the studies that trained them."""
    before = {run.name: _state.taken_from(folder, run) for run in plan.runs}
    return {name: study for name, study in before.items() if study} | {
        found.run.name: found.study for found in find(folder, plan)
    }


def take(folder: Path, plan: Plan) -> None:
    """Bring all that can be taken into the study's folder, each run in one move."""
    place = folder / _state.STATE / TAKING
    shutil.rmtree(place, ignore_errors=True)  # a kill may have left something
    for found in find(folder, plan):
        partial, path = place / found.run.name, _state.run_folder(folder, found.run)
        try:
            _bring(found, partial, keep_replay=plan.study.keep_replay)
        except FileNotFoundError:  # it is trained further there, and a checkpoint has just been replaced
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(path)
        _state.store(folder, plan, found.run)
    shutil.rmtree(place, ignore_errors=True)


def _begun(path: Path) -> bool:
    return path.exists() and any(path.iterdir())


def _beside(folder: Path) -> Iterator[tuple[Path, Plan]]:
    """Folders of other studies in the one that this study's is in, and their plans."""
    folder = folder.absolute()
    for path in sorted(folder.parent.glob(f"*/{PLAN}")):
        if path.parent.resolve() != folder.resolve():
            with suppress(
                ConfigError, ValueError, KeyError, TypeError, OSError
            ):  # not a plan of this version
                yield path.parent, read_plan(path.parent)


def _finished(folder: Path, theirs: Plan, plan: Plan) -> Iterator[tuple[Path, str, Config]]:
    """Runs of another study that may be some of this one, who trained them, and their options."""
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


def _has_all(source: Path, config: Config, plan: Plan, run: Run) -> bool:
    """Whether a run of the same identity has all that this study wants of it."""
    study, own = plan.study, run.config
    episodes = {score["env_steps"]: len(score["returns"]) for score in results.read_scores(source)}
    models = {*saved.steps(source)}
    measured = [models | rollouts.measured_steps(source, name) for name in study.measures]
    replay = (source / saved.CHECKPOINTS / "steps").exists() and max(models, default=0) == own.env_steps
    return (
        all(episodes.get(step) == study.score_episodes for step in study.env_steps)
        and all(steps >= {*study.env_steps} for steps in measured)
        and own.checkpoint.milestones in (0, config.checkpoint.milestones)
        and (replay or not study.keep_replay)
    )


def _bring(found: Found, folder: Path, *, keep_replay: bool) -> None:
    """Put a run together: links to its models as far as it goes here, and copies of what may still change."""
    goal = found.run.config.env_steps
    longer = max(saved.steps(found.source), default=0) > goal
    for path in sorted(found.source.rglob("*")):
        inside = path.relative_to(found.source)
        first, *rest = inside.parts
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        if first in saved.PLACES:
            later = rest[0].isdigit() and int(rest[0]) > goal
            replay = rest[0] == "steps" or "latents" in rest
            if not later and (keep_replay or not replay):
                _link(path, folder / inside)
        elif path.suffix != ".partial" and not (longer and first.startswith(FILMS)):
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / inside)
    config = options.load(found.source / saved.CONFIG)
    options.save(replace(config, env_steps=goal), folder / saved.CONFIG)
    origin = {"study": found.study, "run": "/".join(found.source.parts[-3:])}
    (folder / _state.TAKEN).write_text(json.dumps(origin, indent=1) + "\n")


def _link(path: Path, to: Path) -> None:
    """The same file under another name; a copy on a file system that has no links, or on another one."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, to)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, to)
