"""Small Gymnasium environments: a sound one, and ways to be unsound."""

import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Counter(gymnasium.Env):
    """Counts to `end`; the reward is the count. Position starts at random and drifts with the action."""

    def __init__(self, end: int = 7, terminates: bool = True):
        self.end, self.terminates = end, terminates
        self.observation_space = Dict(
            {
                "where": Box(-np.inf, np.inf, (2,), np.float32),
                "time": Dict({"now": Box(0, 100, (), np.float32)}),
            }
        )
        self.action_space = Box(np.array([0.0, -4.0]), np.array([2.0, 4.0]), dtype=np.float64)

    def observe(self):
        now = np.float32(self.now)
        return {"where": self.where.astype(np.float32), "time": {"now": np.asarray(now)}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.where, self.taken = 0, self.np_random.normal(size=2), []
        return self.observe(), {}

    def step(self, action):
        self.taken.append(np.array(action))
        self.now += 1
        self.where = self.where + action * self.np_random.normal()
        over = self.now >= self.end
        return self.observe(), float(self.now), over and self.terminates, over and not self.terminates, {}


class Choices(Counter):
    """Three choices, numbered from 5; the reward is the choice."""

    def __init__(self, end: int = 7):
        super().__init__(end)
        self.action_space = Discrete(3, start=5)

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(float(action))
        return obs, float(action), terminated, truncated, info


class Raises(Counter):
    """Raises at the fourth frame of its first instances."""

    made = 0
    sound_from = 1

    def __init__(self, end: int = 7):
        super().__init__(end)
        self.number = type(self).made
        type(self).made += 1

    def broken(self) -> bool:
        return self.number < self.sound_from and self.now == 3

    def step(self, action):
        if self.broken():
            raise RuntimeError("the belt slipped")
        return super().step(action)


class Hangs(Raises):
    def step(self, action):
        if self.broken():
            time.sleep(10.0)
        return Counter.step(self, action)


class GivesNaN(Raises):
    def step(self, action):
        obs, *rest = Counter.step(self, action)
        if self.number < self.sound_from and self.now == 4:
            obs["where"][1] = np.nan
        return obs, *rest


class FailsToStart(Raises):
    def reset(self, *, seed=None, options=None):
        if self.number < self.sound_from:
            raise OSError("no such device")
        return super().reset(seed=seed, options=options)
