"""Every issue of the checker, on an environment that has just that fault."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiDiscrete

from gpld.envs import EnvironmentFailure, Issue, check, make
from tests.envs.custom import Choices, Counter


def altered(**changes):
    """A Counter some of whose step's results are replaced: obs is a function, others are values."""

    class Altered(Counter):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            obs = changes["obs"](obs) if "obs" in changes else obs
            reward = changes.get("reward", reward)
            return obs, reward, changes.get("terminated", terminated), truncated, info

    return Altered


def with_where(value):
    return altered(obs=lambda obs: obs | {"where": value})


def with_space(**spaces):
    class Spaced(Counter):
        def __init__(self):
            super().__init__()
            for name, space in spaces.items():
                setattr(self, name, space)

    return Spaced


class Bounded(Counter):
    def observe(self):
        return super().observe() | {"time": {"now": np.float32(self.now * 50)}}


class InPlace(Counter):
    def observe(self):
        self.shared = getattr(self, "shared", np.zeros(2, np.float32))
        self.shared[:] = self.where
        return super().observe() | {"where": self.shared}


class Forgets(Counter):
    """Never begins again: the count that ends an episode is not reset."""

    def reset(self, *, seed=None, options=None):
        now = getattr(self, "now", 0)
        obs = super().reset(seed=seed, options=options)
        self.now = now
        return obs


class Unseeded(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


class SameStart(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=3, options=options)


class OldReset(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class OldStep(Counter):
    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class Breaks(Counter):
    def step(self, action):
        raise ZeroDivisionError("division by zero")


def cannot_be_made():
    raise ImportError("no module named simulator")


CASES = {
    "nan": (
        with_where(np.array([0, np.nan], np.float32)),
        "error",
        "where",
        "not finite at step 1",
        "[0.0, nan]",
    ),
    "shape": (with_where(np.zeros(3, np.float32)), "error", "where", "shape (3,)", "its space says (2,)"),
    "type": (with_where(np.zeros(2)), "warning", "where", "type float64", "its space says float32"),
    "words": (with_where(np.array(["a", "b"])), "error", "where", "not an array of numbers", "'a'"),
    "bounds": (Bounded, "warning", "time.now", "150", "outside its bounds [0, 100]"),
    "key": (
        altered(obs=lambda o: o | {"new": 1}),
        "error",
        "new",
        "has keys ['new', ",
        "its space ['time.now', ",
    ),
    "reward": (altered(reward=None), "error", "reward", "NoneType None is not a number", ""),
    "reward vector": (
        altered(reward=np.ones(1)),
        "error",
        "reward",
        "ndarray array([1.]) is not a number",
        "",
    ),
    "reward nan": (altered(reward=float("nan")), "error", "reward", "not finite: nan", ""),
    "reward large": (altered(reward=1e300), "error", "reward", "too large for float32: 1e+300", ""),
    "reward complex": (altered(reward=1j), "error", "reward", "complex 1j is not a number", ""),
    "terminated": (altered(terminated=0), "error", "terminated", "int 0 is not True or False", ""),
    "in place": (InPlace, "warning", "where", "overwrote the array", "return a copy"),
    "no reset": (Forgets, "error", "episode", "all end at once", "[7, 1, 1"),
    "endless": (lambda: Counter(10**6), "warning", "episode", "none ended in the 300 steps", "TimeLimit"),
    "unseeded": (
        Unseeded,
        "warning",
        "where",
        "same seed 0 and actions gave",
        "cannot be repeated or resumed",
    ),
    "same start": (SameStart, "warning", "seed", "seeds 0 and 1 start alike", ""),
    "old reset": (OldReset, "error", "reset", "must return (observation, info), not dict", ""),
    "old step": (OldStep, "error", "step", "must return (observation, reward, terminated", "not tuple"),
    "raises": (Breaks, "error", "step", "raised ZeroDivisionError: division by zero", "step(["),
    "not made": (cannot_be_made, "error", "reset", "cannot be made: ImportError: no module", ""),
    "not an env": (lambda: 3, "error", "reset", "returned 3, which is not a gymnasium.Env", ""),
    "unbounded": (
        with_space(action_space=Box(-np.inf, np.inf, (2,))),
        "error",
        "action",
        "unbounded: [-inf, inf]",
        "",
    ),
    "no action": (
        with_space(action_space=Box(-1, 1, (0,))),
        "error",
        "action",
        "has nothing to choose",
        "",
    ),
    "no observation": (
        with_space(observation_space=Dict({})),
        "error",
        "observation",
        "its space is Dict(), which is empty",
        "",
    ),
    "empty observation": (
        with_space(observation_space=Dict(a=Box(-1, 1, (0,)), b=Box(-1, 1, (2,)))),
        "error",
        "a",
        "which is empty",
        "",
    ),
    "same names": (
        with_space(observation_space=Dict({"a.b": Box(-1, 1, (2,)), "a": Dict(b=Box(-1, 1, (3,)))})),
        "error",
        "a.b",
        "two parts of the observation space have this name",
        "",
    ),
    "no space": (gymnasium.Env, "error", "action", "the environment has no action_space", ""),
    "action bounds": (
        with_space(action_space=Box(1, 1, (2,))),
        "error",
        "action",
        "bound 1 is not below",
        "",
    ),
    "action kind": (
        with_space(action_space=MultiDiscrete([64, 64])),
        "error",
        "action",
        "MultiDiscrete([64 64]) with 4,096 combinations; at most 1,024",
        "",
    ),
    "image": (
        with_space(observation_space=Box(0, 255, (8, 8, 3), np.uint8)),
        "error",
        "observation",
        "is an image",
        "(8, 8, 3)",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_finds_and_names(case):
    env, level, key, *words = case
    issues = check(env)
    matching = [f for f in issues if (f.level, f.key) == (level, key)]
    assert matching, issues
    for word in words:
        assert word in matching[0].problem
    assert str(matching[0]).startswith(f"{level} in {key}: ")


@pytest.mark.parametrize(
    "env", [Counter, Choices, Counter(), "gym:Pendulum-v1", "gym:CartPole-v1", "gym:Acrobot-v1"]
)
def test_finds_nothing_in_sound_environments(env):
    assert check(env) == []


def test_each_kind_is_reported_once():
    assert check(altered(reward=float("nan"))) == [Issue("error", "reward", "not finite: nan")]


def test_a_factory_is_tried_out_before_use(caplog):
    with pytest.raises(EnvironmentFailure, match="cannot be used:\nerror in reward: not finite: nan"):
        make(altered(reward=float("nan")), count=1, seed=0)
    make(Unseeded, count=1, seed=0).close()
    assert "cannot be repeated or resumed exactly" in caplog.text


def test_training_begins_with_a_line_about_episodes_that_may_never_end(caplog):
    def limited():
        return gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.TimeLimit(Counter(10**6), 50))

    for factory, lines in ((lambda: Counter(10**6), 1), (limited, 0), (lambda: Counter(7), 0)):
        caplog.clear()
        make(factory, count=1, seed=0).close()
        assert caplog.text.count("none ended in the 30 steps tried, and no time limit is known") == lines


def test_a_factory_that_hangs_when_tried_out_is_reported():
    class Slow(Counter):
        def reset(self, *, seed=None, options=None):
            import time

            time.sleep(1)
            return super().reset(seed=seed, options=options)

    with pytest.raises(EnvironmentFailure, match=r"took more than 0\.1 s"):
        make(Slow, count=1, seed=0, timeout=0.1)


def test_wrappers_keep_their_checks():
    limited = gymnasium.wrappers.TimeLimit(Counter(10**6), 50)
    assert check(limited) == []
