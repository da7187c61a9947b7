"""The compiled programs of training: `act`, which also appends to the replay, and `learn`.

Environments written in JAX are stepped by the first of them: `step_and_act`.

Every array has a leading run axis, also where there is only one run. Everything random is drawn from fixed
keys and counters, so a resumed run draws what it would have drawn, whatever is trained beside it.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from gpld import agent, replay
from gpld.agent import AgentState, Carry, Hyper, Model
from gpld.config import ARRAYS, NUMBERS, AgentConfig, Config, ReplayConfig, flat
from gpld.envs import EnvState, JaxTask, Step
from gpld.replay import Choice, Record, Replay
from gpld.training._devices import each_run, on_all, place, sharding, share_batch
from gpld.training._program_cache import CachedProgram, Shapes, cached_shapes
from gpld.types import Batch, Latent, Spaces

RunKeys = Key[Array, "R"]
"""A random key of each run."""

Sums = dict[str, Float[Array, "*R"]]


class TrainState(NamedTuple):
    """Everything on the device that changes during training."""

    agent: AgentState
    carry: Carry
    replay: Replay
    sums: Sums
    """Metrics summed over the updates since they were last logged."""
    envs: EnvState | None = None
    """Environments written in JAX; others are not on the device."""


class Seen(NamedTuple):
    """What the host is told of a step that stayed on the device."""

    reward: Float[Array, "R N"]
    is_last: Bool[Array, "R N"]
    faults: Int[Array, "R"]
    """Faults of the environments since the run began."""
    finite: Bool[Array, "R"]
    """Whether all actions were."""


class RandomKeys(NamedTuple):
    """One key for every use of random numbers; of several runs, `[R]`."""

    agent: PRNGKeyArray
    act: PRNGKeyArray
    sample: PRNGKeyArray
    evaluate: PRNGKeyArray

    @classmethod
    def of(cls, seed: int) -> "RandomKeys":
        """The keys of a run."""
        return cls(*jax.random.split(jax.random.key(seed), 4))

    @classmethod
    def of_all(cls, seeds: Sequence[int]) -> "RandomKeys":
        """The keys of several runs, each as if it were alone."""
        return stack([cls.of(seed) for seed in seeds])


@jax.jit
def stack(runs: Sequence[PyTree]) -> PyTree:
    """Trees of single runs as one with a run axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *runs)


def init(
    config: Config, spaces: Spaces, storage: replay.Storage, runs: Sequence[Config], mesh: Mesh | None = None
) -> TrainState:
    """Fresh agents and empty replays. `config` is what the runs share."""
    keys = RandomKeys.of_all([run.seed for run in runs])
    carry = jax.eval_shape(partial(agent.init_carry, config.agent, spaces, config.env.count))
    metrics = cached_shapes(metric_shapes, config.agent, config.replay, spaces)
    carry, sums = jax.tree.map(jnp.array, _zeros((carry, metrics), len(runs)))
    return TrainState(
        _init_agents(config.agent, spaces, mesh, place(keys.agent, mesh), place(hyper(runs), mesh)),
        place(carry, mesh),
        empty_replay(config, spaces, storage, len(runs), mesh),
        place(sums, mesh),
    )


def restore(
    configs: Sequence[Config],
    runs: Sequence[dict[str, PyTree]],
    memory: Replay,
    metrics: Sequence[str],
    storage: replay.Storage,
    mesh: Mesh | None = None,
) -> TrainState:
    """The state of training from the checkpoint of each run, without a run axis. `memory` is on the host.

    Hyperparameters are those of `configs`. `metrics` are all that the program sums; a run's checkpoint has
    none of a penalty that only its neighbours have.
    """
    sums = [{name: run["sums"].get(name, jnp.float32(0)) for name in metrics} for run in runs]
    trees = [(run["agent"], run["carry"], own) for run, own in zip(runs, sums, strict=True)]
    state, carry, totals = place(stack(trees), mesh)
    state = state._replace(hyper=place(hyper(configs), mesh))
    if storage == "device":
        memory = jax.tree.map(jnp.array, memory) if mesh is None else place(memory, mesh)
    return TrainState(state, carry, memory, totals)


def hyper(runs: Sequence[Config]) -> Hyper:
    """Hyperparameters, which may differ between runs of one program, `[R]`."""
    values = [flat(run.agent) for run in runs]
    names = [name for name in NUMBERS if name in ARRAYS or len({own[name] for own in values}) > 1]
    return stack([Hyper.of(run.agent, names) for run in runs])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _init_agents(
    config: AgentConfig, spaces: Spaces, mesh: Mesh | None, keys: RunKeys, values: Hyper
) -> AgentState:
    def one(key: PRNGKeyArray, values: Hyper) -> AgentState:
        return agent.init(config, spaces, key)._replace(hyper=values)

    return each_run(one, mesh)(keys, values)


def empty_replay(
    config: Config, spaces: Spaces, storage: replay.Storage, runs: int, mesh: Mesh | None = None
) -> Replay:
    """An empty replay of all runs."""
    shapes = jax.eval_shape(partial(replay.for_run, config, spaces))
    if storage == "host":
        return _zeros(shapes, runs)
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((runs, *x.shape), x.dtype), shapes)
    return jax.jit(lambda: jax.tree.map(jnp.zeros_like, many), out_shardings=sharding(mesh))()


def _zeros(shapes: PyTree, runs: int) -> PyTree:
    """Zeros for every run, in host memory, where nothing has to be compiled for them."""
    return jax.tree.map(lambda x: np.zeros((runs, *x.shape), x.dtype), shapes)


def metric_shapes(config: AgentConfig, options: ReplayConfig, spaces: Spaces) -> Shapes:
    """Shapes of the metrics of one run's update."""

    def one(key: PRNGKeyArray) -> Sums:
        sizes = config.model
        empty = replay.init(spaces, 1, options.length + 1, sizes.deter, sizes.stoch, config.compute)
        batch = replay.sample(empty, key, options.batch, options.length)[1]
        return _traced_update(config, agent.init(config, spaces, key), batch)[2]

    return jax.eval_shape(one, jax.random.key(0))


def own_metrics(config: Config, names: Sequence[str]) -> list[str]:
    """Metrics that a run has alone: without those of a penalty that only its neighbours have."""
    off = [f"penalty_{x}" for x in ("posterior", "prior") if not getattr(config.agent.penalty, x)]
    return [name for name in names if not name.endswith(tuple(off))]


def act(
    config: Config, state: TrainState, step: Step, index: int, keys: RunKeys, mesh: Mesh | None = None
) -> TrainState:
    """Observe the `index`-th step of all environments, `[R, N, ...]`, choose actions, and append both."""
    number = np.int32(index)
    if state.replay.host:
        carry, record = _act(config.agent, mesh, state.agent.model, state.carry, step, keys, number)
        record = jax.tree.map(np.asarray, record)
        memory = [
            replay.append(run, jax.tree.map(lambda x, r=r: x[r], record))
            for r, run in enumerate(replay.split(state.replay))
        ]
        return state._replace(carry=carry, replay=replay.join(state.replay, memory))
    memory, carry = _act_and_append(
        config.agent, mesh, state.agent.model, state.replay, state.carry, step, keys, number
    )
    return state._replace(carry=carry, replay=memory)


def step_and_act(
    config: Config, state: TrainState, task: JaxTask, index: int, keys: RunKeys, mesh: Mesh | None = None
) -> tuple[TrainState, Seen]:
    """Step environments written in JAX with the last actions, and then `act`: nothing leaves the device."""
    number = np.int32(index)
    if state.replay.host:
        envs, step = _step(task, mesh, state.envs, state.carry)
        state = act(config, state._replace(envs=envs), step, index, keys, mesh)
        return state, _seen(envs, step, state.carry)
    memory, envs, carry, seen = _step_act_and_append(
        config.agent, task, mesh, state.agent.model, state.replay, state.envs, state.carry, keys, number
    )
    return state._replace(replay=memory, envs=envs, carry=carry), seen


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _step(task: JaxTask, mesh: Mesh | None, envs: EnvState, carry: Carry) -> tuple[EnvState, Step]:
    return each_run(task.step, mesh)(envs, carry.action)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4, 5))
def _step_act_and_append(
    config: AgentConfig,
    task: JaxTask,
    mesh: Mesh | None,
    model: Model,
    memory: Replay,
    envs: EnvState,
    carry: Carry,
    keys: RunKeys,
    index: Int[Array, ""] | np.int32,
) -> tuple[Replay, EnvState, Carry, Seen]:
    # As if the step came from outside: then the same code, and rounding, as where the replay is on the host.
    envs, step = jax.lax.optimization_barrier(_step(task, mesh, envs, carry))
    memory, carry = _act_and_append(config, mesh, model, memory, carry, step, keys, index)
    return memory, envs, carry, _seen(envs, step, carry)


@jax.jit
def _seen(envs: EnvState, step: Step, carry: Carry) -> Seen:
    finite = jnp.isfinite(carry.action).all(axis=(1, 2))
    return Seen(step.reward, step.is_last, envs.faults.sum(axis=1), finite)


@partial(jax.jit, static_argnums=(0, 1))
def _act(
    config: AgentConfig,
    mesh: Mesh | None,
    model: Model,
    carry: Carry,
    step: Step,
    keys: RunKeys,
    index: Int[Array, ""] | np.int32,
) -> tuple[Carry, Record]:
    def one(model: Model, carry: Carry, step: Step, key: PRNGKeyArray) -> tuple[Carry, Record]:
        carry = agent.act(config, model, carry, step.obs, step.is_first, key)
        return carry, Record(**step._asdict(), action=carry.action, latent=carry.latent)

    return each_run(one, mesh)(model, carry, step, fold_in(keys, index))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _act_and_append(
    config: AgentConfig,
    mesh: Mesh | None,
    model: Model,
    memory: Replay,
    carry: Carry,
    step: Step,
    keys: RunKeys,
    index: Int[Array, ""] | np.int32,
) -> tuple[Replay, Carry]:
    carry, record = _act(config, mesh, model, carry, step, keys, index)
    return each_run(replay.append, mesh)(memory, record), carry


@jax.jit
def fold_in(keys: RunKeys, numbers: Int[Array | np.ndarray, "..."] | np.int32) -> RunKeys:
    """A new key for each of R runs, from a number for all of them or for each."""
    return jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(numbers, keys.shape))


def learn(
    config: Config, state: TrainState, updates: int, keys: RunKeys, mesh: Mesh | None = None
) -> TrainState:
    """`updates` updates of every run, each on a fresh batch whose latents are written back."""
    trained = (state.agent, state.replay, state.sums)
    if state.replay.host:
        trained = _learn_from_host(config.agent, config.replay, updates, mesh, trained, keys)
    elif state.replay.spaces.images and jax.default_backend() == "cpu":
        for _ in range(updates):
            trained = _learn_once(config.agent, config.replay, mesh, trained, keys)
    else:
        program = _learn if mesh is None else _learn.jitted
        trained = program(config.agent, config.replay, updates, mesh, trained, keys)
    return state._replace(agent=trained[0], replay=trained[1], sums=trained[2])


_Trained = tuple[AgentState, Replay, Sums]


@partial(CachedProgram, static=4)
def _learn(
    config: AgentConfig,
    options: ReplayConfig,
    updates: int,
    mesh: Mesh | None,
    trained: _Trained,
    keys: RunKeys,
) -> _Trained:
    def all_updates(trained: _Trained, key: PRNGKeyArray) -> _Trained:
        once = partial(_sample_and_update, config, options, mesh, key=key)
        return jax.lax.fori_loop(0, updates, lambda _, trained: once(trained), trained)

    return each_run(all_updates, mesh)(trained, keys)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def _learn_once(
    config: AgentConfig, options: ReplayConfig, mesh: Mesh | None, trained: _Trained, keys: RunKeys
) -> _Trained:
    """An update outside of any loop: in one, XLA's CPU gradients of convolutions are far slower."""
    return each_run(partial(_sample_and_update, config, options, mesh), mesh)(trained, keys)


def _sample_and_update(
    config: AgentConfig, options: ReplayConfig, mesh: Mesh | None, trained: _Trained, key: PRNGKeyArray
) -> _Trained:
    state, memory, sums = trained
    draw = jax.random.fold_in(key, state.updates)
    memory, batch, indices = replay.sample(memory, draw, options.batch, options.length, options.online)
    state, latents, sums = _update(config, mesh, state, sums, batch)
    memory = replay.write_back(memory, indices, latents, state.skipped_in_row == 0)
    return on_all((state, memory, sums), mesh)


def _learn_from_host(
    config: AgentConfig,
    options: ReplayConfig,
    updates: int,
    mesh: Mesh | None,
    trained: _Trained,
    keys: RunKeys,
) -> _Trained:
    """Updates from host memory: the next batch, but for its first latents, is read during an update."""
    state, memory, sums = trained
    runs, choices = _choose_all(options, updates, replay.split(memory), state.updates, keys)
    rows = list(map(replay.read, runs, choices[0]))
    for chosen, following in zip(choices, [*choices[1:], None], strict=True):
        batches = place(stack(list(map(replay.complete, runs, chosen, rows))), mesh)
        state, latents, sums = _update_all(config, mesh, state, sums, batches)
        if following:
            rows = list(map(replay.read, runs, following))
        latents, skipped = jax.device_get((latents, state.skipped_in_row))
        runs = [
            replay.write_back(
                run, choice.indices, jax.tree.map(itemgetter(r), latents), bool(skipped[r] == 0)
            )
            for r, (run, choice) in enumerate(zip(runs, chosen, strict=True))
        ]
    return state, replay.join(memory, runs), sums


def _choose_all(
    options: ReplayConfig, updates: int, runs: Sequence[Replay], done: Int[Array, "R"], keys: RunKeys
) -> tuple[Sequence[Replay], list[list[Choice]]]:
    """The batches of the next updates of each run, chosen before the device is busy with the first."""
    choices = []
    for index in range(updates):
        draws = fold_in(keys, done + np.int32(index))
        pairs = [
            replay.choose(run, draws[r], options.batch, options.length, options.online)
            for r, run in enumerate(runs)
        ]
        runs = [run for run, _ in pairs]
        choices.append([choice for _, choice in pairs])
    return runs, choices


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def _update_all(
    config: AgentConfig, mesh: Mesh | None, state: AgentState, sums: Sums, batches: Batch
) -> tuple[AgentState, Latent, Sums]:
    def one(*run: PyTree) -> tuple[AgentState, Latent, Sums]:
        # As if the batch had just been gathered: then the same code, and rounding, as where it is.
        return on_all(_update(config, mesh, *jax.lax.optimization_barrier(run)), mesh)

    return each_run(one, mesh)(state, sums, batches)


def _update(
    config: AgentConfig, mesh: Mesh | None, state: AgentState, sums: Sums, batch: Batch
) -> tuple[AgentState, Latent, Sums]:
    state, latents, metrics = _traced_update(config, state, share_batch(batch, mesh))
    return state, latents, jax.tree.map(jnp.add, sums, metrics)


# Tracing takes seconds: this does it once, for the shapes of metrics and for the programs that learn.
_traced_update = jax.jit(agent.update, static_argnums=0)
