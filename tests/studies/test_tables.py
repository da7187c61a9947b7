"""Results of studies that are committed: written, shown from anywhere, and refused if they do not fit."""

import dataclasses
import json
import re
import tomllib

import pytest

from gpld import results
from gpld.cli import main
from gpld.config import ConfigError
from gpld.studies import _reuse, _state, _study, _tables, plan
from tests.studies.helpers import TEXT, finish, small


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a study's file, one of whose tasks has been trained elsewhere and committed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TEXT)
    study = _study.get("small.toml")
    for run in plan(study).runs:
        if run.task == "walker-walk":
            finish(tmp_path / "elsewhere", run, 600, 1200)
    paths = _tables.export(study, tmp_path / "elsewhere", commit="c" * 40)
    assert {path.parent.name for path in paths} == {"small"}
    return tmp_path


def redefine(place, old, new):
    text = (place / "small.toml").read_text()
    assert old in text
    (place / "small.toml").write_text(text.replace(old, new))


def test_committed_results_are_those_of_the_runs(place):
    found = results.read_tables(place / "results" / "small")
    assert len(found.runs) == 6
    assert {run.task for run in found.runs} == {"walker-walk"}
    assert {run.provenance["git"]["commit"] for run in found.runs} == {"c" * 40}
    scores = found.tables["scores"].query("env_steps == 1200")
    assert scores.groupby("seed")["return"].mean().to_dict() == {3: 1123.0, 4: 1124.0}


def test_a_commit_that_is_named_is_not_that_of_runs_of_another_study(place):
    study = _study.get("small.toml")
    first, *others = (run for run in plan(study).runs if run.task == "walker-walk")
    taken = _state.run_folder(place / "elsewhere", first) / _state.TAKEN
    taken.write_text(json.dumps({"study": "large", "run": first.name}))
    _tables.export(study, place / "elsewhere", place / "again", commit="d" * 40)
    made = {run.key: run.provenance for run in results.read_tables(place / "again").runs}
    assert "d" * 40 not in json.dumps(made.pop((first.task, first.method, first.seed)))
    assert [provenance["git"]["commit"] for provenance in made.values()] == ["d" * 40] * len(others)


def test_they_are_shown_where_nothing_was_run(place, capsys):
    assert main(["study", "table", "small.toml", "--format", "csv"]) == 0
    shown = capsys.readouterr().out
    assert "1123.5" in shown
    assert "data: results/small; command: gpld study table small.toml" in shown
    assert "12 of 12 runs" not in shown
    assert "6 of 12 runs are not finished" in shown
    assert main(["study", "figure", "small.toml"]) == 0
    drawn = capsys.readouterr().out.split()
    assert drawn
    assert all(path.startswith(str(place / "studies" / "small" / "figures")) for path in drawn)
    for command in (["study", "report", "small.toml"], ["report", "small.toml"]):
        assert main(command) == 0
        page = (place / "studies" / "small" / "report.html").read_text()
        assert "6 of 12" in page
        assert "gpld study report small" in page
        (place / "studies" / "small" / "report.html").unlink()
    # Showing them is not running the study.
    assert not (place / "studies" / "small" / "plan.json").exists()


def test_a_folder_that_is_named_must_hold_a_study(place, capsys):
    assert main(["study", "table", "small.toml", "--out", "nowhere"]) == 2
    assert "nothing has been run in" in capsys.readouterr().err


def test_what_has_been_run_here_is_shown_instead(place, capsys):
    study = _study.get("small.toml")
    planned = plan(study)
    planned.write(place / "studies" / "small")
    for run in planned.runs:
        finish(place / "studies" / "small", run, 600, 1200)
    assert main(["study", "table", "small.toml"]) == 0
    shown = capsys.readouterr().out
    assert "are not finished" not in shown
    assert "data: studies/small/results" in shown


def test_the_other_task_joins(place):
    study = _study.get("small.toml")
    for run in plan(study).runs:
        if run.task != "walker-walk":
            finish(place / "later", run, 600, 1200)
    assert main(["study", "export", "small.toml", "--out", "later"]) == 0
    assert len(results.read_tables(place / "results" / "small").runs) == 12


def test_nothing_to_export_is_told(place, capsys):
    assert main(["study", "export", "small.toml", "--out", "nowhere"]) == 2
    assert "there are no runs of small in" in capsys.readouterr().err


def test_results_older_than_the_definition_say_so(place, capsys):
    redefine(place, "seeds = [3, 4]", "seeds = [3, 4, 5]")
    assert main(["study", "table", "small.toml"]) == 0
    message = capsys.readouterr().err
    assert (
        "note: the results are older than the definition of small: seeds was [3, 4] and is [3, 4, 5]"
        in message
    )
    assert main(["study", "report", "small.toml"]) == 0
    assert "The results are older than the definition" in (place / "studies/small/report.html").read_text()


def test_words_may_change(place, capsys):
    redefine(place, 'purpose = "For tests."', 'purpose = "For other tests."')
    assert main(["study", "table", "small.toml"]) == 0
    assert "older" not in capsys.readouterr().err


def test_a_run_of_another_configuration_is_refused(place, capsys):
    path = place / "results" / "small" / "runs.json"
    described = json.loads(path.read_text())
    described["options"]["replay.batch"] = 4
    path.write_text(json.dumps(described))
    assert main(["study", "report", "small.toml"]) == 2
    assert (
        "another configuration: replay.batch is 4, but 8 in the definition of small"
        in capsys.readouterr().err
    )


def test_a_run_of_another_study_is_refused(place):
    study = _study.from_dict(tomllib.loads(TEXT) | {"tasks": ["cartpole-balance"]}, "small")
    tables = results.read_tables(place / "results" / "small")
    as_if = type(tables)(**{**vars(tables), "study": _tables._as_json(study)})
    with pytest.raises(ConfigError, match="walker-walk, DreamerV3, seed 3 is not a run of small"):
        _tables._check_options(study, as_if)


def test_runs_in_other_simulators_are_refused(place, capsys):
    """Their tasks may have other physics; those of runs that do not know theirs are taken."""
    versions = {"walker-walk": "3.6.0", "cartpole-balance": "3.11.0"}
    for run in plan(_study.get("small.toml")).runs:
        folder = place / "elsewhere"
        path = _state.run_folder(folder, run) if run.task == "walker-walk" else finish(folder, run, 600, 1200)
        start = {"date": "2026-11-18", "packages": {"mujoco": versions[run.task], "envpool": None}}
        (path / "run.json").write_text(json.dumps({"starts": [start]}))
    assert main(["study", "export", "small.toml", "--out", "elsewhere"]) == 2
    assert re.search(
        r"results: .* ran in mujoco 3\.\d+\.0, and .* in 3\.\d+\.0; a study's runs must have one version",
        capsys.readouterr().err,
    )


def test_committed_runs_in_other_simulators_are_refused(place):
    described = json.loads((place / "results" / "small" / "runs.json").read_text())
    described["provenance"] = [{"packages": {"mujoco": version}} for version in ("3.6.0", "3.11.0")]
    for number, run in enumerate(described["runs"]):
        run["provenance"] = number % 2
    (place / "results" / "small" / "runs.json").write_text(json.dumps(described))
    opening = _tables.open_results(_study.get("small.toml"), place / "studies" / "small")
    with pytest.raises(ConfigError, match=r"ran in mujoco 3\.11\.0, and .* in 3\.6\.0"), opening:
        pass


def test_what_is_shown_is_what_the_file_asks_for_now(tmp_path):
    before = small(figures=["aggregate"])
    before.write(tmp_path)
    for name, figures in (("small", ("profile",)), ("other", ("aggregate",))):
        study = dataclasses.replace(before.study, name=name, figures=("profile",), seeds=(7,))
        with _tables.open_results(study, tmp_path) as found:
            assert (found.study.figures, found.study.seeds) == (figures, before.study.seeds)


def test_imported_runs_are_not_trained_again(place, capsys):
    """Neither by the study that they are of, nor by another that has the same."""
    assert main(["study", "import", "small.toml"]) == 0
    assert "6 runs of small" in capsys.readouterr().out
    folder, study = place / "studies" / "small", _study.get("small.toml")
    left = [run for run in plan(study).runs if not _state.is_done(folder, plan(study), run)]
    assert {run.task for run in left} == {"cartpole-balance"}
    other = plan(_study.from_dict(tomllib.loads(TEXT) | {"title": "Other"}, "other"))
    taken = _reuse.reused(place / "studies" / "other", other)
    assert taken == {run.name: "small" for run in other.runs if run.task == "walker-walk"}
    assert main(["study", "import", "small.toml"]) == 2
    assert "small has been run in" in capsys.readouterr().err


def test_what_is_not_committed_cannot_be_imported(place, capsys):
    (place / "other.toml").write_text(TEXT)
    assert main(["study", "import", "other.toml"]) == 2
    assert "there are no committed results of other" in capsys.readouterr().err


def test_the_variants_share_runs_with_locomotion():
    """So that they are not trained twice: runs as launched are no others', and the baselines are the same."""
    ours, theirs = (
        {_reuse.identity(run.config): run.method for run in plan(_study.get(name)).runs}
        for name in ("variants-short", "locomotion-short")
    )
    shared = {ours[identity] for identity in set(ours) & set(theirs)}
    assert shared == {"DreamerV3", "GPLD-DreamerV3"}
    assert len(ours) == 12
