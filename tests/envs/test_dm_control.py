"""dm_control: states saved to the bit at any step, and the renderer's choice."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gpld.config import ConfigError
from gpld.envs import make, suite_tasks, tasks
from gpld.envs._dm_control import choose_renderer
from tests.envs.helpers import actions, run, same

NAMES = [task.name for task in tasks()]
OTHERS = [
    "fish-swim",
    "humanoid-stand",
    "lqr-lqr_2_1",
    "manipulator-insert_peg",
    "point_mass-hard",
    "swimmer-swimmer6",
]


def fresh(task: str, count: int = 2):
    return make(task, count=count, seed=7, backend="dm_control")


@pytest.mark.parametrize("task", NAMES + [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS])
def test_restores_the_bits_at_any_step(task: str):
    with fresh(task) as env, fresh(task) as again:
        sequence = actions(env, 30)
        run(env, sequence[:3])
        env.reset([0])
        run(env, sequence[:8])
        state = env.save()
        run(again, -sequence[:5])  # a used environment is no different from a new one
        assert again.restore(state) == []
        assert same(run(env, sequence[:12]), run(again, sequence[:12]))
        env.reset([1])  # the next start is drawn by the restored random state
        again.reset([1])
        assert same(run(env, sequence[:6]), run(again, sequence[:6]))


def test_restores_in_another_process(tmp_path):
    with fresh("finger-turn_hard") as env:
        sequence = actions(env, 40)
        run(env, sequence[:17])
        (tmp_path / "state").write_bytes(env.save())
        np.save(tmp_path / "actions.npy", sequence[17:])
        expected = run(env, sequence[17:])
    program = f"""
import numpy as np
from gpld.envs import make
env = make("finger-turn_hard", count=2, seed=7, backend="dm_control")
env.restore(open({str(tmp_path / "state")!r}, "rb").read())
steps = [env.step(action) for action in np.load({str(tmp_path / "actions.npy")!r})]
np.savez({str(tmp_path / "steps.npz")!r}, reward=[s.reward for s in steps], **{{
    key: [s.obs[key] for s in steps] for key in steps[0].obs
}})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    got = np.load(tmp_path / "steps.npz")
    assert np.array_equal(got["reward"], [step.reward for step in expected])
    for key in expected[0].obs:
        assert np.array_equal(got[key], [step.obs[key] for step in expected])


def test_state_of_another_count_is_refused():
    with fresh("cartpole-balance") as two, fresh("cartpole-balance", 3) as three:
        state = two.save()
        with pytest.raises(ValueError, match="2 streams, this environment 3"):
            three.restore(state)


def test_catalog_has_the_suites_spaces_and_the_time_limit():
    for task in tasks():
        assert task.name in suite_tasks()
        with fresh(task.name, 1) as env:
            assert (env.spaces, env.spaces.bounds) == (task.spaces, task.spaces.bounds)
            assert env._streams[0]._env._step_limit == 1000


def test_a_discount_of_zero_is_terminal():
    with fresh("walker-walk") as env:
        run(env, actions(env, 3))
        env._streams[1]._env.task.get_termination = lambda physics: 0.0
        step = env.step(np.zeros((2, 6)))
        assert (step.is_last.tolist(), step.is_terminal.tolist()) == ([False, True], [False, True])
        assert env.step(np.zeros((2, 6))).is_first.tolist() == [False, True]


def test_renderer_is_off_without_display_and_a_choice_stands(monkeypatch: pytest.MonkeyPatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gpld.envs._dm_control._can_render", lambda name: name == "osmesa")
    if sys.platform == "linux":
        assert choose_renderer(render=False) == "off"
        monkeypatch.delenv("MUJOCO_GL")
        assert choose_renderer(render=True) == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert choose_renderer(render=True) == "glfw"


def test_a_renderer_is_looked_for_where_one_is_needed(monkeypatch: pytest.MonkeyPatch):
    asked = {}
    for task in ("quadruped-escape", "quadruped-run"):
        monkeypatch.setattr(
            "gpld.envs._make.choose_renderer", lambda render, task=task: asked.update({task: render})
        )
        make(task, count=1, seed=0, backend="dm_control").close()
    assert asked == {"quadruped-escape": True, "quadruped-run": False}


@pytest.mark.slow
def test_draws_pictures_where_something_can():
    program = """
import numpy as np
from gpld.envs import make
from gpld.envs._dm_control import choose_renderer
if choose_renderer(render=True) != "off":
    for task in ("walker-walk", "quadruped-escape"):
        with make(task, count=2, seed=0, render=True) as env:
            env.step(np.zeros((2, env.spaces.actions)))
            one = env.render(0, height=48, width=64)
            assert one.shape == (48, 64, 3) and one.dtype == np.uint8 and one.std() > 5
            assert not np.array_equal(one, env.render(1, height=48, width=64))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "Exception" not in done.stderr


PIXELS = """
import sys, numpy as np
from gpld.envs import Hosts, make
from gpld.envs._dm_control import choose_renderer
if choose_renderer(render=True) == "off":
    sys.exit("nothing draws")
task = sys.argv[1]
seen_by = [make(task, count=2, seed=3, pixels=True, processes=processes) for processes in (1, 2)]
with seen_by[0] as env, seen_by[1] as again:
    states = make(task, count=2, seed=3, backend="dm_control")
    assert env.spaces.obs == (("image", (64, 64, 3)),) and env.spaces.images == ("image",)
    assert len(env.spaces.bounds) == env.spaces.actions and env.spaces.bounds == states.spaces.bounds
    rng, seen = np.random.default_rng(0), []
    for _ in range(6):
        action = rng.uniform(-1, 1, (2, env.spaces.actions))
        step, state = env.step(action), states.step(action)
        seen.append(step.obs["image"])
        assert seen[-1].dtype == np.uint8 and seen[-1].shape == (2, 64, 64, 3)
        np.testing.assert_array_equal(step.reward, state.reward)
        np.testing.assert_array_equal(again.step(action).obs["image"], seen[-1])
    assert len({image.tobytes() for images in seen for image in images}) == 12
    again.step(-action)
    again.restore(env.save())
    np.testing.assert_array_equal(again.step(action).obs["image"], env.step(action).obs["image"])
with Hosts() as kept:  # processes that have drawn for another environment draw the same
    for seed in (4, 3):
        with make(task, count=2, seed=seed, pixels=True, processes=2, hosts=kept) as env:
            rng = np.random.default_rng(0)
            images = [env.step(rng.uniform(-1, 1, (2, env.spaces.actions))).obs["image"] for _ in range(6)]
    np.testing.assert_array_equal(images, seen)
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cartpole-swingup", "quadruped-walk"])
def test_pixels_are_the_same_for_a_seed_and_go_with_the_states(task: str):
    # In a process in which drawing has not been settled yet.
    unsettled = {name: value for name, value in os.environ.items() if (name, value) != ("MUJOCO_GL", "off")}
    done = subprocess.run([sys.executable, "-c", PIXELS, task], capture_output=True, text=True, env=unsettled)
    if done.stderr.strip() == "nothing draws":
        pytest.skip("no renderer works here")
    assert (done.returncode, done.stderr) == (0, "")


def test_pixels_without_a_renderer_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_GL", "off")
    with pytest.raises(ConfigError, match=r"env.pixels: neither EGL nor OSMesa.*apt install"):
        make("cartpole-balance", count=1, seed=0, pixels=True)
    with pytest.raises(ConfigError, match="pixels are for tasks of the suite"):
        make("gym:Pendulum-v1", count=1, seed=0, pixels=True)
