"""A study as runs, and runs as groups that train in one program; kept in a file that every worker reads."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpld import config as options
from gpld.config import Config, ConfigError, flat
from gpld.population import PER_RUN
from gpld.studies._study import Study, from_dict

PLAN = "plan.json"
RUNS = "runs"
"""Folder of the runs, in that of a study."""


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
        plain = re.sub(r"[^\w.=,+-]+", "-", self.method).strip("-")
        task = self.task.replace(":", "-").replace("/", "-")
        return f"{task}/{plain}/seed{self.seed}"


@dataclass(frozen=True)
class Group:
    """Runs that one process trains together: they differ in `population.PER_RUN` alone."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Plan:
    """All that workers need to know."""

    study: Study
    groups: tuple[Group, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs of all groups."""
        return tuple(run for group in self.groups for run in group.runs)

    def group(self, name: str) -> Group:
        """A group by its name."""
        return next(group for group in self.groups if group.name == name)

    def write(self, folder: Path) -> None:
        """Keep it in a study's folder, in one move."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / PLAN
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        partial.replace(path)


def read_plan(folder: Path) -> Plan:
    """The plan in a study's folder."""
    path = folder / PLAN
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"study: nothing has been run in {folder}; `gpld study run` does") from None
    study = from_dict(values["study"], values["study"]["name"])
    groups = [Group(group["name"], tuple(map(_run, group["runs"]))) for group in values["groups"]]
    return Plan(study, tuple(groups))


def plan(study: Study, *, members: int = 10) -> Plan:
    """Runs of a study, in groups of at most `members`."""
    study.check()
    runs = [
        Run(task, method, seed, study.config(task, method, seed))
        for task in study.tasks
        for seed in study.seeds
        for method in study.methods
    ]
    names = [run.name for run in runs]
    if double := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"study: {study.name}: methods with names too much alike: {', '.join(sorted(double))}"
        )
    return Plan(study, tuple(_groups(runs, members)))


def _groups(runs: Iterable[Run], members: int) -> Iterable[Group]:
    """Runs that share everything but `PER_RUN`, in order of their first."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        shared = {name: value for name, value in flat(run.config).items() if name not in PER_RUN}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:8]
        alike.setdefault(f"{run.name.partition('/')[0]}-{digest}", []).append(run)
    for name, together in alike.items():
        for begin in range(0, len(together), members):
            part = f"-{begin // members}" if len(together) > members else ""
            yield Group(f"{name}{part}", tuple(together[begin : begin + members]))


def _run(values: dict) -> Run:
    config = options.override(Config(task=""), values.pop("config"))
    return Run(**values, config=config)
