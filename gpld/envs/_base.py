"""The interface of vector environments: a fixed number of streams, stepped together in the background."""

import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from gpld.types import Spaces

log = logging.getLogger("gpld.envs")


class Step(NamedTuple):
    """One agent step of N streams."""

    obs: dict[str, Float32[np.ndarray, "N ..."] | UInt8[np.ndarray, "N ..."]]
    """By key, sorted by name; images are uint8."""
    reward: Float32[np.ndarray, "N"]
    """The reward that came with the observation; 0 at episode starts."""
    is_first: Bool[np.ndarray, "N"]
    """An episode begins: the observation is its first and the action given was ignored."""
    is_last: Bool[np.ndarray, "N"]
    """An episode ends: by its rules, by a time limit, or because the environment broke."""
    is_terminal: Bool[np.ndarray, "N"]
    """An episode ends by its own rules: no reward can follow."""


class Fault(NamedTuple):
    """An environment that raised, hung or returned something that is not a number, and was restarted."""

    stream: int
    step: int
    """Agent steps that the vector environment had made."""
    action: tuple[float, ...]
    """The agent's action; ignored if the fault came at an episode's start."""
    reason: str

    def __str__(self) -> str:
        action = ", ".join(f"{a:.6g}" for a in self.action)
        return f"stream {self.stream}, step {self.step}, action [{action}]: {self.reason}"


class EnvironmentFailure(RuntimeError):  # noqa: N818
    """An environment that cannot be used, or that broke more often than it may."""


class RenderingError(EnvironmentFailure):
    """Images cannot be rendered on this machine."""


def stream_seed(
    seed: int, stream: int, *, evaluation: bool = False, restart: int = 0, episode: int = 0
) -> int:
    """Seed in [0, 2**31) of one stream, its restarts and episodes, for training or for evaluation."""
    entropy = np.random.SeedSequence([seed, int(evaluation), stream, restart, episode])
    return int(entropy.generate_state(1)[0] >> 1)


class Worker:
    """A thread that runs one job after another. It can be left behind when a job never returns."""

    def __init__(self):
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[..., Any], tuple] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(self._jobs,), name="gpld-envs", daemon=True).start()

    def submit(self, job: Callable[..., Any], *args: Any) -> Future:
        """Run `job(*args)` after those submitted before."""
        future: Future = Future()
        self._jobs.put((future, job, args))
        return future

    def close(self) -> None:
        """End the thread after the jobs submitted."""
        self._jobs.put(None)

    def __del__(self):
        self.close()

    @staticmethod
    def _run(jobs: queue.SimpleQueue) -> None:
        while (item := jobs.get()) is not None:
            future, job, args = item
            try:
                future.set_result(job(*args))
            except BaseException as error:
                future.set_exception(error)
            del item, future, job, args  # not to hold the last result while waiting


class VectorEnv(ABC):
    """`count` streams of episodes, stepped together.

    A stream that is new, was reset, or whose last step was `is_last` begins an episode at the next step: the
    first observation is a step of its own, with `is_first`, reward 0 and the action ignored. Actions are
    `[N, A]` in [-1, 1] and clipped to it, or one-hot.

    `send` starts a step in the background and `recv` waits for it; `step` is both. Between them, nothing
    else may be called. The same task, seed and count give the same bits, whatever the number of threads.
    """

    spaces: Spaces
    count: int
    faults: list[Fault]
    """Every fault seen by this object, oldest first."""

    def __init__(self, spaces: Spaces, count: int, workers: int = 1):
        self.spaces, self.count, self.faults = spaces, count, []
        self._workers = [Worker() for _ in range(workers)]
        self._sent: Any = None
        self._pending = np.ones(count, bool)
        """Streams that begin an episode at the next step."""

    def send(self, action: np.ndarray) -> None:
        """Begin a step with actions `[N, A]`."""
        action = np.array(action, np.float32)
        expected = (self.count, self.spaces.actions)
        if action.shape != expected:
            raise ValueError(f"actions must have shape {expected}, one row a stream, not {action.shape}")
        if not np.isfinite(action).all():
            stream = int(np.flatnonzero(~np.isfinite(action).all(1))[0])
            raise ValueError(f"action of stream {stream} is not finite: {action[stream].tolist()}")
        if self._sent is not None:
            raise RuntimeError("send was called twice without recv")
        self._sent = self._begin(action)

    def recv(self) -> Step:
        """The result of the step begun by `send`."""
        if self._sent is None:
            raise RuntimeError("recv was called without send")
        sent, self._sent = self._sent, None
        return self._end(sent)

    def step(self, action: np.ndarray) -> Step:
        """One agent step of every stream with actions `[N, A]`."""
        self.send(action)
        return self.recv()

    def close(self) -> None:
        """Close the engine. A running step is finished first."""
        if self._sent is not None:
            with contextlib.suppress(Exception):
                self.recv()
        wait([self._workers[0].submit(self._free)], timeout=10.0)
        for worker in self._workers:
            worker.close()

    @abstractmethod
    def _free(self) -> None:
        """Close the engine, in the first worker, which owns its renderer."""

    @abstractmethod
    def _begin(self, action: np.ndarray) -> Any:
        """Hand a step to the worker; what this returns is given to `_end`."""

    @abstractmethod
    def _end(self, sent: Any) -> Step:
        """Wait for a step."""

    def reset(self, streams: Iterable[int] | None = None) -> None:
        """Let these streams (default: all) begin a new episode at the next step."""
        self._pending[slice(None) if streams is None else list(streams)] = True

    @abstractmethod
    def save(self) -> bytes:
        """The state for `restore`, to continue bit for bit in another process."""

    @abstractmethod
    def restore(self, state: bytes) -> list[int]:
        """Go on from a saved state, in an environment made with the same arguments.

        Returns the streams that could not be restored because their environment does not repeat itself, or
        because the state cannot be read; they begin a new episode at the next step.
        """

    def _check_count(self, streams: int) -> None:
        """Refuse a saved state of another number of streams."""
        if streams != self.count:
            raise ValueError(f"the saved state has {streams} streams, this environment {self.count}")

    def _begin_all(self, reason: Exception) -> list[int]:
        """Let all streams begin a new episode, because a saved state cannot be used; all of them."""
        log.warning("the saved state of the environments cannot be used: %s", reason)
        self.reset()
        return list(range(self.count))

    def render(self, stream: int, *, height: int = 240, width: int = 320) -> np.ndarray:
        """Picture `[height, width, 3]` (uint8) of a stream made with `render`; Gymnasium chooses the size."""
        raise NotImplementedError("this backend does not render: make(..., render=True) takes one that does")

    def __enter__(self) -> "VectorEnv":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Observation = dict[str, np.ndarray]


class Stream(ABC):
    """One environment. It may raise anything at any time."""

    spaces: Spaces

    @abstractmethod
    def reset(self) -> Observation:
        """Begin an episode."""

    @abstractmethod
    def frame(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """One environment step with `[A]`: observation, reward, terminated, truncated."""

    @abstractmethod
    def save(self) -> Any:
        """The state: arrays and what JSON knows, or, where `env.pickle` is on, anything that pickles."""

    @abstractmethod
    def restore(self, state: Any) -> bool:
        """Take up a saved state; whether that gave the same bits."""

    @abstractmethod
    def render(self, height: int, width: int) -> np.ndarray:
        """Picture `[height, width, 3]`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the engine."""


MakeStream = Callable[[int, int], Stream]
"""Makes a stream from its index and the number of its restarts."""


class ActionScale(NamedTuple):
    """From the agent's [-1, 1] to an environment's own bounds. Symmetric bounds of 1 change no bit."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray) -> "ActionScale":
        """The scale of bounds `[A]`."""
        return cls(np.asarray(low, np.float64), np.asarray(high, np.float64))

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Clip actions `[..., A]` to [-1, 1] and give them the environment's bounds."""
        low, high = self.low / 2, self.high / 2
        scaled = low + high + (high - low) * np.clip(action, -1.0, 1.0).astype(np.float64)
        return np.clip(scaled, self.low, self.high)  # rounded, it may lie beyond them
