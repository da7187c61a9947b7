"""`gpld report`: the page about a study, or about any folder of runs."""

import os
from pathlib import Path

import pandas as pd

from gpld import results
from gpld.analysis import comparisons, curves, report, rollouts, statistics
from gpld.config import ConfigError
from gpld.studies import _plan, _show, _study, _tables

MOST_TILES = 6
"""With more methods and tasks than this, the tables alone have the returns."""


def write_report(place: str | Path, out: Path | None = None) -> Path:
    """Write the page about a study, by its name, file or folder, or about the runs in a folder; its path."""
    folder, study = Path(place), None
    if str(place) in _study.names() or folder.suffix == ".toml":
        study = _study.get(place)
        folder = Path("studies") / study.name
    elif (folder / _plan.PLAN).exists():
        study = _plan.read_plan(folder).study
    if study is not None:
        with _tables.open_results(study, folder.absolute()) as found:
            path = _show.write_report(found)
        return path if out is None else _moved(path, out)
    runs = {str(run.relative_to(folder)): run for run in results.runs_in(folder)}
    if not runs:
        raise ConfigError(f"runs: {str(place)!r} is not a study, nor a folder that holds runs")
    return report.write(_page_of_runs(folder, runs), out or folder / _show.REPORT)


def _page_of_runs(folder: Path, runs: dict[str, Path]) -> report.Page:
    rows = results.load(folder)
    tasks, methods = sorted(rows["task"].unique()), sorted(rows["method"].unique())
    source = f"data: {folder}; command: gpld report {folder}"
    tables = []
    if methods:
        baseline = next((method for method in results.METHODS if method in methods), methods[0])
        shown = comparisons.Comparison(tasks, methods, baseline)
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


def _moved(path: Path, out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, out)
    return out
