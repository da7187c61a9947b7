"""A short run of the preset nano on a task of every family that EnvPool has for one agent."""

import numpy as np
import pytest

from gpld.config import Config, ConfigError, override, with_presets
from gpld.envs._families import PoolTask
from gpld.training import train
from tests.envs.helpers import need
from tests.training.helpers import contents, differing, lines

need("envpool")

TASKS = (
    "Pong-v5",
    "CarRacing-v3",
    "LunarLander-v3",
    "CartPole-v1",
    "gfootball/academy_empty_goal-v1",
    "Highway-v0",
    "Snake-v1",
    "Play2048-v1",
    "Craftax-Classic-Symbolic-v1",
    "MarlGrid-1AgentCluttered15x15-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "FishSwim-v1",
    "Ant-v4",
    "MetaWorld/Reach-v3",
    "myoElbowPose1D6MRandom-v0",
    "Go1JoystickFlatTerrain-v1",
    "FrankaKitchen-v1",
    "CoinrunEasy-v0",
    "FrozenLake-v1",
    "Basic-v1",
)

SHORT = {
    "env_steps": 120,
    "env": {"count": 2},
    "replay": {
        "capacity": 200,
        "batch": 2,
        "length": 16,
        "min_steps": 40,
        "train_ratio": 8.0,
        "storage": "device",
    },
    "eval": {"every": 30, "episodes": 1, "limit": 10},
    "log": {"every": 1, "tensorboard": False},
}
"""60 agent steps and 5 updates."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_trains_and_goes_on_to_the_bit(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where ViZDoom writes files
    monkeypatch.setattr("gpld.envs._envpool.LIFETIME", 15)
    task = f"envpool:{name}"
    try:
        PoolTask(task)
    except ConfigError as missing:
        pytest.skip(str(missing))
    config = override(with_presets(Config(task), ["nano"]), SHORT)
    assert train(config, tmp_path / "straight").finished
    found = lines(tmp_path / "straight")
    losses = [line["loss/total"] for line in found if "loss/total" in line]
    assert len(losses) == 5
    assert np.isfinite(losses).all()
    train(override(config, {"env_steps": 100}), tmp_path / "resumed")
    assert train(config, tmp_path / "resumed").finished
    assert differing(contents(config, tmp_path / "straight"), contents(config, tmp_path / "resumed")) == []
