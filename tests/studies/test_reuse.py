"""Runs that another study has trained are taken, not trained again."""

import errno
import json
import os
from dataclasses import replace

import pytest

from gpld import config as options, results, studies
from gpld.studies import _reuse, _run, _show, _state, _status, _study
from gpld.training import saved
from tests.studies.helpers import finish, measure, opened, small


def done(folder, plan, **changes):
    """A study whose runs are all trained and scored."""
    plan.write(folder)
    for run in plan.runs:
        finish(folder, run, *plan.study.env_steps, **changes)
    return plan


def named(plan, name):
    return replace(plan, study=replace(plan.study, name=name))


def names_of(found):
    return sorted(each.run.name for each in found)


def test_after_one_ablation_the_next_trains_only_its_own_methods(tmp_path):
    decay, rho = (
        studies.plan(replace(studies.get(f"ablation-{name}"), tasks=("walker-run",)))
        for name in ("decay", "rho-posterior")
    )
    done(tmp_path / "ablation-decay", decay)
    plan, here = rho, tmp_path / "ablation-rho-posterior"
    expected = _reuse.reused(here, plan)
    assert set(expected.values()) == {"ablation-decay"}
    guess = studies.estimate(plan, expected)
    assert (guess.runs, guess.taken) == (15, 10)
    assert "15 runs in 3 groups (10 more are taken from ablation-decay)" in str(guess)
    assert guess.gpu_hours < 0.65 * studies.estimate(plan).gpu_hours
    _reuse.reuse(here, plan)
    left = [run for run in plan.runs if not _state.is_done(here, plan, run)]
    # Its rho 0.5 is the other's square-root decay.
    assert {run.method for run in left} == {"rho 0.25", "rho 0.75", "rho 1"}
    assert len(left) == 15
    rows = _show.load(here, plan)
    assert set(rows["study"]) == {"ablation-rho-posterior"}
    assert set(rows["method"]) == {"DreamerV3", "rho 0.5"}
    assert set(rows["run"]) == expected.keys()
    assert _reuse.reused(here, plan) == expected  # no longer to be found, but taken
    states = _state.run_states(here, plan)
    assert _status.line(states) == "10 done (10 taken from ablation-decay), 15 waiting"
    *_, runs = _show.tiles(opened(plan, here), rows)
    assert runs[:3] == ("10 of 25", "runs done", "Numbers are preliminary; 10 taken from ablation-decay")


def test_ablations_have_the_same_baselines_and_locomotion_is_part_of_proprio():
    def identities(name, methods=()):
        return {
            _reuse.identity(run.config)
            for run in studies.plan(studies.get(name)).runs
            if run.method in methods or not methods
        }

    names = [name for name in studies.names() if name.startswith("ablation-")]
    baselines = [identities(name, ["DreamerV3"]) for name in names]
    assert len(baselines) == 5
    assert len(baselines[0]) == 15
    assert all(one == baselines[0] for one in baselines)
    assert identities("proprio") > identities("locomotion") | baselines[0]


def test_a_taken_run_links_to_models_and_copies_what_may_change(tmp_path):
    done(tmp_path / "a", named(small(), "a"))
    plan = named(small(), "b")
    _reuse.reuse(tmp_path / "b", plan)
    run = plan.runs[0]
    ours, theirs = (_state.run_folder(tmp_path / name, run) for name in "ba")
    model = "checkpoints/000000001200/arrays/data"
    assert (ours / model).samefile(theirs / model)
    assert not (ours / "metrics.jsonl").samefile(theirs / "metrics.jsonl")
    assert (ours / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
    assert not any(path.is_symlink() for path in (tmp_path / "b").rglob("*"))
    assert json.loads((ours / "taken.json").read_text()) == {"study": "a", "run": run.name}
    # The replay would be of use for a longer run only.
    assert not (ours / "checkpoints/steps").exists()
    assert not (ours / "checkpoints/000000001200/latents").exists()
    assert _state.pending(tmp_path / "b", plan) == []
    # Taken once more, it is still the first study's.
    (found, *_) = _reuse.find_reusable(tmp_path / "c", named(small(), "c"))
    assert found.study == "a"


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"log": {"every": 7}, "checkpoint": {"minutes": 3.0}, "env": {"threads": 2}}},
        {"methods": {"DreamerV3": {"agent": {"penalty": {"posterior": 0.0, "rho": 0.25, "floor": 0.1}}}}},
        {"methods": {"DreamerV3": {"agent": {"penalty": {"posterior": 0.0}}}}, "title": "Other words"},
        {"env_steps": [1200]},
    ],
)
def test_what_changes_no_number_is_no_obstacle(tmp_path, changes):
    done(tmp_path / "a", named(small(), "a"))
    plan = named(small(**changes), "b")
    assert names_of(_reuse.find_reusable(tmp_path / "b", plan)) == sorted(run.name for run in plan.runs)


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"eval": {"every": 100}}},  # curves would have other points
        {"options": {"eval": {"episodes": 1}}},
        {"options": {"agent": {"behavior": {"horizon": 5}}}},
        {"options": {"checkpoint": {"milestones": 200}}},  # which the others have not kept
        {"presets": ["nano", "cpu", "pixels"]},
        {"seeds": [5]},
        {"env_steps": [300, 1200]},  # not scored there
        {"env_steps": [1200, 2400]},
        {"score_episodes": 10},
        {"keep_replay": True, "env_steps": [600]},
        {"start": {"env_steps": 600}},
        {"measures": ["quality"], "env_steps": [600]},  # of models that are gone
    ],
)
def test_what_makes_another_run_is_trained(tmp_path, changes):
    done(tmp_path / "a", named(small(), "a"))
    assert _reuse.find_reusable(tmp_path / "b", named(small(**changes), "b")) == []


def test_a_warm_start_is_never_given_away(tmp_path):
    plan = done(tmp_path / "a", named(small(), "a"))
    for run in plan.runs:
        path = _state.run_folder(tmp_path / "a", run) / saved.CONFIG
        options.save(replace(options.load(path), init_from="/elsewhere"), path)
    assert _reuse.find_reusable(tmp_path / "b", named(small(), "b")) == []


def test_what_is_begun_here_is_gone_on_with(tmp_path):
    done(tmp_path / "a", named(small(), "a"))
    plan = named(small(), "b")
    begun, *others = plan.runs
    finish(tmp_path / "b", begun, 600)
    assert names_of(_reuse.find_reusable(tmp_path / "b", plan)) == sorted(run.name for run in others)


def test_a_longer_run_is_taken_as_far_as_this_study_goes(tmp_path):
    there = done(tmp_path / "a", named(small(), "a"))
    (_state.run_folder(tmp_path / "a", there.runs[0]) / "film.gif").write_text("of the last model")
    plan = named(small(env_steps=[600]), "b")
    _reuse.reuse(tmp_path / "b", plan)
    assert _state.pending(tmp_path / "b", plan) == []
    rows = results.load(tmp_path / "b")
    assert sorted(rows["env_steps"].unique()) == [300, 600]
    assert rows.loc[rows["kind"] == "score", "return"].tolist() == [1063.0, 1064.0] * 6
    path = _state.run_folder(tmp_path / "b", plan.runs[0])
    assert options.load(path / saved.CONFIG).env_steps == 600
    assert saved.steps(path) == []  # the model there is that of 1,200 env steps
    assert not (path / "film.gif").exists()


def test_what_was_not_measured_there_is_measured_here(tmp_path):
    done(tmp_path / "a", named(small(env_steps=[1200]), "a"))
    plan = named(small(env_steps=[1200], measures=["quality"]), "b")
    _reuse.reuse(tmp_path / "b", plan)
    run = plan.runs[0]
    assert _state.unmeasured(tmp_path / "b", plan, run) == [1200]
    assert not _state.is_done(tmp_path / "b", plan, run)
    measure(_state.run_folder(tmp_path / "b", run), "quality", 1200)
    assert _state.is_done(tmp_path / "b", plan, run)


def test_a_kill_half_way_leaves_nothing_half_done(tmp_path, monkeypatch):
    done(tmp_path / "a", named(small(), "a"))
    plan, link, count = named(small(), "b"), os.link, []

    def killed(path, to):
        count.append(path)
        if len(count) == 3:
            raise KeyboardInterrupt
        link(path, to)

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        _reuse.reuse(tmp_path / "b", plan)
    whole = results.runs_in(tmp_path / "b" / "runs")
    assert len(whole) == 2
    assert all((path / _state.TAKEN).exists() for path in whole)
    _reuse.reuse(tmp_path / "b", plan)
    assert _state.pending(tmp_path / "b", plan) == []
    assert not (tmp_path / "b" / "state" / "taking").exists()


def test_without_links_files_are_copied(tmp_path, monkeypatch):
    done(tmp_path / "a", named(small(), "a"))
    plan = named(small(), "b")

    def refuse(path, to):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    _reuse.reuse(tmp_path / "b", plan)
    data = _state.run_folder(tmp_path / "b", plan.runs[0]) / "checkpoints/000000001200/arrays/data"
    assert (data.read_text(), data.stat().st_nlink) == (plan.runs[0].name, 1)


def test_a_folder_that_is_no_study_of_this_version_is_passed_over(tmp_path):
    done(tmp_path / "z", named(small(), "z"))
    for name, text in (("x", "{"), ("y", '{"study": {"name": "y"}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text(text)
    assert len(_reuse.find_reusable(tmp_path / "b", named(small(), "b"))) == 12


class Pretending:
    """A place where groups are done at once."""

    outlives = False

    def __init__(self, folder, groups, options, *, retries):
        self.groups = groups
        for group in groups:
            for run in group.runs:
                finish(folder, run, 600, 1200)

    def endings(self):
        return {group.name: "done" for group in self.groups}

    def stop(self):
        pass

    def close(self):
        pass


def test_only_the_tasks_that_are_named_are_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(_run.RUNNERS, "local", Pretending)
    study = small().study
    states = studies.run(study, tmp_path / "small", studies.RunOptions(tasks=("walker-walk",)))
    assert {(state.run.task, state.kind) for state in states} == {("walker-walk", "done")}
    plan = studies.read_plan(tmp_path / "small")
    assert {group.runs[0].task for group in _state.pending(tmp_path / "small", plan)} == {"cartpole-balance"}
    assert capsys.readouterr().out == "6 done\n"
    states = studies.run(study, tmp_path / "small")
    assert [state.kind for state in states] == ["done"] * 12


def test_a_task_that_a_study_does_not_have_is_refused_by_name(tmp_path):
    with pytest.raises(
        options.ConfigError, match="'walker-run' is not a task of the study small; it has cart"
    ):
        studies.run(small().study, tmp_path, studies.RunOptions(tasks=("walker-walk", "walker-run")))
    assert list(tmp_path.iterdir()) == []


def test_a_study_that_is_run_takes_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setitem(_run.RUNNERS, "local", Pretending)
    first = _study.from_dict({**vars(small().study), "start": {}}, "first")
    studies.run(first, tmp_path / "first")
    monkeypatch.setitem(_run.RUNNERS, "local", None)  # nothing is left to be done anywhere
    states = studies.run(replace(first, name="second"), tmp_path / "second")
    assert {(state.kind, state.taken) for state in states} == {("done", "first")}
    assert len(list((tmp_path / "second" / "results").iterdir())) == 1
