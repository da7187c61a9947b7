"""Studies on a Slurm cluster: an array of jobs through submitit, a job for each group."""

import getpass
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpld import machine
from gpld.config import ConfigError
from gpld.studies import _state
from gpld.studies._plan import Group
from gpld.studies._supervise import Ending, Supervisor

TIMEOUTS = 1000
"""The most times that a job at its time limit is queued again."""
WARNING_SECONDS = 120
"""How long before its time limit a job gets a signal, so that it can save."""
GRACE_SECONDS = 600
"""Slurm has ended a job long before this time after its signal."""


@dataclass(frozen=True)
class SlurmOptions:
    """The resources of each job."""

    partition: str = ""
    """Partition; Slurm's default if empty."""
    account: str = ""
    """Account that is charged; yours if empty."""
    qos: str = ""
    """Quality of service; the default if empty."""
    minutes: int = 720
    """Time limit of a job. One that has not finished by then saves, and is queued again."""
    gpus: int = 1
    """GPUs of a job; 0 to train on CPUs."""
    cpus: int = 8
    """Cores of a job."""
    memory_gb: int = 0
    """Memory of a job, in GB; Slurm's default if 0."""
    at_once: int = 256
    """The most jobs of the array that run at the same time."""


class Job:
    """A job: supervises the worker of its group. Called, and checkpointed, by submitit."""

    def __init__(self, folder: Path, group: Group, retries: int):
        self._folder, self._group, self._retries = folder, group, retries
        self._supervisor: Supervisor | None = None

    def __call__(self) -> Ending:
        """Work until the group is done, or Slurm says otherwise."""
        supervisor = self._supervisor = Supervisor(self._folder, self._group, retries=self._retries)
        if threading.current_thread() is threading.main_thread():
            # Pre-empted or cancelled: Slurm may know nothing of the worker, whose session is its own.
            signal.signal(signal.SIGTERM, lambda *_: supervisor.request_stop())
        ending = supervisor.run()
        if ending == "interrupted":
            time.sleep(GRACE_SECONDS)  # Slurm queues a pre-empted job again, but only while it is alive
        return ending

    def checkpoint(self) -> Any:
        """Let the worker save; what to queue again. submitit calls this before the time limit."""
        from submitit.helpers import DelayedSubmission

        if self._supervisor is not None:
            self._supervisor.stop(WARNING_SECONDS - 30.0)
        return DelayedSubmission(Job(self._folder, self._group, self._retries))


class SlurmRunner:
    """Groups in Slurm's queue."""

    outlives = True

    def __init__(self, folder: Path, groups: Sequence[Group], options: SlurmOptions, *, retries: int):
        self._folder, self._groups = folder, groups
        executor = _executor(folder, options)
        with executor.batch():
            jobs = [executor.submit(Job(folder, group, retries)) for group in groups]
        self._ids = {group.name: job.job_id for group, job in zip(groups, jobs, strict=True)}
        print(f"submitted {len(jobs)} jobs: {', '.join(self._ids.values())}", flush=True)

    def endings(self) -> dict[str, Ending]:
        """How the groups that are no longer in the queue have ended."""
        queued = _queued()
        ended = [group for group in self._groups if self._ids[group.name] not in queued]
        kinds = {group.name: _state.read_group(self._folder, group).kind for group in ended}
        return {name: x if x in ("done", "failed") else "interrupted" for name, x in kinds.items()}

    def stop(self) -> None:
        """Take the jobs out of the queue; running ones save first."""
        subprocess.run(["scancel", *self._ids.values()], check=False)

    def close(self) -> None:
        """Nothing is held here: the jobs are Slurm's."""


def _executor(folder: Path, options: SlurmOptions) -> Any:
    try:
        from submitit import SlurmExecutor
    except ImportError as error:
        raise ConfigError(f"on: slurm needs submitit: {machine.install('slurm')}") from error
    if SlurmExecutor.affinity() < 0:
        raise ConfigError("on: slurm is not on this machine (there is no srun)")
    executor = SlurmExecutor(folder / "slurm", max_num_timeout=TIMEOUTS, python=sys.executable)
    named = {"partition": options.partition, "account": options.account, "qos": options.qos}
    executor.update_parameters(
        job_name=f"gpld-{folder.name}",
        time=options.minutes,
        cpus_per_task=options.cpus,
        array_parallelism=options.at_once,
        signal_delay_s=WARNING_SECONDS,
        additional_parameters={"requeue": True},
        stderr_to_stdout=True,
        **{name: value for name, value in named.items() if value},
        **({"gres": f"gpu:{options.gpus}"} if options.gpus else {}),
        **({"mem": f"{options.memory_gb}GB"} if options.memory_gb else {}),
    )
    return executor


def _queued() -> set[str]:
    """Identities of this user's jobs that wait or run, arrays as `job_index`."""
    command = ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise ConfigError(f"on: slurm does not answer ({listed.stderr.strip()})")
    return {line.strip() for line in listed.stdout.splitlines()}
