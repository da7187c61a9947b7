"""An environment of your own from end to end: check it, train on it, and act in it with the trained agent.

    python examples/own_environment.py --env-steps 10000

docs/your_environment.md explains it. It prints the return of an episode, of at most 200.
"""

import argparse

import gymnasium
import numpy as np
from gymnasium.spaces import Box

import gpld
from gpld.config import Config, override, with_presets
from gpld.envs import check
from gpld.training import train


class Spring(gymnasium.Env):
    """A mass on a spring that is to be held at rest."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        """A random place and speed."""
        super().reset(seed=seed)  # seeds self.np_random, the only source of chance
        self.time, self.state = 0, self.np_random.normal(size=2)
        return self.state.astype(np.float32), {}

    def step(self, action):
        """Push for a moment; at rest, the reward is 1."""
        place, speed = self.state
        speed += 0.05 * (float(action[0]) - place)
        self.time, self.state = self.time + 1, np.array([place + 0.05 * speed, speed])
        reward = float(np.exp(-np.square(self.state).sum()))
        return self.state.astype(np.float32), reward, False, self.time == 200, {}


def play(run: str, seed: int = 0) -> float:
    """The return of one episode with the agent of a run."""
    env = Spring()
    policy = gpld.load(run, env=env)  # takes what the environment observes, acts within its bounds
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action = policy.act(obs, deterministic=True)
        for _ in range(policy.config.env.action_repeat):
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
            if over:
                break
    return total


def main() -> None:
    """Check, train and play."""
    parser = argparse.ArgumentParser(description="Train on a spring, and hold it at rest.")
    parser.add_argument("--env-steps", type=int, default=10_000)
    parser.add_argument("--run", default="runs/spring", help="folder of the run")
    options = parser.parse_args()
    for issue in check(Spring):
        print(issue)
    config = with_presets(Config("gym:Spring-v0"), ["nano", "cpu"])
    train(override(config, {"env_steps": options.env_steps}), options.run, task=Spring)
    print(f"return of an episode: {play(options.run):.1f}")


if __name__ == "__main__":
    main()
