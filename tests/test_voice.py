"""What libraries and environments do wrong is told in words, with what to do about it."""

import dataclasses
import shutil
import signal
import sys

import gymnasium
import jax
import numpy as np
import pytest

from gpld import cli, envs, memory
from gpld import config as options
from gpld.config import ConfigError
from gpld.doctor import _examine
from gpld.envs import EnvironmentFailure, _make
from gpld.envs._base import NoDrawing
from gpld.films import command
from gpld.training import evaluation, saved
from tests.training.helpers import Pole

ZERO = np.zeros((1, 1), np.float32)


@pytest.mark.parametrize("pixels", [True, False])
def test_an_engine_that_cannot_be_made(monkeypatch, pixels):
    """PyOpenGL without its library raises an AttributeError when dm_control is imported."""

    def broken(*_, **__):
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(_make, "_suite", broken)
    with pytest.raises(EnvironmentFailure, match=r"^cartpole-balance cannot be made here: ") as told:
        envs.make("cartpole-balance", count=1, seed=0, backend="dm_control", pixels=pixels)
    assert "glGetError" in str(told.value)
    assert ("MUJOCO_GL=osmesa does not draw here" in str(told.value)) == pixels


def test_what_cannot_be_drawn_is_not_tried_again(caplog):
    def fail(env):
        raise NoDrawing("MUJOCO_GL=egl does not draw here")

    with envs.make(lambda: Pole(fail), count=1, seed=0, check=False) as env:
        env.step(ZERO)
        with pytest.raises(NoDrawing, match=r"^MUJOCO_GL=egl does not draw here$"):
            env.step(ZERO)
    assert caplog.messages == []


def leave(env):
    sys.exit(3)


def test_an_environment_that_calls_exit_is_a_fault():
    with envs.make(lambda: Pole(leave), count=1, seed=0, check=False) as env:
        env.step(ZERO)
        assert env.step(ZERO).is_last.all()
    assert [fault.reason for fault in env.faults] == ["SystemExit: 3"]


class Rich(Pole):
    """Gives a reward."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def step(self, action):
        return super().step(action)[0], self.reward, False, False, {}


@pytest.mark.parametrize(("reward", "fine"), [(1e30, True), (3e38, False), (1e39, False), (1e300, False)])
@pytest.mark.filterwarnings("error")
def test_rewards_beyond_what_is_kept_are_faults(reward, fine):
    with envs.make(lambda: Rich(reward), count=1, seed=0, check=False) as env:
        env.step(ZERO)
        step = env.step(ZERO)
    assert np.isfinite(step.reward).all()
    assert [fault.reason for fault in env.faults] == ([] if fine else [f"ValueError: reward is {reward}"])


@pytest.mark.filterwarnings("error")
def test_large_rewards_are_summed_without_a_warning():
    from gpld.training._recent import Recent

    with envs.make(lambda: Rich(1e30), count=1, seed=0, check=False) as env:
        recent = Recent.zeros(1, 1)
        for _ in range(5):
            step = env.step(ZERO)
            recent = recent.follow(type(step)(*[x[None] if not isinstance(x, dict) else x for x in step]))
    assert recent.running.item() == pytest.approx(8e30)


class Endless(gymnasium.Wrapper):
    """Never ends an episode."""

    def step(self, action):
        obs, reward, _, _, info = self.env.step(action)
        return obs, reward, False, False, info


def test_an_episode_that_never_ends_is_ended_by_the_limit(small_run, caplog):
    trained, seen = saved.load(small_run), []
    config = options.override(trained.config, {"eval": {"limit": 7}})
    given = {"episodes": 2, "number": 0, "key": jax.random.key(0), "task": lambda: Endless(Pole())}
    played = evaluation.evaluate(config, trained.model, **given, watch=seen.append)
    assert (len(seen), len(played)) == (7, 2)
    assert caplog.messages == [
        "2 of 2 episodes did not end in 7 agent steps (eval.limit): their returns so far count"
    ]


def test_an_evaluation_heeds_signals_and_says_how_far_it_is():
    told, received = [], []
    watch = command._Watch(2, lambda: received[0] if received else None, told.append)
    step = envs.Step({}, np.zeros((1, 2)), *np.zeros((2, 1, 2), bool), np.zeros((1, 2), bool))
    for _ in range(100):
        watch(step._replace(is_last=np.array([[True, False]])))
    assert told == ["playing: 1 of 2 episodes ended in 100 agent steps"]
    received.append(signal.SIGTERM)
    with pytest.raises(command._Interrupted, match="1 of 2 episodes ended in 101 agent steps; nothing was"):
        watch(step)


def test_a_module_that_a_folder_names_is_told_and_can_be_refused(small_run, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)
    config = dataclasses.replace(options.load(folder / "config.json"), task="gym:planted:Name-v0")
    options.save(config, folder / "config.json")
    (tmp_path / "planted.py").write_text("raise SystemError('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["eval", str(folder), "--episodes", "1", "--no-import"]) == 2
    assert "planted; --no-import refuses to" in capsys.readouterr().err
    assert "planted" not in sys.modules
    with pytest.raises(SystemError, match="it ran"):
        cli.main(["eval", str(folder), "--episodes", "1"])
    assert f"importing the module planted, which {folder} names: its code runs" in capsys.readouterr().out


def test_more_episodes_than_memory_are_refused_with_how_many_fit():
    with pytest.raises(ConfigError, match=r"^episodes: 1000 is not allowed here; .* at most 146$"):
        memory.check_evaluation(1000, 2**31)
    memory.check_evaluation(146, 2**31)


@pytest.mark.parametrize("works", [["egl"], []])
def test_the_doctor_sees_what_the_variable_asks_for(monkeypatch, works):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    results = {name: _examine._Result(name in works, "said") for name in ("egl", "osmesa", "glfw")}
    first = next(iter(_examine._rendering(results)))
    assert first.detail == "MUJOCO_GL=osmesa fails: said"
    assert first.remedy == "unset MUJOCO_GL" + (", or set it to egl" if works else "")
