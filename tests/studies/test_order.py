"""What a worker does after training, in which order, and that nothing is done twice if it is killed."""

import os
import signal
import sys

import pytest

from gpld import machine, results, studies, training
from gpld.analysis import rollouts
from gpld.config import ConfigError
from gpld.studies import _show, _state, _worker
from gpld.training import Result, saved, score as scoring
from gpld.training.saved import Trained
from gpld.training.score import Score
from tests.studies.helpers import finish, measure, opened, small


@pytest.fixture
def worked(monkeypatch):
    """What is done to which models after training, which is pretended, in order."""
    calls = []

    def train(members):
        for config, folder in members:
            for place in (f"checkpoints/{config.env_steps:012d}", "milestones/000000000400"):
                (folder / place).mkdir(parents=True, exist_ok=True)
        calls.append(("train", len(members), members[0].config.env_steps))
        return [Result(folder, config.env_steps, True) for config, folder in members]

    def load(folder):
        return Trained(folder, None, None, None, saved.steps(folder)[-1], 0)

    def score_all(trained, *, episodes):
        calls.append(("score", len(trained), trained[0].env_steps))
        return [Score("", one.env_steps, 0, 0, [1.0] * episodes) for one in trained]

    def measure_all(folder, measures, *, step):
        for name in measures:
            calls.append((name, step))
            if sum(call == (name, step) for call in calls) == 2 and calls.stopping == name:
                calls.stopping = None
                calls.pop()
                raise _worker.Interrupted(15)
            measure(folder, name, step)

    class Calls(list):
        stopping = None

    calls = Calls()
    monkeypatch.setattr(training, "train_all", train)
    monkeypatch.setattr(saved, "load", load)
    monkeypatch.setattr(scoring, "score_all", score_all)
    monkeypatch.setattr(rollouts, "measure_all", measure_all)
    return calls


def plan_of(**changes):
    return small(tasks=["cartpole-balance"], measures=["sensitivity", "quality"], **changes)


def test_scores_come_first_then_the_last_models_then_milestones(tmp_path, worked):
    plan = plan_of(env_steps=[1200])
    group = next(group for group in plan.groups if len(group.runs) == 4)
    assert _worker.work(tmp_path, group, plan) == 0
    both = ["sensitivity", "quality"]
    assert worked == [
        ("train", 4, 1200),
        ("score", 4, 1200),
        *[(name, 1200) for _ in group.runs for name in both],
        *[(name, 400) for _ in group.runs for name in both],
    ]
    assert all(_state.is_done(tmp_path, plan, run) for run in group.runs)
    worked.clear()
    assert _worker.work(tmp_path, group, plan) == 0
    assert worked == []


@pytest.mark.parametrize("stopping", ["sensitivity", "quality"])
def test_a_worker_killed_between_measurements_repeats_none(tmp_path, worked, stopping):
    plan = plan_of(env_steps=[600, 1200])
    group = next(group for group in plan.groups if len(group.runs) == 4)
    worked.stopping = stopping
    assert _worker.work(tmp_path, group, plan) == 143
    assert {
        score["env_steps"] for score in results.read_scores(_state.run_folder(tmp_path, group.runs[3]))
    } == {600}
    assert _worker.work(tmp_path, group, plan) == 0
    assert [call for call in worked if call[0] in ("train", "score")] == [
        (what, 4, steps) for steps in (600, 1200) for what in ("train", "score")
    ]
    for name in ("sensitivity", "quality"):
        assert [call[1] for call in worked if call[0] == name] == [600] * 4 + [1200] * 4 + [400] * 4


@pytest.mark.parametrize("error", [None, OSError("disk full")], ids=["finished", "failed"])
def test_a_worker_stops_at_a_signal_that_its_training_did_not_need(tmp_path, worked, monkeypatch, error):
    plan = plan_of(env_steps=[600, 1200])
    plan.write(tmp_path)
    group = next(group for group in plan.groups if len(group.runs) == 4)
    train, left = training.train_all, [error]

    def late(members):
        with machine.interruptible():
            ended = train(members)
            if left:
                os.kill(os.getpid(), signal.SIGTERM)
                if error := left.pop():
                    raise error
            return ended

    monkeypatch.setattr(training, "train_all", late)
    monkeypatch.setattr(_worker, "_stop_with_parent", lambda: None)
    assert _worker.main([str(tmp_path), group.name]) == 143
    assert worked == [("train", 4, 600)]
    assert _state.read_group(tmp_path, group).kind == "interrupted"
    assert _worker.main([str(tmp_path), group.name]) == 0
    assert [call for call in worked if call[0] in ("train", "score")] == [
        ("train", 4, 600),
        *((what, 4, steps) for steps in (600, 1200) for what in ("train", "score")),
    ]
    assert all(_state.is_done(tmp_path, plan, run) for run in group.runs)


def test_one_run_that_cannot_be_scored_does_not_end_the_others(tmp_path, worked, monkeypatch):
    plan = plan_of(env_steps=[1200])
    group = next(group for group in plan.groups if len(group.runs) == 4)
    bad, whole = _state.run_folder(tmp_path, group.runs[1]), scoring.score_all

    def fail(trained, *, episodes):
        if any(one.folder == bad for one in trained):
            raise OSError("a broken environment")
        return whole(trained, episodes=episodes)

    monkeypatch.setattr(scoring, "score_all", fail)
    assert _worker.work(tmp_path, group, plan) == 1
    kinds = {state.run.name: state for state in _state.run_states(tmp_path, plan)}
    assert [kinds[run.name].kind for run in group.runs] == ["done", "failed", "done", "done"]
    assert kinds[group.runs[1].name].reason == "OSError: a broken environment"


def test_without_pyarrow_runs_are_trained_and_scored_and_stored_later(tmp_path, worked, monkeypatch):
    plan = plan_of(env_steps=[1200])
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        for group in plan.groups:
            for run in group.runs:
                finish(tmp_path, run, 600)  # so that there is something to store
            assert _worker.work(tmp_path, group, plan) == 0
        assert not (tmp_path / results.FOLDER).exists()
        with pytest.raises(ConfigError, match="needs pyarrow"):
            _show.load(tmp_path, plan)
    assert _state.pending(tmp_path, plan) == []
    rows = _show.load(tmp_path, plan)
    assert set(rows.loc[rows["kind"] == "score", "env_steps"]) == {600, 1200}
    assert set(rows["run"]) == {run.name for run in plan.runs}
    assert len(_show.measurements(opened(plan, tmp_path), "quality")) == 2 * len(plan.runs)
    assert studies.run(plan.study, tmp_path)[0].kind == "done"
