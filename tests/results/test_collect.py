import json
import shutil

import numpy as np
import pytest

from gpld import results
from gpld.results import _collect
from gpld.training.score import Score
from tests.training.helpers import lines


def test_a_runs_evaluations_are_its_results(small_run):
    table = results.collect(small_run)
    evaluated = [line for line in lines(small_run) if "eval/return" in line]
    assert table["return"].tolist() == [line["eval/return"] for line in evaluated]
    assert table["env_steps"].tolist() == [200, 400]
    assert table["agent_steps"].tolist() == [100, 200]
    assert table["updates"].tolist() == [line["updates"] for line in evaluated]
    assert set(table["episodes"]) == {2}
    assert set(zip(table["task"], table["method"], table["seed"], table["kind"], strict=True)) == {
        ("cartpole-balance", "GPLD-DreamerV3", 3, "evaluation")
    }
    assert table["seconds"].is_monotonic_increasing
    assert table["version"].str.startswith("0.1.0").all()
    options = json.loads(table["hyperparameters"].iloc[0])
    assert options["agent.model.deter"] == 16
    assert "seed" not in options
    assert "task" not in options


def test_scores_are_results_too_and_are_replaced_by_later_ones(small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run")
    for env_steps, returns in ((400, [9.0]), (200, [1.0, 2.0, 6.0]), (400, [4.0, 8.0])):
        results.add_score(run, Score("cartpole-balance", env_steps, env_steps // 4, 0, returns))
    table = results.collect(run)
    assert table["kind"].tolist() == ["evaluation"] * 2 + ["score"] * 2
    scores = table[table["kind"] == "score"]
    assert scores["env_steps"].tolist() == [200, 400]
    assert scores["return"].tolist() == [3.0, 6.0]
    assert scores["return_std"].tolist() == [pytest.approx(np.std([1.0, 2.0, 6.0])), 2.0]
    assert scores["episodes"].tolist() == [3, 2]
    assert scores["seconds"].notna().all()


def test_runs_are_found_and_loaded_wherever_they_are(small_run, tmp_path):
    for name in ("a", "deeper/b"):
        shutil.copytree(small_run, tmp_path / name)
    assert results.runs_in(tmp_path) == [tmp_path / "a", tmp_path / "deeper/b"]
    loaded = results.load(tmp_path)
    assert set(loaded["run"]) == {str(tmp_path / "a"), str(tmp_path / "deeper/b")}
    assert len(loaded) == 4


def test_a_run_that_has_not_been_evaluated_has_no_rows(small_run, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(small_run / "config.json", run)
    assert len(results.collect(run)) == 0
    assert len(results.load(tmp_path)) == 0


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ([(100, 1.0), (200, 2.0), (300, 3.5)], [2.0, 3.5]),
        ([(100, 1.0), (200, 2.0), (200, 0.5), (300, 1.5)], [2.5, 3.5]),  # killed after 200, resumed from 100
        ([(100, 1.0)], [np.nan, np.nan]),
        ([], [np.nan, np.nan]),
    ],
)
def test_wall_clock_counts_every_start_by_its_own_clock(tmp_path, timing, expected):
    rows = [{"env_steps": steps, "updates": 0, "seconds": at, "time": 0.0} for steps, at in timing]
    (tmp_path / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    np.testing.assert_allclose(_collect.seconds_at(tmp_path, np.array([200, 300])), expected)


@pytest.mark.parametrize(
    ("started_again", "expected"),
    [
        (1100.0, [30.0 + 40.0, 30.0 + 50.0]),  # later than the first start's whole clock
        (None, [40.0, 50.0]),  # the same start, after its machine slept
    ],
)
def test_a_start_that_outlasts_the_one_before_is_counted(tmp_path, started_again, expected):
    first = [(100, 10.0, 1010.0), (150, 30.0, 1030.0)]
    then = [(200, 40.0), (300, 50.0)]
    later = [(steps, at, (started_again or 1005.0) + at) for steps, at in then]
    rows = [
        {"env_steps": steps, "updates": 0, "seconds": at, "time": time} for steps, at, time in first + later
    ]
    (tmp_path / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    np.testing.assert_allclose(_collect.seconds_at(tmp_path, np.array([200, 300])), expected)
