"""Numbers of others, to be shown beside those of runs; their sources are in `data/README.md`."""

from collections.abc import Sequence
from importlib.resources import files

import pandas as pd

from gpld.config import ConfigError, suggestion
from gpld.results import _store
from gpld.results._collect import METHODS

PUBLISHED = f"{METHODS[0]} (published)"
"""The method's name in `published`."""


def paper_scores() -> pd.DataFrame:
    """The paper's table: `task`, `method`, `env_steps`, `mean`, `std`, `seeds`, `episodes`.

    It says 1M env steps; the authors' code suggests that it may be 2M.
    """
    return _read("paper_scores.csv")


def paper_cost() -> pd.DataFrame:
    """The paper's run times: `rho`, `posterior`, `prior`, `ratio` and its `std`, and `seconds_more`."""
    return _read("paper_cost.csv")


def published() -> pd.DataFrame:
    """Published learning curves of DreamerV3, as a table of results; what is not known is empty or -1.

    They count two env steps for each agent step, but the code that made them repeated actions in the first
    episode of an environment only. So the runs that are like them have `env.action_repeat=1`, and are to be
    compared by agent steps.
    """
    rows = _read("dreamerv3_published.csv").assign(
        run=lambda x: "published/" + x["task"] + "/" + x["seed"].astype(str),
        study="published",
        method=PUBLISHED,
        hyperparameters="{}",
        kind="evaluation",
        agent_steps=lambda x: x["env_steps"] // 2,
        updates=-1,
        return_std=float("nan"),
        episodes=-1,
        seconds=float("nan"),
        version="",
    )
    return rows[list(_store.COLUMNS)]


def peers(*, agents: Sequence[str] | None = None, tasks: Sequence[str] | None = None) -> pd.DataFrame:
    """Learning curves from states that others measured: DreamerV3, TD-MPC2, BMPC, SAC, BRO, SimbaV2, MR.Q.

    Columns are `agent`, `task`, `env_steps`, `mean`, `low`, `high`, `seeds` (missing where the source does
    not say) and `source`. What `low` and `high` are depends on the source: see `data/README.md`. `agents` and
    `tasks` choose some of them; a name that is not there is refused.
    """
    rows = _read("peers_dmc_states.csv").astype({"seeds": "Int64"})
    for column, option, selected in (("agent", "agents", agents), ("task", "tasks", tasks)):
        if selected is None:
            continue
        known = tuple(rows[column].unique())
        for name in selected:
            if name not in known:
                near = suggestion(name, known) or f"; allowed are {', '.join(known)}"
                raise ConfigError(f"{option}: there are no peers' curves of {name!r}{near}")
        rows = rows.loc[rows[column].isin(list(selected))]
    return rows.reset_index(drop=True)


def _read(name: str) -> pd.DataFrame:
    with (files("gpld.results") / "data" / name).open() as file:
        return pd.read_csv(file)
