"""Statistics of scores: the paper's, and those of Agarwal et al. 2021 with stratified bootstrap intervals.

Scores of a method are an array [runs, tasks]; a run that is missing is NaN and counts for nothing. Statistics
take any leading axes, over which a bootstrap repeats them: [..., runs, tasks] to [...].
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

Scores = Float[np.ndarray, "*reps runs tasks"]
Values = Float[np.ndarray, "*reps"] | np.float64
Statistic = Callable[..., Values]

REPS = 2000
"""Bootstrap samples."""
_CHUNK = 2**22
"""Numbers resampled at a time."""


class Interval(NamedTuple):
    """Ends of a confidence interval."""

    low: float
    high: float


def mean(scores: Scores) -> Values:
    """Mean over tasks of the mean over runs: every task weighs the same."""
    return _task_means(scores).mean(-1)


def median(scores: Scores) -> Values:
    """Median over tasks of the mean over runs."""
    return np.median(_task_means(scores), axis=-1)


def iqm(scores: Scores) -> Values:
    """Interquartile mean: of the middle half of all runs of all tasks."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # NaNs last
    count = np.isfinite(ordered).sum(-1)
    if (count != count.max()).any():
        raise ValueError("the interquartile mean needs the same number of runs in every repetition")
    kept = int(count.max())
    cut = kept // 4
    return ordered[..., cut : kept - cut].mean(-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> Values:
    """How far runs stay below `target` on average; scores above `target` count as `target`."""
    return target - np.nanmean(np.minimum(scores, target), axis=(-2, -1))


def probability_of_improvement(
    scores: Float[np.ndarray, "runs tasks"], others: Float[np.ndarray, "_ tasks"]
) -> float:
    """Probability that one of `scores` is more than one of `others`, mean over tasks; ties count half."""
    return float(np.mean([_wins(a, b).mean() for a, b in _pairs(scores, others)]))


def improvement_interval(
    scores: Float[np.ndarray, "runs tasks"],
    others: Float[np.ndarray, "_ tasks"],
    *,
    confidence: float = 0.95,
    reps: int = REPS,
    seed: int = 0,
) -> Interval:
    """Interval of `probability_of_improvement`: runs of both are resampled within each task."""
    rng, values = np.random.default_rng(seed), np.zeros(reps)
    pairs = _pairs(scores, others)
    for a, b in pairs:
        # Resampling runs is weighing them: each sample is a product with the table of who beats whom.
        drawn = [_weights(len(side), reps, rng) for side in (a, b)]
        values += np.sum((drawn[0] @ _wins(a, b)) * drawn[1], axis=1) / len(pairs)
    return _percentiles(values, confidence)


def performance_profile(
    scores: Float[np.ndarray, "runs tasks"], thresholds: Float[np.ndarray, " levels"]
) -> Float[np.ndarray, " levels"]:
    """Share of runs, of all tasks, that score more than each threshold."""
    ordered = np.sort(scores[np.isfinite(scores)])
    return 1.0 - np.searchsorted(ordered, thresholds, side="right") / len(ordered)


def interval(
    statistic: Statistic,
    scores: Float[np.ndarray, "runs tasks"],
    *,
    confidence: float = 0.95,
    reps: int = REPS,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic of a method's scores.

    The bootstrap is stratified: runs are resampled within each task, tasks are kept.
    """
    rng, columns = np.random.default_rng(seed), _columns(scores)
    chunk = max(1, _CHUNK // scores.size)
    values = [
        np.atleast_1d(statistic(_resample(columns, min(chunk, reps - begin), rng)))
        for begin in range(0, reps, chunk)
    ]
    return _percentiles(np.concatenate(values), confidence)


def bootstrap_means(
    values: Float[np.ndarray, "runs points"], *, reps: int, rng: np.random.Generator
) -> Float[np.ndarray, "reps points"]:
    """Means over resampled runs, `reps` times, at every point of their curves."""
    return _weights(len(values), reps, rng) @ values


def area_under_curve(
    env_steps: Float[np.ndarray, " points"], returns: Float[np.ndarray, "*runs points"]
) -> Float[np.ndarray, "*runs"] | np.float64:
    """Mean return over env steps, from the first evaluation to the last, with straight lines between them."""
    return np.trapezoid(returns, env_steps, axis=-1) / (env_steps[-1] - env_steps[0])


def steps_to_reach(
    env_steps: Float[np.ndarray, " points"], returns: Float[np.ndarray, "*runs points"], level: float
) -> Float[np.ndarray, "*runs"]:
    """Env steps until the return is first at `level`, on straight lines between evaluations; inf if never."""
    reached = returns >= level
    first = reached.argmax(-1)
    before = np.maximum(first - 1, 0)
    y0, y1 = (np.take_along_axis(returns, i[..., None], -1)[..., 0] for i in (before, first))
    x0, x1 = env_steps[before], env_steps[first]
    slope = np.where(y1 > y0, y1 - y0, 1.0)
    crossing = np.where(first > 0, x0 + (x1 - x0) * (level - y0) / slope, x1)
    return np.where(reached.any(-1), crossing, np.inf)


def final_scores(rows: pd.DataFrame, env_steps: int | None = None) -> pd.DataFrame:
    """One score a run: `study`, `task`, `method`, `seed`, `run`, `env_steps`, `kind`, `return`.

    At `env_steps`, or at each run's last: the score of a checkpoint, or if there is none the last evaluation
    until then. Runs that have not come to `env_steps` are left out.
    """
    if env_steps is not None:
        reached = set(rows.loc[rows["env_steps"] >= env_steps, "run"])
        rows = rows.loc[rows["run"].isin(reached) & (rows["env_steps"] <= env_steps)]
    ranked = rows.assign(is_score=rows["kind"] == "score")
    ranked = ranked.sort_values(["env_steps", "is_score"], kind="stable")
    last = ranked.groupby("run", observed=True, sort=True).tail(1)
    columns = ["study", "task", "method", "seed", "run", "env_steps", "kind", "return"]
    return last[columns].reset_index(drop=True)


def area_scores(rows: pd.DataFrame, env_steps: int | None = None) -> pd.DataFrame:
    """Like `final_scores`, but `return` is the area under a run's curve: its mean return over training.

    Of its evaluations up to `env_steps`, or of all. Runs that have not come to `env_steps`, or have fewer
    than two evaluations until then, are left out.
    """
    last = final_scores(rows, env_steps)
    known = rows.loc[(rows["kind"] == "evaluation") & np.isfinite(rows["return"])]
    if env_steps is not None:
        known = known.loc[known["env_steps"] <= env_steps]
    areas = {}
    for run, own in known.groupby("run", observed=True, sort=False):
        own = own.sort_values("env_steps")
        x, y = (own[column].to_numpy(np.float64) for column in ("env_steps", "return"))
        if len(x) > 1:
            areas[run] = float(area_under_curve(x, y))
    last = last.loc[last["run"].isin(list(areas))]
    return last.assign(**{"return": [areas[run] for run in last["run"]]}).reset_index(drop=True)


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """For each `task` and `method`: `mean`, `std`, `seeds`, and the mean's 95% interval, `low` and `high`."""
    groups = scores.groupby(["task", "method"], observed=True, sort=False)["return"]
    table = pd.DataFrame({"mean": groups.mean(), "std": groups.std(ddof=0), "seeds": groups.size()})
    ends = [interval(mean, own.to_numpy(np.float64)[:, None]) for _, own in groups]
    table = table.assign(low=[x.low for x in ends], high=[x.high for x in ends])
    return table.reset_index().astype({"task": str, "method": str})


def aggregate(summary: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The paper's aggregates by method: `raw` mean over tasks, `normalised` mean, `gain`, number of `tasks`.

    In the normalised mean each task's mean is divided by that of the baseline, so the baseline has exactly 1;
    `gain` is how much more than that a method has. Only tasks that a method and the baseline both have count,
    and in the normalised mean those that `is_scale` allows.
    """
    means = summary.pivot(index="task", columns="method", values="mean")
    if baseline not in means:
        raise ValueError(f"{baseline} has no scores to normalise by")
    own = summary.loc[summary["method"] == baseline].set_index("task")
    scales = own.index[is_scale(own["mean"], own["std"])]
    table = {}
    for method in means.columns:
        both = means[[baseline, method]].dropna() if method != baseline else means[[baseline]].dropna()
        scaled = both.loc[both.index.isin(scales)]
        ratio = scaled[method] / scaled[baseline]
        table[method] = {
            "raw": both[method].mean(),
            "normalised": ratio.mean(),
            "gain": ratio.mean() - 1,
            "tasks": len(both),
        }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("method")


def baseline_means(scores: pd.DataFrame, baseline: str, tasks: Sequence[str]) -> dict[str, float]:
    """The baseline's mean score on each of some tasks, where it `is_scale`, to divide scores by."""
    own = scores.loc[scores["method"] == baseline].groupby("task", observed=True)["return"]
    means, stds = own.mean(), own.std(ddof=0)
    return {task: float(means[task]) for task in tasks if task in means and is_scale(means[task], stds[task])}


def is_scale(mean: Any, std: Any) -> Any:
    """Whether scores can be divided by a baseline's mean: if it exceeds its standard deviation over seeds.

    A ratio to a mean that may as well be 0, of a task that the baseline has not learned, says nothing, and
    one to a negative mean the opposite.
    """
    return mean > std


def score_matrix(
    scores: pd.DataFrame, method: str, tasks: Sequence[str], scale: dict[str, float] | None = None
) -> Float[np.ndarray, "runs tasks"]:
    """Scores of a method as [runs, tasks], each divided by its task's `scale` if one is given."""
    own = scores.loc[scores["method"] == method]
    columns = [np.asarray(own.loc[own["task"] == task, "return"], np.float64) for task in tasks]
    return side_by_side(columns) / np.array([scale[task] if scale else 1.0 for task in tasks])


def both_sides(
    scores: pd.DataFrame, method: str, baseline: str, tasks: Sequence[str]
) -> tuple[Float[np.ndarray, "runs tasks"], Float[np.ndarray, "_ tasks"]]:
    """Scores of a method and of a baseline on the tasks that both have."""
    known = [set(scores.loc[scores["method"] == name, "task"]) for name in (method, baseline)]
    common = [task for task in tasks if task in known[0] & known[1]]
    return score_matrix(scores, method, common), score_matrix(scores, baseline, common)


def side_by_side(columns: Sequence[Float[np.ndarray, " _"]]) -> Float[np.ndarray, "runs tasks"]:
    """Scores of each task as [runs, tasks]: NaN where a task has fewer runs."""
    matrix = np.full((max(map(len, columns), default=0), len(columns)), np.nan)
    for i, column in enumerate(columns):
        matrix[: len(column), i] = column
    return matrix


def _task_means(scores: np.ndarray) -> np.ndarray:
    return np.nanmean(scores, axis=-2)


def _columns(scores: np.ndarray) -> list[np.ndarray]:
    """The runs that each task has."""
    return [column[np.isfinite(column)] for column in scores.T]


def _pairs(scores: np.ndarray, others: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(_columns(scores), _columns(others), strict=True))


def _wins(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Who beats whom, [scores, others]: 1, or a half for a tie."""
    return np.heaviside(scores[:, None] - others[None], 0.5)


def _weights(runs: int, reps: int, rng: np.random.Generator) -> np.ndarray:
    """Shares of runs in samples of as many runs, [reps, runs]."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), size=reps) / runs


def _percentiles(values: np.ndarray, confidence: float) -> Interval:
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(float(low), float(high))


def _resample(columns: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` samples [count, runs, tasks] of the runs of each task; NaN where a task has fewer runs."""
    runs = max(map(len, columns))
    drawn = np.full((count, runs, len(columns)), np.nan)
    for i, column in enumerate(columns):
        drawn[:, : len(column), i] = rng.choice(column, (count, len(column)))
    return drawn
