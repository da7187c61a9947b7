"""The plan of a study: its runs, and groups of them that train in one program, in a file for all workers."""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpld import config as options, files
from gpld.config import Config, ConfigError
from gpld.files import DamagedFile
from gpld.population import shared_options, task_folder
from gpld.studies._study import Study, from_dict

PLAN = "plan.json"
RUNS = "runs"
"""Folder of the runs, in that of a study."""
START = "start"
"""The method in the name of a run that others start from."""


@dataclass(frozen=True)
class Run:
    """A task, a method and a seed."""

    task: str
    method: str
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """Tells it from the other runs of its study, and can be a path."""
        return f"{task_folder(self.task)}/{_method_folder(self.method)}/seed{self.seed}"


def _method_folder(method: str) -> str:
    return re.sub(r"[^\w.=,+-]+", "-", method).strip("-")


@dataclass(frozen=True)
class Group:
    """Runs that one process works on together. Those to be trained differ in `config.PER_RUN` alone."""

    name: str
    runs: tuple[Run, ...]
    start: Run | None = None
    """A run that all of them begin with parts of."""


@dataclass(frozen=True)
class Plan:
    """A study's runs and groups, as all workers read them."""

    study: Study
    groups: tuple[Group, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs of all groups."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def starts(self) -> tuple[Run, ...]:
        """Runs that others begin with parts of, each once."""
        return tuple(dict.fromkeys(group.start for group in self.groups if group.start))

    def group(self, name: str) -> Group:
        """A group by its name."""
        return next(group for group in self.groups if group.name == name)

    def only(self, tasks: Sequence[str]) -> "Plan":
        """The groups of some tasks alone, or of all if none is named."""
        known = self.study.tasks
        if wrong := [task for task in tasks if task not in known]:
            there = f"is not a task of the study {self.study.name}; it has {', '.join(known)}"
            raise ConfigError(f"tasks: {wrong[0]!r} {there}")
        chosen = [group for group in self.groups if not tasks or group.runs[0].task in tasks]
        return dataclasses.replace(self, groups=tuple(chosen))

    def write(self, folder: Path) -> None:
        """Keep it in a study's folder, in one move."""
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / PLAN, dataclasses.asdict(self), indent=1)


def read_plan(folder: Path) -> Plan:
    """The plan in a study's folder."""
    path = folder / PLAN
    try:
        values = files.read_json(path)
        study = from_dict(values["study"], values["study"]["name"])
        groups = [
            # Older plans have no start.
            Group(group["name"], tuple(map(_run, group["runs"])), group.get("start") and _run(group["start"]))
            for group in values["groups"]
        ]
        return Plan(study, tuple(groups))
    except FileNotFoundError:
        raise ConfigError(f"study: nothing has been run in {folder}: `gpld study run` comes first") from None
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path}: not the plan of a study ({error!r})") from error


def plan(study: Study, *, members: int = 10) -> Plan:
    """Runs of a study, in groups of at most `members`."""
    if members < 1:
        raise ConfigError(f"members: {members} is not allowed; it must be at least 1")
    study.check()
    if bad := [method for method in study.methods if not _method_folder(method).strip(".")]:
        raise ConfigError(
            f"study: {study.name}: methods: {bad[0]!r} is not allowed; it must have a letter or digit"
        )
    runs = [
        Run(task, method, seed, study.config(task, method, seed))
        for task in study.tasks
        for seed in study.seeds
        for method in study.methods
    ]
    if double := sorted(name for name, n in Counter(run.name for run in runs).items() if n > 1):
        raise ConfigError(f"study: {study.name}: names of methods are too similar: {', '.join(double)}")
    if study.work == "time":
        return Plan(study, tuple(_timed(runs)))
    if study.start.env_steps and (taken := [run.method for run in runs if f"/{START}/" in run.name]):
        reason = "it is the name of what runs start from"
        raise ConfigError(f"study: {study.name}: methods: {taken[0]!r} is not allowed; {reason}")
    return Plan(study, tuple(_with_start(study, group) for group in _groups(runs, members)))


def _groups(runs: Iterable[Run], members: int) -> Iterable[Group]:
    """Runs that share everything but `config.PER_RUN`, in order of their first."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        shared = json.dumps(shared_options(run.config), sort_keys=True)
        digest = hashlib.sha256(shared.encode()).hexdigest()[:8]
        alike.setdefault(f"{run.name.partition('/')[0]}-{digest}", []).append(run)
    for name, together in alike.items():
        for begin in range(0, len(together), members):
            part = f"-{begin // members}" if len(together) > members else ""
            yield Group(f"{name}{part}", tuple(together[begin : begin + members]))


def _timed(runs: Iterable[Run]) -> Iterable[Group]:
    """All runs of a task and seed together: times are compared with those of the same minutes."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(f"{run.name.partition('/')[0]}-seed{run.seed}", []).append(run)
    return [Group(name, tuple(some)) for name, some in together.items()]


def _with_start(study: Study, group: Group) -> Group:
    if not study.start.env_steps:
        return group
    task = group.runs[0].task
    start = Run(task, START, study.start.seed, study.start_config(task))
    return dataclasses.replace(group, start=start)


def _run(values: dict) -> Run:
    config = options.override(Config(task=""), values.pop("config"))
    return Run(**values, config=config)
