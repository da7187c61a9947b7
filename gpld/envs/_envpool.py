"""EnvPool: environments in C++ threads, the suite's and all the others that it has."""

import itertools
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from gpld.envs import _states
from gpld.envs._base import ActionScale, EnvironmentFailure, RenderingError, Step, VectorEnv, stream_seed
from gpld.envs._catalog import FRAMES, in_catalog, load_envpool, spaces, tasks as catalog, unknown
from gpld.envs._families import PoolTask
from gpld.envs._gymnasium import Issue
from gpld.types import Spaces

log = logging.getLogger("gpld.envs")

LIFETIME = 5000
"""Agent steps after which a stream of `EnvPoolTask` gets a new environment, once its episode has ended."""

_ONLY = np.zeros(1, np.int32)
"""The number of the environment in a pool of one."""


class _Pools(VectorEnv):
    """What both kinds of EnvPool's environments share: a step, and the check of a restored state."""

    def __init__(self, spaces: Spaces, count: int):
        super().__init__(spaces, count)
        self._last = {k: np.zeros((count, *shape), spaces.dtype(k)) for k, shape in spaces.obs}

    def _begin(self, action: np.ndarray) -> Future:
        return self._workers[0].submit(self._step, action)

    def _end(self, sent: Future) -> Step:
        return sent.result()

    def _step(self, action: np.ndarray) -> Step:
        first = self._pending
        begin, go = np.flatnonzero(first), np.flatnonzero(~first)
        reward = np.zeros(self.count, np.float32)
        last, terminal = np.zeros((2, self.count), bool)
        if begin.size:
            self._start(begin)
        if go.size:
            reward[go], last[go], terminal[go] = self._advance(go, action[go])
        self._check(action, reward)
        self._pending = last.copy()
        return Step({key: value.copy() for key, value in self._last.items()}, reward, first, last, terminal)

    @abstractmethod
    def _start(self, ids: np.ndarray) -> None:
        """Begin an episode in some streams."""

    @abstractmethod
    def _advance(self, ids: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One agent step of some streams: rewards summed over the repeats, up to the episode's end."""

    def _differs(self, last: dict[str, np.ndarray]) -> np.ndarray:
        """Streams `[N]` whose observations are not these."""
        differs = np.zeros(self.count, bool)
        for key, value in last.items():
            differs |= (self._last[key] != value).reshape(self.count, -1).any(1)
        return differs

    def _check(self, action: np.ndarray, reward: np.ndarray) -> None:
        for key, value in (self._last | {"reward": reward}).items():
            finite = np.isfinite(value).reshape(self.count, -1).all(1)
            if not finite.all():
                i = int(np.flatnonzero(~finite)[0])
                raise EnvironmentFailure(
                    f"EnvPool returned {key} = {value[i].tolist()} in stream {i}, action {action[i].tolist()}"
                )


class EnvPoolEnv(_Pools):
    """A task of the benchmark on EnvPool, with dm_control's keys and shapes.

    EnvPool cannot hand out a simulation's state. A saved state is therefore the number of episodes begun and
    the actions of the current one: restoring repeats both. Only resets draw random numbers in these tasks, so
    this gives the same bits, in at most the time of one episode and its predecessors' resets.
    """

    def __init__(
        self,
        task: str,
        *,
        count: int,
        seed: int,
        action_repeat: int = 2,
        threads: int = 1,
        evaluation: bool = False,
    ):
        if not in_catalog(task):
            raise unknown(task, tuple(t.name for t in catalog()))
        super().__init__(spaces(task), count)
        envpool = load_envpool()
        self._keys = tuple(key for key, _ in self.spaces.obs)
        self._repeat = action_repeat
        self._make = lambda: envpool.make_gymnasium(
            pool_name(task),
            num_envs=count,
            num_threads=threads,
            seed=[stream_seed(seed, i, evaluation=evaluation) for i in range(count)],
        )
        self._pool = self._make()
        space = self._pool.action_space
        self._scale = ActionScale.of(space.low, space.high)
        self._episodes = np.zeros(count, np.int64)  # episodes begun
        self._elapsed = np.zeros(count, np.int64)  # agent steps since the episode's first
        self._actions = np.zeros((count, -(-FRAMES // action_repeat), self.spaces.actions), np.float32)

    def save(self) -> bytes:
        """The number of episodes, and the actions of the current ones."""
        lengths = np.where(self._pending, 0, self._elapsed)  # an ended episode is not restored
        actions = [self._actions[i, :n] for i, n in enumerate(lengths)]
        state = {"pending": self._pending, "episodes": self._episodes, "actions": actions, "last": self._last}
        return _states.dumps(state)

    def restore(self, state: bytes) -> list[int]:
        """Repeat what led to a saved state, in a new pool."""
        try:
            found = _states.loads(state)
            pending, episodes = found["pending"], found["episodes"]
            actions, last = found["actions"], found["last"]
        except (_states.UnreadableState, KeyError, TypeError) as reason:
            return self._begin_all(reason)
        self._check_count(len(pending))
        self._pool.close()
        self._pool = self._make()
        self._episodes = np.zeros_like(episodes)
        while (begin := np.flatnonzero(self._episodes < episodes)).size:
            self._start(begin)
        lengths = np.array([len(a) for a in actions])
        while (go := np.flatnonzero(self._elapsed < lengths)).size:
            self._advance(go, np.stack([actions[i][self._elapsed[i]] for i in go]))
        differs = self._differs(last)
        self._pending = pending | differs
        return np.flatnonzero(differs & ~pending).tolist()

    def _free(self) -> None:
        del self._pool  # its threads end with it, and not before

    def _start(self, ids: np.ndarray) -> None:
        obs, _ = self._pool.reset(ids.astype(np.int32))
        self._observe(ids, obs)
        self._episodes[ids] += 1
        self._elapsed[ids] = 0

    def _advance(self, ids: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One agent step of some streams: rewards summed over the repeats, up to the episode's end."""
        self._actions[ids, self._elapsed[ids]] = action
        self._elapsed[ids] += 1
        action = self._scale(action)
        reward = np.zeros(len(ids), np.float32)
        last, terminal = np.zeros((2, len(ids)), bool)
        for _ in range(self._repeat):
            on = np.flatnonzero(~last)  # EnvPool would begin a new episode in those that ended
            if not on.size:
                break
            obs, frame_reward, terminated, truncated, _ = self._pool.step(
                action[on], ids[on].astype(np.int32)
            )
            self._observe(ids[on], obs)
            reward[on] += frame_reward
            last[on], terminal[on] = terminated | truncated, terminated
        return reward, last, terminal

    def _observe(self, ids: np.ndarray, obs: dict[str, np.ndarray]) -> None:
        for key in self._keys:  # others are EnvPool's own, which dm_control does not give
            self._last[key][ids] = obs[key]


class EnvPoolTask(_Pools):
    """Any task of EnvPool's registry, `envpool:Ant-v4`: a pool of one environment for each stream.

    EnvPool seeds an environment when it makes it, and hands out no state; many draw random numbers inside
    episodes. A saved state is therefore all that was done to an environment since it was made, and restoring
    repeats it. That this stays short, a stream gets a new environment, with its own seed, at the first
    episode that begins after `LIFETIME` agent steps.
    """

    def __init__(
        self,
        task: str,
        *,
        count: int,
        seed: int,
        action_repeat: int = 2,
        evaluation: bool = False,
        render: bool = False,
        check: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ):
        self._task = PoolTask(task, action_repeat, render=render, kwargs=kwargs)
        if check and self._task.starts_alike():
            problem = f"seeds 0 and 1 start alike: {task} may not use its seed at all"
            log.warning("%s", Issue("warning", "seed", problem))
        super().__init__(self._task.spaces, count)
        self._seed = lambda i: stream_seed(seed, i, evaluation=evaluation, restart=int(self._made[i]))
        self._made = np.zeros(count, np.int64)
        """Environments that a stream had before this one."""
        self._history: list[list[np.ndarray | None]] = [[] for _ in range(count)]
        """What was done to a stream's environment: its actions, and None where an episode began."""
        self._pools: list[Any] = [self._task.make(self._seed(i)) for i in range(count)]

    def save(self) -> bytes:
        """What was done to every stream's environment."""
        left = np.array([self._pending[i] and self._is_old(i) for i in range(self.count)])
        histories = []
        for history, over in zip(self._history, left, strict=True):
            moves = [] if over else history
            begins = np.array([move is None for move in moves], bool)
            actions = np.array([move for move in moves if move is not None])
            histories.append({"begins": begins, "actions": actions})
        state = {"pending": self._pending, "made": self._made + left, "last": self._last}
        return _states.dumps(state | {"histories": histories})

    def restore(self, state: bytes) -> list[int]:
        """Repeat what was done to every stream's environment, in new ones."""
        try:
            found = _states.loads(state)
            pending, made, last = found["pending"], found["made"], found["last"]
            histories = [_history(**saved) for saved in found["histories"]]
        except (_states.UnreadableState, KeyError, TypeError) as reason:
            return self._begin_all(reason)
        self._check_count(len(pending))
        self._made = made
        for i in range(self.count):
            self._renew(i)
        for moves in itertools.zip_longest(*histories, fillvalue=()):
            begin = [i for i, move in enumerate(moves) if move is None]
            go = [i for i, move in enumerate(moves) if isinstance(move, np.ndarray)]
            self._reset(begin)
            self._repeat(go, [moves[i] for i in go])
        differs = self._differs(last) & ~pending
        self._last = last
        for i in np.flatnonzero(differs).tolist():
            self._made[i] += 1
            self._renew(i)
        self._pending = pending | differs
        return np.flatnonzero(differs).tolist()

    def render(self, stream: int, *, height: int = 240, width: int = 320) -> np.ndarray:
        """Picture in EnvPool's own size."""
        try:
            return np.asarray(self._pools[stream].render()[0])
        except Exception as error:  # of whatever kind: every engine draws in its own way
            raise RenderingError(f"EnvPool cannot render {self._task.name} here ({error})") from error

    def _free(self) -> None:
        self._pools.clear()  # their threads end with them, and not before

    def _is_old(self, i: int) -> bool:
        return len(self._history[i]) > LIFETIME

    def _renew(self, i: int) -> None:
        """A new environment for a stream."""
        self._history[i] = []
        self._pools[i] = self._task.make(self._seed(i))

    def _start(self, ids: np.ndarray) -> None:
        for i in ids.tolist():
            if self._is_old(i):
                self._made[i] += 1
                self._renew(i)
        self._reset(ids.tolist())

    def _reset(self, ids: Sequence[int]) -> None:
        for i in ids:
            self._history[i].append(None)
            self._pools[i].async_reset()
        for i in ids:
            obs, _ = self._pools[i].recv(reset=True)
            self._observe(i, obs)

    def _advance(self, ids: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._repeat(ids.tolist(), [self._task.action(own) for own in action])

    def _repeat(
        self, ids: Sequence[int], actions: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        reward = np.zeros(len(ids), np.float32)
        last, terminal = np.zeros((2, len(ids)), bool)
        for i, action in zip(ids, actions, strict=True):
            self._history[i].append(action)
        for _ in range(self._task.action_repeat):
            on = np.flatnonzero(~last).tolist()  # EnvPool would begin a new episode in those that ended
            for n in on:
                self._pools[ids[n]].send(actions[n], _ONLY)
            for n in on:
                obs, frame_reward, terminated, truncated, _ = self._pools[ids[n]].recv()
                self._observe(ids[n], obs)
                reward[n] += frame_reward[0]
                last[n], terminal[n] = terminated[0] or truncated[0], terminated[0]
        return reward, last, terminal

    def _observe(self, i: int, obs: Any) -> None:
        for key, value in self._task.observation(obs).items():
            self._last[key][i] = value


def pool_name(task: str) -> str:
    """EnvPool's name of a task of the suite: WalkerRun-v1 for walker-run."""
    words = task.replace("-", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"


def _history(begins: np.ndarray, actions: np.ndarray) -> list[np.ndarray | None]:
    taken = iter(actions)
    return [None if begin else next(taken) for begin in begins]
