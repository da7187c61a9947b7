"""Comparisons of methods as tables: scores, the paper's aggregates, robust statistics, steps to a goal."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpld.analysis import statistics
from gpld.analysis.curves import Curves
from gpld.analysis.tables import NOTHING, Table

ALL = "all tasks"
"""What the totals over a comparison's tasks are called."""


class Comparison(NamedTuple):
    """Methods to compare on tasks, and the baseline."""

    tasks: Sequence[str]
    methods: Sequence[str]
    baseline: str

    @property
    def others(self) -> list[str]:
        """Methods that are compared with the baseline."""
        return [method for method in self.methods if method != self.baseline]


def score_table(
    scores: pd.DataFrame,
    compared: Comparison,
    *,
    title: str,
    subsets: Mapping[str, Sequence[str]] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Mean, standard deviation and interval over seeds, gains over the baseline, and the paper's aggregates.

    `scores` is what `statistics.final_scores` or `area_scores` gives, or a summary with `mean`, `std` and
    `seeds`, which has no intervals. `subsets` are some of the tasks, by name, that get aggregates too.
    """
    summary = scores if "mean" in scores else statistics.summarise(scores)
    known = {(row["task"], row["method"]): row for row in summary.to_dict("records")}
    rows, unscaled = [], []
    for task in compared.tasks:
        own = {method: known.get((task, method)) for method in compared.methods}
        means = {method: row["mean"] if row else np.nan for method, row in own.items()}
        gains = [_gain(means[method], means[compared.baseline]) for method in compared.others]
        baseline = own[compared.baseline]
        if baseline and not statistics.is_scale(baseline["mean"], baseline["std"]):
            unscaled.append(task)
            gains = [NOTHING] * len(gains)
        rows.append((task, *map(_spread, own.values()), *gains))
    groups = {ALL: compared.tasks, **(subsets or {})} if len(compared.tasks) > 1 else {}
    totals = [row for name, tasks in groups.items() for row in _aggregates(summary, name, tasks, compared)]
    seeds = "; ".join(f"{method}: {_seeds(summary, method)}" for method in compared.methods)
    header = ("task", *compared.methods, *(f"gain of {method}" for method in compared.others))
    interval = " [95% bootstrap interval of the mean]" if "low" in summary else ""
    about = f"mean \u00b1 standard deviation{interval} over seeds ({seeds})"
    if set(summary["seeds"]) == {1}:
        about = "one seed each"
    if unscaled:
        where = f"where {compared.baseline}'s mean is not above its standard deviation"
        notes = (f"no ratios for {', '.join(unscaled)}, {where}", *notes)
    return Table(title, header, tuple(rows + totals), (about, *notes), len(totals))


def statistics_table(
    scores: pd.DataFrame, compared: Comparison, *, title: str, notes: Sequence[str] = ()
) -> Table:
    """Robust statistics of scores divided by the baseline's mean on each task, with 95% intervals."""
    scale = statistics.baseline_means(scores, compared.baseline, compared.tasks)
    rows = []
    for method in compared.methods:
        known = set(scores.loc[scores["method"] == method, "task"])
        tasks = [task for task in scale if task in known]
        better = NOTHING
        if method != compared.baseline:
            better = _better(scores, method, compared)
        if not tasks:
            rows.append((method, *[NOTHING] * 4, better))
            continue
        count = f" ({len(tasks)} of {len(compared.tasks)} tasks)" if len(tasks) < len(compared.tasks) else ""
        own = statistics.score_matrix(scores, method, tasks, scale)
        simple = (statistics.iqm, statistics.median, statistics.mean, statistics.optimality_gap)
        spread = len(own) > 1  # of a single run for each task there is none
        cells = [_value(float(f(own)), statistics.interval(f, own) if spread else None) for f in simple]
        rows.append((f"{method}{count}", *cells, better))
    header = ("method", "interquartile mean", "median", "mean", "optimality gap")
    about = f"scores divided by {compared.baseline}'s mean on each task; 95% stratified bootstrap intervals"
    better = f"better than {compared.baseline}"
    about_better = f"{better}: a run's probability, on all tasks that both have"
    return Table(title, (*header, better), tuple(rows), (about, about_better, *notes))


def _better(scores: pd.DataFrame, method: str, compared: Comparison) -> str:
    """The probability that a run scores more than one of the baseline, which needs no scale."""
    sides = statistics.both_sides(scores, method, compared.baseline, compared.tasks)
    if not sides[0].size:
        return NOTHING
    spread = min(map(len, sides)) > 1
    chance = statistics.probability_of_improvement(*sides)
    return _value(chance, statistics.improvement_interval(*sides) if spread else None)


def efficiency_table(curves: Curves, compared: Comparison, *, title: str, notes: Sequence[str] = ()) -> Table:
    """Env steps until the mean over seeds of a method is where the baseline's ends."""
    rows = []
    for task in compared.tasks:
        baseline = curves.get((task, compared.baseline))
        cells: list[str] = []
        for method in compared.methods:
            runs = curves.get((task, method))
            if baseline is None or runs is None or len(runs.env_steps) < 2:
                cells.append(NOTHING)
                continue
            goal = float(baseline.returns[:, -1].mean())
            steps = float(statistics.steps_to_reach(runs.env_steps, runs.returns.mean(0), goal))
            cells.append(f"{steps:,.0f}" if np.isfinite(steps) else "not reached")
        rows.append((task, *cells))
    about = f"env steps until the mean over seeds reaches {compared.baseline}'s final return"
    return Table(title, ("task", *compared.methods), tuple(rows), (about, *notes))


def peer_table(peers: pd.DataFrame, tasks: Sequence[str], until: int) -> Table | None:
    """Returns of `results.peers` at the last env steps, at most `until`, that all of them have; or None."""
    some = peers.loc[peers["task"].isin(list(tasks)) & (peers["env_steps"] <= until)]
    steps = [set(own["env_steps"]) for _, own in some.groupby(["agent", "task"], sort=False)]
    common = set.intersection(*steps) - {0} if steps else set()
    if not common:
        return None
    at = max(common)
    known = {(row["task"], row["agent"]): row for row in some.loc[some["env_steps"] == at].to_dict("records")}
    agents = list(dict.fromkeys(some["agent"]))
    rows = [
        (task, *(_bounded(known[task, agent]) if (task, agent) in known else NOTHING for agent in agents))
        for task in tasks
        if any((task, agent) in known for agent in agents)
    ]
    sources = "; ".join(dict.fromkeys(some["source"]))
    notes = ("mean [bounds as the source gives them]; from states", f"data: {sources}, gpld.results.peers()")
    return Table(f"others' runs after {at:,} env steps", ("task", *agents), tuple(rows), notes)


def _aggregates(
    summary: pd.DataFrame, name: str, tasks: Sequence[str], compared: Comparison
) -> list[tuple[str, ...]]:
    """Raw and normalised mean over some tasks: of those that all methods with any scores have."""
    some = summary.loc[summary["task"].isin(list(tasks)) & summary["method"].isin(list(compared.methods))]
    own = [set(rows["task"]) for _, rows in some.groupby("method", observed=True)]
    common = set.intersection(*own) if own else set()
    if len(common) < len(tasks):
        name = f"{'' if name == ALL else f'{name}, '}{len(common)} of {len(tasks)} tasks"
    titles = (f"{name}, raw mean", f"{name}, normalised mean")
    some = some.loc[some["task"].isin(common)]
    if not (some["method"] == compared.baseline).any():
        return [(title, *[NOTHING] * (len(compared.methods) + len(compared.others))) for title in titles]
    found = statistics.aggregate(some, compared.baseline).reindex(compared.methods)
    raw = found["raw"]
    raws = [_number(raw[method], ".1f") for method in compared.methods]
    gains = [_gain(raw[method], raw[compared.baseline]) for method in compared.others]
    normalised = [_number(found.loc[method, "normalised"], ".3f") for method in compared.methods]
    more = [_number(found.loc[method, "gain"], "+.1%") for method in compared.others]
    return [(titles[0], *raws, *gains), (titles[1], *normalised, *more)]


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else NOTHING


def _spread(row: Mapping | None) -> str:
    """Mean, standard deviation, and interval if there is one; a single seed has a mean alone."""
    if row is None or not np.isfinite(row["mean"]):
        return NOTHING
    if row["seeds"] == 1:
        return f"{row['mean']:.1f}"
    interval = f" [{row['low']:.1f}, {row['high']:.1f}]" if "low" in row else ""
    return f"{row['mean']:.1f} \u00b1 {row['std']:.1f}{interval}"


def _bounded(row: Mapping) -> str:
    return f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"


def _gain(value: float, baseline: float) -> str:
    known = np.isfinite(value) and np.isfinite(baseline) and baseline > 0
    return percent(value / baseline - 1) if known else NOTHING


def percent(gain: float) -> str:
    """A gain with its sign; what rounds to 0 is not negative."""
    return f"{round(gain, 3) + 0.0:+.1%}"


def _value(value: float, interval: statistics.Interval | None) -> str:
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]" if interval else f"{value:.3f}"


def _seeds(summary: pd.DataFrame, method: str) -> str:
    counts = sorted({int(count) for count in summary.loc[summary["method"] == method, "seeds"]})
    if not counts:
        return "no runs yet"
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
