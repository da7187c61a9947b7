"""DreamerV3 and GPLD learn a task side by side: several seeds of both in one program, by `jax.vmap`.

    python benchmarks/learning.py --task cartpole-swingup --seeds 3 --preset 12m gpu --env-steps 100000

Writes a JSON of the learning curves as it goes, so that it may be stopped at any time (or by --seconds).
"""

import dataclasses
import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from gpld import agent, envs, replay
from gpld.config import Config, with_presets
from gpld.training import _program
from gpld.training.provenance import provenance


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    task: str = "cartpole-swingup"
    """A task of the suite."""
    seeds: int = 3
    """Seeds of each method."""
    preset: tuple[str, ...] = ("12m", "gpu")
    """Presets of the runs."""
    env_steps: int = 100_000
    """Env steps of each run."""
    seconds: float = float("inf")
    """Stop after this time."""
    eval_every: int = 5000
    """Agent steps between evaluations."""
    episodes: int = 3
    """Episodes of each evaluation and run."""
    out: Path = Path("results")
    """Folder for the JSON."""


class Population:
    """R runs with a leading run axis everywhere: first all seeds of DreamerV3, then all of GPLD."""

    def __init__(self, config: Config, seeds: int):
        self.config, self.runs = config, 2 * seeds
        self.env = envs.make(config.task, count=self.runs * config.env.count, seed=config.seed)
        spaces, sizes = self.env.spaces, config.agent.model
        keys = [_program.Keys.of(seed) for _ in ("DreamerV3", "GPLD") for seed in range(seeds)]
        self.keys = _program.Keys(*(jnp.stack(list(key)) for key in zip(*keys, strict=True)))
        weight = jnp.repeat(jnp.array([0.0, config.agent.penalty.posterior]), seeds)
        state = jax.jit(jax.vmap(partial(agent.init, config.agent, spaces)))(self.keys.agent)
        self.state = state._replace(hyper=state.hyper._replace(posterior=weight))
        slots = replay.slots_for(
            config.replay.capacity, config.agent_steps, config.env.count, config.replay.length
        )
        empty = replay.init(spaces, config.env.count, slots, sizes.deter, sizes.stoch, config.agent.compute)
        self.memory = jax.tree.map(self._repeat, empty)
        self.carry = self.init_carry(config.env.count)
        self.sums = jax.tree.map(self._repeat, _program.zero_sums(config, spaces))

    def _repeat(self, x):
        return jnp.broadcast_to(x, (self.runs, *x.shape)).copy()

    def init_carry(self, streams: int) -> agent.Carry:
        """A carry for `streams` environments of every run."""
        return jax.tree.map(self._repeat, agent.init_carry(self.config.agent, self.env.spaces, streams))

    def by_run(self, step: envs.Step) -> envs.Step:
        """A step of all streams, split by run."""
        return jax.tree.map(lambda x: x.reshape(self.runs, -1, *x.shape[1:]), step)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def act(config, model, memory, carry, step, keys, index):
    """Act and remember, in every run."""

    def one(model, memory, carry, step, key):
        carry = agent.act(config, model, carry, step.obs, step.is_first, jax.random.fold_in(key, index))
        record = replay.Record(**step._asdict(), action=carry.action, latent=carry.latent)
        return replay.append(memory, record), carry

    return jax.vmap(one)(model, memory, carry, step, keys)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def learn(config, updates, trained, keys):
    """Updates in every run."""

    def one(trained, key):
        return _program._learn(config.agent, config.replay, updates, trained, key)

    return jax.vmap(one)(trained, keys)


@partial(jax.jit, static_argnums=0)
def evaluation_act(config, model, carry, step, keys, index):
    """Act, in every run."""

    def one(model, carry, step, key):
        return agent.act(config, model, carry, step.obs, step.is_first, jax.random.fold_in(key, index))

    return jax.vmap(one)(model, carry, step, keys)


def evaluate(runs: Population, episodes: int, number: int) -> list[float]:
    """Mean return of every run."""
    config, count = runs.config, runs.runs * episodes
    seed = envs.stream_seed(config.seed, number, evaluation=True)
    carry, index = runs.init_carry(episodes), 0
    returns, done = np.zeros(count), np.zeros(count, bool)
    with envs.make(config.task, count=count, seed=seed, evaluation=True) as env:
        action = np.zeros((count, env.spaces.actions), np.float32)
        while not done.all():
            step = env.step(action)
            returns += np.where(done, 0, step.reward)
            done |= step.is_last
            carry = evaluation_act(
                config.agent, runs.state.model, carry, runs.by_run(step), runs.keys.evaluate, index
            )
            action = np.asarray(carry.action).reshape(count, -1)
            index += 1
    return returns.reshape(runs.runs, episodes).mean(1).tolist()


def main(options: Options) -> None:
    """Train all runs, and write their curves."""
    config = with_presets(Config(task=options.task, env_steps=options.env_steps), options.preset)
    runs, count = Population(config, options.seeds), config.env.count
    curve, iterations, updates, begin = [], 0, 0, time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    runs.env.send(np.zeros((runs.runs * count, runs.env.spaces.actions), np.float32))
    while iterations * count < config.agent_steps and time.monotonic() - begin < options.seconds:
        step = runs.by_run(runs.env.recv())
        runs.memory, runs.carry = act(
            config.agent, runs.state.model, runs.memory, runs.carry, step, runs.keys.act, iterations
        )
        before, iterations = iterations * count, iterations + 1
        action, steps = runs.carry.action, iterations * count
        if due := config.updates_at(steps) - updates:
            trained = (runs.state, runs.memory, runs.sums)
            runs.state, runs.memory, runs.sums = learn(config, due, trained, runs.keys.sample)
            updates += due
        runs.env.send(np.asarray(action).reshape(runs.runs * count, -1))
        if before // options.eval_every != steps // options.eval_every:
            row = {"env_steps": steps * config.env.action_repeat, "updates": updates}
            row["seconds"] = round(time.monotonic() - begin, 1)
            row["returns"] = evaluate(runs, options.episodes, steps)
            totals = jax.device_get(runs.sums)
            done = updates - (curve[-1]["updates"] if curve else 0)
            row["jacobian"] = (totals["loss/penalty_posterior"] / max(done, 1)).tolist()
            row["skipped"] = np.asarray(runs.state.skipped).tolist()
            runs.sums = jax.tree.map(jnp.zeros_like, runs.sums)
            curve.append(row)
            print(json.dumps(row), flush=True)
            _write(options, runs, curve)
    runs.env.close()


def _write(options: Options, runs: Population, curve: list[dict]) -> None:
    record = {
        "task": options.task,
        "methods": ["DreamerV3"] * options.seeds + ["GPLD"] * options.seeds,
        "posterior": np.asarray(runs.state.hyper.posterior).tolist(),
        "curve": curve,
        "options": str(options),
        "provenance": provenance(),
    }
    (options.out / f"learning-{options.task}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
