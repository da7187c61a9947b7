"""Streams in other processes, so that several are stepped and rendered at the same time.

Threads would not do: drawing holds Python's global lock. A process is a Python of its own, which knows
nothing of the program that started it; it reads requests from its standard input and answers on its standard
output.
"""

import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

import numpy as np

from gpld.envs._base import EnvironmentFailure, Observation, Stream

_PROGRAM = "from gpld.envs._process import main; main()"

StreamFactory = Callable[[], Stream]
"""Makes a stream in the process that calls it; can be pickled."""


class ProcessEnded(EnvironmentFailure):
    """The process of a stream has ended. `first`: this is the first report of it."""

    def __init__(self, message: str, first: bool):
        super().__init__(message)
        self.first = first


class Process:
    """A Python process with streams. It ends when this object, or the program, does."""

    def __init__(self):
        modules = os.pathsep.join(path or os.getcwd() for path in sys.path)  # those of this program alone
        self._python = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": modules},
            start_new_session=True,  # a terminal's Ctrl-C is for the program
        )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._requests, self._answers = self._python.stdin, self._python.stdout
        self._calls = threading.Lock()
        self._reported = False
        # Keeps the pipes until then: among garbage they might be closed first, with a warning.
        self._end = weakref.finalize(self, _end, self._python, self._requests, self._answers)

    def call(self, stream: int, method: str, *arguments: Any) -> Any:
        """Call a method of a stream there: its result, or its exception."""
        try:
            with self._calls:
                pickle.dump((stream, method, arguments), self._requests)
                self._requests.flush()
                good, result = pickle.load(self._answers)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            first, self._reported = not self._reported, True
            self._python.kill()  # if it still runs, it no longer follows the protocol
            raise ProcessEnded(f"its process ended with status {self._python.wait()}", first) from None
        if not good:
            raise result
        return result

    @property
    def alive(self) -> bool:
        """Whether it can still be called."""
        return self._python.poll() is None

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._reported = True
        self._end()


def _end(python: subprocess.Popen, *pipes: IO[bytes]) -> None:
    """Kill a process and close its pipes."""
    python.kill()
    python.wait()
    for pipe in pipes:
        with suppress(OSError):  # what was not sent is lost
            pipe.close()


class Host:
    """A process for streams, and a new one whenever it has ended."""

    def __init__(self):
        self._process = Process()

    def stream(self, index: int, make: StreamFactory) -> Stream:
        """A stream in that process."""
        if not self._process.alive:
            self._process = Process()
        return RemoteStream(self._process, index, make)

    def end(self) -> None:
        """End the process, and with it all its streams."""
        self._process.end()


class Hosts:
    """Processes that outlive an environment, for the next one to use; one at a time may have them."""

    def __init__(self):
        self._hosts: list[Host] = []

    def take(self, count: int) -> list[Host]:
        """`count` of them, started if missing."""
        self._hosts += [Host() for _ in range(count - len(self._hosts))]
        return self._hosts[:count]

    def close(self) -> None:
        """End them all."""
        for host in self._hosts:
            host.end()

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteStream(Stream):
    """A stream in another process. It raises `ProcessEnded` once that has ended."""

    def __init__(self, process: Process, index: int, make: StreamFactory):
        self._process, self._index = process, index
        self.spaces = self._call("make", make)

    def reset(self) -> Observation:
        """Begin an episode."""
        return self._call("reset")

    def frame(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """One environment step."""
        return self._call("frame", action)

    def save(self) -> Any:
        """The state."""
        return self._call("save")

    def restore(self, state: Any) -> bool:
        """Restore a saved state."""
        return self._call("restore", state)

    def render(self, height: int, width: int) -> np.ndarray:
        """Picture."""
        return self._call("render", height, width)

    def close(self) -> None:
        """Close the engine, unless its process has ended."""
        if self._process.alive:
            self._call("close")

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._process.call(self._index, method, *arguments)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    streams: dict[int, Stream] = {}
    while True:
        try:
            index, method, arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            if method == "make":
                streams[index] = arguments[0]()
                result = streams[index].spaces
            else:
                result = getattr(streams[index], method)(*arguments)
            answer = pickle.dumps((True, result))
        except Exception as error:
            answer = pickle.dumps((False, _portable(error)))
        answers.write(answer)
        answers.flush()


def _portable(error: Exception) -> Exception:
    """An error that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def main() -> None:
    """Serve the process that started this one, until it closes the pipe."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a cluster sends it to every process of a job
    with suppress(Exception):  # here, where all processes do so at the same time; `make` says what is wrong
        importlib.import_module("dm_control.suite")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an engine prints is not taken for an answer
    serve(sys.stdin.buffer, answers)
    os._exit(0)  # drawing contexts of some drivers complain when Python ends
