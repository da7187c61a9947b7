"""Crafter through Gymnasium, with a stand-in for the package; and with the package where it is installed."""

import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest

from gpld.envs import make
from tests.envs.helpers import actions, run

TASK = "gym:gpld.envs.crafter:Crafter-v1"


class World:
    """Has Crafter's interface. A player dies at step 5 of odd worlds, and others end at step 8."""

    observation_space = SimpleNamespace(shape=(64, 64, 3))
    action_space = SimpleNamespace(n=17)

    def __init__(self, seed: int = 0):
        self.seed = seed

    def reset(self):
        self.time = 0
        return self.render()

    def step(self, action):
        self.time += 1
        dead = self.seed % 2 == 1 and self.time == 5
        return self.render(), action / 10, dead or self.time == 8, {"discount": 1 - float(dead)}

    def render(self, size=(64, 64)):
        return np.full((*size, 3), (self.seed + self.time) % 256, np.uint8)


@pytest.fixture
def without_module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "gpld.envs.crafter", raising=False)
    yield
    sys.modules.pop("gpld.envs.crafter", None)
    gymnasium.registry.pop("Crafter-v1", None)


def test_the_package_s_own_world_is_stepped(without_module):
    pytest.importorskip("crafter")
    with make(TASK, count=2, seed=0, action_repeat=1, render=True, check=False) as env:
        assert dict(env.spaces.obs) == {"observation": (64, 64, 3)}
        assert (env.spaces.actions, env.spaces.discrete) == (17, True)
        steps = run(env, actions(env, 300))
        assert env.faults == []
        assert env.render(0).shape == (512, 512, 3)
    first = steps[0].obs["observation"]
    assert not np.array_equal(first[0], first[1])  # each stream has a world of its own
    assert all((step.is_terminal == step.is_last).all() for step in steps)  # the time limit is far
    assert any(step.reward.any() for step in steps)  # thirst and hunger cost health


def test_what_to_install_is_said(without_module, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "crafter", None)
    with pytest.raises(
        ValueError, match=r"Crafter-v1' is not known: Crafter is not installed: pip install cr"
    ):
        make(TASK, count=1, seed=0)


def test_death_is_terminal_and_the_time_limit_is_not(without_module, monkeypatch: pytest.MonkeyPatch):
    package = ModuleType("crafter")
    package.Env = World  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "crafter", package)
    with make(TASK, count=4, seed=0, action_repeat=1, render=True, check=False) as env:
        assert dict(env.spaces.obs) == {"observation": (64, 64, 3)}
        assert (env.spaces.actions, env.spaces.discrete) == (17, True)
        sequence = actions(env, 12)
        steps = run(env, sequence)
        assert env.render(0).shape == (512, 512, 3)
    assert [step.reward[0] for step in steps[1:5]] == pytest.approx(sequence[1:5, 0].argmax(-1) / 10)
    ends = {(t, bool(s.is_terminal[i])) for i in range(4) for t, s in enumerate(steps) if s.is_last[i]}
    assert ends == {(5, True), (8, False), (11, True)} or ends == {(5, True), (8, False)}
    assert len({step.obs["observation"][i, 0, 0, 0] for step in steps[:1] for i in range(4)}) > 1  # seeded
