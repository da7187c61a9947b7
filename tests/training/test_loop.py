"""What a run does: the same every time, what its options say, and what can go wrong."""

import errno
import os
import shutil
import signal
import threading
import time
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import config as options
from gpld.config import Config, ConfigError
from gpld.envs import _process
from gpld.machine import interruptible
from gpld.population import Member
from gpld.training import (
    CheckpointError,
    TrainingStopped,
    _program,
    evaluate,
    evaluation,
    loop,
    saved,
    train,
    train_all,
)
from gpld.training.checkpoints import Checkpoints, _files
from tests.training import helpers
from tests.training.helpers import (
    Pole,
    contents,
    differing,
    lines,
    metrics,
    newest_checkpoint,
    opened,
    tiny,
)

GYM = "gym:Pole-v0"  # any name: the environments come from the factory
OFTEN = {"minutes": 0.0005}


def pole(**changes):
    """A run of 600 agent steps on `Pole`."""
    return tiny(GYM, **({"env_steps": 1200, "eval": {"every": 200}} | changes))


class Calls:
    """Makes `Pole`s that call back before the n-th frame of all of them, once."""

    def __init__(self, number, back):
        self.left, self.back = number, back

    def __call__(self):
        return Pole(self.count)

    def count(self, env):
        self.left -= 1
        if self.left == 0:
            self.back(env)


class Straight(NamedTuple):
    """A run that nothing happened to."""

    folder: Path
    contents: dict[str, np.ndarray]

    def differing(self, folder, config):
        """Arrays in which another run differs from this one."""
        return differing(self.contents, contents(config, folder, Pole))

    def assert_same(self, folder, config=None):
        """Another run ended as this one: all its arrays and all its metrics."""
        assert metrics(folder) == metrics(self.folder)
        assert self.differing(folder, config or pole()) == []


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "straight"
    assert train(pole(), folder, task=Pole) == (folder, 1200, True, None)
    return Straight(folder, contents(pole(), folder, Pole))


# The same every time


def test_the_same_seed_gives_the_same_bits(straight, tmp_path):
    train(pole(), tmp_path, task=Pole)
    straight.assert_same(tmp_path)


def test_another_seed_gives_another_run(straight, tmp_path):
    train(pole(seed=1), tmp_path, task=Pole)
    differ = straight.differing(tmp_path, pole(seed=1))
    trained = [path for path in differ if "model" in path]
    assert len(trained) > 20
    assert any("replay" in path for path in differ)


def test_how_often_it_is_saved_changes_nothing(straight, tmp_path):
    config = pole(checkpoint=OFTEN)
    train(config, tmp_path, task=Pole)
    straight.assert_same(tmp_path, config)
    assert metrics(tmp_path) == metrics(straight.folder)  # nothing was left to be done when it was opened


@pytest.mark.slow
def test_evaluations_use_their_processes_again(tmp_path, monkeypatch):
    started = []

    class Counted(_process.Process):
        def __init__(self):
            super().__init__()
            started.append(self)

    monkeypatch.setattr(_process, "Process", Counted)
    config = tiny(
        env_steps=400,
        backend="dm_control",
        env={"processes": 2},
        replay={"train_ratio": 0.001},  # no update
        eval={"every": 100, "episodes": 2},
    )
    train(config, tmp_path)
    assert len(started) == 2 + 2  # for training and for evaluation
    assert not any(process.alive for process in started)
    *_, found = (line["eval/return"] for line in lines(tmp_path))
    key = _program.fold_in(_program.RandomKeys.of_all([0]).evaluate, np.int32(200))[0]
    again = evaluate(config, saved.load(tmp_path).model, episodes=2, number=200, key=key)
    assert np.mean(again) == found  # in processes of its own


def test_evaluation_does_not_disturb_training(straight, tmp_path):
    config = pole(eval={"every": 0})
    train(config, tmp_path, task=Pole)
    assert straight.differing(tmp_path, config) == []
    evaluations = [line for line in lines(straight.folder) if "eval/return" in line]
    assert [line["env_steps"] for line in evaluations] == [400, 800, 1200]
    assert lines(tmp_path) == [line for line in lines(straight.folder) if "eval/return" not in line]


@pytest.mark.slow
def test_a_replay_in_host_memory_gives_the_same_run_up_to_rounding(tmp_path):
    """Batches come from another program there, which XLA rounds otherwise; few updates differ by no more."""
    for storage in ("device", "host"):
        config = pole(
            env_steps=300, eval={"every": 0}, log={"every": 2}, replay={"storage": storage, "min_steps": 64}
        )
        train(config, tmp_path / storage, task=Pole)
    device, host = (lines(tmp_path / storage) for storage in ("device", "host"))
    assert len(device) >= 5
    for one, other in zip(device, host, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)


# What the options say


@pytest.mark.parametrize("ratio", [6.0, 2.5, 7.3])
def test_updates_follow_steps_by_count(tmp_path, monkeypatch, ratio):
    config = pole(env_steps=800, eval={"every": 0}, replay={"train_ratio": ratio, "min_steps": 65})
    learnt = []
    monkeypatch.setattr(loop._program, "learn", lambda _, live, due, *__: learnt.append(due) or live)
    monkeypatch.setattr(loop.Training, "_log", lambda run: None)
    with opened(config, tmp_path, Pole) as run:
        while not run.finished:
            run.advance()
            per_step = Fraction(ratio) / (4 * 8)
            assert run.updates == sum(learnt) == config.updates_at(run.agent_steps)
            assert run.updates == int(per_step * max(0, run.agent_steps - 65))
    assert run.agent_steps == 400
    assert run.updates == int(ratio * 335 / 32)


def test_lines_come_every_so_many_updates_and_say_what_happened(straight):
    training = [line for line in lines(straight.folder) if "loss/total" in line]
    assert [line["updates"] for line in training] == [20, 40, 60, 80, 100]
    for line in training:  # means over the updates since the line before
        weights = 0.5 / np.sqrt(1 + np.arange(line["updates"] - 20, line["updates"]) / 1000)
        assert line["weight/penalty_posterior"] == pytest.approx(weights.mean(), rel=1e-6)
    assert all(
        line["updates"] == pole().updates_at(line["env_steps"] // 2) for line in lines(straight.folder)
    )
    # Episodes have 1 + 25 agent steps: five end in each of four environments in 150.
    assert sum(line.get("train/episodes", 0) for line in training) == 4 * (
        training[-1]["env_steps"] // 8 // 26
    )
    assert all(-50 <= line["train/return"] <= 50 for line in training if "train/return" in line)


def test_a_finished_run_stays_as_it_is(straight):
    before = metrics(straight.folder)
    assert train(pole(), straight.folder, task=Pole) == (straight.folder, 1200, True, None)
    assert metrics(straight.folder) == before
    straight.assert_same(straight.folder)


def test_a_longer_run_goes_on_from_a_shorter_one(straight, tmp_path):
    train(pole(env_steps=800), tmp_path, task=Pole)
    assert newest_checkpoint(tmp_path) == 800
    train(pole(), tmp_path, task=Pole)
    straight.assert_same(tmp_path)


@pytest.mark.slow
def test_a_longer_run_goes_on_in_a_larger_replay(tmp_path):
    roomy = {"capacity": 5000}  # room is made for the steps that are planned
    train(pole(env_steps=800, replay=roomy), tmp_path / "longer", task=Pole)
    for name in ("longer", "straight"):
        train(pole(replay=roomy), tmp_path / name, task=Pole)
    longer, straight = (
        contents(pole(replay=roomy), tmp_path / name, Pole) for name in ("longer", "straight")
    )
    assert differing(longer, straight) == []
    assert metrics(tmp_path / "longer") == metrics(tmp_path / "straight")


def test_a_run_that_ended_before_its_first_checkpoint_begins_from_the_start(straight, tmp_path, capsys):
    def stop(_):
        raise RuntimeError("the belt slipped")

    with pytest.raises(RuntimeError, match="failed 1 times"):
        train(pole(env={"restarts": 0}), tmp_path, task=Calls(700, stop))
    assert newest_checkpoint(tmp_path) == -1
    assert lines(tmp_path)  # those after an evaluation under way are not written yet
    train(pole(), tmp_path, task=Pole)
    assert "no checkpoint was written here yet: the run starts from the beginning" in capsys.readouterr().out
    straight.assert_same(tmp_path)


def test_options_that_change_no_bit_may_change(straight, tmp_path):
    train(pole(env_steps=800), tmp_path, task=Pole)
    free = {
        "log": {"tensorboard": True},
        "checkpoint": {"minutes": 0.0005, "keep": 1},
        "env": {"threads": 1, "timeout": 60.0, "restarts": 3},
        "max_skipped": 7,
    }
    config = pole(**free)
    train(config, tmp_path, task=Pole)
    straight.assert_same(tmp_path, config)
    assert options.load(tmp_path / "config.json") == config


def test_other_options_are_refused_by_name(straight):
    folder = straight.folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = pole(agent={"penalty": {"posterior": 0.0}}, replay={"batch": 8}, env_steps=1000)
    with pytest.raises(ConfigError) as refused:
        train(other, folder, task=Pole)
    message = str(refused.value).splitlines()
    assert message[0] == f"out: {folder} holds a run with other options; name another folder"
    assert sorted(message[1:]) == [
        "  agent.penalty.posterior: 0.5 there, 0.0 now",
        "  env_steps: 1200 there, 1000 now",
        "  replay.batch: 4 there, 8 now",
    ]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_checkpoints_without_their_options_are_not_continued(straight, tmp_path):
    """Not as the run of other options, and not as the same one, which nobody could know."""
    folder = Path(shutil.copytree(straight.folder, tmp_path / "run"))
    (folder / "config.json").rename(tmp_path / "config.json")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    words = f"^out: {folder} has checkpoints, but no config.json that says .*; put it back, or name another"
    for config in (pole(), pole(seed=1, env_steps=2000)):
        with pytest.raises(ConfigError, match=words):
            train(config, folder, task=Pole)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "config.json").symlink_to("config.json")  # as good as none, to what follows links
    with pytest.raises(ConfigError, match="it is a symbolic link"):
        train(pole(seed=1), folder, task=Pole)
    (tmp_path / "config.json").rename(folder / "config.json")
    assert train(pole(), folder, task=Pole).finished


def test_options_that_could_not_start_do_not_bind_the_next_attempt(tmp_path):
    huge = pole(agent={"model": {"deter": 2**20, "units": 2**16}})
    with pytest.raises(ConfigError, match=r"agent\.model"):
        train(huge, tmp_path, task=Pole)
    assert train(pole(env_steps=800), tmp_path, task=Pole).finished


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_call_goes_on(straight, tmp_path, number):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    task = Calls(700, lambda _: os.kill(os.getpid(), number))
    result = train(pole(), tmp_path, task=task)
    assert (result.finished, result.signal) == (False, number)
    assert 300 < result.env_steps < 1000
    assert newest_checkpoint(tmp_path) == result.env_steps
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert train(pole(), tmp_path, task=Pole).finished
    straight.assert_same(tmp_path)


def finishes_at_a_signal(folder, until=None):
    """Train a short run, at whose end a SIGTERM comes; the result, and what the caller was told."""
    told = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append((number, newest_checkpoint(folder))))
    try:
        # No evaluation, which a signal would end.
        config = pole(env_steps=600, replay={"train_ratio": 0.001}, eval={"every": 0})
        (result,) = train_all([Member(config, folder)], task=Pole, until=until)
    finally:
        signal.signal(signal.SIGTERM, before)
    return result, told


@pytest.mark.parametrize("name", ["advance", "save", "__exit__"])
def test_a_signal_that_comes_too_late_is_left_to_the_caller_of_a_finished_run(tmp_path, monkeypatch, name):
    def late(training, *given):
        done(training, *given)
        if training.reached():
            signal.raise_signal(signal.SIGTERM)

    done = getattr(loop.Training, name)
    monkeypatch.setattr(loop.Training, name, late)
    result, told = finishes_at_a_signal(tmp_path)
    assert result == (tmp_path, 600, True, None)
    assert told == [(signal.SIGTERM, 600)]  # when everything was saved


def test_a_signal_is_left_to_the_caller_if_nothing_is_to_be_trained(tmp_path, monkeypatch):
    finishes_at_a_signal(tmp_path)
    monkeypatch.setattr(loop, "_announce", lambda _: signal.raise_signal(signal.SIGTERM))
    result, told = finishes_at_a_signal(tmp_path)
    assert result == (tmp_path, 600, True, None)
    assert told == [(signal.SIGTERM, 600)]


@pytest.mark.parametrize("name", ["advance", "save"])
def test_a_signal_that_comes_too_late_to_stop_before_until_is_in_the_result(tmp_path, monkeypatch, name):
    def late(training):
        done(training)
        if training.reached(300):
            signal.raise_signal(signal.SIGTERM)

    done = getattr(loop.Training, name)
    monkeypatch.setattr(loop.Training, name, late)
    result, told = finishes_at_a_signal(tmp_path, until=300)
    assert 300 <= result.env_steps < 600
    assert (result.finished, result.signal) == (False, signal.SIGTERM)
    assert told == []


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_signal_ends_an_evaluation_which_is_made_when_the_run_goes_on(
    straight, tmp_path, monkeypatch, which
):
    """Also one that would never end; and the run comes to the same bits."""
    at = evaluated(straight.folder)[which]

    def never_ends(number, step, watch):
        if number * 2 == at:
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                watch(step)
        watch(step)

    watch_evaluations(monkeypatch, never_ends)
    result = train(pole(), tmp_path, task=Pole)
    assert (result.finished, result.signal) == (False, signal.SIGTERM)
    assert at <= result.env_steps
    assert at not in evaluated(tmp_path)
    monkeypatch.undo()
    assert train(pole(), tmp_path, task=Pole).finished
    monkeypatch.setattr(loop, "_train_group", None)  # it is finished, and not trained again
    assert train(pole(), tmp_path, task=Pole).finished
    straight.assert_same(tmp_path)


# Evaluations beside training


def evaluated(folder):
    """Env steps of a run's evaluations."""
    return [line["env_steps"] for line in lines(folder) if "eval/return" in line]


def watch_evaluations(monkeypatch, each):
    """Let `each(number, step, watch)` stand where evaluations call `watch(step)`."""
    evaluate_all = evaluation.evaluate_all

    def watched(*given, number, watch, **options):
        mine = partial(each, number, watch=watch)
        return evaluate_all(*given, number=number, watch=lambda step: mine(step), **options)

    monkeypatch.setattr(evaluation, "evaluate_all", watched)


def test_a_slow_evaluation_is_waited_for_and_changes_nothing(straight, tmp_path, monkeypatch):
    went_on = []

    def slow(number, step, watch):
        deadline = time.monotonic() + 5
        while run.agent_steps < number + 190 and not run.reached() and time.monotonic() < deadline:
            time.sleep(0.001)
        went_on.append(run.agent_steps - number)
        watch(step)

    watch_evaluations(monkeypatch, slow)
    with opened(pole(), tmp_path, Pole) as run:
        while not run.finished:
            run.advance()
        run.save()
    assert max(went_on) == 196  # the last step before the next evaluation
    straight.assert_same(tmp_path)


@pytest.mark.parametrize("steps", [0, 1, 20, 49], ids=lambda n: f"{n} steps later")
def test_an_evaluation_under_way_survives_a_kill(straight, tmp_path, monkeypatch, steps):
    """With the model that it began with, and the lines that come after it."""
    killed, go_on = tmp_path / "killed", threading.Event()

    def wait(number, step, watch):
        assert go_on.wait(60)
        watch(step)

    watch_evaluations(monkeypatch, wait)
    with opened(pole(), tmp_path / "run", Pole) as run:
        for _ in range(50 + steps):  # it is asked for after 50
            run.advance()
        assert run.evaluating
        run.save()
        run.checkpoints[0].wait()
        for _ in range(5 if steps < 45 else 0):
            run.advance()
        held = len(run._held)
        shutil.copytree(tmp_path / "run", killed)
        go_on.set()
    assert held == {0: 0, 1: 0, 20: 1, 49: 2}[steps]
    assert evaluated(killed) == []
    monkeypatch.undo()
    assert train(pole(), killed, task=Pole).finished
    straight.assert_same(killed)


def test_lines_written_after_a_checkpoint_are_written_again_in_their_order(straight, tmp_path):
    """Also those of env steps before it, which waited for an evaluation."""
    with opened(pole(), tmp_path / "run", Pole) as run:
        for _ in range(50):
            run.advance()
        run.save()
        run.checkpoints[0].wait()
        for _ in range(60):
            run.advance()
        assert evaluated(tmp_path / "run") == [400]
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
    assert train(pole(), tmp_path / "killed", task=Pole).finished
    straight.assert_same(tmp_path / "killed")


def test_an_evaluation_that_fails_ends_the_run_which_can_be_resumed(straight, tmp_path, monkeypatch):
    def fail(number, step, watch):
        raise RuntimeError(f"evaluation {number} failed")

    watch_evaluations(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="evaluation 200 failed"):
        train(pole(), tmp_path, task=Pole)
    monkeypatch.undo()
    assert train(pole(), tmp_path, task=Pole).finished
    straight.assert_same(tmp_path)


def test_a_second_ctrl_c_is_not_held_back():
    with interruptible() as interrupted:
        assert interrupted() is None
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # a batch system's, twice
        assert interrupted() == signal.SIGTERM
        signal.raise_signal(signal.SIGINT)
        assert interrupted() == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_thread_can_train_without_signals(straight, tmp_path):
    thread = threading.Thread(target=train, args=(pole(), tmp_path), kwargs={"task": Pole})
    thread.start()
    thread.join()
    straight.assert_same(tmp_path)


# What can go wrong


def test_one_folder_is_trained_in_by_one_at_a_time(straight, tmp_path):
    def second(_):
        with pytest.raises(ConfigError, match=f"another process is training in {tmp_path}"):
            train(pole(), tmp_path, task=Pole)
        tried.append(True)

    tried = []
    train(pole(), tmp_path, task=Calls(700, second))
    assert tried == [True]
    straight.assert_same(tmp_path)


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_folder_that_cannot_be_is_an_options_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"out: .*{name} cannot be written \("):
        train(pole(), tmp_path / name, task=Pole)


def no_space(path):
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.slow
def test_a_disk_too_full_for_a_checkpoint_stops_the_run(straight, tmp_path, monkeypatch):
    config, publish = pole(checkpoint=OFTEN), _files.publish

    def full(path):
        if path.name.isdigit() and int(path.name) > 600:
            raise no_space(path)
        publish(path)

    monkeypatch.setattr(_files, "publish", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*the last one, .* is intact"):
        train(config, tmp_path, task=Pole)
    assert 0 < newest_checkpoint(tmp_path) <= 600
    monkeypatch.undo()
    train(config, tmp_path, task=Pole)
    straight.assert_same(tmp_path, config)


@pytest.mark.slow
def test_a_disk_too_full_for_metrics_stops_the_run(straight, tmp_path, monkeypatch):
    config, write = pole(checkpoint=OFTEN), os.write

    def full(file, data):
        if len(metrics(tmp_path)) > 4000 and b"loss/total" in data:
            write(file, data[:7])  # what still fitted
            raise no_space("")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(TrainingStopped, match=r"metrics\.jsonl: No space left.*the same command resumes"):
        train(config, tmp_path, task=Pole)
    assert metrics(tmp_path).endswith(b'{"env_s')
    monkeypatch.undo()
    train(config, tmp_path, task=Pole)
    straight.assert_same(tmp_path, config)


def test_a_checkpoint_under_way_is_not_waited_for(straight, tmp_path, monkeypatch):
    saved, save = [], loop.save_all
    monkeypatch.setattr(Checkpoints, "busy", property(lambda _: len(saved) == 1 and saved[0] < 1000))

    def note(checkpoints, step, *args, **kwargs):
        saved.append(step)
        save(checkpoints, step, *args, **kwargs)

    monkeypatch.setattr(loop, "save_all", note)
    config = pole(checkpoint={"minutes": 1e-9})
    with opened(config, tmp_path, Pole) as run:
        for _ in range(20):
            run.advance()
        assert saved == [8]  # due after each step, and busy with the first
        saved[0] = 2000
        run.advance()
        assert saved == [2000, 21 * 8]


def test_too_many_skipped_updates_stop_the_run(tmp_path):
    config = pole(agent={"behavior": {"entropy": 3e38}}, max_skipped=15, checkpoint=OFTEN)
    with pytest.raises(TrainingStopped, match=r"^20 updates in a row were skipped .* \(max_skipped is 15\)"):
        train(config, tmp_path, task=Pole)
    assert lines(tmp_path)[-1]["updates/skipped"] == 20
    kept = contents(config, tmp_path, Pole)
    trained = [path for path in kept if "agent" in path and kept[path].dtype == np.float32]
    assert len(trained) > 50
    assert all(np.isfinite(kept[path]).all() for path in trained)


@pytest.mark.parametrize(("env_steps", "skipped"), [(4000, 100), (400, 25)], ids=["long", "short"])
def test_skipped_updates_stop_a_run_that_logs_rarely_or_ends_soon(tmp_path, env_steps, skipped):
    """Every 100 updates, and at the end of a run that has fewer, before it is evaluated."""
    rare = {"log": {"every": 10**6}, "eval": {"every": 10**6}}
    config = pole(agent={"behavior": {"entropy": 3e38}}, max_skipped=15, env_steps=env_steps, **rare)
    assert config.updates_at(config.agent_steps) >= skipped
    with pytest.raises(TrainingStopped, match=rf"^{skipped} updates in a row were skipped"):
        train(config, tmp_path, task=Pole)
    assert newest_checkpoint(tmp_path) == -1
    assert lines(tmp_path) == []


def test_skipped_updates_are_not_asked_for_after_every_one(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(loop.Training, "_check_skipped", lambda run: asked.append(run.updates))
    config = pole(log={"every": 40}, env_steps=1400)
    train(config, tmp_path, task=Pole)
    last = config.updates_at(config.agent_steps)
    assert 100 < last < 120
    assert asked == [40, 80, 100, last]


def test_a_policy_that_is_not_finite_stops_the_run(tmp_path):
    with opened(pole(), tmp_path, Pole) as run:
        run.advance()
        lost = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), run.state.agent.model)
        run.state = run.state._replace(agent=run.state.agent._replace(model=lost))
        with pytest.raises(TrainingStopped, match=r"actions are not finite.*agent\.optimizer\.learning_rate"):
            run.advance()


def test_an_environment_that_breaks_is_restarted_reported_and_counted(tmp_path, caplog):
    def slip(env):
        raise RuntimeError("the belt slipped")

    result = train(pole(), tmp_path, task=Calls(700, slip))
    assert result.finished
    reports = [record.getMessage() for record in caplog.records if "belt" in record.getMessage()]
    assert len(reports) == 1
    assert "environment restarted: stream" in reports[0]
    assert [line["train/faults"] for line in lines(tmp_path) if "train/faults" in line] == [1]


def test_an_environment_that_keeps_breaking_ends_the_run_and_its_options_can_be_mended(tmp_path):
    def slip(env):
        if env.time == 40:  # later than it is tried out
            raise RuntimeError("the belt slipped")

    def task():
        return Pole(slip)

    with pytest.raises(RuntimeError, match=r"failed 2 times, more than the 1 restarts .*the belt slipped"):
        train(pole(env={"restarts": 1}), tmp_path, task=task)
    assert train(pole(env={"restarts": 1000}), tmp_path, task=task).finished
    assert sum(line.get("train/faults", 0) for line in lines(tmp_path)) > 20


def test_everything_is_let_go_if_a_run_cannot_be_opened(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(Pole, "close", lambda env: closed.append(env))
    monkeypatch.setattr(loop, "Progress", None)
    with pytest.raises(TypeError):
        train(pole(), tmp_path, task=Pole)
    assert len(closed) >= pole().env.count
    monkeypatch.undo()
    assert train(pole(env_steps=800), tmp_path, task=Pole).finished  # the folder is free again


def test_the_tiny_run_is_what_the_helpers_say():
    config = tiny()
    assert (config.agent_steps, config.updates_at(config.agent_steps)) == (2000, 363)
    assert options.diff(config, options.override(Config("cartpole-balance"), helpers.TINY)) == {}
