"""Learning curves of many runs on common env steps, and their aggregates over tasks."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from gpld.analysis import statistics
from gpld.population import TITLES

Band = Literal["std", "interval"]
"""One standard deviation over seeds, as in the paper, or a 95% bootstrap interval of the mean."""

DREAMER = TITLES["dreamerv3"]

_REPS = 500


class Runs(NamedTuple):
    """Returns of the runs of one task and method."""

    env_steps: Float[np.ndarray, " points"]
    returns: Float[np.ndarray, "runs points"]


class Curve(NamedTuple):
    """A mean with a band around it."""

    env_steps: Float[np.ndarray, " points"]
    mean: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"]
    high: Float[np.ndarray, " points"]
    runs: int
    """0 if that is not known."""


Curves = Mapping[tuple[str, str], Runs]
"""By task and method."""


def align(rows: pd.DataFrame) -> dict[tuple[str, str], Runs]:
    """Evaluations of the runs of each task and method, at the env steps that all of them have reached.

    Those are the env steps of the run with the most evaluations; straight lines lie between a run's own.
    """
    evaluations = rows.loc[(rows["kind"] == "evaluation") & np.isfinite(rows["return"])]
    aligned = {}
    for (task, method), some in evaluations.groupby(["task", "method"], observed=True, sort=False):
        table = some.pivot_table(index="run", columns="env_steps", values="return", observed=True)
        x, y = table.columns.to_numpy(np.float64), table.to_numpy(np.float64)
        runs = _on_common_steps(
            [(x[known], line[known]) for known, line in zip(np.isfinite(y), y, strict=True)]
        )
        if len(runs.env_steps):
            aligned[str(task), str(method)] = runs
    return aligned


def _on_common_steps(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Runs:
    """Runs, each given by its env steps and returns, at the env steps of the longest that all have."""
    first, last = max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)
    longest = max((x for x, _ in runs), key=len)
    env_steps = longest[(longest >= first) & (longest <= last)]
    return Runs(env_steps, np.stack([np.interp(env_steps, x, y) for x, y in runs]))


def mean_over_tasks(tasks: Sequence[Runs], band: Band = "std") -> Curve:
    """Mean over tasks of the mean over seeds, at the env steps of the longest that all have; perhaps none.

    The standard deviation is that of the seeds' means over tasks, of as many seeds as all tasks have.
    """
    x, returns = _on_common_steps([(runs.env_steps, line) for runs in tasks for line in runs.returns])
    stacked = np.split(returns, np.cumsum([len(runs.returns) for runs in tasks])[:-1])
    mean, count = np.mean([y.mean(0) for y in stacked], axis=0), sum(map(len, stacked))
    if band == "std":
        seeds = min(map(len, stacked))
        std = np.mean([y[:seeds] for y in stacked], axis=0).std(0)
        return Curve(x, mean, mean - std, mean + std, count)
    rng = np.random.default_rng(0)
    means = np.mean([statistics.bootstrap_means(y, reps=_REPS, rng=rng) for y in stacked], axis=0)
    return Curve(x, mean, *np.percentile(means, [2.5, 97.5], axis=0), count)


def peer_curves(rows: pd.DataFrame, until: int) -> dict[tuple[str, str], Curve]:
    """Curves of `results.peers` up to some env steps, by task and by the name that a picture shows.

    The band is between the bounds that the source gives. A curve that has fewer than two points is left out.
    """
    found, shown = {}, rows.loc[rows["env_steps"] <= until]
    for (task, agent), own in shown.groupby(["task", "agent"], sort=False):
        own = own.sort_values("env_steps")
        if len(own) < 2:
            continue
        name = f"{agent} (others' runs)" if agent == DREAMER else str(agent)
        numbers = (own[column].to_numpy(np.float64) for column in ("env_steps", "mean", "low", "high"))
        found[str(task), name] = Curve(*numbers, int(own["seeds"].fillna(0).min()))
    return found


def final_scales(curves: Curves, baseline: str) -> dict[str, float]:
    """The scale of each task's returns: the baseline's mean at the end of its curves, if it is a scale."""
    last = {task: runs.returns[:, -1] for (task, method), runs in curves.items() if method == baseline}
    found = {task: (float(own.mean()), float(own.std())) for task, own in last.items()}
    return {task: mean for task, (mean, std) in found.items() if statistics.is_scale(mean, std)}


def aggregate_curve(
    curves: Curves,
    method: str,
    tasks: Sequence[str],
    *,
    scales: Mapping[str, float] | None = None,
    band: Band = "std",
) -> Curve | None:
    """`mean_over_tasks` of a method; each task divided by its scale if there are scales.

    Over the tasks that the method has, and that have a scale other than zero; None if there are none, or no
    env steps that all have.
    """
    own = {task: curves[task, method] for task in tasks if (task, method) in curves}
    if scales is not None:
        own = {
            task: runs._replace(returns=runs.returns / scales[task])
            for task, runs in own.items()
            if scales.get(task)
        }
    curve = mean_over_tasks(list(own.values()), band) if own else None
    return curve if curve is not None and len(curve.env_steps) else None
