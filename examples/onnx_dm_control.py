"""A trained agent in dm_control with NumPy and ONNX Runtime alone: neither JAX nor gpld is needed here.

gpld export RUN --out agent                  # where it was trained
pip install dm_control onnxruntime           # where it acts
python examples/onnx_dm_control.py agent --episodes 20
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Agent:
    """An exported step, and the state that it hands on."""

    def __init__(self, folder: Path, seed: int = 0):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1  # more threads cost more than they save in so small a graph
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(folder / "policy.onnx", settings, providers=providers)
        self.about = json.loads((folder / "policy.onnx.json").read_text())
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self.state = np.zeros(self.about["inputs"]["state"]["shape"], np.float32)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """The action for an observation, in [-1, 1]."""
        given = {f"obs.{name}": np.asarray(value, np.float32) for name, value in observation.items()}
        for name, noise in self.about["inputs"].items():  # a deterministic agent has none
            if name.startswith("noise."):
                uniform = noise.get("high") is not None  # null in files of older versions
                draw = self.rng.random if uniform else self.rng.standard_normal
                given[name] = np.asarray(draw(noise["shape"]), np.float32)
        action, self.state = self.session.run(None, {**given, "state": self.state})
        return action


def play(agent: Agent, env) -> float:
    """The return of one episode."""
    bounds, total = env.action_spec(), 0.0
    agent.reset()
    step = env.reset()
    while not step.last():
        action = agent.act(step.observation)
        scaled = bounds.minimum + (action + 1) / 2 * (bounds.maximum - bounds.minimum)
        for _ in range(agent.about["action_repeat"]):
            step = env.step(scaled)
            total += step.reward
            if step.last():
                break
    return total


def opened(folder: Path, seed: int) -> tuple[Agent, Any]:
    """The agent in a folder, and its environment."""
    for name in ("policy.onnx", "policy.onnx.json"):
        if not (folder / name).is_file():
            raise SystemExit(f"folder: {folder} has no {name}; gpld export RUN --out {folder} writes it")
    from dm_control import suite  # it may warn of a missing display

    agent = Agent(folder, seed)
    domain, _, task = agent.about["task"].partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        raise SystemExit(f"folder: the agent in {folder} is for {agent.about['task']}, not for the suite")
    env = suite.load(domain, task, task_kwargs={"random": seed})
    if not agent.about["inputs"].keys() >= {f"obs.{name}" for name in env.observation_spec()}:
        raise SystemExit(f"folder: the agent in {folder} sees images, and this example gives it states")
    return agent, env


def main() -> None:
    """Play episodes of the task that the agent was trained on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with policy.onnx and policy.onnx.json")
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    agent, env = opened(options.folder, options.seed)
    returns = [play(agent, env) for _ in range(options.episodes)]
    print(*(f"{value:.1f}" for value in returns))
    print(f"mean {np.mean(returns):.1f} of {len(returns)} episodes")


if __name__ == "__main__":
    main()
