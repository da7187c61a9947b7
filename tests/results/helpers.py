"""Made-up results, for tests of what is done with results."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from gpld.results import COLUMNS

METHODS = ("DreamerV3", "GPLD-DreamerV3")


def rows(
    tasks: Sequence[str] = ("cheetah-run", "walker-walk"),
    methods: Sequence[str] = METHODS,
    seeds: int = 3,
    points: int = 10,
    value: Callable[[int, int, int, np.ndarray], np.ndarray] | None = None,
) -> pd.DataFrame:
    """Evaluations every 1,000 env steps; `value` gives returns from the numbers of task, method and seed."""
    rng = np.random.default_rng(0)
    env_steps = 1000 * np.arange(1, points + 1)
    shape = (len(tasks), len(methods), seeds, points)
    returns = np.empty(shape)
    for t, m, s in np.ndindex(shape[:-1]):
        noise = rng.normal(scale=0.1, size=points)
        returns[t, m, s] = (
            value(t, m, s, env_steps) if value else (t + 1) * (m + 1) * env_steps / 1000 + noise
        )
    index = pd.MultiIndex.from_product(
        [tasks, methods, range(seeds), env_steps], names=["task", "method", "seed", "env_steps"]
    )
    table = pd.DataFrame({"return": returns.reshape(-1)}, index=index).reset_index()
    return table.assign(
        run=table["task"] + "/" + table["method"] + "/" + table["seed"].astype(str),
        study="made-up",
        hyperparameters='{"agent.penalty.rho": 0.5}',
        kind="evaluation",
        agent_steps=table["env_steps"] // 2,
        updates=table["env_steps"] // 4,
        return_std=0.0,
        episodes=3,
        seconds=table["env_steps"] / 100,
        version="0.1.0",
    )[list(COLUMNS)]
