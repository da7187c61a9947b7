"""What methods achieve, as tables: scores, the paper's aggregates, robust statistics, sample efficiency."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpld.analysis import statistics
from gpld.analysis.curves import Curves
from gpld.analysis.tables import NOTHING, Table


class Comparison(NamedTuple):
    """What is compared: methods on tasks, and the method that the others are measured by."""

    tasks: Sequence[str]
    methods: Sequence[str]
    baseline: str

    @property
    def others(self) -> list[str]:
        """Methods that are measured by the baseline."""
        return [method for method in self.methods if method != self.baseline]


def score_table(
    scores: pd.DataFrame,
    compared: Comparison,
    *,
    title: str,
    subsets: Mapping[str, Sequence[str]] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Mean and standard deviation over seeds, gains over the baseline, and the paper's aggregates.

    `scores` is what `statistics.final_scores` gives, or a summary with `mean`, `std` and `seeds`. `subsets`
    are some of the tasks, by name, that get aggregates of their own.
    """
    summary = scores if "mean" in scores else statistics.summarise(scores)
    means, stds = (summary.pivot(index="task", columns="method", values=x) for x in ("mean", "std"))
    means, stds = (x.reindex(index=compared.tasks, columns=compared.methods) for x in (means, stds))
    rows = []
    for task in compared.tasks:
        cells = [_mean_std(means.loc[task, method], stds.loc[task, method]) for method in compared.methods]
        baseline = means.loc[task, compared.baseline]
        gains = [_gain(means.loc[task, method], baseline) for method in compared.others]
        rows.append((task, *cells, *gains))
    groups = {"all tasks": compared.tasks, **(subsets or {})}
    totals = [row for name, tasks in groups.items() for row in _aggregates(summary, name, tasks, compared)]
    seeds = "; ".join(f"{method}: {_seeds(summary, method)}" for method in compared.methods)
    header = ("task", *compared.methods, *(f"gain of {method}" for method in compared.others))
    about = f"mean \u00b1 standard deviation over seeds ({seeds})"
    return Table(title, header, tuple(rows + totals), (about, *notes), len(totals))


def statistics_table(
    scores: pd.DataFrame, compared: Comparison, *, title: str, notes: Sequence[str] = ()
) -> Table:
    """Robust statistics of scores divided by the baseline's mean on each task, with 95% intervals."""
    summary = statistics.summarise(scores)
    baseline = summary.loc[summary["method"] == compared.baseline]
    scale = dict(zip(baseline["task"], baseline["mean"], strict=True))
    scale = {task: float(scale[task]) for task in compared.tasks if scale.get(task)}
    rows = []
    for method in compared.methods:
        own = set(summary.loc[summary["method"] == method, "task"])
        tasks = [task for task in scale if task in own]
        if not tasks:
            rows.append((method, *[NOTHING] * 5))
            continue
        ours, theirs = (statistics.score_matrix(scores, m, tasks, scale) for m in (method, compared.baseline))
        simple = (statistics.iqm, statistics.median, statistics.mean, statistics.optimality_gap)
        cells = [_value(float(f(ours)), statistics.interval(f, ours)) for f in simple]
        better = NOTHING
        if method != compared.baseline:
            chance = statistics.probability_of_improvement(ours, theirs)
            better = _value(chance, statistics.improvement_interval(ours, theirs))
        rows.append((method, *cells, better))
    header = ("method", "interquartile mean", "median", "mean", "optimality gap")
    about = f"scores divided by {compared.baseline}'s mean on each task; 95% stratified bootstrap intervals"
    better = f"better than {compared.baseline}"
    return Table(title, (*header, better), tuple(rows), (about, f"{better}: a run's probability", *notes))


def efficiency_table(curves: Curves, compared: Comparison, *, title: str, notes: Sequence[str] = ()) -> Table:
    """Mean return over training, and env steps until a method's mean is where the baseline's ends."""
    rows = []
    for task in compared.tasks:
        baseline = curves.get((task, compared.baseline))
        goal = np.inf if baseline is None else float(baseline.returns[:, -1].mean())
        cells: list[str] = []
        for method in compared.methods:
            runs = curves.get((task, method))
            if runs is None or len(runs.env_steps) < 2:
                cells += [NOTHING, NOTHING]
                continue
            mean = runs.returns.mean(0)
            steps = float(statistics.steps_to_reach(runs.env_steps, mean, goal))
            area = float(statistics.area_under_curve(runs.env_steps, mean))
            cells += [f"{area:.1f}", f"{steps:,.0f}" if np.isfinite(steps) else "not reached"]
        rows.append((task, *cells))
    columns = ("mean return", "env steps to goal")
    header = [f"{method}, {column}" for method in compared.methods for column in columns]
    about = (
        f"mean return over env steps; the goal is the return at which {compared.baseline}'s mean curve ends"
    )
    return Table(title, ("task", *header), tuple(rows), (about, *notes))


def _aggregates(
    summary: pd.DataFrame, name: str, tasks: Sequence[str], compared: Comparison
) -> list[tuple[str, ...]]:
    """Raw and normalised mean over some tasks."""
    titles = (f"{name}, raw mean", f"{name}, normalised mean")
    some = summary.loc[summary["task"].isin(list(tasks))]
    if not (some["method"] == compared.baseline).any():
        return [(title, *[NOTHING] * (len(compared.methods) + len(compared.others))) for title in titles]
    found = statistics.aggregate(some, compared.baseline).reindex(compared.methods)
    complete = found["tasks"] == found.loc[compared.baseline, "tasks"]
    raw = found["raw"].where(complete)  # means over other tasks are not comparable
    raws = [_number(raw[method], ".1f") for method in compared.methods]
    gains = [_gain(raw[method], raw[compared.baseline]) for method in compared.others]
    normalised = [_number(found.loc[method, "normalised"], ".3f") for method in compared.methods]
    more = [_number(found.loc[method, "gain"], "+.1%") for method in compared.others]
    return [(titles[0], *raws, *gains), (titles[1], *normalised, *more)]


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else NOTHING


def _mean_std(mean: float, std: float) -> str:
    return f"{mean:.1f} \u00b1 {std:.1f}" if np.isfinite(mean) else NOTHING


def _gain(value: float, baseline: float) -> str:
    known = np.isfinite(value) and np.isfinite(baseline) and baseline != 0
    return f"{value / baseline - 1:+.1%}" if known else NOTHING


def _value(value: float, interval: statistics.Interval) -> str:
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _seeds(summary: pd.DataFrame, method: str) -> str:
    counts = sorted({int(count) for count in summary.loc[summary["method"] == method, "seeds"]})
    if not counts:
        return "no runs yet"
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
