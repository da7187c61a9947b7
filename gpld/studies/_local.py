"""Studies on this machine: a process for each group, one GPU each, or shared, or on the CPU."""

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpld.studies._plan import Group
from gpld.studies._supervise import Ending, Supervisor


@dataclass(frozen=True)
class LocalOptions:
    """How the groups share this machine."""

    jobs: int = 0
    """Groups that train at once; 0 for as many as the GPUs have room for, or one without a GPU."""
    per_gpu: int = 1
    """Groups that share a GPU."""


class LocalRunner:
    """Groups at work on this machine."""

    def __init__(self, folder: Path, groups: Sequence[Group], options: LocalOptions, *, retries: int):
        self._free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        for place in (places := _places(options)):
            self._free.put(place)
        self._supervisors: list[Supervisor] = []
        self._lock, self._stopped = threading.Lock(), False
        self._pool = ThreadPoolExecutor(max_workers=len(places), thread_name_prefix="studies")
        self._futures: dict[str, Future[Ending]] = {
            group.name: self._pool.submit(self._work, folder, group, retries) for group in groups
        }

    def _work(self, folder: Path, group: Group, retries: int) -> Ending:
        place = self._free.get()
        try:
            supervisor = Supervisor(folder, group, retries=retries, environment=place)
            with self._lock:
                if self._stopped:
                    return "interrupted"
                self._supervisors.append(supervisor)
            return supervisor.run()
        finally:
            self._free.put(place)

    def endings(self) -> dict[str, Ending]:
        """How the groups that are no longer at work have ended, by their names."""
        return {name: future.result() for name, future in self._futures.items() if future.done()}

    def stop(self) -> None:
        """Let all workers save and end."""
        with self._lock:
            self._stopped = True
        with ThreadPoolExecutor(max_workers=max(1, len(self._supervisors))) as pool:
            list(pool.map(Supervisor.stop, self._supervisors))
        self._pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Free the supervisors; the workers have ended."""
        self._pool.shutdown(wait=True)

    outlives = False
    """Whether the groups outlive this process."""


def _places(options: LocalOptions, gpus: Callable[[], list[str]] | None = None) -> list[dict[str, str]]:
    """The environment of each group at work at once."""
    found = (gpus or visible_gpus)()
    each = max(options.per_gpu, -(-options.jobs // len(found))) if found else 1  # more jobs share GPUs, too
    share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / each:.3f}"} if each > 1 else {}
    places = [{"CUDA_VISIBLE_DEVICES": gpu, **share} for _ in range(options.per_gpu) for gpu in found] or [{}]
    count = options.jobs or len(places)
    return [places[i % len(places)] for i in range(count)]


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(i) for i, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]
