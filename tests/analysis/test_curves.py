import numpy as np
import pandas as pd
import pytest

from gpld import results
from gpld.analysis import curves
from tests.results.helpers import rows


def line(t, m, s, x):
    """Return of task t, method m and seed s after x env steps."""
    return (t + 1) * 10.0 + m + s * x / 1000


def test_runs_of_a_task_and_method_are_put_together():
    found = curves.align(rows(value=line))
    assert set(found) == {
        (t, m) for t in ("cheetah-run", "walker-walk") for m in ("DreamerV3", "GPLD-DreamerV3")
    }
    runs = found["walker-walk", "GPLD-DreamerV3"]
    np.testing.assert_array_equal(runs.env_steps, 1000.0 * np.arange(1, 11))
    np.testing.assert_array_equal(runs.returns[:, -1], [21.0, 31.0, 41.0])


def test_runs_at_other_steps_and_of_other_lengths_meet_where_all_have_been():
    table = rows(tasks=["t"], methods=["m"], seeds=2, value=lambda t, m, s, x: x / 1000)
    second = table["seed"] == 1
    table = table[~(second & (table["env_steps"] > 6000))]
    table.loc[table["seed"] == 1, "env_steps"] += 500
    found = curves.align(table)["t", "m"]
    np.testing.assert_array_equal(found.env_steps, 1000.0 * np.arange(2, 7))
    np.testing.assert_allclose(found.returns[0], np.arange(2, 7))
    np.testing.assert_allclose(found.returns[1], np.arange(2, 7) - 0.5)


def test_scores_and_returns_that_are_not_finite_are_not_part_of_a_curve():
    table = rows(tasks=["t"], methods=["m"], seeds=1, value=lambda t, m, s, x: x / 1000)
    table.loc[3, "return"] = np.nan
    table = pd.concat([table, table.iloc[:1].assign(kind="score", **{"return": 99.0})])
    found = curves.align(table)["t", "m"]
    assert found.returns[0].tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_a_tasks_curve_has_one_standard_deviation_or_an_interval():
    runs = curves.align(rows(value=line))["cheetah-run", "DreamerV3"]
    std = curves.mean_over_tasks([runs])
    np.testing.assert_allclose(std.high - std.mean, runs.returns.std(0))
    np.testing.assert_allclose(std.mean - std.low, runs.returns.std(0))
    interval = curves.mean_over_tasks([runs], "interval")
    assert ((interval.low < interval.mean) & (interval.mean < interval.high)).all()
    assert (interval.low >= runs.returns.min(0) - 1e-9).all()


def test_the_aggregate_is_the_mean_over_tasks_of_what_is_divided_by_the_baselines_end():
    found = curves.align(rows(value=line))
    scales = curves.final_scales(found, "DreamerV3")
    assert scales == {"cheetah-run": 20.0, "walker-walk": 30.0}
    tasks = ["cheetah-run", "walker-walk"]
    raw = curves.aggregate_curve(found, "GPLD-DreamerV3", tasks)
    np.testing.assert_allclose(raw.mean[-1], (21 + 31) / 2)
    np.testing.assert_allclose(raw.high[-1] - raw.mean[-1], np.std([16, 26, 36]))
    normalised = curves.aggregate_curve(found, "GPLD-DreamerV3", tasks, scales=scales)
    np.testing.assert_allclose(normalised.mean[-1], (21 / 20 + 31 / 30) / 2)
    assert curves.aggregate_curve(found, "DreamerV3", tasks, scales=scales).mean[-1] == pytest.approx(1.0)
    assert normalised.runs == 6


def test_tasks_that_a_method_has_not_or_that_cannot_be_scaled_are_left_out():
    found = curves.align(rows(value=line))
    del found["walker-walk", "GPLD-DreamerV3"]
    both = ["cheetah-run", "walker-walk"]
    assert curves.aggregate_curve(found, "GPLD-DreamerV3", both).mean[-1] == 21
    assert curves.aggregate_curve(found, "nobody", both) is None
    assert curves.aggregate_curve(found, "DreamerV3", both, scales={"cheetah-run": 0.0}) is None


def test_peers_are_curves_with_the_bounds_of_their_source():
    peers = results.peers(agents=["DreamerV3", "SimbaV2"], tasks=["walker-walk", "walker-run"])
    found = curves.peer_curves(peers, 250_000)
    names = ("DreamerV3 (others' runs)", "SimbaV2")
    assert set(found) == {(task, name) for task in ("walker-walk", "walker-run") for name in names}
    dreamer = found["walker-walk", names[0]]
    assert dreamer.env_steps.tolist() == [0, 50_000, 100_000, 150_000, 200_000, 250_000]
    assert (dreamer.mean[-1], dreamer.low[-1], dreamer.high[-1], dreamer.runs) == (454.9, 387.4, 522.4, 0)
    assert found["walker-walk", "SimbaV2"].runs == 5
    assert curves.peer_curves(peers, 10_000) == {}  # a point is no curve
