"""Evaluation: playing episodes with trained models, apart from the environments of training."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray

from gpld import agent, envs
from gpld.agent import Carry, Model
from gpld.config import AgentConfig, Config
from gpld.envs import EnvironmentFailure, Fleet, Hosts, Step, VectorEnv
from gpld.pictures import Picture, coloured
from gpld.training._devices import each_run, padded, place
from gpld.training._program import RunKeys, fold_in

log = logging.getLogger(__name__)

EnvFactory = Callable[[], Any]
"""Makes a Gymnasium environment of the user's own."""


def evaluate(
    config: Config,
    model: Model,
    *,
    episodes: int,
    number: int,
    key: PRNGKeyArray,
    task: EnvFactory | None = None,
    watch: Callable[[Step], None] = lambda step: None,
) -> list[float]:
    """Returns of `episodes` episodes, played side by side in environments made for it.

    `number` tells evaluations of one run apart: the same one starts from the same states. `task` is a
    factory, as `train` takes it; `watch(step)` is called after each step, whose arrays are
    `[1, episodes, ...]`. What it raises ends the evaluation.
    """
    model, keys = jax.tree.map(lambda x: x[None], (model, key))
    played = {"episodes": episodes, "number": number, "task": task, "watch": watch}
    return evaluate_all([config], model, keys=keys, **played)[0]


def evaluate_all(
    configs: Sequence[Config],
    model: Model,
    *,
    episodes: int,
    number: int,
    keys: RunKeys,
    task: EnvFactory | None = None,
    mesh: Mesh | None = None,
    watch: Callable[[Step], None] = lambda step: None,
    hosts: Sequence[Hosts] = (),
) -> list[list[float]]:
    """`evaluate` for R runs at once; `model` and `keys` have a leading run axis.

    `watch(step)` is called after each step of all, whose arrays are `[R, episodes, ...]`. `hosts`, of each
    run, keep the processes of its environments for the next time.
    """
    share, hosts_of = len(configs), hosts or [None] * len(configs)
    runs = [
        make_env(config, episodes, number, task=task, share=share, hosts=own)
        for config, own in zip(configs, hosts_of, strict=True)
    ]
    with Fleet(runs) as fleet:
        return _play(configs[0].agent, model, fleet, keys, watch, mesh, configs[0].eval.limit)


class Played(NamedTuple):
    """What an evaluation of R runs gave."""

    returns: list[list[float]]
    """Returns of each run's episodes."""
    images: list[dict[str, list[Picture]]]
    """Images that each run has seen in its first episode, by their names."""


class _Stopped(Exception):  # noqa: N818
    """The evaluation is not wanted any more."""


class Evaluator:
    """Evaluates R runs in a thread, one evaluation at a time, while they are trained.

    The thread makes the environments, steps and closes them, so that an evaluation gives what it would give
    in the training thread. It ends without a result once `stopped()`, which is asked after each step.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        task: EnvFactory | None,
        mesh: Mesh | None,
        stopped: Callable[[], bool],
    ):
        self._configs, self._task, self._mesh, self._stopped = configs, task, mesh, stopped
        self._hosts = [Hosts() for _ in configs]
        """Processes that evaluations use one after the other."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")
        self._playing: Future[Played] | None = None
        self._closed = False

    def begin(self, model: Model, number: int, keys: RunKeys, images: Sequence[str]) -> None:
        """Begin evaluation `number`, and record these images. Nobody may donate the model meanwhile."""
        self._playing = self._thread.submit(self._play, model, number, keys, images)

    @property
    def busy(self) -> bool:
        """Whether `result` would wait."""
        return self._playing is not None and not self._playing.done()

    def result(self) -> Played | None:
        """What the evaluation gave, or None if it was stopped; waits for it, and raises what it raised."""
        try:
            return self._playing and self._playing.result()
        except _Stopped:
            return None

    def _play(self, model: Model, number: int, keys: RunKeys, images: Sequence[str]) -> Played:
        recording = Recording(images, len(self._configs))

        def watch(step: Step) -> None:
            recording(step)
            if self._closed or self._stopped():
                raise _Stopped

        returns = evaluate_all(
            self._configs,
            model,
            episodes=self._configs[0].eval.episodes,
            number=number,
            keys=keys,
            task=self._task,
            mesh=self._mesh,
            watch=watch,
            hosts=self._hosts,
        )
        return Played(returns, recording.images)

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._thread.shutdown()
        for hosts in self._hosts:
            hosts.close()


class Recording:
    """The images that each of R runs observes in its first episode: a `watch` of `evaluate_all`."""

    def __init__(self, names: Sequence[str], runs: int):
        self.images: list[dict[str, list[Picture]]] = [{name: [] for name in names} for _ in range(runs)]
        """Images of each run, by their names."""
        self._ended = np.zeros(runs, bool)

    def __call__(self, step: Step) -> None:
        """Append the images of a step, up to the last of the episode."""
        for run in np.flatnonzero(~self._ended).tolist():
            for name, seen in self.images[run].items():
                seen.append(coloured(step.obs[name][run, 0]).copy())
        self._ended |= step.is_last[:, 0]


def make_env(
    config: Config,
    count: int,
    number: int | None = None,
    *,
    task: EnvFactory | None = None,
    render: bool = False,
    share: int = 1,
    check: bool = False,
    hosts: Hosts | None = None,
) -> VectorEnv:
    """Environments for training, or for evaluation `number`, whose seeds are never those of training.

    `share` is the number of runs that share this machine's cores; `hosts` keeps processes for the next time.
    """
    seed = config.seed if number is None else envs.stream_seed(config.seed, number, evaluation=True)
    return envs.make(
        task or config.task,
        count=count,
        seed=seed,
        action_repeat=config.env.action_repeat,
        # Only some backends render.
        backend="auto" if render else config.backend,
        threads=config.env.threads,
        processes=config.env.processes,
        evaluation=number is not None,
        render=render,
        pixels=config.env.pixels,
        timeout=config.env.timeout,
        restart_limit=config.env.restarts,
        check=check,
        share=share,
        hosts=hosts,
        pickles=config.env.pickle,
        limit=config.env.limit,
        kwargs=config.env.keyword_arguments,
    )


def play(
    config: AgentConfig,
    model: Model,
    env: VectorEnv,
    key: PRNGKeyArray,
    watch: Callable[[Step], None] = lambda step: None,
    limit: int | None = None,
) -> list[float]:
    """Returns of the first episode of every stream, up to `limit` agent steps; `watch` sees every step."""

    def watch_run(step: Step) -> None:
        watch(jax.tree.map(lambda x: x[0], step))

    model, keys = jax.tree.map(lambda x: x[None], (model, key))
    return _play(config, model, Fleet([env]), keys, watch_run, limit=limit)[0]


def _play(
    config: AgentConfig,
    model: Model,
    fleet: Fleet,
    keys: RunKeys,
    watch: Callable[[Step], None] = lambda step: None,
    mesh: Mesh | None = None,
    limit: int | None = None,
) -> list[list[float]]:
    """Returns of the first episode of every stream of every run, up to `limit` agent steps of it."""
    shape = (len(fleet.runs), fleet.count)
    blank = agent.init_carry(config, fleet.spaces, fleet.count)
    carry = jax.tree.map(lambda x: np.broadcast_to(x, (shape[0], *x.shape)), blank)
    carry = place(padded(carry, mesh), mesh)
    action = np.zeros((*shape, fleet.spaces.actions), np.float32)
    returns, done, index = np.zeros(shape), np.zeros(shape, bool), 0
    while not done.all() and index != limit:
        step = fleet.step(action)
        returns += np.where(done, 0, step.reward)
        done |= step.is_last
        watch(step)
        carry = _act(config, mesh, model, carry, padded(step, mesh), keys, np.int32(index))
        action = np.asarray(carry.action)[: len(fleet.runs)]
        index += 1
    if not done.all():
        words = "%d of %d episodes did not end in %d agent steps (eval.limit): their returns so far are used"
        log.warning(words, (~done).sum(), done.size, index)
    return returns.tolist()


@partial(jax.jit, static_argnums=(0, 1))
def _act(
    config: AgentConfig,
    mesh: Mesh | None,
    model: Model,
    carry: Carry,
    step: Step,
    keys: RunKeys,
    index: Int[Array, ""] | np.int32,
) -> Carry:
    def one(model: Model, carry: Carry, step: Step, key: PRNGKeyArray) -> Carry:
        return agent.act(config, model, carry, step.obs, step.is_first, key)

    return each_run(one, mesh)(model, carry, step, fold_in(keys, index))


def random_return(config: Config, episodes: int = 30) -> float | None:
    """Mean return of uniformly random actions, or None if the environment fails.

    So many are played side by side as in the run's evaluations: more might not fit on this machine.
    """
    rng, returns = np.random.default_rng(config.seed), []
    try:
        with make_env(config, min(episodes, config.eval.episodes), number=0) as env:
            while len(returns) < episodes:
                returns += _random_returns(env, rng, config.eval.limit)
    except EnvironmentFailure as reason:
        log.warning("the return of a random policy is not known: %s", reason)
        return None
    return float(np.mean(returns[:episodes]))


def _random_returns(env: VectorEnv, rng: np.random.Generator, limit: int) -> list[float]:
    """Returns of a new episode of every stream, up to `limit` agent steps."""
    env.reset()
    returns, done = np.zeros(env.count), np.zeros(env.count, bool)
    for _ in range(limit):
        step = env.step(_random_actions(env, rng))
        returns += np.where(done, 0.0, step.reward)
        done |= step.is_last
        if done.all():
            break
    return returns.tolist()


def _random_actions(env: VectorEnv, rng: np.random.Generator) -> np.ndarray:
    if env.spaces.discrete:
        return np.eye(env.spaces.actions, dtype=np.float32)[rng.integers(env.spaces.actions, size=env.count)]
    return rng.uniform(-1.0, 1.0, (env.count, env.spaces.actions)).astype(np.float32)
