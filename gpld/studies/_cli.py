"""`gpld study`: list, show, run, status, table, figure, report, export and import."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gpld import machine
from gpld.analysis.curves import Band
from gpld.analysis.tables import Format, render
from gpld.config import ConfigError
from gpld.display.options import Imports, parse, shown
from gpld.envs import opening
from gpld.studies import _plan, _reuse, _show, _state, _status, _study, _tables
from gpld.studies._estimate import estimate
from gpld.studies._run import RunOptions, default_folder, run
from gpld.studies._study import Study
from gpld.studies._tables import OpenedResults

Folder = Annotated[Path | None, shown("FOLDER", "(default: studies/NAME)")]


@dataclass(frozen=True)
class NameOptions:
    """Which study."""

    name: Annotated[str, tyro.conf.Positional, shown("NAME")]
    """A study that `gpld study list` names, or a file of your own (.toml)."""
    out: Folder = None
    """The study's folder."""

    def find(self) -> tuple[Study, Path]:
        """The study and its folder."""
        study = _study.get(self.name)
        return study, (self.out or default_folder(study)).absolute()


@dataclass(frozen=True)
class StudyRunOptions(NameOptions, RunOptions):
    """Options of `gpld study run`."""

    out: Folder = None
    """The study's folder; what is missing in it is run."""


@dataclass(frozen=True)
class ShowOptions(NameOptions):
    """Options of `gpld study report`, and of all that shows results."""

    until: Annotated[int | None, shown("ENV-STEPS")] = None
    """Show results up to these env steps only, scores included; all by default."""

    @contextmanager
    def opened(self) -> Iterator[OpenedResults]:
        """The study's results, in its folder or committed; notes about them are printed afterwards."""
        if self.until is not None and self.until <= 0:
            raise ConfigError(f"until: {self.until} is not allowed; it must be positive, in env steps")
        with _tables.open_results(*self.find(), only_there=self.out is not None, until=self.until) as found:
            yield found
        for note in found.notes:
            print(f"note: {note}", file=sys.stderr)


@dataclass(frozen=True)
class TableOptions(ShowOptions):
    """Options of `gpld study table`."""

    format: Format = "terminal"
    """Format of the tables."""


@dataclass(frozen=True)
class FigureOptions(ShowOptions):
    """Options of `gpld study figure`."""

    band: Band = "std"
    """Area around a mean: one standard deviation over seeds, or a 95% bootstrap interval."""
    peers: Annotated[tuple[str, ...], shown("AGENT [AGENT ...]")] = ()
    """Agents of others to draw beside each task's curves, with their bounds (see gpld.results.peers)."""


def list_studies(arguments: Sequence[str]) -> int:
    """List the studies."""
    argparse.ArgumentParser("gpld study list", description=list_studies.__doc__).parse_args(arguments)
    from rich.console import Console
    from rich.table import Column, Table

    typed = [Column(title, no_wrap=True) for title in ("study", "runs", "env steps")]  # never cut
    table = Table(typed[0], "what", *typed[1:])
    for name in _study.names():
        study = _study.get(name)
        runs = len(study.tasks) * len(study.methods) * len(study.seeds)
        table.add_row(name, study.title, str(runs), f"{study.env_steps[-1]:,}")
    Console().print(table)
    return 0


def show(arguments: Sequence[str]) -> int:
    """Show what a study is, and what it will take."""
    options = parse(NameOptions, "study show", show.__doc__, arguments)
    machine.leave_gpus()
    study, folder = options.find()
    print(f"{study.name}: {study.title}\n\n{study.purpose}\n")
    print(f"tasks: {', '.join(study.tasks)}")
    print(f"methods: {', '.join(study.methods)}; baseline: {study.baseline}")
    print(f"seeds: {', '.join(map(str, study.seeds))}")
    steps = ", ".join(f"{x:,}" for x in study.env_steps)
    if study.work == "time":
        print("their updates are timed, round after round; nothing is trained")
    else:
        print(f"scored after {steps} env steps, with {study.score_episodes} episodes")
    if start := study.start.env_steps:
        print(f"all start from the {study.start.init} of a {study.start.method} run of {start:,} env steps")
    print(f"presets: {', '.join(study.presets)}")
    plan = _plan.plan(study)
    print(estimate(plan, _reuse.reused(folder, plan)))
    return 0


def run_study(arguments: Sequence[str]) -> int:
    """Run a study, or what is left of it."""
    options = parse(StudyRunOptions, "study run", run_study.__doc__, arguments)
    machine.leave_gpus()
    study, folder = options.find()
    plan = _plan.plan(study, members=options.members).only(options.tasks)
    print(f"{study.name}, in {folder}: {estimate(plan, _reuse.reused(folder, plan))}", flush=True)
    try:
        states = run(study, folder, options)
    except KeyboardInterrupt:
        return 130
    for failure in _status.failures(states):
        print(f"failed: {failure}", file=sys.stderr)
    kinds = {state.kind for state in states}
    return int("failed" in kinds or (options.wait and bool(kinds - {"done"})))


def status(arguments: Sequence[str]) -> int:
    """Show how far a study is."""
    from rich.console import Console

    options = parse(NameOptions, "study status", status.__doc__, arguments)
    _, folder = options.find()
    plan = _plan.read_plan(folder)
    states = _state.run_states(folder, plan)
    Console().print(_status.status_table(plan, states))
    for others in _status.taken(states):
        print(others)
    for failure in _status.failures(states):
        print(f"failed: {failure}")
    return 0


def table(arguments: Sequence[str]) -> int:
    """Print a study's tables."""
    options = parse(TableOptions, "study table", table.__doc__, arguments)
    with options.opened() as found:
        source = _show.source_of(found.data, f"gpld study table {shlex.join(arguments)}")
        tables = _show.all_tables(found, source)
    print("\n\n".join(render(table, options.format) for table in tables) or "no results yet")
    return 0


def figure(arguments: Sequence[str]) -> int:
    """Draw a study's figures, as PDF and PNG."""
    options = parse(FigureOptions, "study figure", figure.__doc__, arguments)
    with options.opened() as found:
        source = _show.source_of(found.data, f"gpld study figure {shlex.join(arguments)}")
        paths = _show.save_figures(found, source, options.band, options.peers)
    print(*paths, sep="\n")
    return 0


@dataclass(frozen=True)
class StudyReportOptions(ShowOptions):
    """Options of `gpld study report`."""

    imports: Imports = True
    """Import the module that a run's task names (gym:MODULE:NAME), to film it; this runs its code."""


def study_report(arguments: Sequence[str]) -> int:
    """Write a study's report, one HTML page."""
    options = parse(StudyReportOptions, "study report", study_report.__doc__, arguments)
    with options.opened() as found, opening(found.folder, imports=options.imports):
        path = _show.write_study_report(found)
    print(path)
    return 0


@dataclass(frozen=True)
class ExportOptions(NameOptions):
    """Options of `gpld study export`."""

    to: Annotated[Path | None, shown("FOLDER", "(default: results/NAME)")] = None
    """Folder of the tables; what it holds of other runs stays."""
    commit: str = ""
    """Commit of the code that made the runs, where they do not know it."""


def export(arguments: Sequence[str]) -> int:
    """Write a study's results as small text files that can be committed."""
    options = parse(ExportOptions, "study export", export.__doc__, arguments)
    study, folder = options.find()
    print(*_tables.export(study, folder, options.to, commit=options.commit), sep="\n")
    return 0


@dataclass(frozen=True)
class ReportOptions:
    """Options of `gpld report`."""

    runs: Annotated[str, tyro.conf.Positional, shown("RUNS_OR_STUDY")]
    """A folder of runs at any depth, the folder of a study, or a study's name."""
    out: Annotated[Path | None, shown("FILE", "(default: report.html there)")] = None
    """The page to write."""
    imports: Imports = True
    """Import the module that a run's task names (gym:MODULE:NAME), to film it; this runs its code."""


def report_command(arguments: Sequence[str], what: str) -> int:
    """The command `gpld report`; `what` describes it."""
    options = parse(ReportOptions, "report", what, arguments)
    with opening(options.runs, imports=options.imports):
        path = _show.write_report(options.runs, options.out)
    print(path)
    return 0


def import_results(arguments: Sequence[str]) -> int:
    """Copy a study's committed results into its folder, so that it continues from them."""
    study, folder = parse(NameOptions, "study import", import_results.__doc__, arguments).find()
    count = _tables.unpack_committed(study, folder)
    print(f"{count} runs of {study.name}, in {folder}; they come without models")
    return 0


ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "list": list_studies,
    "show": show,
    "run": run_study,
    "status": status,
    "table": table,
    "figure": figure,
    "report": study_report,
    "export": export,
    "import": import_results,
}


def study_command(arguments: Sequence[str]) -> int:
    """The command `gpld study`."""
    action, *rest = arguments or ["--help"]
    if action in ("-h", "--help"):
        lines = [f"  {name:6}  {function.__doc__}" for name, function in ACTIONS.items()]
        more = "`gpld study ACTION --help` says more."
        print("\n".join(["usage: gpld study ACTION [NAME] ...", "", *lines, "", more]))
        return 0
    if action not in ACTIONS:
        raise ConfigError(f"action: {action!r} is not one of {', '.join(ACTIONS)}")
    return ACTIONS[action](rest)
