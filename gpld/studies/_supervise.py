"""The supervisor of a worker: starts it again if it is killed, and lets it save before it stops."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal

from gpld import files
from gpld.studies import _state
from gpld.studies._plan import Group

Ending = Literal["done", "failed", "interrupted"]

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
SAVE_SECONDS = 75.0
"""Time that a worker has to save before it is killed."""


def worker_command(folder: Path, group: Group) -> list[str]:
    """The command of a worker."""
    return [sys.executable, "-m", "gpld.studies._worker", str(folder), group.name]


class Supervisor:
    """Runs the worker of one group, in a process of its own, until it ends by itself or is stopped."""

    def __init__(
        self, folder: Path, group: Group, *, retries: int = 2, environment: Mapping[str, str] | None = None
    ):
        self._folder, self._group, self._retries = folder, group, retries
        self._environment = {**os.environ, **(environment or {})}
        self._stopped = threading.Event()
        self._process: subprocess.Popen | None = None

    def run(self) -> Ending:
        """Start the worker, and start it again each time it is killed, at most `retries` times."""
        log = _state.log_path(self._folder, self._group)
        log.parent.mkdir(parents=True, exist_ok=True)
        status = 0
        for attempt in range(self._retries + 1):
            if self._stopped.is_set():
                return "interrupted"
            with os.fdopen(files.open_here(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
                file.write(f"--- attempt {attempt + 1}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
                file.flush()
                status = self._attempt(file)
            if status in (0, 1):
                return "done" if status == 0 else "failed"
            if status - 128 in _STOP_SIGNALS or -status in _STOP_SIGNALS:
                return "interrupted"
            if status > 0:
                reason = f"its worker could not start (exit status {status})"
                break
        else:
            times = f"{self._retries + 1} times" if self._retries else "once"
            reason = f"its worker was killed {times}, last by signal {-status}"
        _state.report_failure(self._folder, self._group, reason)
        return "failed"

    def request_stop(self) -> None:
        """Ask the worker to save and end, and start no other."""
        self._stopped.set()
        if self._process is not None:
            self._process.terminate()

    def stop(self, seconds: float = SAVE_SECONDS) -> None:
        """Let the worker save and end; after `seconds`, end it."""
        self.request_stop()
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _attempt(self, log: IO[str]) -> int:
        # A session of its own, so that Ctrl-C does not reach it; no SIGUSR2, which Slurm sends to all.
        command = worker_command(self._folder, self._group)
        shielded = ["sh", "-c", 'trap "" USR2; exec "$@"', "sh", *command]
        process = self._process = subprocess.Popen(
            shielded,
            env=self._environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._stopped.is_set():  # while it was being started
            process.terminate()
        return process.wait()
