"""The results of a study: tables, figures, films and the report, from the results in its folder."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gpld import films as cinema, results
from gpld.analysis import (
    comparisons,
    cost,
    curves,
    figures,
    quality,
    report,
    rollouts,
    sensitivity,
    statistics,
)
from gpld.analysis.comparisons import Comparison
from gpld.analysis.curves import Band, Curve
from gpld.analysis.tables import Table
from gpld.config import ConfigError
from gpld.studies import _state, _status, _times
from gpld.studies._plan import PLAN, Plan, Run, read_plan
from gpld.studies._study import TASK_GROUPS, Study, get, names
from gpld.studies._tables import OpenedResults, open_results
from gpld.sweeps import show
from gpld.sweeps.definition import SWEEP
from gpld.training import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.html"
FIGURES = "figures"
"""Folder of the figures, in that of a study."""
PEERS = ("DreamerV3", "TD-MPC2")
"""Agents of others in the tables of a study that compares with peers."""
MOST_TILES = 6
"""With more methods and tasks than this, the tables alone have the returns of a folder of runs."""
DRAWN_PEERS = ("DreamerV3",)
"""Those in its figures: beside a far stronger agent, the study's methods could not be distinguished."""


def load(folder: Path, plan: Plan) -> pd.DataFrame:
    """Results of the runs of a plan, those in training included."""
    if not results.can_write():
        raise ConfigError("study: showing its results needs pyarrow: pip install pyarrow")
    store = folder / results.FOLDER
    store.mkdir(parents=True, exist_ok=True)
    stored = set(results.load(store)["run"])
    for run in plan.runs:
        if run.name not in stored or not _state.is_done(folder, plan, run):
            _state.store(folder, plan, run)
    rows = results.load(store)
    return rows.loc[rows["run"].isin([run.name for run in plan.runs])].reset_index(drop=True)


def _load_opened(found: OpenedResults) -> pd.DataFrame:
    """All results of an opened study, of which there must be some up to where they are shown."""
    rows = load(found.folder, found.plan)
    if found.until is not None and len(rows) and found.until < (first := min(rows["env_steps"])):
        raise ConfigError(
            f"until: {found.until} is not allowed; the first results are at {first:,} env steps"
        )
    return rows


def _until_last_step(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """Results up to the study's last env step."""
    return rows.loc[rows["env_steps"] <= study.env_steps[-1]]


def comparison_of(study: Study) -> Comparison:
    """The tasks and methods that a study compares."""
    return Comparison(study.tasks, tuple(study.methods), study.baseline)


def tables(study: Study, rows: pd.DataFrame, source: str) -> list[Table]:
    """Scores at each of the study's env steps, areas under the curves, statistics, and numbers of others."""
    shown, notes = comparison_of(study), [*_unfinished_note(study, rows), source]
    subsets = {
        name: some for name, some in TASK_GROUPS.items() if set(some) < set(study.tasks) and len(some) > 1
    }
    found = []
    for env_steps in study.env_steps:
        scores = statistics.final_scores(rows, env_steps)
        title = f"{study.title}: scores after {env_steps:,} env steps"
        if len(scores):
            about = [_episodes_note(study, scores), *notes]
            found.append(comparisons.score_table(scores, shown, title=title, subsets=subsets, notes=about))
    last = study.env_steps[-1]
    if len(scores := statistics.final_scores(rows, last)):
        title = f"{study.title}: statistics of scores after {last:,} env steps"
        found.append(comparisons.statistics_table(scores, shown, title=title, notes=notes))
    if len(areas := statistics.area_scores(rows, last)):
        title = f"{study.title}: area under the curve to {last:,} env steps"
        about = ["the mean return of a run's evaluations over training, by env steps", *notes]
        found.append(comparisons.score_table(areas, shown, title=title, subsets=subsets, notes=about))
        title = f"{study.title}: statistics of the area under the curve to {last:,} env steps"
        found.append(comparisons.statistics_table(areas, shown, title=title, notes=about))
    if aligned := curves.align(_until_last_step(study, rows)):
        title = f"{study.title}: sample efficiency"
        found.append(comparisons.efficiency_table(aligned, shown, title=title, notes=notes))
    return found + _reference_tables(study, subsets)


def _reference_tables(study: Study, subsets: Mapping[str, Sequence[str]]) -> list[Table]:
    """Tables of the numbers of others that a study compares with."""
    found, paper = [], results.paper_scores()
    paper = paper.loc[paper["task"].isin(list(study.tasks)) & paper["method"].isin(list(study.methods))]
    if "paper" in study.compare and len(paper):
        tasks = [task for task in study.tasks if task in set(paper["task"])]
        found.append(
            comparisons.score_table(
                paper,
                Comparison(tasks, results.METHODS, results.METHODS[0]),
                title="the paper's scores, reported after 1,000,000 env steps",
                subsets={name: some for name, some in subsets.items() if set(some) <= set(tasks)},
                notes=[
                    "20 episodes of a checkpoint for each seed; they may be after 2,000,000 env steps",
                    "data: Sonigra and Kumar, gpld.results.paper_scores()",
                ],
            )
        )
    if "peers" in study.compare:
        found.append(comparisons.peer_table(results.peers(agents=PEERS), study.tasks, study.env_steps[-1]))
    return [table for table in found if table is not None]


def all_tables(found: OpenedResults, source: str) -> list[Table]:
    """All tables of a study."""
    if found.study.work == "time":
        return _times.tables(found.plan, found.folder, source)
    more = [table for section in sections(found, source) for table in section.tables]
    return [*tables(found.study, _load_opened(found), source), *more]


def draw(
    study: Study, rows: pd.DataFrame, band: Band = "std", peers: Sequence[str] = ()
) -> "dict[str, Figure]":
    """The study's figures by name. `peers` are agents of others to draw beside each task's curves."""
    rows = _until_last_step(study, rows)
    shown, aligned = comparison_of(study), curves.align(rows)
    others = {
        key: curves.mean_over_tasks([runs], band) for key, runs in curves.align(_published(study)).items()
    }
    others |= _peers(study, peers)
    paper = results.paper_scores() if "paper" in study.compare else None
    if paper is not None:  # where it could be seen
        paper = paper.loc[paper["env_steps"] <= study.env_steps[-1]]
    found = {}
    by_task = {"tasks", "singly"} & {*study.figures}
    for name in (*study.figures, *(["tasks"] if peers and not by_task else [])):
        if name == "aggregate":
            found[name] = figures.aggregate(aligned, shown, band)
        elif name == "ablation":
            found[name] = figures.ablation(aligned, shown, title=study.title, band=band)
        elif name == "profile":
            found[name] = figures.profile(statistics.final_scores(rows), shown)
        elif name in ("tasks", "singly"):
            only = study.singly if name == "singly" else _with_results(study, rows)
            found[name] = figures.tasks(aligned, shown, only=only, band=band, others=others, marks=paper)
    return found


def _with_results(study: Study, rows: pd.DataFrame) -> Sequence[str]:
    """The study's tasks that have results, or all if none has."""
    found = set(rows["task"])
    return [task for task in study.tasks if task in found] or study.tasks


def save_figures(
    found: OpenedResults, source: str, band: Band = "std", peers: Sequence[str] = ()
) -> list[Path]:
    """Save the study's figures, and strips of its films, as PDF and PNG; their paths. `peers`: see `draw`."""
    paths, study, folder = [], found.study, found.folder
    drawn = draw(study, _load_opened(found), band, peers)
    if "cost" in study.figures and len(times := _times.load(found.plan, folder)):
        drawn["cost"] = cost.draw(times)
    for kind in (sensitivity, quality):
        if kind.NAME in study.figures and len(measured := measurements(found, kind.NAME)):
            drawn[kind.NAME] = kind.draw(measured)
    strips: dict[str, dict[str, Path]] = {}
    for run in _runs_to_film(found):
        strip = _state.run_folder(folder, run) / "film.png"
        if strip.exists():
            strips.setdefault(run.task, {})[run.method] = strip
    if strips:
        drawn["films"] = figures.strips(strips)
    for name, figure in drawn.items():
        named = f"{study.name}-{name}{found.suffix}"
        paths += figures.save(figure, found.out / FIGURES, named, source=source)
    return paths


def measurements(found: OpenedResults, name: str) -> pd.DataFrame:
    """Rows of a measurement of trained agents so far, of all runs, by the study's names."""
    every = {run: rollouts.read_run(_state.run_folder(found.folder, run), name) for run in found.plan.runs}
    shown = [
        some.assign(run=run.name, method=run.method)
        for run, rows in every.items()
        if len(rows) and len(some := _until_last_step(found.study, rows))
    ]
    return pd.concat(shown, ignore_index=True) if shown else pd.DataFrame()


def sections(found: OpenedResults, source: str) -> list[report.Section]:
    """Measurements of trained agents, if there are any."""
    if found.study.work == "time":
        return []
    measured = {name: measurements(found, name) for name in report.MEASURES}
    return [report.section_of(name, rows, [source]) for name, rows in measured.items() if len(rows)]


def films(found: OpenedResults, *, make: bool = True) -> tuple[list[report.FilmEntry], str]:
    """Films and predictions of the study's film tasks, made if missing; and why one could not be made."""
    entries, why = [], ""
    for run in _runs_to_film(found):
        path = _state.run_folder(found.folder, run)
        if make and found.study.env_steps[-1] in _state.scored(found.folder, run):
            why = _film(path) or why
        entries += report.films_of(f"{run.task}, {run.method}, seed {run.seed}", path)
    return entries, why


def _film(run: Path) -> str:
    """Film a run and its predictions unless done; the reason if one cannot be filmed."""
    reasons = []
    if not any(run.glob("open-loop*.png")):
        reasons += cinema.attempt("predictions", lambda: cinema.film_predictions(saved.load(run), run))[1:]
    if not (run / "film.gif").exists():
        reasons += cinema.attempt("film", lambda: cinema.film(run, run))[1:]
    return "; ".join(filter(None, reasons))


def _runs_to_film(found: OpenedResults) -> list[Run]:
    """The first seed of each method on the tasks that the study films."""
    firsts: dict[tuple[str, str], Run] = {}
    for run in found.plan.runs:
        firsts.setdefault((run.task, run.method), run)
    return [firsts[task, method] for task in found.study.films for method in found.study.methods]


def summary(found: OpenedResults, rows: pd.DataFrame) -> list[str]:
    """What the tiles do not say."""
    study, states = found.study, _state.run_states(found.folder, found.plan)
    sentences = [f"Failed: {state.run.name}: {state.reason}" for state in states if state.kind == "failed"]
    if study.work == "time":
        return sentences + _times.summary(found.plan, found.folder)
    for env_steps in study.env_steps:
        if study.baseline not in set(statistics.final_scores(rows, env_steps)["method"]):
            sentences.append(f"Nothing can be compared at {env_steps:,} env steps yet.")
    return sentences


def tiles(found: OpenedResults, rows: pd.DataFrame) -> list[report.Tile]:
    """Gains over the baseline at the last env steps that have scores, with their uncertainty; runs done."""
    study, states = found.study, _state.run_states(found.folder, found.plan)
    done = sum(state.kind == "done" for state in states)
    about = "; ".join(["Numbers are preliminary"] * (done < len(states)) + _status.taken(states))
    finished = report.Tile(f"{done} of {len(states)}", "runs done", about)
    for env_steps in reversed(study.env_steps if study.work != "time" else ()):
        scores = statistics.final_scores(rows, env_steps)
        known = set(scores["method"])
        if study.baseline in known and len(known) > 1:
            others = [method for method in study.methods if method in known and method != study.baseline]
            gains = [_gain_tile(study, scores, method, env_steps) for method in others]
            return [*filter(None, gains), finished]
    return [finished]


def _gain_tile(study: Study, scores: pd.DataFrame, method: str, env_steps: int) -> report.Tile | None:
    """A method's mean gain over tasks of both that the baseline's mean is a scale of, and how sure it is.

    Without such a task, the probability that it scores more; None if they have no task in common.
    """
    sides = statistics.both_sides(scores, method, study.baseline, study.tasks)
    if not sides[0].size:
        return None
    chance = statistics.probability_of_improvement(*sides)
    sure = " (one seed): not settled"
    if min(map(len, sides)) > 1:
        low, high = statistics.improvement_interval(*sides)
        sure = f" (95% interval {low:.2f} to {high:.2f}){': not settled' * (low <= 0.5 <= high)}"
    words = f"A run of {method} scores more than one of {study.baseline} with probability {chance:.2f}{sure}."
    own = set(scores.loc[scores["method"] == method, "task"])
    tasks = [task for task in statistics.baseline_means(scores, study.baseline, study.tasks) if task in own]
    at = f"At {env_steps:,} env steps"
    if not tasks:
        return report.Tile(
            f"{chance:.2f}", f"how often {method} is ahead of {study.baseline}", f"{at}. {words}", method
        )
    means = [np.nanmean(statistics.score_matrix(scores, name, tasks), 0) for name in (method, study.baseline)]
    gains = means[0] / means[1] - 1
    each = ", ".join(f"{task} {comparisons.percent(gain)}" for task, gain in zip(tasks, gains, strict=True))
    of = f", mean of {len(tasks)} tasks" * (len(tasks) > 1)
    title = f"{method}'s score against {study.baseline}'s"
    return report.Tile(comparisons.percent(gains.mean()), title, f"{at}{of}: {each}. {words}", method)


def write_study_report(found: OpenedResults, out: Path | None = None, *, make_films: bool = True) -> Path:
    """Write the study's page, by default into its folder; its path."""
    plan, folder, study = found.plan, found.folder, found.study
    rows = _load_opened(found)
    command = f"gpld study report {study.name}"
    if not found.is_committed:
        command += f" --out {shlex.quote(_relative(folder))}"
    if found.until is not None:
        command += f" --until {found.until}"
    source = source_of(found.data, command)
    made, why = films(found, make=make_films and not found.is_committed)
    folders = {run.name: _state.run_folder(folder, run) for run in plan.runs}
    page = report.Page(
        title=study.title,
        lead=study.purpose.replace("\n", " "),
        tiles=tiles(found, rows),
        notes=_unfinished_note(study, rows),
        summary=[*summary(found, rows), *found.notes],
        methods=list(study.methods),
        rows=pd.concat([_until_last_step(study, rows), _published(study)], ignore_index=True),
        others={key: curve for key, curve in _peers(study).items() if key[0] in _with_results(study, rows)},
        tables=_times.tables(plan, folder, source) if study.work == "time" else tables(study, rows, source),
        sections=sections(found, source),
        films=made,
        no_films=why,
        configs=report.configs_of(folders),
        environment=report.environment_of(folders),
        source=source,
    )
    return report.write(page, out or found.out / f"report{found.suffix}.html")


def _published(study: Study) -> pd.DataFrame:
    """Published curves of the study's tasks, up to the study's env steps, if the study compares with them."""
    rows = results.published()
    if "published" not in study.compare:
        return rows.iloc[:0]
    return rows.loc[rows["task"].isin(list(study.tasks)) & (rows["env_steps"] <= study.env_steps[-1])]


def _peers(study: Study, agents: Sequence[str] = ()) -> dict[tuple[str, str], Curve]:
    """Curves of `agents`, or of those the study compares with, on its tasks up to its last env step."""
    chosen = agents or (DRAWN_PEERS if "peers" in study.compare else ())
    try:
        rows = results.peers(agents=chosen)
    except ConfigError as error:  # whose option has another name here
        raise ConfigError(str(error).replace("agents:", "peers:", 1)) from error
    found = curves.peer_curves(rows.loc[rows["task"].isin(list(study.tasks))], study.env_steps[-1])
    if agents and (study.work == "time" or not found):
        until = f"up to {study.env_steps[-1]:,} env steps"
        raise ConfigError(f"peers: {', '.join(agents)} cannot be drawn: no curves of the tasks {until}")
    return found


def source_of(data: Path, command: str) -> str:
    """The source of numbers, for notes of tables and figures."""
    return f"data: {_relative(data)}; command: {command}"


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path)


def _episodes_note(study: Study, scores: pd.DataFrame) -> str:
    checkpoint = f"{study.score_episodes} episodes of a checkpoint for each seed"
    if set(scores["kind"]) <= {"score"}:
        return checkpoint
    return f"{checkpoint} where it was scored, otherwise its last evaluation while training"


def _unfinished_note(study: Study, rows: pd.DataFrame) -> Sequence[str]:
    planned = len(study.tasks) * len(study.methods) * len(study.seeds)
    left = planned - len(statistics.final_scores(rows, study.env_steps[-1]))
    return [f"{left} of {planned} runs are not finished: numbers are preliminary"] if left else []


def write_report(place: str | Path, out: Path | None = None) -> Path:
    """Write the page about a study, by its name, file or folder, or about the runs in a folder; its path."""
    folder, study = Path(place), None
    if str(place) in names() or folder.suffix == ".toml":
        study = get(place)
        folder = Path("studies") / study.name
    elif (folder / PLAN).exists():
        study = read_plan(folder).study
    if study is not None:
        with open_results(study, folder.absolute()) as found:
            return write_study_report(found, out)
    runs = {str(run.relative_to(folder)): run for run in results.runs_in(folder)}
    if not runs:
        raise ConfigError(f"runs: {str(place)!r} is not a study, nor a folder that holds runs")
    return report.write(_page_of_runs(folder, runs), out or folder / REPORT)


def _page_of_runs(folder: Path, runs: dict[str, Path]) -> report.Page:
    swept = (folder / SWEEP).exists()
    rows = show.load(folder) if swept else results.load(folder)
    tasks, methods = sorted(rows["task"].unique()), sorted(rows["method"].unique())
    source = f"data: {folder}; command: gpld report {folder}"
    tables = show.tables(folder, source) if swept else []
    if methods and not swept:
        baseline = next((method for method in results.METHODS if method in methods), methods[0])
        shown = Comparison(tasks, methods, baseline)
        aligned, notes = curves.align(rows), [source]
        scores, areas = statistics.final_scores(rows), statistics.area_scores(rows)
        about = ["the mean return of a run's evaluations over training, by env steps", source]
        tables = [comparisons.score_table(scores, shown, title="last evaluations", notes=notes)]
        if len(areas):
            tables.append(comparisons.score_table(areas, shown, title="area under the curve", notes=about))
        if aligned:
            title = "sample efficiency"
            tables.append(comparisons.efficiency_table(aligned, shown, title=title, notes=notes))
    films = [film for name, path in runs.items() for film in report.films_of(name, path)]
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    return report.Page(
        title=f"Runs in {folder.absolute().name}",
        lead=f"{count} on {', '.join(tasks)}." if tasks else f"{count}.",
        summary=[] if tasks else ["There is no evaluation yet."],
        tiles=_last_returns(rows),
        methods=methods,
        rows=rows,
        tables=tables,
        sections=[
            report.section_of(name, found, [source])
            for name in report.MEASURES
            if len(found := rollouts.read([folder], name))
        ],
        films=films,
        configs=report.configs_of(runs),
        environment=report.environment_of(runs),
        source=source,
    )


def _last_returns(rows: pd.DataFrame) -> list[report.Tile]:
    """The mean last evaluation of each method on each task, if they are few."""
    summary = statistics.summarise(statistics.final_scores(rows)).to_dict("records")
    if len(summary) > MOST_TILES:
        return []
    return [
        report.Tile(
            f"{row['mean']:.0f}" + (f" \u00b1 {row['std']:.0f}" if row["seeds"] > 1 else ""),
            f"{row['method']} on {row['task']}",
            f"return of the last evaluation, {row['seeds']} seed{'s' * (row['seeds'] > 1)}",
            row["method"],
        )
        for row in summary
    ]
