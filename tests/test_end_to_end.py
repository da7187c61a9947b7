"""The arithmetic of benchmarks/end_to_end.py on made-up measurements."""

import json
import re

import pytest

from gpld.config import Config, ConfigError
from tests import scripts


@pytest.fixture(scope="module")
def benchmark():
    return scripts.load("benchmarks/end_to_end.py")


@pytest.fixture(scope="module")
def row(benchmark):
    """The paper's run, 16 environments and 8 updates an iteration: 8 runs at 2 ms per update and run."""
    loop = {"iterations": 100, "updates": 800, "seconds": 14.0, "parts_ms": {}}
    saving = {"stopped": 2.0, "stopped_when_full": 10.0}
    return benchmark.summarize(Config("walker-run"), 8, loop, 0.016, 3.125, saving, 60.0)


def test_what_follows_from_the_measurements(row):
    iteration = 0.140 + 3.125 * 16 / 5000
    assert row["evaluation_ms_per_iteration"] == pytest.approx(10.0)
    assert row["checkpoint_share"] == pytest.approx(0.01)  # 6 s in ten minutes
    busy = iteration / 0.99
    assert row["env_steps_per_second"] == pytest.approx(8 * 32 / busy)
    assert row["updates_per_second"] == pytest.approx(8 * 8 / busy)
    assert row["ms_per_update_and_run_alone"] == pytest.approx(2.0)
    assert row["ratio_without_evaluation"] == pytest.approx(0.128 / 0.140)
    assert row["ratio"] == pytest.approx(0.128 / busy)
    assert row["paper_gpu_hours"] == pytest.approx(10 * 249_488 * busy / 64 / 3600)


def test_the_stopwatch_adds_up_and_lets_errors_through(benchmark):
    watch = benchmark.Stopwatch()

    def fail():
        raise ValueError("no")

    assert watch.around("a", lambda x: x + 1)(1) == 2
    with pytest.raises(ValueError, match="no"):
        watch.around("b", fail)()
    assert watch.seconds.keys() == {"a", "b"}
    assert all(0 <= seconds < 1 for seconds in watch.seconds.values())


def test_half_of_the_runs_are_baselines(benchmark, tmp_path):
    names = [member.name for member in benchmark.members_of(Config("walker-run"), 4, tmp_path)]
    assert names == ["gpld-seed0", "gpld-seed1", "dreamerv3-seed0", "dreamerv3-seed1"]
    assert [m.name for m in benchmark.members_of(Config("walker-run"), 1, tmp_path)] == ["gpld-seed0"]


def test_the_file_is_named_as_asked_and_does_not_tell_where_it_was(benchmark, row, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "measure", lambda *_: row)
    benchmark.main(benchmark.Options(runs=(8,), name="end_to_end-2.5", out=tmp_path))
    (path,) = tmp_path.iterdir()
    written = json.loads(path.read_text())
    assert path.name == "end_to_end-2.5.json"
    assert written["rows"] == [row]
    assert "runs=(8,)" in written["options"]
    assert str(tmp_path) not in written["options"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runs": (8, 0)}, "runs: 0 is not allowed; it must be at least 1"),
        ({"devices": -1}, "devices: -1 is not allowed; it must be at least 0"),
        ({"seconds": 0.0}, "seconds: 0 is not allowed; it must be above 0, and finite"),
        ({"seconds": float("nan")}, "seconds: nan is not allowed; it must be above 0, and finite"),
        ({"preset": ("13m",)}, "preset"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_anything_is_written(benchmark, tmp_path, wrong, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        benchmark.main(benchmark.Options(out=tmp_path, **wrong))
    assert not list(tmp_path.iterdir())
