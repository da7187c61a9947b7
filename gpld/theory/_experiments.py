"""How far estimated transition laws are from the true ones, by the amount of data and by lambda.

`visits` is the mean number of observed transitions of a state-action pair. As in training, the likelihood is
taken per visit, so that lambda says the same whatever the amount of data:

    L_MLE(P) / visits + lambda * L_FD(P)

The paper's tabular objective, with the likelihood summed, has `visits * lambda` in the place of lambda. One
lambda for all amounts of data there, which is the estimator `fixed in the sum` here, means a lambda that
fades as 1 / visits.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas
import scipy.stats

from gpld.penalty import schedules
from gpld.theory._estimators import error, sample_counts, smoothed
from gpld.theory._mdps import EmbeddedMDP, grid, pendulum, random_smooth, shuffled

MDPS: dict[str, Callable[[int], EmbeddedMDP]] = {
    "random": random_smooth,
    "grid": lambda seed: grid(),
    "pendulum": lambda seed: pendulum(),
    "shuffled": lambda seed: shuffled(random_smooth(seed), seed),
}
"""By name, from a seed: three whose laws are smooth, and one whose are not."""

LIKELIHOOD = "maximum likelihood"
ESTIMATORS: dict[str, Callable[[float, float], float]] = {
    LIKELIHOOD: lambda base, visits: 0.0,
    "constant": lambda base, visits: base,
    "sqrt decay": lambda base, visits: float(schedules.sqrt(visits, base, scale=1.0)),
    "fixed in the sum": lambda base, visits: base / visits,
}
"""The lambda of each estimator, from its base and the visits."""

BASE = 0.5
"""The paper's lambda. It suits these MDPs too: their neighbours are about one unit apart."""
VISITS = (1, 2, 4, 16, 64, 256)
WEIGHTS = tuple(np.geomspace(0.02, 20, 7).tolist())
FEW, MANY = 4, 64
"""Little data and much, for `by_weight`."""

Progress = Callable[[Iterable[int]], Iterable[int]]
"""Goes through the seeds and may show how far it is."""


def by_data(
    seeds: int = 20,
    *,
    visits: Sequence[int] = VISITS,
    base: float = BASE,
    mdps: Sequence[str] = tuple(MDPS),
    estimators: Sequence[str] = tuple(ESTIMATORS),
    progress: Progress = iter,
) -> pandas.DataFrame:
    """A row for every `mdp`, `seed` (of data and random MDPs), `visits` and `estimator`, with its error."""
    return _errors(
        lambda count: {name: ESTIMATORS[name](base, count) for name in estimators},
        seeds,
        visits,
        mdps,
        progress,
    )


def by_weight(
    seeds: int = 20,
    *,
    visits: Sequence[int] = (FEW, MANY),
    weights: Sequence[float] = WEIGHTS,
    mdps: Sequence[str] = tuple(MDPS),
    progress: Progress = iter,
) -> pandas.DataFrame:
    """As `by_data`, for constant lambdas: maximum likelihood has lambda 0."""
    constant = {LIKELIHOOD: 0.0} | {f"{weight:g}": weight for weight in weights}
    return _errors(lambda count: constant, seeds, visits, mdps, progress)


def _errors(
    weights: Callable[[int], dict[str, float]],
    seeds: int,
    visits: Sequence[int],
    mdps: Sequence[str],
    progress: Progress,
) -> pandas.DataFrame:
    """Errors of estimators that `weights` names and gives lambdas, from the visits."""
    rows = []
    for seed in progress(range(seeds)):
        for mdp in (MDPS[name](seed) for name in mdps):
            for count in visits:
                counts = sample_counts(mdp, count * mdp.pairs, np.random.default_rng([seed, 3]))
                about = {"mdp": mdp.name, "seed": seed, "visits": count}
                for name, weight in weights(count).items():
                    distance = error(mdp, smoothed(mdp, counts, weight * count).law)
                    rows.append(about | {"estimator": name, "lambda": weight, "error": distance})
    return pandas.DataFrame(rows)


def intervals(errors: pandas.DataFrame, column: str = "error") -> pandas.DataFrame:
    """Mean over seeds of every MDP, amount of data and estimator, with Student's 95% interval."""
    groups = errors.groupby(["mdp", "visits", "estimator", "lambda"], sort=False)[column]
    found = groups.agg(["mean", "sem", "count"]).reset_index()
    half = found["sem"] * scipy.stats.t.ppf(0.975, found["count"] - 1)
    return found.assign(low=found["mean"] - half, high=found["mean"] + half).drop(columns=["sem", "count"])


def gains(errors: pandas.DataFrame) -> pandas.DataFrame:
    """Error minus that of maximum likelihood on the same data, as `intervals`: negative is better."""
    keys = ["mdp", "seed", "visits"]
    baseline = errors[errors["estimator"] == LIKELIHOOD][[*keys, "error"]]
    both = errors.merge(baseline, on=keys, suffixes=("", " of likelihood"))
    both = both[both["estimator"] != LIKELIHOOD]
    return intervals(both.assign(gain=both["error"] - both["error of likelihood"]), "gain")
