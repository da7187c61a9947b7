"""Environments written in Python, in this or other processes, with time-outs and restarts."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpld.envs import _states
from gpld.envs._base import (
    EnvironmentFailure,
    Fault,
    MakeStream,
    Observation,
    RenderingError,
    Step,
    Stream,
    VectorEnv,
    Worker,
)
from gpld.envs._process import Host, ProcessEnded

log = logging.getLogger("gpld.envs")

LARGEST = float(np.finfo(np.float32).max)
"""Rewards are float32."""


class _StreamStep(NamedTuple):
    stream: Stream
    obs: Observation
    reward: float
    last: bool
    terminal: bool


class _StreamFailure(NamedTuple):
    reason: str
    error: BaseException | None = None
    stream: Stream | None = None
    """What is to be closed; one that hangs is left alone."""

    @property
    def counts(self) -> bool:
        """Whether it is not just a consequence of another fault."""
        return not isinstance(self.error, ProcessEnded) or self.error.first


@dataclass(eq=False)
class _Pass:
    """One pass over some streams in one worker. An abandoned one no longer writes results."""

    worker: int
    action: np.ndarray
    streams: list[int]
    results: list[_StreamStep | _StreamFailure] = field(default_factory=list)
    abandoned: bool = False
    future: Future | None = None


class SerialEnv(VectorEnv):
    """Python environments behind the vector interface.

    An environment that raises, gives something that is not a number, or does not return within `timeout`
    seconds is discarded; it is closed before another takes its place, unless it hangs. Its episode ends
    there, marked `is_last` and not `is_terminal`, with the last good observation and reward 0; the stream
    continues in a new instance with a new seed. After `restart_limit` such faults the next one is an
    `EnvironmentFailure`.

    With `hosts`, `make_stream` must put stream i into host i modulo their count, and one worker a host steps
    its streams. If a host ends, or is ended because a stream hangs, all its streams are restarted, and count
    as one fault towards the limit. Closing ends the hosts unless `keep_hosts`. Without hosts, one worker
    steps all streams, and a call that hangs with Python's global lock cannot be noticed.
    """

    def __init__(
        self,
        make_stream: MakeStream,
        *,
        count: int,
        action_repeat: int = 2,
        timeout: float | None = 120.0,
        restart_limit: int = 10,
        hosts: Sequence[Host] = (),
        keep_hosts: bool = False,
        pickles: bool = False,
    ):
        self._make_stream, self._hosts, self._keep_hosts = make_stream, hosts, keep_hosts
        self._streams: list[Stream | None] = []
        self._discarded: dict[int, Stream] = {}
        """Broken streams that are closed before others take their places."""
        self._make_all(count)
        super().__init__(self._streams[0].spaces, count, workers=max(1, len(hosts)))  # type: ignore[union-attr]
        self._repeat, self._timeout, self._restart_limit = action_repeat, timeout, restart_limit
        self._pickles = pickles
        """Whether states that only pickle are saved, and unpickled when they are restored."""
        self._restarts = np.zeros(count, np.int64)
        self._broken = 0
        """Faults that count towards the limit."""
        self._steps, self._reported = 0, False
        self._last = {k: np.zeros((count, *shape), self.spaces.dtype(k)) for k, shape in self.spaces.obs}

    def _make_all(self, count: int) -> None:
        """Make the first streams; if one cannot be made, close those before it."""
        try:
            for i in range(count):
                self._streams.append(self._make_stream(i, 0))
        except BaseException:
            for stream in self._streams:
                _close(stream)
            raise

    def save(self) -> bytes:
        """The state of every stream."""
        streams = [None if stream is None else self._state_of(stream) for stream in self._streams]
        names = ("pending", "restarts", "broken", "steps", "last")
        return _states.dumps({name: getattr(self, f"_{name}") for name in names} | {"streams": streams})

    def _state_of(self, stream: Stream) -> bytes:
        """A stream's state; nothing if it cannot be saved."""
        try:
            return _states.dumps(stream.save(), pickles=self._pickles)
        except ProcessEnded as ended:  # the next step reports it
            self._broken += ended.first
        except _states.NotPlainData as reason:
            if not self._reported:
                then = "it begins a new episode when the run is resumed, unless env.pickle is on"
                log.warning("%s", f"the state of an environment cannot be saved ({reason}); {then}")
            self._reported = True
        return b""

    def restore(self, state: bytes) -> list[int]:
        """Restore the state of every stream."""
        try:
            found = _states.loads(state)
            pending, restarts, streams = found["pending"], found["restarts"], found["streams"]
        except (_states.UnreadableState, KeyError, TypeError) as reason:
            return self._begin_all(reason)
        self._check_count(len(pending))
        self._broken, self._steps, self._last = found["broken"], found["steps"], found["last"]
        for i in np.flatnonzero(restarts != self._restarts).tolist():
            self._discard(i, self._streams[i])
            wait([self._worker_of(i).submit(self._close_discarded, i)], self._timeout)
            self._streams[i] = None if streams[i] is None else self._make_stream(i, int(restarts[i]))
        self._pending, self._restarts = pending, restarts
        failed = [
            i for i, stream in enumerate(self._streams) if stream and not self._restored(stream, streams[i])
        ]
        self.reset(failed)
        return failed

    def _restored(self, stream: Stream, state: bytes | None) -> bool:
        """Whether a stream could be restored from a saved state."""
        try:
            return bool(state) and stream.restore(_states.loads(state, pickles=self._pickles))
        except ProcessEnded:
            raise
        except Exception as error:  # of whatever kind: the state may be of another version of the engine
            log.warning("the state of an environment cannot be used: %s", error)
            return False

    def render(self, stream: int, *, height: int = 240, width: int = 320) -> np.ndarray:
        """Picture `[height, width, 3]` (uint8) of a stream."""
        engine = self._streams[stream]
        if engine is None:
            raise RuntimeError(f"stream {stream} is being restarted and has no picture before its next step")
        return self._worker_of(stream).submit(engine.render, height, width).result()

    def _worker_of(self, stream: int) -> Worker:
        return self._workers[stream % len(self._workers)]

    def _free(self) -> None:
        for host in () if self._keep_hosts else self._hosts:
            host.end()
        for stream in (*self._discarded.values(), *self._streams):
            _close(stream)

    def _begin(self, action: np.ndarray) -> list[_Pass]:
        return self._sweep(action, range(self.count))

    def _sweep(self, action: np.ndarray, streams: Iterable[int]) -> list[_Pass]:
        """Begin a pass over these streams, in all workers that have some of them."""
        workers, chosen = len(self._workers), list(streams)
        own = [[i for i in chosen if i % workers == worker] for worker in range(workers)]
        return [self._submit(_Pass(worker, action, some)) for worker, some in enumerate(own) if some]

    def _submit(self, sweep: _Pass) -> _Pass:
        sweep.future = self._workers[sweep.worker].submit(self._run, sweep)
        return sweep

    def _end(self, sent: list[_Pass]) -> Step:
        action, first = sent[0].action, self._pending
        reward = np.zeros(self.count, np.float32)
        last, terminal = np.zeros((2, self.count), bool)
        sweeps = sent
        while sweeps:
            for i, result in sorted(self._results(sweeps).items()):
                if isinstance(result, _StreamFailure):
                    self._restart(i, action[i], result)
                    last[i] = not first[i]
                    continue
                self._streams[i] = result.stream
                reward[i], last[i], terminal[i] = result.reward, result.last, result.terminal
                for key, value in result.obs.items():
                    self._last[key][i] = value
            # Where there is no episode to end yet: begin one in the new instance.
            again = [i for i in np.flatnonzero(first).tolist() if self._streams[i] is None]
            sweeps = self._sweep(action, again)
        self._steps += 1
        self._pending = last.copy()
        return Step({key: value.copy() for key, value in self._last.items()}, reward, first, last, terminal)

    def _results(self, sweeps: list[_Pass]) -> dict[int, _StreamStep | _StreamFailure]:
        """The result of each stream."""
        for sweep in sweeps:
            self._wait(sweep)
        return {i: result for sweep in sweeps for i, result in zip(sweep.streams, sweep.results, strict=True)}

    def _wait(self, sweep: _Pass) -> None:
        """Wait for a sweep; replace a worker that makes no progress."""
        assert sweep.future is not None
        done = -1
        while len(sweep.results) != done:  # another stream than at the last look: slow, but not hung
            done = len(sweep.results)
            try:
                sweep.future.result(self._timeout)
                return
            except TimeoutError:
                pass
        sweep.abandoned = True
        if self._hosts:
            self._hosts[sweep.worker].end()
        self._workers[sweep.worker].close()
        self._workers[sweep.worker] = Worker()
        rest = self._submit(_Pass(sweep.worker, sweep.action, sweep.streams[done + 1 :]))
        self._wait(rest)
        hung = _StreamFailure(f"no answer within {self._timeout:g} s")
        sweep.results = [*sweep.results[:done], hung, *rest.results]

    def _run(self, sweep: _Pass) -> None:
        for i in sweep.streams:
            stream = self._streams[i]
            self._close_discarded(i)
            if sweep.abandoned:
                return
            try:
                stream = stream or self._make_stream(i, int(self._restarts[i]))
                result = self._advance(i, stream, sweep.action[i])
            except BaseException as error:  # one that calls sys.exit does not end the run
                result = _StreamFailure(f"{type(error).__name__}: {error}", error, stream)
            if sweep.abandoned:
                return
            sweep.results.append(result)

    def _discard(self, i: int, stream: Stream | None) -> None:
        """Let go of a stream. Its worker closes it, and then makes another: there a hang is noticed."""
        self._streams[i] = None
        if stream is not None:
            self._discarded[i] = stream

    def _close_discarded(self, i: int) -> None:
        _close(self._discarded.pop(i, None))

    def _advance(self, i: int, stream: Stream, action: np.ndarray) -> _StreamStep:
        """One agent step of one stream: rewards summed over the repeats, up to the episode's end."""
        if self._pending[i]:
            return _StreamStep(stream, self._checked(stream.reset()), 0.0, False, False)
        total = 0.0
        for _ in range(self._repeat):
            obs, reward, terminated, truncated = stream.frame(action)
            self._checked(obs)
            total += reward
            if not abs(total) <= LARGEST:
                raise ValueError(f"reward is {reward}")
            if terminated or truncated:
                break
        return _StreamStep(stream, obs, total, terminated or truncated, terminated)

    def _checked(self, obs: Observation) -> Observation:
        """An observation that has the keys and shapes promised and only finite numbers."""
        shapes = tuple(sorted((key, value.shape) for key, value in obs.items()))
        if shapes != self.spaces.obs:
            raise ValueError(f"observation has keys and shapes {dict(shapes)}, not {dict(self.spaces.obs)}")
        for key, value in obs.items():
            if not np.isfinite(value).all():
                raise ValueError(f"observation {key} is not finite: {value.tolist()}")
        return obs

    def _restart(self, i: int, action: np.ndarray, broken: _StreamFailure) -> None:
        fault = Fault(i, self._steps, tuple(action.tolist()), broken.reason)
        self.faults.append(fault)
        self._discard(i, broken.stream)
        self._restarts[i] += 1
        self._broken += broken.counts
        if isinstance(broken.error, RenderingError):  # a new instance would draw no better
            raise broken.error
        if self._broken > self._restart_limit:
            raise EnvironmentFailure(
                f"environment failed {self._broken} times, more than the {self._restart_limit} restarts "
                f"allowed; the last at {fault}"
            ) from broken.error
        log.warning("environment restarted: %s", fault)
        log.debug("what it raised:", exc_info=broken.error)


def _close(stream: Stream | None) -> None:
    """Close a stream that is not needed any more; what that raises matters to nobody."""
    with suppress(BaseException):  # also what calls sys.exit
        if stream is not None:
            stream.close()
