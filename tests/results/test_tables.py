import json
import shutil

import numpy as np
import pandas as pd
import pytest

from gpld import config as options, results
from gpld.analysis import rollouts
from gpld.config import Config, ConfigError
from gpld.results import RunRecord, collect_tables, merge, read_tables, write_tables
from gpld.results._tables import TABLES, tables_of
from tests import scripts

STUDY = {"name": "short", "tasks": ["walker-run"]}


def write_run(folder, seed, *, posterior=0.5, returns=(10.0, 30.0), task="walker-run"):
    """A run's folder with two evaluations, an end of training episodes, a score and measurements."""
    folder.mkdir(parents=True)
    config = options.override(
        Config(task, seed=seed), {"env_steps": 2000, "agent": {"penalty": {"posterior": posterior}}}
    )
    options.save(config, folder / "config.json")
    lines = [
        {
            "env_steps": 1000,
            "updates": 10,
            "eval/return": returns[0],
            "eval/return_std": 1,
            "eval/episodes": 3,
        },
        {"env_steps": 1500, "updates": 15, "train/return": 12.5, "train/episodes": 16},
        {
            "env_steps": 2000,
            "updates": 20,
            "eval/return": returns[1],
            "eval/return_std": 2,
            "eval/episodes": 3,
        },
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clock = [{"env_steps": n, "updates": n // 100, "seconds": n / 10, "time": 0} for n in (1000, 2000)]
    (folder / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in clock))
    made = {"date": "2026-11-17T01:02:03+00:00", "gpld": "0.1.0", "git": {"commit": "a" * 40, "dirty": False}}
    (folder / "run.json").write_text(json.dumps({"starts": [made | {"env_steps": 0, "command": ["gpld"]}]}))
    score = {"env_steps": 2000, "updates": 20, "mean": 25.0, "std": 5.0, "returns": [20.0, 30.0]}
    (folder / "scores.json").write_text(json.dumps({"scores": [score]}))
    for name in ("sensitivity", "quality"):
        row = dict.fromkeys(TABLES[name], 0.5) | {"env_steps": 2000, "updates": 20}
        row |= {"map": "posterior"} if name == "sensitivity" else {"ahead": 1}
        pd.DataFrame([row]).to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def folders(tmp_path):
    return {
        ("walker-run", method, seed): write_run(tmp_path / method / str(seed), seed, posterior=posterior)
        for method, posterior in (("DreamerV3", 0.0), ("GPLD-DreamerV3", 0.5))
        for seed in (0, 1)
    }


@pytest.fixture
def kept(folders, tmp_path):
    write_tables(collect_tables(STUDY, folders), tmp_path / "kept")
    return tmp_path / "kept"


def test_what_runs_hold_comes_back_from_the_files(folders, kept):
    found = read_tables(kept)
    assert found.study == STUDY
    assert [run.key for run in found.runs] == sorted(folders)
    assert found.tables["evaluations"]["return"].tolist() == [10.0, 30.0] * 4
    assert found.tables["evaluations"]["seconds"].tolist() == [100.0, 200.0] * 4
    assert found.tables["training"][
        ["env_steps", "return", "episodes"]
    ].drop_duplicates().values.tolist() == [[1500, 12.5, 16]]
    assert found.tables["scores"]["return"].tolist() == [20.0, 30.0] * 4
    assert (len(found.tables["sensitivity"]), len(found.tables["quality"])) == (4, 4)
    weights = {run.method: run.options["agent.penalty.posterior"] for run in found.runs}
    assert weights == {"DreamerV3": 0.0, "GPLD-DreamerV3": 0.5}
    assert found.runs[0].provenance["date"] == "2026-11-17"
    assert "command" not in found.runs[0].provenance  # it may name folders of somebody's machine


def test_writing_is_repeatable(kept, tmp_path):
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    write_tables(read_tables(kept), kept)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_more_runs_join_those_that_are_there(kept, tmp_path):
    more = {
        ("cheetah-run", "DreamerV3", 0): write_run(tmp_path / "more", 0, posterior=0.0, task="cheetah-run")
    }
    joined = merge(read_tables(kept), collect_tables(STUDY, more))
    assert len(joined.runs) == 5
    assert len(joined.tables["evaluations"]) == 10


def test_the_same_run_joins_only_with_the_same_numbers(folders, kept, tmp_path):
    old = read_tables(kept)
    assert len(merge(old, collect_tables(STUDY, folders)).runs) == 4
    other = {("walker-run", "DreamerV3", 1): write_run(tmp_path / "x", 1, posterior=0.0, returns=(1.0, 2.0))}
    with pytest.raises(
        ConfigError, match="walker-run, DreamerV3, seed 1 is already there with other numbers"
    ):
        merge(old, collect_tables(STUDY, other))


def test_a_missing_column_is_refused(kept):
    table = pd.read_csv(kept / "evaluations.csv")
    table.drop(columns="return").to_csv(kept / "evaluations.csv", index=False)
    with pytest.raises(ConfigError, match=r"evaluations.csv has no column return; it needs task, method"):
        read_tables(kept)


@pytest.mark.parametrize("name", tables_of(STUDY))
def test_a_row_that_is_there_twice_is_refused(kept, name):
    table = pd.read_csv(kept / f"{name}.csv")
    pd.concat([table, table.iloc[:1]]).to_csv(kept / f"{name}.csv", index=False)
    with pytest.raises(ConfigError, match=rf"{name}.csv in .* has a row twice: task walker-run"):
        read_tables(kept)


def test_a_run_that_is_described_twice_is_refused(kept):
    described = json.loads((kept / "runs.json").read_text())
    described["runs"].append(described["runs"][0])
    (kept / "runs.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="walker-run, DreamerV3, seed 0 is there twice"):
        read_tables(kept)


def test_a_run_of_another_configuration_is_refused(kept, folders, tmp_path):
    described = json.loads((kept / "runs.json").read_text())
    described["runs"][1]["options"]["replay.train_ratio"] = 64.0
    (kept / "runs.json").write_text(json.dumps(described))
    message = "seed 1 in .* is a run of another configuration: replay.train_ratio is 64.0, but 512.0 in"
    with pytest.raises(ConfigError, match=message):
        read_tables(kept)
    swapped = {("walker-run", "DreamerV3", 0): folders["walker-run", "DreamerV3", 0]}
    swapped["walker-run", "DreamerV3", 1] = folders["walker-run", "GPLD-DreamerV3", 1]
    with pytest.raises(ConfigError, match=r"another configuration: agent.penalty.posterior is 0.5"):
        collect_tables(STUDY, swapped)


def test_runs_that_are_not_described_are_refused(kept):
    described = json.loads((kept / "runs.json").read_text())
    described["runs"] = described["runs"][1:]
    (kept / "runs.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match=r"has walker-run, DreamerV3, seed 0, which runs.json lacks"):
        read_tables(kept)


def test_options_of_other_versions_have_their_defaults_or_do_not_count():
    expected = {"env.count": 16, "gone": 1}
    results.refuse_differences(expected, RunRecord("t", "m", 0, {"env.count": 16}), "", "a file")
    run = RunRecord("t", "m", 0, {"env.count": 16, "replay.train_ratio": 64.0})
    with pytest.raises(ConfigError, match=r"replay.train_ratio is 64.0, but 512.0 in a file"):
        results.refuse_differences(expected, run, "", "a file")


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        ("evaluations", "return", float("nan"), r"return is nan in row 2; it must be finite"),
        ("scores", "return", float("inf"), r"return is inf in row 2; it must be finite"),
        ("scores", "return", "abc", r"could not convert string to float: 'abc'"),
        ("evaluations", "env_steps", -5, r"env_steps is -5 in row 2; it must be a whole number from 0"),
        ("training", "updates", 15.5, r"updates is 15.5 in row 2; it must be a whole number from 0"),
        ("scores", "seed", float("nan"), r"seed is nan in row 2; it must be a whole number from 0"),
        (
            "evaluations",
            "env_steps",
            1e300,
            r"env_steps is 1e\+300 in row 2; it must be a whole number from 0",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(kept, name, column, value, message):
    table = pd.read_csv(kept / f"{name}.csv").astype({column: object})
    table.loc[1, column] = value
    table.to_csv(kept / f"{name}.csv", index=False, na_rep="nan")
    with pytest.raises(ConfigError, match=rf"{name}.csv is not a table of results \({message}"):
        read_tables(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [("study", []), ("study", None), ("provenance", [1]), ("provenance", [{"packages": [1]}])],
)
def test_a_part_of_the_description_of_another_kind_is_refused(kept, name, value):
    described = json.loads((kept / "runs.json").read_text())
    (kept / "runs.json").write_text(json.dumps(described | {name: value}))
    with pytest.raises(ConfigError, match=r"runs.json is not a description of runs"):
        read_tables(kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(0), "seed 0, 2000 env steps has 1 episodes, which are not numbered from 0"),
        (
            lambda rows: rows.assign(updates=[*rows["updates"][:-1], 21]),
            "GPLD-DreamerV3, seed 1, 2000 env steps has different updates: 20 and 21",
        ),
    ],
)
def test_scores_of_some_episodes_or_of_two_models_are_refused(kept, change, message):
    change(pd.read_csv(kept / "scores.csv")).to_csv(kept / "scores.csv", index=False)
    with pytest.raises(ConfigError, match=rf"scores.csv in .*: walker-run, .*{message}"):
        read_tables(kept)


def test_scores_have_the_episodes_that_their_study_plays(folders):
    assert collect_tables(STUDY | {"score_episodes": 2}, folders).runs
    with pytest.raises(ConfigError, match="has 2 episodes, which are not the 3 that the study plays"):
        collect_tables(STUDY | {"score_episodes": 3}, folders)


@pytest.mark.parametrize("names", [("0", "0.5"), ("1", "1.0"), ("None", "nan")])
def test_methods_may_be_called_like_numbers_or_nothing(folders, tmp_path, names):
    plain = dict(zip(("DreamerV3", "GPLD-DreamerV3"), names, strict=True))
    renamed = {(task, plain[method], seed): path for (task, method, seed), path in folders.items()}
    write_tables(collect_tables(STUDY, renamed), tmp_path / "numbers")
    assert {run.method for run in read_tables(tmp_path / "numbers").runs} == {*names}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"options": {}, "provenance": [], "runs": [{}]}'])
def test_a_broken_description_is_refused(kept, text):
    (kept / "runs.json").write_text(text)
    with pytest.raises(ConfigError, match=r"runs.json is not a description of runs"):
        read_tables(kept)


def test_missing_files_are_named(kept, tmp_path):
    with pytest.raises(ConfigError, match="holds no results of a study"):
        read_tables(tmp_path)
    (kept / "scores.csv").unlink()
    with pytest.raises(ConfigError, match=r"scores.csv is missing"):
        read_tables(kept)
    shutil.copy(kept / "runs.json", kept / "scores.csv")
    with pytest.raises(ConfigError, match=r"scores.csv (is not a table|has no column)"):
        read_tables(kept)


def test_what_was_not_measured_is_an_empty_table(folders, tmp_path):
    for folder in folders.values():
        (folder / "quality.csv").unlink()
        (folder / "scores.json").unlink()
    write_tables(collect_tables(STUDY, folders), tmp_path / "less")
    found = read_tables(tmp_path / "less")
    assert [len(found.tables[name]) for name in ("quality", "scores", "evaluations")] == [0, 0, 8]
    unpacked = {key: tmp_path / "unpacked" / "-".join(map(str, key)) for key in folders}
    results.unpack(found, unpacked)
    rows = results.load(tmp_path / "unpacked")
    assert set(rows["kind"]) == {"evaluation"}
    assert np.isfinite(rows["return"]).all()


def test_unpacked_runs_are_read_as_the_runs_were(folders, kept, tmp_path):
    found = read_tables(kept)
    unpacked = {key: tmp_path / "unpacked" / "-".join(map(str, key)) for key in folders}
    results.unpack(found, unpacked)
    again = collect_tables(STUDY, unpacked)
    for name, rows in found.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], rows)
    assert [run.options for run in again.runs] == [run.options for run in found.runs]
    for key, folder in folders.items():
        before, after = (results.collect(path, run="x") for path in (folder, unpacked[key]))
        pd.testing.assert_frame_equal(before, after)


def test_measurements_of_committed_runs_are_read_as_any(tmp_path):
    found = read_tables(scripts.ROOT / "results" / "locomotion-short")
    folders = {run.key: tmp_path / run.name for run in found.runs[:1]}
    results.unpack(found, folders)
    (folder,) = folders.values()
    for name in ("sensitivity", "quality"):
        assert set(rollouts.read_run(folder, name)["run"]) == {str(folder)}
