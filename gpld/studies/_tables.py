"""The results of a study as text files in a repository: exported from its folder, and shown from there."""

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gpld
from gpld import config as options, machine, results
from gpld.config import ConfigError
from gpld.results import Tables
from gpld.studies import _state
from gpld.studies._plan import PLAN, Plan, Run, plan, read_plan
from gpld.studies._study import Study
from gpld.training import saved

FOLDER = "results"
"""The folder of results in a repository, with one for each study."""


def export(study: Study, folder: Path, to: Path | None = None, *, commit: str = "") -> list[Path]:
    """Add the results of the runs in a study's folder to its committed tables; the paths of these.

    `to` is the folder of the tables, results/NAME by default. `commit` is that of the code that made the
    runs, if their provenance has none, or a wrong one; runs that were taken from another study keep theirs.
    """
    to = to or Path(FOLDER) / study.name
    there = {run: _state.run_folder(folder, run) for run in plan(study).runs}
    folders = {_key(run): path for run, path in there.items() if (path / saved.CONFIG).exists()}
    if not folders:
        raise ConfigError(f"study: there are no runs of {study.name} in {folder}")
    tables = results.collect_tables(_as_json(study), folders)
    if commit:
        known = {"git": {"commit": commit, "dirty": False}}
        own = {_key(run) for run in there if not _state.taken_from(folder, run)}
        runs = [
            replace(run, provenance={**run.provenance, **known}) if run.key in own else run
            for run in tables.runs
        ]
        tables = replace(tables, runs=tuple(runs))
    if (to / results.RUNS).exists():
        tables = results.merge(results.read_tables(to), tables)
    _check_options(study, tables)
    _check_simulators(tables)
    return results.write_tables(tables, to)


def committed(study: Study) -> Path | None:
    """The folder of a study's committed tables, here or beside this package's code; None if there is none."""
    places = (Path(FOLDER), Path(gpld.__file__).parent.parent / FOLDER)
    found = (place / study.name for place in places)
    return next((place for place in found if (place / results.RUNS).exists()), None)


@dataclass(frozen=True)
class OpenedResults:
    """Results of a study that can be shown."""

    plan: Plan
    folder: Path
    """Holds the runs."""
    out: Path
    """The folder for figures and reports."""
    data: Path
    """Their source, to be shown."""
    notes: tuple[str, ...] = ()
    """Notes to show with them."""
    is_committed: bool = False
    """Whether the runs come from committed tables: they have no checkpoints."""
    until: int | None = None
    """Env steps up to which they are shown; all if None."""

    @property
    def study(self) -> Study:
        """The study as if it ended after `until` env steps. It has no films then: they show later agents."""
        study = self.plan.study
        if self.until is None or self.until >= study.env_steps[-1]:
            return study
        steps = [step for step in study.env_steps if step < self.until]
        return replace(study, env_steps=(*steps, self.until), films=())

    @property
    def suffix(self) -> str:
        """Ends the names of files that show less than all."""
        return "" if self.study is self.plan.study else f"-{self.until}"


@contextmanager
def open_results(
    study: Study, folder: Path, *, only_there: bool = False, until: int | None = None
) -> Iterator[OpenedResults]:
    """The results in a study's folder, or, if nothing has been run there, those that are committed.

    Committed runs are unpacked into a temporary folder. With `only_there` they are not used.
    """
    tables_folder = None if only_there or (folder / PLAN).exists() else committed(study)
    if tables_folder is None:
        there = read_plan(folder)
        shown = {name: getattr(study, name) for name in _SHOWN}  # as its file has it now
        if there.study.name == study.name and {*study.singly, *study.films} <= {*there.study.tasks}:
            there = replace(there, study=replace(there.study, **shown))
        yield OpenedResults(there, folder, folder, folder / results.FOLDER, until=until)
        return
    notes = tuple(outdated(study, results.read_tables(tables_folder)))
    with tempfile.TemporaryDirectory() as name:
        unpack_committed(study, Path(name), tables_folder)
        yield OpenedResults(plan(study), Path(name), folder, tables_folder, notes, True, until)


def unpack_committed(study: Study, folder: Path, tables_folder: Path | None = None) -> int:
    """Unpack a study's committed runs, which have no models, into its folder; how many there are."""
    if (folder / PLAN).exists():
        raise ConfigError(f"study: {study.name} has been run in {folder}; name another folder with --out")
    tables_folder = tables_folder or committed(study)
    if tables_folder is None:
        raise ConfigError(f"study: there are no committed results of {study.name}")
    tables, planned = results.read_tables(tables_folder), plan(study)
    _check_options(study, tables)
    _check_simulators(tables)
    results.unpack(tables, {_key(run): _state.run_folder(folder, run) for run in planned.runs})
    planned.write(folder)
    return len(tables.runs)


def outdated(study: Study, tables: Tables) -> list[str]:
    """Notes about changes of a study's definition since its committed runs were made."""
    now, then = _as_json(study), {**_as_json(Study()), **tables.study}
    entries = [name for name in now if name not in _SHOWN and now[name] != then[name]]
    if not entries:
        return []
    changed = "; ".join(f"{name} was {_short(then[name])} and is {_short(now[name])}" for name in entries)
    return [f"the results are older than the definition of {study.name}: {changed}"]


_SHOWN = ("title", "purpose", "figures", "singly", "films", "compare")
"""Entries of a definition that change how results are shown, and not the results."""


def _check_options(study: Study, tables: Tables) -> None:
    """Refuse runs with other options than the study gives them, unless its definition has changed since."""
    if outdated(study, tables):
        return
    configs = {_key(run): run.config for run in plan(study).runs}
    for run in tables.runs:
        if run.key not in configs:
            raise ConfigError(f"results: {run.name} is not a run of {study.name}")
        expected = json.loads(json.dumps(options.flat(configs[run.key])))
        results.refuse_differences(expected, run, "", f"the definition of {study.name}")


def _check_simulators(tables: Tables) -> None:
    """Refuse runs in different versions of a simulator, whose physics may differ."""
    known: dict[str, tuple[str, str]] = {}
    for run in tables.runs:
        for name in machine.SIMULATORS:
            if version := (run.provenance.get("packages") or {}).get(name):
                first, other = known.setdefault(name, (version, run.name))
                if version != first:
                    ran = f"{run.name} ran in {name} {version}, and {other} in {first}"
                    raise ConfigError(f"results: {ran}; a study's runs must have one version")


def _key(run: Run) -> tuple[str, str, int]:
    return run.task, run.method, run.seed


def _as_json(study: Study) -> dict[str, Any]:
    """A definition as JSON."""
    return json.loads(json.dumps(dataclasses.asdict(study)))


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
