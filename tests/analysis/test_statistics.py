import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from gpld import results
from gpld.analysis import statistics
from gpld.analysis.comparisons import Comparison, score_table, statistics_table
from gpld.tasks import LOCOMOTION
from tests.results.helpers import METHODS, rows

ORACLE = json.loads((Path(__file__).parent / "rliable.json").read_text())
"""What rliable 1.2.0 says: written by scripts/rliable_oracle.py."""

STATISTICS = ("mean", "median", "iqm", "optimality_gap", "probability_of_improvement")


def ask(case, name):
    """A statistic of a case's scores, and its interval as a function of the confidence."""
    ours, theirs = np.array(case["ours"]), np.array(case["theirs"])
    if name == "probability_of_improvement":
        value = statistics.probability_of_improvement(ours, theirs)
        return value, lambda share: statistics.improvement_interval(
            ours, theirs, reps=20_000, confidence=share
        )
    statistic = getattr(statistics, name)
    return statistic(ours), lambda share: statistics.interval(statistic, ours, reps=20_000, confidence=share)


# Against the paper


def test_the_papers_aggregates_come_out_of_its_printed_table():
    paper = results.paper_scores()
    everything = statistics.aggregate(paper, "DreamerV3").loc["GPLD-DreamerV3"]
    assert f"{everything['gain']:+.1%}" == "+17.7%"
    assert f"{everything['normalised']:.3f}" == "1.177"
    raw = statistics.aggregate(paper, "DreamerV3")["raw"]
    assert [f"{raw[method]:.1f}" for method in METHODS] == ["704.4", "755.8"]
    subset = statistics.aggregate(paper[paper["task"].isin(LOCOMOTION)], "DreamerV3")
    assert f"{subset.loc['GPLD-DreamerV3', 'gain']:+.1%}" == "+34.6%"
    assert subset.loc["DreamerV3"].tolist() == [pytest.approx(619.6, abs=0.05), 1.0, 0.0, 6.0]


# Against rliable


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("case", ORACLE["cases"], ids=["5x18", "3x4", "10x6"])
def test_statistics_and_intervals_agree_with_rliable(case, name):
    value, interval = ask(case, name)
    np.testing.assert_allclose(value, case["values"][name], rtol=1e-12)
    low, high = case["intervals"][name]
    # Both draw 20,000 samples, so the ends of theirs, which cover 95%, are between ours for 94% and 96%.
    narrow, wide = interval(0.94), interval(0.96)
    assert wide.low - 1e-9 <= low <= narrow.low + 1e-9
    assert narrow.high - 1e-9 <= high <= wide.high + 1e-9


@pytest.mark.parametrize("case", ORACLE["cases"], ids=["5x18", "3x4", "10x6"])
def test_performance_profiles_agree_with_rliable(case):
    profile = statistics.performance_profile(np.array(case["ours"]), np.array(ORACLE["thresholds"]))
    np.testing.assert_allclose(profile, case["profile"], rtol=1e-12)


# Properties


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-100, 100)))
@settings(max_examples=50, deadline=None)
def test_the_interquartile_mean_is_the_trimmed_mean(scores):
    np.testing.assert_allclose(statistics.iqm(scores), trim_mean(scores, 0.25, axis=None), atol=1e-9)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_missing_runs_count_for_nothing(runs, tasks, seed):
    scores = np.random.default_rng(seed).normal(size=(runs, tasks))
    padded = np.vstack([scores, np.full((2, tasks), np.nan)])
    for name in STATISTICS[:-1]:
        statistic = getattr(statistics, name)
        np.testing.assert_allclose(statistic(padded), statistic(scores), rtol=1e-12)
    improvement = statistics.probability_of_improvement
    np.testing.assert_allclose(improvement(padded, scores), improvement(scores, scores), rtol=1e-12)
    assert improvement(scores, scores) == pytest.approx(0.5)


def test_leading_axes_are_repetitions():
    many = np.random.default_rng(0).normal(size=(7, 5, 3))
    for name in STATISTICS[:-1]:
        statistic = getattr(statistics, name)
        np.testing.assert_allclose(statistic(many), [statistic(one) for one in many])


def test_an_interval_narrows_with_more_runs_and_covers_the_truth():
    rng = np.random.default_rng(0)
    hits, widths = 0, {5: 0.0, 50: 0.0}
    for trial in range(100):
        for runs in widths:
            low, high = statistics.interval(
                statistics.mean, rng.normal(size=(runs, 4)), reps=200, seed=trial, confidence=0.9
            )
            widths[runs] += high - low
            hits += runs == 50 and low < 0 < high
    assert 80 <= hits <= 97
    assert widths[5] > 2 * widths[50]


def test_ragged_runs_are_resampled_within_their_tasks():
    scores = np.array([[1.0, 5.0], [1.0, np.nan], [1.0, np.nan]])
    assert statistics.interval(statistics.mean, scores, reps=50) == (3.0, 3.0)
    assert statistics.interval(statistics.iqm, scores, reps=50) == (1.0, 1.0)


def test_the_interval_of_a_curves_mean_is_that_of_its_points():
    values = np.random.default_rng(0).normal(size=(6, 3)) * [1.0, 2.0, 0.0]
    means = statistics.bootstrap_means(values, reps=20_000, rng=np.random.default_rng(0))
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    for point in range(3):
        expected = statistics.interval(statistics.mean, values[:, [point]], reps=20_000)
        width = expected.high - expected.low
        assert (low[point], high[point]) == pytest.approx(tuple(expected), abs=0.05 * width + 1e-12)


# Sample efficiency

STEPS = np.array([10.0, 20.0, 40.0])


def test_the_area_under_a_curve_is_its_mean_return():
    curves = np.array([[1.0, 1.0, 1.0], [0.0, 10.0, 10.0], [0.0, 0.0, 3.0]])
    np.testing.assert_allclose(statistics.area_under_curve(STEPS, curves), [1.0, 250 / 30, 1.0])


@pytest.mark.parametrize(
    ("level", "expected"),
    [(0.0, [10.0, 10.0]), (5.0, [15.0, np.inf]), (10.0, [20.0, np.inf]), (1.5, [11.5, 30.0])],
)
def test_steps_to_reach_a_return(level, expected):
    curves = np.array([[0.0, 10.0, 4.0], [0.0, 0.0, 3.0]])
    np.testing.assert_allclose(statistics.steps_to_reach(STEPS, curves, level), expected)


# Tables of results


def test_a_runs_score_is_that_of_its_checkpoint_if_there_is_one():
    table = rows(seeds=2)
    first = table["run"] == table["run"].iloc[0]
    scored = table[first & (table["env_steps"] == 5000)].assign(kind="score", **{"return": 77.0})
    both = pd.concat([table, scored])
    at_5000 = statistics.final_scores(both, 5000).set_index("run")
    assert at_5000.loc[table["run"].iloc[0], ["return", "kind"]].tolist() == [77.0, "score"]
    assert (at_5000["env_steps"] == 5000).all()
    assert (at_5000["kind"] == "evaluation").sum() == len(at_5000) - 1 == 7
    assert (statistics.final_scores(both)["env_steps"] == 10_000).all()


def test_runs_that_have_not_come_far_enough_have_no_score():
    table = rows(seeds=2)
    short = (table["run"] == table["run"].iloc[0]) & (table["env_steps"] > 4000)
    scores = statistics.final_scores(table[~short], 5000)
    assert len(scores) == 7
    assert table["run"].iloc[0] not in set(scores["run"])


def test_a_summary_has_mean_and_population_std_over_seeds():
    table = rows(value=lambda t, m, s, x: np.full(len(x), 10.0 * t + m + s))
    summary = statistics.summarise(statistics.final_scores(table)).set_index(["task", "method"])
    row = summary.loc[("walker-walk", "GPLD-DreamerV3")]
    assert row[["mean", "seeds"]].tolist() == [12.0, 3]
    assert row["std"] == pytest.approx(np.std([0.0, 1.0, 2.0]))
    assert (row["low"], row["high"]) == (11.0, 13.0)  # 1 of 27 samples has no run but the first


def test_the_area_of_a_run_is_its_mean_return_over_training():
    table = rows(seeds=2, value=lambda t, m, s, x: (m + 1) * x / 1000 + s)
    found = statistics.area_scores(table, 5000).set_index("run")["return"]
    assert found["walker-walk/GPLD-DreamerV3/1"] == 2 * (1 + 5) / 2 + 1
    assert statistics.area_scores(table).set_index("run")["return"]["walker-walk/DreamerV3/0"] == (1 + 10) / 2
    assert len(statistics.area_scores(table, 1000)) == 0  # one evaluation has no area
    assert len(statistics.area_scores(table, 11_000)) == 0
    ended = (table["run"] == "walker-walk/DreamerV3/0") & (table["env_steps"] > 4000)
    assert len(statistics.area_scores(table[~ended], 5000)) == len(found) - 1


def test_only_tasks_that_both_have_are_compared():
    summary = pd.DataFrame(
        {
            "task": ["a", "b", "a", "c"],
            "method": ["DreamerV3", "DreamerV3", "ours", "ours"],
            "mean": [10.0, 100.0, 15.0, 1000.0],
            "std": [0.0, 99.0, 20.0, 0.0],
        }
    )
    table = statistics.aggregate(summary, "DreamerV3")
    assert table.loc["ours"].tolist() == [15.0, 1.5, 0.5, 1]
    assert table.loc["DreamerV3"].tolist() == [55.0, 1.0, 0.0, 2]
    with pytest.raises(ValueError, match="nobody has no scores"):
        statistics.aggregate(summary, "nobody")


def test_scores_are_not_divided_by_a_mean_that_may_as_well_be_zero():
    returns = {"learned": [300.0, 100.0], "one seed did": [9.0, 0.0, 0.0], "negative": [-90.0, -80.0]}
    scores = pd.DataFrame(
        [
            {"task": task, "method": method, "seed": seed, "return": value + more}
            for task, own in returns.items()
            for method, more in (("DreamerV3", 0.0), ("ours", 50.0))
            for seed, value in enumerate(own)
        ]
    )
    assert statistics.baseline_means(scores, "DreamerV3", list(returns)) == {"learned": 200.0}
    table = statistics.aggregate(statistics.summarise(scores), "DreamerV3")
    assert table.loc["ours", "normalised"] == pytest.approx(1.25)
    assert table.loc["ours", "raw"] == pytest.approx((250 + 53 - 35) / 3)  # of all tasks
    compared = Comparison(list(returns), ["DreamerV3", "ours"], "DreamerV3")
    shown = score_table(scores, compared, title="")
    assert [row[-1] for row in shown.rows[:3]] == ["+25.0%", "-", "-"]
    assert any(note.startswith("no ratios for one seed did, negative,") for note in shown.notes)
    shown = score_table(scores, compared._replace(tasks=["learned"]), title="")
    assert not any("no ratios" in note for note in shown.notes)
    better = statistics_table(scores, compared, title="").rows[1]
    # Each of ours against each of the baseline's: 3 of 4, 9 of 9 and 4 of 4.
    assert better[0] == "ours (1 of 3 tasks)"
    assert better[-1].startswith(f"{(0.75 + 1 + 1) / 3:.3f}")


def test_scores_become_a_matrix_with_holes():
    table = statistics.final_scores(rows(value=lambda t, m, s, x: np.full(len(x), 10.0 * t + m + s)))
    table = table[~((table["task"] == "walker-walk") & (table["seed"] == 2))]
    matrix = statistics.score_matrix(table, "DreamerV3", ["cheetah-run", "walker-walk"])
    np.testing.assert_array_equal(matrix, [[0.0, 10.0], [1.0, 11.0], [2.0, np.nan]])
    scaled = statistics.score_matrix(table, "DreamerV3", ["walker-walk"], {"walker-walk": 2.0})
    np.testing.assert_array_equal(scaled, [[5.0], [5.5]])
