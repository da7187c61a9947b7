"""Crafter for Gymnasium, as the task `gym:gpld.envs.crafter:Crafter-v1`; it needs the package `crafter`."""

import importlib
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

try:
    crafter = importlib.import_module("crafter")
except ModuleNotFoundError:
    raise ImportError("Crafter is not installed: pip install crafter") from None


class Crafter(gymnasium.Env):
    """Crafter with rewards, seen as images of 64x64. It speaks an interface from before Gymnasium."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self._env = crafter.Env()
        self.observation_space = Box(0, 255, self._env.observation_space.shape, np.uint8)
        self.action_space = Discrete(self._env.action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Begin an episode; a seed makes a new world, since Crafter takes one when it is made."""
        super().reset(seed=seed)
        if seed is not None:
            self._env = crafter.Env(seed=seed)
        return self._env.reset(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        """One step. Death is terminal, the time limit of 10,000 steps is not."""
        obs, reward, done, info = self._env.step(action)
        dead = info["discount"] == 0
        return obs, float(reward), dead, bool(done) and not dead, {}

    def render(self) -> Any:
        """Picture of 512x512."""
        return self._env.render((512, 512))


gymnasium.register("Crafter-v1", Crafter, max_episode_steps=10_000)
