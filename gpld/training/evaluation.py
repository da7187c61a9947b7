"""Playing episodes with a trained model, without touching anything that training uses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from gpld import agent, envs
from gpld.agent import Carry, Model
from gpld.config import AgentConfig, Config
from gpld.envs import Step, VectorEnv


def evaluate(
    config: Config,
    model: Model,
    *,
    episodes: int,
    number: int,
    key: PRNGKeyArray,
    task: Callable[[], Any] | None = None,
) -> list[float]:
    """Returns of `episodes` episodes, played side by side in environments made for it.

    `number` tells evaluations of one run apart: the same one starts from the same states. `task` is a
    factory, as `train` takes it.
    """
    with make(config, episodes, number, task=task) as env:
        return play(config.agent, model, env, key)


def make(
    config: Config, count: int, number: int, *, task: Callable[[], Any] | None = None, render: bool = False
) -> VectorEnv:
    """Environments for evaluation `number`, whose seeds are never those of training."""
    return envs.make(
        task or config.task,
        count=count,
        seed=envs.stream_seed(config.seed, number, evaluation=True),
        action_repeat=config.env.action_repeat,
        # Only some backends draw pictures.
        backend="auto" if render else config.backend,
        threads=config.env.threads,
        evaluation=True,
        render=render,
        timeout=config.env.timeout,
        restart_limit=config.env.restarts,
        check=False,  # training's were checked
    )


def play(
    config: AgentConfig,
    model: Model,
    env: VectorEnv,
    key: PRNGKeyArray,
    watch: Callable[[Step], None] | None = None,
) -> list[float]:
    """Returns of the first episode of every stream. `watch(step)` is called after each step of all."""
    carry = agent.init_carry(config, env.spaces, env.count)
    action = np.zeros((env.count, env.spaces.actions), np.float32)
    returns, done, index = np.zeros(env.count), np.zeros(env.count, bool), 0
    while not done.all():
        step = env.step(action)
        returns += np.where(done, 0, step.reward)
        done |= step.is_last
        if watch:
            watch(step)
        carry = _act(config, model, carry, step, jax.random.fold_in(key, index))
        action = np.asarray(carry.action)
        index += 1
    return returns.tolist()


@partial(jax.jit, static_argnums=0)
def _act(config: AgentConfig, model: Model, carry: Carry, step: Step, key: PRNGKeyArray) -> Carry:
    return agent.act(config, model, carry, step.obs, step.is_first, key)
