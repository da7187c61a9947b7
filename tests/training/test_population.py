"""Runs trained side by side are what each of them is alone, and keep out of each other's way."""

import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpld
from gpld import config as options, population, replay
from gpld.config import ConfigError, merged
from gpld.population import Member
from gpld.training import TrainingStopped, _groups, _program, evaluate, loop, saved, train, train_all
from gpld.training._groups import by_step, finished_at, newest
from gpld.training._program import RandomKeys
from gpld.training.checkpoints import CheckpointError
from gpld.training.checkpoints._snapshot import Snapshot
from gpld.training.evaluation import evaluate_all
from tests.training import helpers
from tests.training.helpers import (
    Pole,
    arrays_of,
    contents,
    differing,
    lines,
    metrics,
    newest_checkpoint,
    tiny,
)
from tests.training.test_loop import OFTEN, Calls, pole
from tests.training.test_program import SPACES, arrays, copied, env_step, same

# Both penalties are compiled, and each run lacks at least one. One averages over all states.
RUNS = (
    {"seed": 0, "agent": {"penalty": {"posterior": 0.5}}},
    {"seed": 1, "agent": {"penalty": {"posterior": 0.0}}},
    {"seed": 0, "agent": {"penalty": {"posterior": 0.0, "prior": 0.1, "scaling": "all", "floor": 0.05}}},
)


def crowd(folder, runs=RUNS, **changes):
    """Three short runs in a folder."""
    base = pole(**changes)
    return [Member(options.override(base, own), Path(folder) / f"run{i}") for i, own in enumerate(runs)]


def config_of(members):
    return population.shared(members)


def of_run(tree, run):
    return jax.tree.map(lambda x: x[run], tree)


# One program


def trained(members, steps=40):
    """Fresh agents that have acted, and their keys."""
    configs, shared = [member.config for member in members], config_of(members)
    keys = RandomKeys.of_all([config.seed for config in configs])
    live = _program.init(shared, SPACES, "device", configs)
    for index in range(steps):
        live = _program.act(shared, live, env_step(live, index), index, keys.act)
    return shared, live, keys


@pytest.fixture(scope="module")
def together():
    """A population before and after its first update."""
    shared, live, keys = trained(crowd(""))
    before = copied(live)
    return before, _program.learn(shared, live, 1, keys.sample)


@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.slow) for run in (1, 2))])
def test_a_member_acts_as_alone_and_its_first_update_is_the_same_to_rounding(together, run):
    shared, live, keys = trained([crowd("")[run]])
    before, after = (of_run(tree, run) for tree in together)
    assert same(of_run(live.agent, 0), before.agent)
    lives = of_run((live.carry, live.replay), 0), (before.carry, before.replay)
    for one, two in zip(*map(arrays, lives), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)

    remembered = np.array(live.replay.h[0])
    live = _program.learn(shared, live, 1, keys.sample)
    alone = of_run(live, 0)
    moved = 0.0
    for one, two, old in zip(
        *map(arrays, (alone.agent.model, after.agent.model, before.agent.model)), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-7)
        moved = max(moved, float(np.abs(one - old).max()))
    assert moved > 1e-3
    for name, total in alone.sums.items():
        assert float(after.sums[name]) == pytest.approx(float(total), rel=1e-5, abs=1e-6), name
    assert same(alone.replay.consumed, after.replay.consumed)
    pairs = ((alone.replay.h, remembered), (after.replay.h, before.replay.h))
    changed = [np.any(np.asarray(new) != np.asarray(old), axis=-1) for new, old in pairs]
    np.testing.assert_array_equal(*changed)  # the same sequences were drawn


def test_a_member_draws_the_indices_it_draws_alone(together):
    memory, keys = together[0].replay, RandomKeys.of_all([run["seed"] for run in RUNS])
    for number in range(3):
        draws = _program.fold_in(keys.sample, np.int32(number))
        _, _, indices = jax.vmap(lambda m, key: replay.sample(m, key, 4, 8))(memory, draws)
        for run, own in enumerate(RUNS):
            key = jax.random.fold_in(RandomKeys.of(own["seed"]).sample, number)
            assert same(replay.sample(of_run(memory, run), key, 4, 8)[2], of_run(indices, run))


def test_neighbours_change_no_bit(together):
    others = (
        RUNS[0],
        {"seed": 7, "agent": {"penalty": {"prior": 0.3}, "behavior": {"entropy": 3e38}}},
        {"seed": 8, "agent": {"optimizer": {"learning_rate": 0.5}}},
    )
    shared, live, keys = trained(crowd("", others))
    live = _program.learn(shared, live, 1, keys.sample)
    assert np.asarray(live.agent.skipped).tolist() == [0, 1, 0]
    first = of_run(together[1], 0)
    assert same(of_run(live.agent, 0), first.agent)
    assert same(of_run((live.carry, live.replay), 0), (first.carry, first.replay))
    assert not same(of_run(live.agent.model, 2), of_run(together[1].agent.model, 2))


def test_hyperparameters_are_those_of_each_run():
    runs = (
        {"agent": {"optimizer": {"learning_rate": 0.5}}},
        {"agent": {"behavior": {"entropy": 0.25}, "penalty": {"scaling": "all"}}},
        {"agent": {"penalty": {"floor": 0.1}}},
    )
    found = _program.hyper([member.config for member in crowd("", runs)])
    assert found.numbers.keys() == {*options.ARRAYS}
    np.testing.assert_allclose(found.numbers["optimizer.learning_rate"], [0.5, 0.01, 0.01])
    np.testing.assert_allclose(found.numbers["behavior.entropy"], [3e-4, 0.25, 3e-4])
    np.testing.assert_allclose(found.numbers["penalty.floor"], [0.001, 0.001, 0.1])
    np.testing.assert_allclose(found.posterior, [0.5] * 3)
    np.testing.assert_allclose(found.prior, [0.0] * 3)
    np.testing.assert_allclose(found.over_all, [0.0, 1.0, 0.0])


# Whole runs


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Three runs that nothing happened to, and their arrays."""
    members = crowd(tmp_path_factory.mktemp("crowd"))
    results = train_all(members, task=Pole)
    assert results == [(member.folder, 1200, True, None) for member in members]
    return members, arrays_of(members, Pole)


def assert_same(straight, members):
    assert differing(straight[1], arrays_of(members, Pole)) == []
    for one, two in zip(straight[0], members, strict=True):
        assert metrics(one.folder) == metrics(two.folder)


@pytest.mark.slow
def test_every_member_has_a_folder_as_if_it_were_alone(straight, tmp_path):
    for member, own in list(zip(straight[0], RUNS, strict=True))[:2]:
        alone = tmp_path / member.name
        train(member.config, alone, task=Pole)
        ours, theirs = lines(member.folder), lines(alone)
        assert [line.keys() for line in ours] == [line.keys() for line in theirs]
        assert options.load(member.folder / "config.json") == member.config
        files = [{p.relative_to(f).parts[0] for p in f.rglob("*")} for f in (member.folder, alone)]
        assert files[0] == files[1]
        # After twenty updates, whose rounding chaos has amplified.
        assert ours[0]["loss/total"] == pytest.approx(theirs[0]["loss/total"], rel=0.05)
        penalties = {"posterior", "prior"} & own["agent"]["penalty"].keys()
        has = {name for name in penalties if own["agent"]["penalty"][name]}
        assert {key.removeprefix("loss/penalty_") for key in ours[-2] if "loss/penalty" in key} == has


@pytest.mark.slow
def test_a_whole_short_run_is_that_of_the_member_alone(tmp_path):
    """With a learning rate so small that rounding is not amplified, to the last update."""
    slow = {"optimizer": {"learning_rate": 1e-7}}
    runs = [merged(own, {"agent": slow}) for own in RUNS]
    members = crowd(tmp_path, runs)
    train_all(members, task=Pole)
    alone = Member(members[0].config, tmp_path / "alone")
    train(*alone, task=Pole)
    for ours, theirs in zip(lines(members[0].folder), lines(alone.folder), strict=True):
        # A latent on the edge between two classes may fall to the other side.
        assert ours == pytest.approx(theirs, rel=1e-3, abs=0.05)
    one, two = (contents(member.config, member.folder, Pole) for member in (members[0], alone))
    for path in one:
        if "replay" in path or "waiting" in path:
            np.testing.assert_allclose(one[path].astype(float), two[path].astype(float), rtol=0, atol=1e-3)


@pytest.mark.slow
def test_a_member_can_be_loaded_evaluated_and_resumed_alone(straight, tmp_path):
    members = crowd(tmp_path, env_steps=800)
    train_all(members, task=Pole)
    for member, whole in zip(members, straight[0], strict=True):
        assert gpld.load(member.folder).config == member.config
        trained = saved.load(member.folder)
        assert (trained.env_steps, trained.updates) == (800, 63)
        returns = evaluate(
            member.config, trained.model, episodes=2, number=0, key=jax.random.key(0), task=Pole
        )
        assert len(returns) == 2
        assert train(whole.config, member.folder, task=Pole).finished
        assert [line["env_steps"] for line in lines(member.folder)] == [
            line["env_steps"] for line in lines(whole.folder)
        ]


def test_evaluation_together_is_evaluation_alone(straight):
    members, _ = straight
    models = [saved.load(member.folder).model for member in members]
    keys = jax.random.split(jax.random.key(3), 3)
    asked = {"episodes": 2, "number": 5, "task": Pole}
    together = evaluate_all([member.config for member in members], _program.stack(models), keys=keys, **asked)
    for run, member in enumerate(members):
        alone = evaluate(member.config, models[run], key=keys[run], **asked)
        assert together[run] == pytest.approx(alone, abs=1e-3)
    assert len({tuple(own) for own in together}) == 3


@pytest.mark.slow
def test_replays_in_host_memory_give_the_same_runs(straight, tmp_path):
    members = crowd(tmp_path, replay={"storage": "host"})
    train_all(members, task=Pole)
    assert differing(straight[1], arrays_of(members, Pole)) == []


# Interrupted, killed, torn


@pytest.mark.slow
def test_how_often_and_when_they_are_saved_changes_nothing(straight, tmp_path):
    members = crowd(tmp_path, checkpoint=OFTEN | {"keep": 1})
    train_all(crowd(tmp_path, checkpoint=OFTEN | {"keep": 1}, env_steps=800), task=Pole)
    assert all(len(_groups.saved_steps(member.folder / "checkpoints")) == 1 for member in members)
    train_all(members, task=Pole)
    assert_same(straight, members)


def unnamed(member, step):
    """Take the name from a checkpoint, as if its process had been killed before it gave it."""
    folder = member.folder / "checkpoints"
    (folder / f"{step:012d}").rename(folder / f".tmp-{step:012d}")


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_a_kill_while_checkpoints_get_their_names(straight, tmp_path, first, capsys):
    """All were on the disk, so all go on from the newest, together."""
    if not first:
        train_all(crowd(tmp_path, env_steps=400), task=Pole)
    train_all(crowd(tmp_path, env_steps=800), task=Pole)
    unnamed(crowd(tmp_path)[1], 800)
    capsys.readouterr()
    train_all(crowd(tmp_path), task=Pole)
    said = capsys.readouterr().out
    assert "resumed at 800 env steps" in said
    assert "in turn" not in said
    assert_same(straight, crowd(tmp_path))


class FormerHyper(NamedTuple):
    """What checkpoints held of hyperparameters before runs could differ in floor and scaling."""

    learning_rate: jax.Array
    entropy: jax.Array
    posterior: jax.Array
    prior: jax.Array


def test_checkpoints_that_hold_hyperparameters_go_on_with_those_of_the_configuration(
    straight, tmp_path, monkeypatch
):
    arrays_now = loop.Training._arrays

    def arrays_then(training):
        wrong = FormerHyper(*(jnp.full(len(training.members), 7.0) for _ in FormerHyper._fields))
        found = arrays_now(training)
        return found | {"agent": found["agent"]._replace(hyper=wrong)}

    with monkeypatch.context() as patched:
        patched.setattr(loop.Training, "_arrays", arrays_then)
        train_all(crowd(tmp_path, env_steps=800), task=Pole)
    manifest = next((tmp_path / "run0" / "checkpoints").glob("*/manifest.json")).read_text()
    assert "agent.hyper.prior" in manifest
    assert "agent.hyper.floor" not in manifest
    train_all(crowd(tmp_path), task=Pole)
    assert_same(straight, crowd(tmp_path))


def test_none_is_named_before_all_are_written(tmp_path, monkeypatch):
    """One of three that cannot be written: the others do not stand at a step that it lacks."""
    write = Snapshot.write

    def full(self, folder, chunks):
        if "run1" in folder.parts:
            raise OSError(28, "No space left on device", str(folder))
        return write(self, folder, chunks)

    monkeypatch.setattr(Snapshot, "write", full)
    with pytest.raises(CheckpointError, match=r"run1.*No space left on device"):
        train_all(crowd(tmp_path, **QUICK), task=Pole)
    assert [newest_checkpoint(member.folder) for member in crowd(tmp_path)] == [-1, -1, -1]


@pytest.mark.slow
def test_a_damaged_checkpoint_takes_its_own_run_back_and_no_other(tmp_path, capsys):
    train_all(crowd(tmp_path, env_steps=800), task=Pole)
    train_all(crowd(tmp_path, env_steps=1000), task=Pole)
    broken = tmp_path / "run1" / "checkpoints" / "000000001000" / "manifest.json"
    broken.write_text("{}")
    train_all(crowd(tmp_path), task=Pole)
    said = capsys.readouterr().out
    assert "trained in turn: run1 at 800; run0, run2 at 1,000" in " ".join(said.split())
    assert [newest_checkpoint(member.folder) for member in crowd(tmp_path)] == [1200] * 3
    aside = tmp_path / "run1" / "checkpoints" / "set-aside"
    assert (aside / "000000001000" / "manifest.json").read_text() == "{}"


QUICK = {"replay": {"train_ratio": 0.001}, "eval": {"every": 0}, "env_steps": 400}
"""Acting alone."""


def test_a_new_run_that_was_killed_early_costs_the_others_nothing(tmp_path, capsys):
    """One run with a checkpoint, and beside it one that was begun and killed before its first."""
    old, new = crowd(tmp_path)[:2]
    train_all(crowd(tmp_path, **QUICK)[:1], task=Pole)
    before = metrics(old.folder)
    assert newest_checkpoint(old.folder) == 400
    longer = crowd(tmp_path, **{**QUICK, "env_steps": 800})[:2]
    new.folder.mkdir()
    options.save(longer[1].config, new.folder / "config.json")
    train_all(longer, task=Pole)
    said = " ".join(capsys.readouterr().out.split())
    assert "trained in turn: run1 at 0; run0 at 400" in said
    assert "resumed at 400 env steps" in said
    assert metrics(old.folder).startswith(before)
    assert [newest_checkpoint(member.folder) for member in (old, new)] == [800, 800]


def test_a_signal_stops_all_and_the_same_call_goes_on(straight, tmp_path):
    task = Calls(2000, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    results = train_all(crowd(tmp_path), task=task)
    assert {(r.finished, r.signal) for r in results} == {(False, signal.SIGTERM)}
    assert len({r.env_steps for r in results}) == 1
    assert [newest_checkpoint(r.folder) for r in results] == [r.env_steps for r in results]
    train_all(crowd(tmp_path), task=Pole)
    assert_same(straight, crowd(tmp_path))


# Groups


def folders(tmp_path, saved_at):
    """Members with checkpoints at these steps, as far as their names go."""
    members = crowd(tmp_path, [{}] * len(saved_at))
    for member, steps in zip(members, saved_at, strict=True):
        for step in steps:
            (member.folder / "checkpoints" / f"{step:012d}").mkdir(parents=True)
    return members


@pytest.mark.parametrize(
    ("saved_at", "groups"),
    [
        ([[], [], []], ["012"]),
        ([[8, 16], [8, 16], [8, 16]], ["012"]),
        ([[8, 16], [16, 24], [8, 16]], ["02", "1"]),
        ([[8, 16], [24, 32], [8, 16]], ["02", "1"]),
        ([[8, 16], [], [8, 16]], ["1", "02"]),
        ([[8], [], [8]], ["1", "02"]),
        ([[8], [16], [24]], ["0", "1", "2"]),
    ],
)
def test_runs_at_one_step_go_on_together_and_each_from_its_own(tmp_path, saved_at, groups):
    members = folders(tmp_path, saved_at)
    found = by_step({member.folder: newest(member) for member in members}, members)
    assert ["".join(member.name[-1] for member in group) for group in found.values()] == groups


def test_a_run_is_finished_when_its_steps_are_taken(tmp_path):
    first, second, third = folders(tmp_path, [[600, 1192], [600, 1200], []])
    assert [finished_at(member) for member in (first, second, third)] == [None, 1200, None]


def test_finished_runs_are_left_alone_and_others_catch_up(straight, tmp_path, capsys):
    train_all(crowd(tmp_path)[:1], task=Pole)
    before = {path: path.read_bytes() for path in (tmp_path / "run0").rglob("*") if path.is_file()}
    results = train_all(crowd(tmp_path)[:2], task=Pole)
    assert all(result.finished for result in results)
    assert "run0 was finished at 1,200 env steps" in capsys.readouterr().out
    after = {path: path.read_bytes() for path in (tmp_path / "run0").rglob("*") if path.is_file()}
    assert after == before
    assert newest_checkpoint(tmp_path / "run1") == 1200


@pytest.mark.slow
def test_what_does_not_fit_at_once_is_trained_in_turn(tmp_path, monkeypatch, capsys):
    fit, asked = _groups.fit, []

    def small(config, estimate, runs, devices, *free):
        need = estimate.training + estimate.replay
        found = fit(config, estimate, runs, devices, 2 * need, 0)
        asked.append(found.groups)
        return found

    monkeypatch.setattr(_groups, "fit", small)
    results = train_all(crowd(tmp_path, **QUICK), task=Pole)
    assert asked == [[2, 1]]
    assert [(r.env_steps, r.finished) for r in results] == [(400, True)] * 3
    assert "3 runs do not fit at once: they train in groups of 2, 1, in turn" in capsys.readouterr().out


# What can go wrong


def test_one_member_that_cannot_learn_stops_all_by_name(tmp_path):
    members = crowd(tmp_path, [RUNS[0], {"agent": {"behavior": {"entropy": 3e38}}}, RUNS[2]], max_skipped=15)
    with pytest.raises(
        TrainingStopped, match=r"^run1: 20 updates in a row were skipped .* others? runs can be resumed"
    ):
        train_all(members, task=Pole)
    last = [lines(member.folder)[-1] for member in members]
    assert [line["updates/skipped"] for line in last] == [0, 20, 0]
    assert all(np.isfinite(line["loss/total"]) for line in (last[0], last[2]))


@pytest.mark.slow
def test_a_fault_is_counted_where_it_happened(tmp_path):
    def slip(env):
        raise RuntimeError("the belt slipped")

    quick = {"replay": {"train_ratio": 1.0}, "eval": {"every": 0}, "env_steps": 800, "log": {"every": 1}}
    members = crowd(tmp_path, **quick)
    train_all(members, task=Calls(700, slip))
    faults = [sum(line.get("train/faults", 0) for line in lines(member.folder)) for member in members]
    assert sorted(faults) == [0, 0, 1]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([{}, {"env_steps": 2000}], "env_steps: 1200 in run0 but 2000 in run1; .* may differ only in seed"),
        ([{}, {"agent": {"penalty": {"rho": 0.25}}}], r"agent\.penalty\.rho: 0\.5 in run0 but 0\.25 in run1"),
        ([{}, {"task": "gym:Other-v0"}], "task: 'gym:Pole-v0' in run0 but 'gym:Other-v0' in run1"),
    ],
)
def test_runs_that_cannot_share_a_program_are_refused(tmp_path, runs, words):
    with pytest.raises(ConfigError, match=words):
        train_all(crowd(tmp_path, runs), task=Pole)
    assert not list(tmp_path.iterdir())


def test_two_runs_cannot_have_one_folder(tmp_path):
    member = crowd(tmp_path)[0]
    with pytest.raises(ConfigError, match="two runs cannot have the same folder"):
        train_all([member, member], task=Pole)


@pytest.mark.slow
def test_killed_again_and_again(tmp_path):
    """A population in a process of its own, killed while training, writing and starting; to the last bit."""
    config = tiny(backend="dm_control", checkpoint=OFTEN, env_steps=2000, eval={"every": 400})
    more = ["--seeds", "0..1", "--method", "both"]
    folders = {name: tmp_path / name for name in ("straight", "killed")}
    members = {
        name: population.members(config, [0, 1], ["gpld", "dreamerv3"], folder)
        for name, folder in folders.items()
    }
    train_all(members["straight"])
    one = members["killed"][2].folder
    chance = random.Random(0)
    for moment in ("training", "writing"):
        before = newest_checkpoint(one)
        with helpers.started(config, folders["killed"], more=more) as process:
            helpers.wait_for(lambda now=before: newest_checkpoint(one) > max(now, 300), process)
            if moment == "writing":
                helpers.wait_for(lambda: helpers.being_written(one), process)
            time.sleep(chance.uniform(0.0, 0.02))
            assert process.poll() is None
            process.kill()
    with helpers.started(config, folders["killed"], more=more) as process:
        assert process.wait(300) == 0, helpers.output(folders["killed"]).read_text()
    assert differing(arrays_of(members["straight"]), arrays_of(members["killed"])) == []
    for one, two in zip(members["straight"], members["killed"], strict=True):
        assert metrics(one.folder) == metrics(two.folder)
