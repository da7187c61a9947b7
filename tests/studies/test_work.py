"""What workers do besides training runs from nothing: begin with parts of another, and time updates."""

import shutil
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from gpld import cli, config as options, results, studies, training
from gpld.analysis import cost
from gpld.studies import _show, _state, _status, _study, _tables, _times, _worker
from gpld.training import Result, _lock, saved
from gpld.types import Spaces
from tests.analysis.test_cost import Clock
from tests.studies.helpers import opened, small
from tests.studies.test_state import score, score_each
from tests.training.helpers import TINY

START = {"env_steps": 800, "method": "DreamerV3", "seed": 7, "init": "encoder"}


@pytest.fixture
def trained(monkeypatch):
    """Runs that workers would have trained, as (name, env steps, what they begin with, its parts)."""
    done = []

    def train(members):
        for config, folder in members:
            name = "/".join(folder.parts[-3:])
            done.append((name, config.env_steps, config.init_from, config.init))
        return [Result(folder, config.env_steps, True) for config, folder in members]

    monkeypatch.setattr(training, "train_all", train)
    monkeypatch.setattr(_worker, "_score", score_each)
    return done


def plan_of(members=10, **changes):
    study = small(tasks=["cartpole-balance"], start=START, **changes).study
    return studies.plan(study, members=members)


def test_runs_begin_with_parts_of_one_that_is_trained_first(tmp_path, trained):
    plan = plan_of(methods={"DreamerV3": {"agent": {"penalty": {"posterior": 0.0}}}})
    (group,) = plan.groups
    assert group.start.config.seed == 7
    states = _state.run_states(tmp_path, plan)
    assert [state.run.name for state in states] == [run.name for run in (group.start, *group.runs)]
    assert _worker.work(tmp_path, group, plan) == 0
    first, *rest = trained
    assert first == ("cartpole-balance/start/seed7", 800, "", "")
    source = str(tmp_path / "runs" / "cartpole-balance" / "start" / "seed7")
    names = [f"cartpole-balance/DreamerV3/seed{seed}" for seed in (3, 4)]
    assert rest == [(name, steps, source, "encoder") for steps in (600, 1200) for name in names]
    assert {state.kind for state in _state.run_states(tmp_path, plan)} == {"done"}
    assert _status.line(_state.run_states(tmp_path, plan)) == "3 done"


def test_groups_that_begin_with_the_same_run_train_it_once(tmp_path, trained):
    plan = plan_of(members=1)
    assert len(plan.groups) > 2
    with _worker._exclusive(tmp_path, "cartpole-balance-start-seed7"):  # a worker elsewhere is at it
        threads = [
            threading.Thread(target=_worker.work, args=(tmp_path, group, plan)) for group in plan.groups[:2]
        ]
        for thread in threads:
            thread.start()
        threads[0].join(0.3)
        assert trained == []
    for thread in threads:
        thread.join(20)
    for group in plan.groups[2:]:
        _worker.work(tmp_path, group, plan)
    starts = [name for name, *_ in trained if "/start/" in name]
    assert starts == ["cartpole-balance/start/seed7"]
    assert len(trained) == 1 + 2 * len(plan.runs)


def test_nothing_begins_with_a_run_that_failed(tmp_path, monkeypatch):
    def fail(members):
        raise OSError("disk full")

    monkeypatch.setattr(training, "train_all", fail)
    plan = plan_of()
    group = plan.groups[0]
    score(tmp_path, group.runs[0], 600, 1200)  # and what is done stays done
    assert _worker.work(tmp_path, group, plan) == 1
    states = {state.run.name: state for state in _state.run_states(tmp_path, plan)}
    assert states[group.runs[0].name].kind == "done"
    assert "OSError: disk full" in states[group.start.name].reason
    assert states[group.runs[1].name].reason == f"{group.start.name}, which it starts from, failed"


def test_a_study_goes_on_where_it_was_moved_to(tmp_path, monkeypatch):
    def train(members, stop=None):
        for config, folder in members:
            with _lock.locked(config, folder):
                options.save(config, folder / saved.CONFIG)
        return [
            Result(folder, config.env_steps, not stop, stop if config.env_steps == 1200 else None)
            for config, folder in members
        ]

    monkeypatch.setattr(training, "train_all", partial(train, stop=15))
    monkeypatch.setattr(_worker, "_score", score_each)
    plan, (here, there) = plan_of(), (tmp_path / "here", tmp_path / "there")
    group = plan.groups[0]
    assert _worker.work(here, group, plan) == 143
    here.rename(there)
    monkeypatch.setattr(training, "train_all", train)
    assert _worker.work(there, group, plan) == 0
    for run in group.runs:
        config = options.load(_state.run_folder(there, run) / saved.CONFIG)
        assert config.init_from == str(_state.run_folder(there, group.start))


def test_a_run_that_began_with_another_run_is_not_gone_on_with(tmp_path):
    plan = plan_of()
    config = replace(plan.runs[0].config, init_from="/elsewhere/runs/cartpole-balance/start/seed8")
    options.save(config, tmp_path / saved.CONFIG)
    _worker._update_init_from(tmp_path / saved.CONFIG, tmp_path, plan.starts[0])
    assert options.load(tmp_path / saved.CONFIG) == config


def test_a_run_without_a_checkpoint_is_reported_and_predictions_do_not_stand_in_a_films_way(
    tmp_path, monkeypatch
):
    """Nor films in that of the report."""
    plan = small(films=["cartpole-balance"])
    run = _show._runs_to_film(opened(plan, tmp_path))[0]
    path = _state.run_folder(tmp_path, run)
    score(tmp_path, run, 600, 1200)
    options.save(run.config, path / saved.CONFIG)
    saved.write_spaces(path, Spaces.of({"position": (3,)}, 1))
    filmed = []
    monkeypatch.setattr("gpld.films.film", lambda run, out: filmed.append(run))
    found, why = _show.films(opened(plan, tmp_path))
    assert found == []
    assert filmed == [path]
    assert why.startswith(f"no predictions: {path} has no checkpoint yet")


def test_a_run_has_the_parts_that_it_begins_with(tmp_path, monkeypatch, small_run):
    monkeypatch.setattr(_worker, "_score", score_each)
    values = {
        "tasks": ["cartpole-balance"],
        "seeds": [9],
        "env_steps": [200],
        "presets": ["cpu"],
        "start": START | {"env_steps": 400},
        # Next to no updates: what a run began with is what it ends with.
        "options": TINY | {"replay": TINY["replay"] | {"train_ratio": 0.001}, "eval": {"every": 0}},
        "methods": {"DreamerV3": {"agent": {"penalty": {"posterior": 0.0}}}},
    }
    del values["options"]["env_steps"]
    plan = studies.plan(_study.from_dict(values, "warm"))
    (group,) = plan.groups
    shutil.copytree(small_run, _state.run_folder(tmp_path, group.start))
    score(tmp_path, group.start, 400)  # trained by another worker before this one was killed
    assert _worker.work(tmp_path, group, plan) == 0
    start, run = (saved.load(_state.run_folder(tmp_path, run)) for run in (group.start, group.runs[0]))
    assert (start.env_steps, run.env_steps) == (400, 200)
    encoders, decoders = (
        [np.asarray(getattr(t.model.world, part).mlp.layers[0].linear.weight) for t in (start, run)]
        for part in ("encoder", "decoder")
    )
    np.testing.assert_array_equal(*encoders)
    assert not np.array_equal(*decoders)
    rows = _show.load(tmp_path, plan)
    assert set(rows["run"]) == {group.runs[0].name}  # what it began with is no result of the study


class Steady(Clock):
    """Takes the same time in all rounds."""

    def time(self):
        return self.base


def test_updates_are_timed_together_and_shown_beside_the_papers(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "Program", Steady)
    plan = studies.plan(studies.get("cost"))
    (group,) = plan.groups
    assert _times.tables(plan, tmp_path, "nothing") == []
    assert _worker.work(tmp_path, group, plan) == 0
    assert _state.pending(tmp_path, plan) == []
    found = _times.load(plan, tmp_path).set_index("method")
    assert len(found) == 25
    columns = ["ratio", "ms", "paper", "paper_std", "paper_seconds_more"]
    fast, slow = (found.loc[f"rho 1, (0.5, 0), {by}", columns] for by in ("in closed form", "by products"))
    np.testing.assert_allclose(fast.astype(float), [1.1, 11.0, 1.68, 0.1, 4920.4])
    np.testing.assert_allclose(slow.astype(float), [1.3, 13.0, 1.68, 0.1, 4920.4])
    (table,) = _show.all_tables(opened(plan, tmp_path), "its source")
    assert table.header[:8] == (
        "method",
        "rho",
        "lambda_post",
        "lambda_prior",
        "estimated",
        "time / baseline's",
        "paper's",
        "extra s in 500k env steps",
    )
    assert table.rows[0][:7] == ("DreamerV3", "-", "0", "0", "-", "1.000 \u00b1 0.000", "-")
    assert table.rows[13][1:7] == (
        "0.5",
        "0.5",
        "0.5",
        "by products",
        "1.300 \u00b1 0.000",
        "1.44 \u00b1 0.027",
    )
    assert table.rows[14][4:6] == ("in closed form", "1.100 \u00b1 0.000")
    assert table.notes[-1] == "its source"
    drawn = _show.save_figures(opened(plan, tmp_path), "its source")
    assert [path.name for path in drawn] == ["cost-cost.pdf", "cost-cost.png"]
    page = _show.write_study_report(opened(plan, tmp_path)).read_text()
    assert (
        "an update of DreamerV3 takes 10 ms, and with the penalty by products 1.07 to 1.30, "
        "in closed form 1.02 to 1.10 times as long." in page
    )
    assert "25 of 25" in page


def test_updates_that_cannot_be_timed_are_failures(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise NotImplementedError("no such rule")

    monkeypatch.setattr(cost, "Program", broken)
    plan = studies.plan(studies.get("cost"))
    assert _worker.work(tmp_path, plan.groups[0], plan) == 1
    states = _state.run_states(tmp_path, plan)
    assert {state.kind for state in states} == {"failed"}
    assert any("NotImplementedError: no such rule" in line for line in _status.failures(states))


def test_times_are_exported_and_shown_from_what_is_committed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cost, "Program", Steady)
    monkeypatch.chdir(tmp_path)
    study = studies.get("cost")
    plan = studies.plan(study)
    assert _worker.work(tmp_path / "elsewhere", plan.groups[0], plan) == 0
    paths = _tables.export(study, tmp_path / "elsewhere", commit="c" * 40)
    assert sorted(path.name for path in paths) == ["cost.csv", "runs.json"]
    before = _times.load(plan, tmp_path / "elsewhere")
    with _tables.open_results(study, tmp_path / "nothing") as found:
        columns = list(before.columns)
        pd.testing.assert_frame_equal(_times.load(found.plan, found.folder)[columns], before, rtol=1e-5)
    made = [run.provenance["git"]["commit"] for run in results.read_tables(paths[0].parent).runs]
    assert made == ["c" * 40] * 25
    assert cli.main(["study", "table", "cost", "--format", "csv"]) == 0
    assert "1.300" in capsys.readouterr().out
