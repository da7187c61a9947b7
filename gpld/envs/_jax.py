"""Environments written in JAX: stepped inside compiled programs, their states arrays like any other."""

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree, UInt8, UInt32

from gpld.envs import _states
from gpld.envs._base import EnvironmentFailure, Fault, Step, VectorEnv
from gpld.envs._jax_interfaces import Frame, Interface, find, interface

log = logging.getLogger("gpld.envs")

FRAMES = 1000
"""Env steps of an episode that does not end before."""


class EnvState(NamedTuple):
    """N streams between two steps; of several runs, with a leading run axis."""

    own: PyTree
    """The environment's own state."""
    obs: dict[str, Float32[Array, "..."] | UInt8[Array, "..."]]
    """The last good observation."""
    seed: UInt32[Array, "*R N"]
    episode: Int32[Array, "*R N"]
    """Episodes begun."""
    elapsed: Int32[Array, "*R N"]
    """Env steps since the episode's first observation."""
    pending: Bool[Array, "*R N"]
    """Streams that begin an episode at the next step."""
    faults: Int32[Array, "*R N"]
    """Steps that gave something that is not a number, and ended their episodes."""


class JaxTask:
    """Streams of an environment written in JAX, as pure functions of `EnvState`. Hashable, for `jax.jit`."""

    def __init__(self, one: Interface, action_repeat: int, limit: int):
        self.spaces = one.spaces
        self._one, self._repeat, self._limit = one, action_repeat, limit

    def init(self, seeds: Sequence[int]) -> EnvState:
        """Streams that begin at the next step."""
        count = len(seeds)

        def zeros(like: jax.ShapeDtypeStruct) -> np.ndarray:
            return np.zeros((count, *like.shape), like.dtype)

        obs = {name: np.zeros((count, *shape), self.spaces.dtype(name)) for name, shape in self.spaces.obs}
        counts = [np.zeros(count, np.int32) for _ in range(3)]
        own, pending = jax.tree.map(zeros, self._one.own), np.ones(count, bool)
        state = EnvState(own, obs, np.array(seeds, np.uint32), counts[0], counts[1], pending, counts[2])
        return jax.tree.map(jnp.asarray, state)

    def step(self, state: EnvState, action: Float32[Array, "N A"]) -> tuple[EnvState, Step]:
        """One agent step of every stream."""
        return jax.vmap(self._step)(state, action)

    def _step(self, state: EnvState, action: Float32[Array, "A"]) -> tuple[EnvState, Step]:
        """One stream: both the step and a new episode are computed, because streams differ in what is due."""
        first = state.pending
        episode = state.episode + first.astype(np.int32)
        key = jax.random.fold_in(jax.random.PRNGKey(state.seed), episode)
        begun = self._one.reset(jax.random.fold_in(key, 0))
        stepped, elapsed = self._repeated(state, action, key)
        frame = _choose(first, begun, stepped)
        elapsed = jnp.where(first, np.int32(0), elapsed)
        finite = self._finite(frame._replace(reward=jnp.where(first, np.float32(0), frame.reward)))
        last = ~first & (~finite | frame.terminated | frame.truncated)
        obs = _choose(finite, frame.obs, state.obs)
        reward = jnp.where(first | ~finite, np.float32(0), frame.reward)
        faults = state.faults + (~finite).astype(np.int32)
        after = EnvState(frame.own, obs, state.seed, episode, elapsed, last | ~finite, faults)
        return after, Step(obs, reward, first, last, last & finite & frame.terminated)

    def _repeated(self, state: EnvState, action: Float32[Array, "A"], key: Array) -> tuple[Frame, Array]:
        """Env steps with one action, their rewards summed, up to the episode's end."""

        def more(carry: tuple[Frame, Array], _: None) -> tuple[tuple[Frame, Array], None]:
            frame, elapsed = carry
            over, now = frame.terminated | frame.truncated | ~self._finite(frame), elapsed + 1
            after = self._one.step(frame.own, action, jax.random.fold_in(key, now))
            after = after._replace(
                reward=frame.reward + after.reward,
                truncated=after.truncated | (now >= self._limit) & ~after.terminated,
            )
            return (_choose(over, frame, after), jnp.where(over, elapsed, now)), None

        start = Frame(state.own, state.obs, jnp.float32(0), jnp.bool_(False), jnp.bool_(False))
        return jax.lax.scan(more, (start, state.elapsed), length=self._repeat)[0]

    def _finite(self, frame: Frame) -> Bool[Array, ""]:
        """Whether everything that the agent would see is."""
        values = [frame.reward, *(frame.obs[name] for name, _ in self.spaces.vector_obs)]
        return jnp.stack([jnp.isfinite(value).all() for value in values]).all()


def _choose(first: Array, one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(first, x, y), one, other)


@lru_cache(maxsize=32)  # programs are compiled for the object that this returns
def jax_task(task: str, action_repeat: int, limit: int) -> JaxTask:
    """The streams of a task `jax:module:name`."""
    return JaxTask(interface(task, find(task)), action_repeat, limit)


@partial(jax.jit, static_argnums=0)
def _step(task: JaxTask, state: EnvState, action: Float32[Array, "N A"]) -> tuple[EnvState, Step]:
    return task.step(state, action)


class JaxEnv(VectorEnv):
    """JAX environments for programs on the host. Training steps `state` inside its own programs."""

    def __init__(self, task: JaxTask, seeds: Sequence[int], restart_limit: int = 10):
        super().__init__(task.spaces, len(seeds))
        self.task, self.state, self._restart_limit = task, task.init(seeds), restart_limit
        self._steps = 0

    def reset(self, streams: Iterable[int] | None = None) -> None:
        """Let these streams (default: all) begin a new episode at the next step."""
        pending = np.array(self.state.pending)
        pending[slice(None) if streams is None else list(streams)] = True
        self.state = self.state._replace(pending=jnp.asarray(pending))

    def save(self) -> bytes:
        """The arrays of the state."""
        return _states.dumps([_bytes_of(leaf) for leaf in jax.tree.leaves(self.state)])

    def restore(self, state: bytes) -> list[int]:
        """Take up a saved state."""
        leaves, structure = jax.tree.flatten(self.state)
        try:
            found = _states.loads(state)
            values = [_array_like(leaf, saved) for leaf, saved in zip(leaves, found, strict=True)]
        except (_states.UnreadableState, ValueError, TypeError, AttributeError) as reason:
            return self._begin_all(reason)
        self.state = jax.tree.unflatten(structure, values)
        return []

    def check_faults(self, faults: int) -> None:
        """Raise if there were more faults than may be."""
        if faults > self._restart_limit:
            raise EnvironmentFailure(
                f"observations or rewards were not finite {faults} times, more than the "
                f"{self._restart_limit} restarts allowed"
            )

    def _free(self) -> None:
        pass

    def _begin(self, action: np.ndarray) -> tuple[np.ndarray, EnvState, Step]:
        before = self.state
        self.state, step = _step(self.task, before, action)
        return action, before, step

    def _end(self, sent: tuple[np.ndarray, EnvState, Step]) -> Step:
        action, before, step = sent
        now = np.asarray(self.state.faults)
        for stream in np.flatnonzero(now > np.asarray(before.faults)).tolist():
            reason = "an observation or reward is not finite"
            self.faults.append(Fault(stream, self._steps, tuple(action[stream].tolist()), reason))
            log.warning("environment restarted: %s", self.faults[-1])
        self._steps += 1
        self.check_faults(int(now.sum()))
        return jax.tree.map(np.array, step)


def _bytes_of(leaf: Array | np.ndarray) -> tuple[str, np.ndarray]:
    """An array of any type, also of those that NumPy's files do not know."""
    array = np.asarray(leaf)
    shape = (*array.shape, array.dtype.itemsize)
    return str(array.dtype), np.frombuffer(array.tobytes(), np.uint8).reshape(shape)


def _array_like(leaf: Array | np.ndarray, saved: tuple[str, np.ndarray]) -> Array:
    """The array that was saved, if it has the shape and type of `leaf`."""
    name, data = saved
    if name != str(leaf.dtype) or data.shape[:-1] != leaf.shape:
        raise ValueError(f"it has {name}{list(data.shape[:-1])} where {leaf.dtype}{list(leaf.shape)} is now")
    return jnp.asarray(np.frombuffer(data.tobytes(), leaf.dtype).reshape(leaf.shape))
