"""Runs that are killed and started again end as if nothing had happened, to the last bit."""

import random
import signal
import time

import jax
import numpy as np
import pytest

from gpld.training import saved, train
from gpld.training.checkpoints import saved_steps
from gpld.training.checkpoints.milestones import MILESTONES
from tests.training import helpers
from tests.training.helpers import contents, differing, metrics, newest_checkpoint, output, tiny, wait_for

OFTEN = {"minutes": 0.0005, "milestones": 500}
"""A checkpoint is being written nearly all the time, and four models are kept."""


def kill_again_and_again(config, folder, kills, seed):
    """Start the command and kill it at random moments, then let it finish. Returns what was done."""
    chance, done = random.Random(seed), []
    targets = sorted(chance.randrange(int(0.7 * config.env_steps)) for _ in range(kills))
    for number, target in enumerate(targets):
        moment = ("training", "writing", "starting")[number % 3]
        before, delay = newest_checkpoint(folder), chance.uniform(0.0, 0.05)
        with helpers.started(config, folder) as process:
            if moment == "starting":
                delay = chance.uniform(0.0, 6.0)
            else:
                wait_for(lambda now=before, at=target: newest_checkpoint(folder) > max(now, at), process)
            if moment == "writing":
                wait_for(lambda running=process: caught_writing(running, folder), process)
            until = time.monotonic() + delay
            while time.monotonic() < until and newest_checkpoint(folder) < 0.75 * config.env_steps:
                time.sleep(0.005)  # a fast run may end before a start that is slow elsewhere
            ended = process.poll()
            process.kill()
        step, torn = newest_checkpoint(folder), helpers.being_written(folder)
        done.append(f"kill {number} while {moment}, {delay:.3f} s later, at checkpoint {step}, torn: {torn}")
        assert ended is None, "\n".join([f"it ended with {ended} before", *done, output(folder).read_text()])
    helpers.finish(config, folder)
    return done


def caught_writing(process, folder):
    """Whether a checkpoint was being written, and its process now stands still in the middle of it."""
    if not helpers.being_written(folder):
        return False
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.01)
    caught = helpers.being_written(folder)
    if not caught:
        process.send_signal(signal.SIGCONT)
    return caught


def milestones(folder):
    """Every model that a run has kept, as bytes by their step."""
    kept = saved_steps(folder / MILESTONES)
    names = sorted(path.name for path in (folder / MILESTONES).iterdir() if path.name != "set-aside")
    assert names == [f"{step:012d}" for step in kept]
    models = [saved.load(folder, step).model for step in kept]
    return {
        step: [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(model)]
        for step, model in zip(kept, models, strict=True)
    }


def assert_killing_changes_nothing(config, tmp_path, kills, seed, straight=None):
    killed = tmp_path / "killed"
    if straight is None:
        straight = tmp_path / "straight"
        helpers.finish(config, straight)
    done = kill_again_and_again(config, killed, kills, seed)
    print("\n".join([f"seed {seed}", *done]))  # shown if the test fails
    assert differing(contents(config, straight), contents(config, killed)) == []
    assert metrics(straight) == metrics(killed)
    assert milestones(straight) == milestones(killed)
    assert len(milestones(straight)) == 4
    assert len(done) == kills
    assert any("torn: True" in line for line in done), "no kill came while a checkpoint was written"


@pytest.mark.slow
def test_killed_while_training_while_writing_and_while_starting(tmp_path):
    config = tiny(backend="dm_control", checkpoint=OFTEN)
    train(config, tmp_path / "straight")
    assert_killing_changes_nothing(config, tmp_path, kills=3, seed=0, straight=tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "backend"),
    [
        ("cartpole-balance", "dm_control"),
        ("cartpole-balance", "envpool"),
        ("gym:Pendulum-v1", "gymnasium"),
        ("jax:gpld.envs:CartPole", "auto"),
    ],
)
def test_killed_many_times(tmp_path, task, backend):
    config = tiny(task, backend=backend, checkpoint=OFTEN)
    assert_killing_changes_nothing(config, tmp_path, kills=9, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_command_save_and_say_where_it_is(tmp_path, number):
    config = tiny(backend="auto", env_steps=40_000)
    with helpers.started(config, tmp_path / "run", "-m", "gpld", "train") as process:
        wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and metrics(tmp_path / "run"), process)
        status = helpers.interrupt(process, number)
    assert status == 128 + number
    reached = newest_checkpoint(tmp_path / "run")
    assert 0 < reached < 40_000
    assert f"interrupted at {reached:,} env steps" in output(tmp_path / "run").read_text()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_command_at_once(tmp_path):
    config = tiny(backend="auto", env_steps=40_000)
    with helpers.started(config, tmp_path / "run", "-m", "gpld", "train") as process:
        wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and metrics(tmp_path / "run"), process)
        while process.poll() is None:  # two that come at the same time may be taken for one
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
    assert process.returncode == -signal.SIGINT
