"""The study `smoke` on a real Slurm and a real Ray, with workers killed and jobs pre-empted half-way."""

import os
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest

from gpld.config import ConfigError
from gpld.studies import _slurm, _state, _supervise, read_plan
from tests.studies import slurm_node
from tests.studies.conftest import ROOT
from tests.studies.helpers import comparable, same, small
from tests.studies.test_state import pretend
from tests.training.helpers import lines


def wait_for(condition, within=300.0):
    """What the condition gives, once it gives something."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)
    return found


def under_way(folder, group, least):
    """The process that works on a group, once it has logged `least` env steps of its runs itself."""
    if not (folder / "plan.json").exists():
        return None
    group = read_plan(folder).groups[group]
    state = _state.read_group(folder, group)
    metrics = _state.run_folder(folder, group.runs[0]) / "metrics.jsonl"
    if state.kind != "running" or not metrics.exists() or metrics.stat().st_mtime < state.started:
        return None
    reached = max((line["env_steps"] for line in lines(metrics.parent)), default=0)
    return state.pid if reached >= least else None


def log_of(folder, group):
    """What the workers of a group said."""
    return _state.log_path(folder, read_plan(folder).groups[group]).read_text()


@pytest.fixture
def started(cached, tmp_path):
    """Starts `gpld study run smoke` somewhere, and lets it finish."""
    processes = []

    def start(*arguments, environment=None):
        command = [sys.executable, "-m", "gpld", "study", "run", "smoke", "--out", str(tmp_path / "smoke")]
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                env={**cached, **(environment or {})},
                cwd=ROOT,
                stdout=output,
                stderr=output,
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def finished(process, tmp_path):
    """Let the study come to its end; what was said."""
    status = process.wait(500)
    output = (tmp_path / "output").read_text()
    logs = "\n".join(path.read_text()[-3000:] for path in (tmp_path / "smoke" / "logs").glob("*.log"))
    assert status == 0, output + logs
    return output


def assert_same_results(folder, smoke):
    """Every row and line of metrics is as on this machine without interruption: nothing lost or doubled."""
    assert same(comparable(folder), comparable(smoke))
    for run in read_plan(smoke).runs:
        one, two = (_state.run_folder(place, run) / "metrics.jsonl" for place in (folder, smoke))
        assert one.read_bytes() == two.read_bytes(), run.name
        one, two = (pd.read_csv(path.with_name("sensitivity.csv")) for path in (one, two))
        pd.testing.assert_frame_equal(one.drop(columns="run"), two.drop(columns="run"), check_exact=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_worker_killed_on_this_machine_is_retried_and_resumes(smoke, started, tmp_path):
    folder = tmp_path / "smoke"
    process = started("--local.jobs", "2")
    os.kill(wait_for(lambda: under_way(folder, 0, 700)), signal.SIGKILL)
    finished(process, tmp_path)
    assert [log_of(folder, group).count("--- attempt") for group in (0, 1)] == [2, 1]
    assert "resumed at" in log_of(folder, 0).partition("--- attempt 2")[2]
    assert_same_results(folder, smoke)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_study_that_is_stopped_goes_on(smoke, started, gpld, tmp_path):
    process = started()
    wait_for(lambda: under_way(tmp_path / "smoke", 0, 200))
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130
    plan = read_plan(tmp_path / "smoke")
    kinds = {state.kind for state in _state.run_states(tmp_path / "smoke", plan)}
    assert "interrupted" in kinds
    assert "running" not in kinds
    gpld("study", "run", "smoke", "--out", tmp_path / "smoke")
    assert_same_results(tmp_path / "smoke", smoke)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(slurm_node.missing()), reason=slurm_node.missing())
def test_slurm_gives_the_same_results_though_workers_are_killed_and_jobs_preempted(smoke, started, tmp_path):
    pytest.importorskip("submitit")
    folder = tmp_path / "smoke"
    with slurm_node.slurm(tmp_path / "slurm") as environment:
        process = started(
            *("--on", "slurm", "--slurm.partition", "patient", "--slurm.gpus", "0", "--slurm.cpus", "1"),
            environment={"SLURM_CONF": environment["SLURM_CONF"]},
        )
        os.kill(wait_for(lambda: under_way(folder, 0, 700)), signal.SIGKILL)
        preempted = wait_for(lambda: under_way(folder, 1, 200))
        # It stands still until Slurm tells it to go, or it might be done before that.
        os.kill(preempted, signal.SIGSTOP)
        urgent = ["sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"]
        subprocess.run(urgent, env=environment, check=True, capture_output=True)
        wait_for(lambda: _job_state("1_1", environment) != "RUNNING")
        os.kill(preempted, signal.SIGCONT)
        wait_for(lambda: not _alive(preempted))
        # Slurm lets a job that was queued again wait for two minutes.
        hurry = ["scontrol", "update", "jobid=1_1", "StartTime=now"]
        wait_for(lambda: not subprocess.run(hurry, env=environment, capture_output=True).returncode)
        output = finished(process, tmp_path)
    assert "submitted 2 jobs: 1_0, 1_1" in output
    killed, moved = log_of(folder, 0), log_of(folder, 1)
    assert "resumed at" in killed.partition("--- attempt 2")[2]
    assert "interrupted by SIGTERM; the runs are saved" in moved
    assert [log.count("--- attempt") for log in (killed, moved)] == [2, 2]
    assert_same_results(folder, smoke)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ray_gives_the_same_results_though_a_worker_and_its_keeper_are_killed(smoke, started, tmp_path):
    pytest.importorskip("ray")
    folder = tmp_path / "smoke"
    process = started("--on", "ray", "--ray.address", "local", "--ray.gpus", "0", "--ray.cpus", "2")
    os.kill(wait_for(lambda: under_way(folder, 0, 700)), signal.SIGKILL)
    orphan = wait_for(lambda: under_way(folder, 1, 200))
    os.kill(_parent(orphan), signal.SIGKILL)  # Ray's own process, which watches over the worker
    wait_for(lambda: not _alive(orphan))
    finished(process, tmp_path)
    assert "resumed at" in log_of(folder, 0).partition("--- attempt 2")[2]
    assert "interrupted by SIGTERM; the runs are saved" in log_of(folder, 1)
    assert_same_results(folder, smoke)


def _job_state(job, environment):
    asked = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    return subprocess.run(asked, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _parent(pid):
    import psutil

    return psutil.Process(pid).ppid()


def test_before_its_time_limit_a_job_saves_and_asks_to_be_queued_again(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    pretend(
        monkeypatch,
        tmp_path,
        """
        def save(*_):
            (count.parent / 'saved').touch()
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        (count.parent / 'ready').touch()
        time.sleep(60)
        """,
    )
    monkeypatch.setattr(_slurm, "GRACE_SECONDS", 0)
    group = small().groups[0]
    job = _slurm.Job(tmp_path, group, retries=0)
    endings = []
    thread = threading.Thread(target=lambda: endings.append(job()))
    thread.start()
    wait_for((tmp_path / "ready").exists, within=20)
    again = job.checkpoint()
    thread.join(20)
    assert endings == ["interrupted"]
    assert (tmp_path / "saved").exists()
    monkeypatch.setattr(
        _supervise, "worker_command", lambda folder, some: ["test", some.name, "=", group.name]
    )
    assert again.function() == "done"


def test_without_slurm_or_a_cluster_one_is_told(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="slurm is not on this machine"):
        _slurm.SlurmRunner(tmp_path, small().groups, _slurm.SlurmOptions(), retries=0)


def test_jobs_ask_slurm_for_what_the_options_say(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    script, calls = tmp_path / "srun", tmp_path / "calls"
    script.write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ncat $1 > {calls}\necho Submitted batch job 17\n")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 17_0\n")
    for name in ("srun", "sbatch", "squeue"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = _slurm.SlurmOptions(partition="gpus", minutes=30, gpus=2, cpus=3, memory_gb=5, at_once=2)
    groups = small().groups
    runner = _slurm.SlurmRunner(tmp_path / "small", groups, options, retries=0)
    asked = {line for line in calls.read_text().splitlines() if line.startswith("#SBATCH")}
    wanted = ("partition=gpus", "time=30", "gres=gpu:2", "cpus-per-task=3", "mem=5GB", "requeue")
    for parameter in (*wanted, f"array=0-{len(groups) - 1}%2", "signal=USR2@120"):
        assert f"#SBATCH --{parameter}" in asked
    assert set(runner.endings()) == {group.name for group in groups[1:]}  # 17_0 is still in the queue
