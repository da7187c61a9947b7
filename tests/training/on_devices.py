"""What `test_devices.py` runs where JAX has several devices, or several processes: short runs.

python -m tests.training.on_devices FOLDER NAME=RUNSxDEVICES ...
"""

import json
import os
import sys
from pathlib import Path

import jax

from gpld import population
from gpld.config import override
from gpld.training import train_all
from tests.training.helpers import Pole
from tests.training.test_loop import pole

QUICK = {
    "env_steps": 800,
    "log": {"every": 3},
    "eval": {"every": 200},
    # So small that rounding is not amplified: LaProp's steps are as large whatever the gradient.
    "agent": {"optimizer": {"learning_rate": 1e-7}},
}


def members(folder: Path, runs: int) -> list[population.Member]:
    """Seeds of one method."""
    return population.members(override(pole(), QUICK), range(runs), ["gpld"], folder)


def main(folder: str, *specs: str) -> None:
    """Train each of the populations asked for."""
    if coordinator := os.environ.get("COORDINATOR"):
        jax.distributed.initialize(coordinator, int(os.environ["PROCESSES"]), int(os.environ["PROCESS"]))
    for spec in specs:
        name, asked = spec.split("=")
        runs, devices = map(int, asked.split("x"))
        results = train_all(members(Path(folder) / name, runs), task=Pole, devices=devices)
        print(json.dumps([name, jax.device_count(), [result.finished for result in results]]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
