"""Options in which the runs of one program may differ: the list that groups runs and fills programs."""

import copy
from collections.abc import Mapping
from typing import Any

from gpld.config._options import AgentConfig

ARRAYS = ("optimizer.learning_rate", "behavior.entropy", "penalty.floor")
"""Numbers of an agent that every program takes as arrays."""

NUMBERS = (
    *ARRAYS,
    "loss.reconstruction",
    "loss.reward",
    "loss.cont",
    "loss.dyn",
    "loss.rep",
    "loss.free_nats",
    "behavior.discount_horizon",
    "behavior.trace",
    "behavior.slow_rate",
    "behavior.slow_weight",
    "behavior.replay_value",
    "behavior.return_rate",
    "behavior.return_low",
    "behavior.return_high",
    "behavior.return_limit",
    "optimizer.behavior_rate",
    "optimizer.warmup",
    "optimizer.clip",
    "optimizer.clip_floor",
    "optimizer.eps",
    "penalty.scale",
    "penalty.start",
    "penalty.decay_steps",
    "penalty.step_interval",
    "penalty.step_factor",
)
"""Numbers of an agent that only its arithmetic reads. Those besides `ARRAYS` are constants where runs agree:
a run with neighbours like itself is compiled as one without.
"""

PER_RUN = (
    "seed",
    *(f"agent.{name}" for name in ("penalty.posterior", "penalty.prior", "penalty.scaling", *NUMBERS)),
)
"""Options in which runs of one program may differ."""


def with_numbers(config: AgentConfig, numbers: Mapping[str, Any]) -> AgentConfig:
    """`config` with arrays of a program in place of some `NUMBERS`, by name. It is for arithmetic alone."""
    filled = copy.copy(config)
    for name, value in numbers.items():
        group, _, option = name.partition(".")
        part = copy.copy(getattr(filled, group))
        object.__setattr__(part, option, value)  # past the types of options, which arrays do not have
        object.__setattr__(filled, group, part)
    return filled
