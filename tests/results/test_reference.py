from collections import Counter

import numpy as np
import pytest

from gpld import results
from gpld.config import ConfigError
from gpld.tasks import PROPRIO, QUADRUPED


def test_the_papers_table_has_every_task_and_both_methods():
    table = results.paper_scores()
    pairs = set(zip(table["task"], table["method"], strict=True))
    assert pairs == {(task, method) for task in PROPRIO for method in results.METHODS}
    row = table[(table["task"] == "hopper-hop") & (table["method"] == "GPLD-DreamerV3")].iloc[0]
    assert (row["mean"], row["std"], row["env_steps"]) == (197.4, 41.7, 1_000_000)


def test_the_papers_run_times_are_twelve():
    table = results.paper_cost()
    assert len(table) == 12
    row = table[(table["rho"] == 0.5) & (table["posterior"] == 0.5) & (table["prior"] == 0)].iloc[0]
    assert (row["ratio"], row["std"], row["seconds_more"]) == (1.51, 0.157, 3712.1)


def test_published_curves_are_results_like_ours(tmp_path):
    table = results.published()
    assert tuple(table.columns) == results.COLUMNS
    assert (table.groupby("task")["seed"].nunique() == 5).all()
    assert set(table["task"]) == {"cartpole-swingup", "cheetah-run", "pendulum-swingup", "walker-walk"}
    for _, run in table.groupby("run"):
        results.write(tmp_path, run)
    assert results.load(tmp_path)["return"].sum() == table["return"].sum()


def test_the_published_runs_did_not_repeat_their_actions():
    """Returns of pendulum-swingup are whole numbers. A point that is none is the mean of two episodes.

    Four environments in step end an episode of 1,000 actions every 4 x 1,001 agent steps, twice that as env
    steps are counted. So there are two in every fourth bin of 10,000 env steps. With actions of two env steps
    each there would be two or three in every bin.
    """
    rows = results.published().query("task == 'pendulum-swingup'")
    assert set(rows["return"] % 1) == {0.0, 0.5}
    halves = rows[rows["return"] % 1 == 0.5]

    def ends_by_bin(actions):
        ends = 2 * 4 * (501 + (actions + 1) * np.arange(200))  # the first episode has repeated actions
        counts = Counter((np.ceil(ends / 10_000) * 10_000).astype(int).tolist())
        return {env_steps: counts[env_steps] for env_steps in sorted(set(rows["env_steps"]))}

    ends = ends_by_bin(1000)
    assert set(ends.values()) == {1, 2}
    assert len(halves) == 28
    assert all(ends[env_steps] == 2 for env_steps in halves["env_steps"])
    assert sum(ends[env_steps] == 2 for env_steps in rows["env_steps"]) == 60  # of 245
    assert set(ends_by_bin(500).values()) == {2, 3}


def test_peers_are_seven_agents_on_nineteen_tasks():
    table = results.peers()
    assert list(table) == ["agent", "task", "env_steps", "mean", "low", "high", "seeds", "source"]
    agents = {"DreamerV3", "TD-MPC2", "BMPC", "SAC", "BRO", "SimbaV2", "MR.Q"}
    tasks = {*PROPRIO, *QUADRUPED} - {"acrobot-swingup_sparse"}
    pairs = set(zip(table["agent"], table["task"], strict=True))
    assert pairs == {(agent, task) for agent in agents for task in tasks}
    assert not table.duplicated(["agent", "task", "env_steps"]).any()
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    assert set(table.loc[table["agent"] == "MR.Q", "seeds"]) == {10}
    assert table.loc[table["agent"] == "DreamerV3", "seeds"].isna().all()


def test_some_peers_are_chosen_and_others_refused_by_name():
    table = results.peers(agents=["TD-MPC2"], tasks=["walker-run"])
    assert table.loc[table["env_steps"] == 100_000, "mean"].tolist() == [740.6]
    assert len(results.peers(agents=[])) == 0
    with pytest.raises(ConfigError, match="agents: there are no peers' curves of 'TDMPC2'; did you mean"):
        results.peers(agents=["DreamerV3", "TDMPC2"])
    with pytest.raises(ConfigError, match="tasks: there are no peers' curves of 'zzz'; allowed are acrobot"):
        results.peers(tasks=["zzz"])
