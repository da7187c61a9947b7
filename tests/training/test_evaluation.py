"""The return of a random policy."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpld.config import override
from gpld.training.evaluation import random_return
from tests.training.helpers import tiny


class Rewarder(gymnasium.Env):
    """Rewards with the first number of the action, or the choice, at each of ten frames."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, choices: int = 0, breaks: bool = False):
        self.breaks = breaks
        self.action_space = Discrete(choices) if choices else Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if self.breaks:
            raise RuntimeError("no reward")
        self.time += 1
        reward = float(action) if isinstance(self.action_space, Discrete) else float(action[0])
        return np.zeros(2, np.float32), reward, False, self.time == 10, {}


class Scarce(Rewarder):
    """There are licences for three."""

    opened, most, episodes = 0, 0, 0

    def __init__(self):
        super().__init__()
        if Scarce.opened == 3:
            raise OSError("no licence is left")
        Scarce.opened += 1
        Scarce.most = max(Scarce.most, Scarce.opened)

    def reset(self, **options):
        Scarce.episodes += 1
        return super().reset(**options)

    def close(self):
        Scarce.opened -= 1


@pytest.fixture(scope="module", autouse=True)
def registered():
    names = {"GpldRewarder-v0": {}, "GpldChoice-v0": {"choices": 4}, "GpldBroken-v0": {"breaks": True}}
    for name, options in names.items():
        gymnasium.register(name, Rewarder, kwargs=options)
    names["GpldScarce-v0"] = {}
    gymnasium.register("GpldScarce-v0", Scarce)
    yield
    for name in names:
        del gymnasium.registry[name]


def test_a_random_policy_is_uniform_over_choices():
    assert random_return(tiny("gym:GpldChoice-v0"), 400) == pytest.approx(10 * 1.5, abs=1.0)


def test_a_random_policy_is_uniform_in_the_box():
    config = tiny("gym:GpldRewarder-v0")
    # Each action is held for two frames: 2 * (sum of 5 uniform numbers in [-1, 1]).
    returns = [random_return(override(config, {"seed": seed}), 1) for seed in range(200)]
    assert np.mean(returns) == pytest.approx(0.0, abs=0.8)
    assert np.std(returns) == pytest.approx(2 * np.sqrt(5 / 3), rel=0.2)
    assert random_return(config, 3) == random_return(config, 3)


def test_an_episode_of_a_random_policy_that_never_ends_is_ended():
    config = tiny("gym:GpldRewarder-v0", eval={"limit": 3})
    assert abs(random_return(config, 5)) <= 3 * 2


def test_an_environment_that_fails_has_no_random_return(caplog):
    assert random_return(tiny("gym:GpldBroken-v0", env={"restarts": 0}), 1) is None
    assert "the return of a random policy is not known: environment failed 1 times" in caplog.text


def test_no_more_environments_are_open_at_once_than_evaluations_have():
    config = tiny("gym:GpldScarce-v0", eval={"episodes": 3})
    returns = random_return(config, 7)
    assert (Scarce.opened, Scarce.most, Scarce.episodes) == (0, 3, 9)
    assert returns == random_return(config, 7)
    assert random_return(config, 2) != returns
    assert random_return(tiny("gym:GpldScarce-v0", eval={"episodes": 4}), 7) is None
    assert Scarce.opened == 0
