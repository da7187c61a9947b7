import json
import multiprocessing
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from gpld import results
from gpld.config import ConfigError
from tests.results.helpers import rows


def write_all(folder, table):
    for _, run in table.groupby("run"):
        results.write(folder, run)


def test_what_was_written_is_loaded(tmp_path):
    table = rows()
    write_all(tmp_path, table)
    loaded = results.load(tmp_path)
    assert tuple(loaded.columns) == results.COLUMNS
    assert len(list(tmp_path.iterdir())) == table["run"].nunique() == 12
    expected = table.sort_values(["run", "env_steps"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(loaded.astype(expected.dtypes.to_dict()), expected)


def test_the_order_of_rows_is_not_that_of_writing(tmp_path):
    table = rows()
    for name, some in (("one", table), ("two", table.iloc[::-1])):
        for _, run in some.groupby("run", sort=False):
            results.write(tmp_path / name, run)
        results.compact(tmp_path / name)
    one, two = results.load(tmp_path / "one"), results.load(tmp_path / "two")
    assert one["run"].astype(str).is_monotonic_increasing
    pd.testing.assert_frame_equal(one, two)


def test_a_run_written_again_takes_its_own_place(tmp_path):
    table = rows()
    write_all(tmp_path, table)
    run = table[table["run"] == table["run"].iloc[0]]
    results.write(tmp_path, run.assign(**{"return": 7.0}))
    loaded = results.load(tmp_path)
    assert len(loaded) == len(table)
    assert (loaded.loc[loaded["run"] == run["run"].iloc[0], "return"] == 7.0).all()


@pytest.mark.parametrize("names", [("a/b", "a-b"), ("x" * 300 + "1", "x" * 300 + "2"), ("a b", "a_b")])
def test_runs_of_like_names_have_files_of_their_own(tmp_path, names):
    one = rows(tasks=["t"], methods=["m"], seeds=1)
    for name in names:
        results.write(tmp_path, one.assign(run=name))
    assert set(results.load(tmp_path)["run"]) == set(names)


def test_compacting_changes_no_row_and_keeps_what_comes_later(tmp_path):
    table = rows()
    write_all(tmp_path, table)
    before = results.load(tmp_path)
    results.compact(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    pd.testing.assert_frame_equal(results.load(tmp_path), before)
    late = table[table["run"] == table["run"].iloc[0]].assign(**{"return": 7.0})
    results.write(tmp_path, late)
    for _ in range(2):
        loaded = results.load(tmp_path)
        assert len(loaded) == len(table)
        assert (loaded["return"] == 7.0).sum() == len(late)
        results.compact(tmp_path)


def _worker(folder, number):
    table = rows(tasks=[f"task{number}"], methods=["m"], seeds=5)
    for repeat in range(20):
        write_all(folder, table.assign(**{"return": float(repeat)}))


@pytest.mark.slow
def test_many_workers_write_while_one_reads_and_compacts(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_worker, args=(tmp_path, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        loaded = results.load(tmp_path)  # never half a run, and never a run twice
        assert (loaded.groupby("run", observed=True).size() == 10).all()
        results.compact(tmp_path)
    assert [worker.exitcode for worker in workers] == [0] * 2
    assert len(results.load(tmp_path)) == 2 * 5 * 10
    assert (results.load(tmp_path)["return"] == 19.0).all()
    assert list(tmp_path.glob(".*")) == []


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    one = rows(tasks=["t"], methods=["m"], seeds=1)
    results.write(tmp_path, one)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        results.write(tmp_path, one.assign(**{"return": 7.0}))
    assert len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(results.load(tmp_path)["return"], one["return"])


def test_options_become_columns():
    table = rows(seeds=2)
    second = table["seed"] == 1
    table.loc[second, "hyperparameters"] = json.dumps({"agent.penalty.rho": 1.0, "backend": "auto"})
    wide = results.with_options(table, ["agent.penalty.rho", "backend"])
    assert set(wide.loc[~second, "agent.penalty.rho"]) == {0.5}
    assert set(wide.loc[second, "agent.penalty.rho"]) == {1.0}
    assert set(wide.loc[second, "backend"]) == {"auto"}
    assert wide.loc[~second, "backend"].isna().all()


def test_no_results_are_an_empty_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert results.load().shape == (0, len(results.COLUMNS))
    assert results.compact(tmp_path) is None


def test_what_is_not_a_place_of_results_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        results.load(tmp_path / "nowhere")
    (tmp_path / "other.parquet").write_bytes(b"of no interest")
    assert len(results.load(tmp_path)) == 0
    (tmp_path / f"bad-{time.time_ns()}.parquet").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"bad-\d+\.parquet"):
        results.load(tmp_path)


def test_what_only_trains_needs_no_pyarrow(tmp_path, monkeypatch):
    code = "import sys; sys.modules['pyarrow'] = None; import gpld.studies, gpld.results"
    code += "; print(gpld.results.can_write())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
    results.write(tmp_path, rows(tasks=["t"], methods=["m"], seeds=1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (lambda: results.load(tmp_path), lambda: results.write(tmp_path, rows(["t"], ["m"], 1))):
        with pytest.raises(ConfigError, match="results: their Parquet files need pyarrow"):
            use()
