"""EnvPool: many MuJoCo simulations of one task in C++ threads."""

from concurrent.futures import Future

import numpy as np

from gpld.envs import _states
from gpld.envs._base import ActionScale, EnvironmentFailure, Step, VectorEnv, stream_seed
from gpld.envs._catalog import FRAMES, in_catalog, spaces, tasks as catalog, unknown


class EnvPoolEnv(VectorEnv):
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
        import envpool

        self._keys = tuple(key for key, _ in self.spaces.obs)
        self._repeat = action_repeat
        words = task.replace("-", "_").split("_")
        self._make = lambda: envpool.make_gymnasium(
            "".join(word[:1].upper() + word[1:] for word in words) + "-v1",  # WalkerRun-v1
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
        self._last = {key: np.zeros((count, *shape), np.float32) for key, shape in self.spaces.obs}

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
        if len(pending) != self.count:
            raise ValueError(f"the saved state has {len(pending)} streams, this environment {self.count}")
        self._pool.close()
        self._pool = self._make()
        self._episodes = np.zeros_like(episodes)
        while (begin := np.flatnonzero(self._episodes < episodes)).size:
            self._start(begin)
        lengths = np.array([len(a) for a in actions])
        while (go := np.flatnonzero(self._elapsed < lengths)).size:
            self._advance(go, np.stack([actions[i][self._elapsed[i]] for i in go]))
        differs = np.zeros(self.count, bool)
        for key, value in last.items():
            differs |= (self._last[key] != value).reshape(self.count, -1).any(1)
        self._pending = pending | differs
        return np.flatnonzero(differs & ~pending).tolist()

    def _free(self) -> None:
        self._pool.close()

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
        self._check(action)
        self._pending = last.copy()
        return Step({key: value.copy() for key, value in self._last.items()}, reward, first, last, terminal)

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

    def _check(self, action: np.ndarray) -> None:
        for key, value in self._last.items():
            finite = np.isfinite(value).reshape(self.count, -1).all(1)
            if not finite.all():
                i = int(np.flatnonzero(~finite)[0])
                raise EnvironmentFailure(
                    f"EnvPool returned {key} = {value[i].tolist()} in stream {i}, action {action[i].tolist()}"
                )
