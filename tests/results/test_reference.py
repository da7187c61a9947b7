from collections import Counter

import numpy as np

from gpld import results
from gpld.tasks import PROPRIO


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
