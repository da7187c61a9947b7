"""The checker of environments written in JAX."""

import numpy as np

from gpld.config import ConfigError
from gpld.envs._base import EnvironmentFailure
from gpld.envs._gymnasium import Issue
from gpld.envs._jax import FRAMES, JaxEnv, jax_task


def check_jax(task: str, steps: int, seed: int) -> list[Issue]:
    """What is wrong with an environment, tried with two seeds and random actions, extreme ones among them."""
    try:
        streams = jax_task(task, action_repeat=1, limit=FRAMES)
    except (ConfigError, EnvironmentFailure) as error:
        return [Issue("error", "reset", str(error))]
    issues, rng, lengths, length = [], np.random.default_rng(seed), [], 0
    with JaxEnv(streams, [seed, seed + 1], restart_limit=2 * steps) as env:
        for t in range(steps):
            action = rng.uniform(-1, 1, (2, env.spaces.actions)).astype(np.float32)
            step = env.step(np.sign(action) if t % 4 == 0 else action)
            alike = all(np.array_equal(value[0], value[1]) for value in step.obs.values())
            if t == 0 and alike:
                problem = f"seeds {seed} and {seed + 1} start alike: does reset use its key?"
                issues.append(Issue("warning", "seed", problem))
            length = 0 if step.is_first[0] else length + 1
            if step.is_last[0]:
                lengths.append(length)
    if env.faults:
        issues.append(Issue("error", "step", str(env.faults[0])))
    if len(lengths) > 2 and max(lengths) <= 1:
        issues.append(Issue("error", "episode", "all end at their first step: does reset clear the end?"))
    return issues
