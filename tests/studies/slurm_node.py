"""A real Slurm of one node on this machine, for tests: needs root, and Debian's slurm-wlm and munge.

It has two partitions. Jobs in `urgent` pre-empt those in `patient`, which are queued again.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "munged")

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory} State=UNKNOWN
PartitionName=patient Nodes={host} Default=YES PriorityTier=1 State=UP
PartitionName=urgent Nodes={host} PriorityTier=2 State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here, or nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name) and not Path("/usr/sbin", name).exists()]
    if absent:
        return f"needs {', '.join(absent)} (Debian: slurm-wlm, munge)"
    return "" if os.getuid() == 0 else "needs root"


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Slurm while the context lasts; the environment in which its commands find it."""
    host = socket.gethostname().partition(".")[0]
    for name in ("controller", "node"):
        (folder / name).mkdir(parents=True)
    conf, environment = folder / "slurm.conf", {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 8 // 10 // 2**20
    conf.write_text(CONF.format(host=host, folder=folder, cores=os.cpu_count(), memory=memory))
    _let_host_be_found(host)
    _start_munge()
    daemons = [
        subprocess.Popen([shutil.which(name) or f"/usr/sbin/{name}", "-D", "-f", str(conf)], env=environment)
        for name in ("slurmctld", "slurmd")
    ]
    try:
        _wait_until_idle(environment, folder)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _let_host_be_found(host: str) -> None:
    hosts = Path("/etc/hosts")
    if host not in hosts.read_text().split():
        with hosts.open("a") as file:
            file.write(f"127.0.0.1 {host}\n")


def _start_munge() -> None:
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        folder = Path("/run/munge")
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, "munge", "munge")
        subprocess.run(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--force"], check=True)


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    for _ in range(60):
        states = subprocess.run(
            ["sinfo", "-h", "-t", "idle"], env=environment, capture_output=True, text=True, check=False
        )
        if states.stdout.strip():
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
    raise RuntimeError(f"Slurm did not start: {logs}")
