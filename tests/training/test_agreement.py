"""What runs learn in one program is what they learn alone, in distribution.

Both are compiled as users do. They may round differently, and then their curves part.
"""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from gpld import population
from gpld.config import Config, override
from gpld.training import train, train_all
from tests.test_learning import CONFIG
from tests.training.helpers import lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimized")]

SEEDS = range(16)
SHORT = {
    "env_steps": 1200,
    "env": {"count": 4, "action_repeat": 1},
    "replay": {"capacity": 1000, "batch": 8, "length": 10, "min_steps": 88, "train_ratio": 20.0},
    "eval": {"every": 0},
    "log": {"every": 25, "tensorboard": False},
}
"""278 updates of the agent of `tests/test_learning.py`, which needs about half of them for the task."""


class Slope(gymnasium.Env):
    """A point on [-1, 1] that is pushed for ten steps, and rewarded for how far right it is.

    Always to the right returns 9.1 on average, pushes at random 2.9.
    """

    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.uniform(-1, 1, size=1).astype(np.float32)
        return self.place, {}

    def step(self, action):
        self.time += 1
        self.place = np.clip(self.place + 0.5 * action, -1, 1)
        return self.place, max(0.0, float(self.place[0])), False, self.time == 10, {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Lines of metrics of the same seeds: of runs that were alone, and of those in one program."""
    folder = tmp_path_factory.mktemp("agreement")
    config = override(Config("gym:Slope-v0", agent=CONFIG), SHORT)
    alone, together = (population.members(config, SEEDS, ["gpld"], folder / x) for x in ("alone", "together"))
    for member in alone:
        train(*member, task=Slope)
    train_all(together, task=Slope)
    return [[lines(member.folder) for member in members] for members in (alone, together)]


def curves(runs, metric):
    """A metric over time, `[seed, time]`, alone and together."""
    return [np.array([[line[metric] for line in run] for run in of_all]) for of_all in runs]


def test_every_run_learns(runs):
    for returns in curves(runs, "train/return"):
        assert returns[:, 0].mean() < 4
        assert returns[:, -3:].mean(axis=1).min() > 7


METRICS = pytest.mark.parametrize("metric", ["train/return", "loss/total", "loss/reward"])


@METRICS
def test_runs_in_one_program_learn_as_fast_as_alone(runs, metric):
    one, two = (curve.mean(axis=1) for curve in curves(runs, metric))
    standard_error = np.sqrt((one.var(ddof=1) + two.var(ddof=1)) / len(SEEDS))
    assert abs(one.mean() - two.mean()) < 3 * standard_error


@METRICS
def test_runs_in_one_program_differ_from_each_other_as_much_as_alone(runs, metric):
    one, two = (curve.mean(axis=1).std(ddof=1) for curve in curves(runs, metric))
    assert one < 3 * two
    assert two < 3 * one
