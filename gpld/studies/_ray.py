"""Studies on a Ray cluster: a task for each group, placed where a GPU is free."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpld import machine
from gpld.config import ConfigError
from gpld.studies._plan import Group
from gpld.studies._supervise import Ending, Supervisor


@dataclass(frozen=True)
class RayOptions:
    """The resources of each task, and the cluster."""

    address: str = "auto"
    """Address of the cluster; auto for the one that this machine is in, local for a new one here."""
    gpus: float = 1.0
    """GPUs of a group; a fraction lets groups share one, 0 trains on CPUs."""
    cpus: float = 1.0
    """Cores of a group, as Ray counts them."""


class RayRunner:
    """Groups in the hands of Ray, which starts them again if a node or a worker of its own is lost."""

    outlives = False

    def __init__(self, folder: Path, groups: Sequence[Group], options: RayOptions, *, retries: int):
        self._ray = _connect(options.address)
        remote = self._ray.remote(
            num_gpus=options.gpus, num_cpus=options.cpus, max_retries=max(retries, 1), max_calls=1
        )(_work)
        self._tasks = {group.name: remote.remote(folder, group, retries) for group in groups}

    def endings(self) -> dict[str, Ending]:
        """How the groups that are no longer at work have ended."""
        ready, _ = self._ray.wait([*self._tasks.values()], num_returns=len(self._tasks), timeout=0)
        finished = set(ready)
        return {name: self._ending(task) for name, task in self._tasks.items() if task in finished}

    def _ending(self, task: Any) -> Ending:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return "interrupted"
        except self._ray.exceptions.RayError as error:
            print(f"Ray gave up on a group: {error}", flush=True)
            return "failed"

    def stop(self) -> None:
        """Let all workers save and end, which they do when their supervisor ends."""
        for task in self._tasks.values():
            self._ray.cancel(task, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


def _work(folder: Path, group: Group, retries: int) -> Ending:
    return Supervisor(folder, group, retries=retries).run()


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"on: ray is not installed: {machine.install('ray')}") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise ConfigError(f"ray.address: no cluster at {address!r} ({error})") from error
    return ray
