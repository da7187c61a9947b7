"""Workers and those who watch over them, with workers that only pretend."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from gpld import results, training
from gpld.studies import _local, _state, _status, _supervise, _worker
from gpld.training import Result, TrainingStopped
from gpld.training.score import Score
from tests.studies.helpers import small

GROUP = small().groups[0]


def pretend(monkeypatch, tmp_path, text):
    """Let workers run some other Python; `count` is a file that grows by a byte with each attempt."""
    script = tmp_path / "worker.py"
    counting = "import os, signal, sys, time, pathlib\ncount = pathlib.Path(sys.argv[1]) / 'count'\n"
    counting += "with count.open('a') as file: file.write('x')\nattempt = count.stat().st_size\n"
    script.write_text(counting + textwrap.dedent(text))
    command = [sys.executable, str(script), str(tmp_path)]
    monkeypatch.setattr(_supervise, "worker_command", lambda folder, group: command)
    return tmp_path / "count"


def score(folder, run, *env_steps):
    path = _state.run_folder(folder, run)
    path.mkdir(parents=True, exist_ok=True)
    for steps in env_steps:
        results.add_score(path, Score(run.task, steps, 0, 0, [1.0]))


def score_each(folder, plan, runs, env_steps):
    """In the place of `_worker._score`."""
    for run in runs:
        score(folder, run, env_steps)
    return []


def test_a_killed_worker_is_started_again(tmp_path, monkeypatch):
    count = pretend(monkeypatch, tmp_path, "attempt < 3 and os.kill(os.getpid(), signal.SIGKILL)")
    assert _supervise.Supervisor(tmp_path, GROUP, retries=2).run() == "done"
    assert count.read_text() == "xxx"
    assert _state.log_path(tmp_path, GROUP).read_text().count("--- attempt") == 3


def test_a_worker_that_is_killed_too_often_has_failed_and_says_why(tmp_path, monkeypatch):
    pretend(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert _supervise.Supervisor(tmp_path, GROUP, retries=1).run() == "failed"
    states = [state for state in _state.run_states(tmp_path, small()) if state.kind == "failed"]
    assert {state.run.name for state in states} == {run.name for run in GROUP.runs}
    (line, *_) = _status.failures(states)
    assert "killed 2 times, last by signal 9" in line
    assert str(_state.log_path(tmp_path, GROUP)) in line


@pytest.mark.parametrize(
    ("ending", "expected", "attempts"),
    [
        ("sys.exit(0)", "done", 1),
        ("sys.exit(1)", "failed", 1),
        ("sys.exit(143)", "interrupted", 1),
        ("1 / 0", "failed", 1),
    ],
)
def test_endings_that_another_attempt_would_not_change(tmp_path, monkeypatch, ending, expected, attempts):
    count = pretend(monkeypatch, tmp_path, ending)
    assert _supervise.Supervisor(tmp_path, GROUP, retries=2).run() == expected
    assert len(count.read_text()) == attempts


def test_stopping_lets_the_worker_save(tmp_path, monkeypatch):
    count = pretend(
        monkeypatch,
        tmp_path,
        """
        def save(*_):
            (count.parent / 'saved').touch()
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        os.kill(os.getpid(), signal.SIGUSR2)  # which Slurm sends to everyone
        (count.parent / 'ready').touch()
        time.sleep(60)
        """,
    )
    supervisor = _supervise.Supervisor(tmp_path, GROUP)
    endings = []
    thread = threading.Thread(target=lambda: endings.append(supervisor.run()))
    thread.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    supervisor.stop()
    thread.join(10)
    assert endings == ["interrupted"]
    assert (tmp_path / "saved").exists()
    assert count.read_text() == "x"


def test_a_stop_while_the_worker_is_being_started_reaches_it(tmp_path, monkeypatch):
    pretend(monkeypatch, tmp_path, "time.sleep(60)")
    supervisor, start = _supervise.Supervisor(tmp_path, GROUP), subprocess.Popen

    def stopped_start(*args, **options):
        process = start(*args, **options)
        supervisor.stop()
        return process

    monkeypatch.setattr(_supervise.subprocess, "Popen", stopped_start)
    assert supervisor.run() == "interrupted"


def test_local_groups_take_turns_on_the_places_there_are(tmp_path, monkeypatch):
    pretend(
        monkeypatch,
        tmp_path,
        """
        marks = count.parent / 'marks'
        marks.mkdir(exist_ok=True)
        mine = marks / f"{os.environ['CUDA_VISIBLE_DEVICES']}-{os.getpid()}"
        mine.touch()
        time.sleep(0.3)
        same = [m for m in marks.iterdir() if m.name.split('-')[0] == mine.name.split('-')[0]]
        (count.parent / f'seen-{os.getpid()}').write_text(f"{len(list(marks.iterdir()))} {len(same)}")
        mine.unlink()
        """,
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    runner = _local.LocalRunner(tmp_path, small().groups, _local.LocalOptions(), retries=0)
    runner.close()
    assert set(runner.endings().values()) == {"done"}
    seen = [tuple(map(int, path.read_text().split())) for path in tmp_path.glob("seen-*")]
    assert len(seen) == len(small().groups) == 4
    assert max(both for both, _ in seen) == 2  # both GPUs were in use
    assert max(same for _, same in seen) == 1  # and no GPU twice


@pytest.mark.parametrize(
    ("options", "gpus", "expected"),
    [
        ({}, [], [None]),
        ({"jobs": 3}, [], [None, None, None]),
        ({}, ["0", "1"], ["0", "1"]),
        ({"per_gpu": 2}, ["0", "1"], ["0", "1", "0", "1"]),
        ({"jobs": 1}, ["0", "1"], ["0"]),
        ({"jobs": 3}, ["0", "1"], ["0", "1", "0"]),
    ],
)
def test_places_on_this_machine(options, gpus, expected):
    places = _local._places(_local.LocalOptions(**options), lambda: gpus)
    assert [place.get("CUDA_VISIBLE_DEVICES") for place in places] == expected
    shares = {place.get("XLA_PYTHON_CLIENT_MEM_FRACTION") for place in places}
    assert shares == ({"0.450"} if len(places) > len(gpus) > 0 else {None})


def test_a_worker_trains_and_scores_what_is_left_and_keeps_failures_apart(tmp_path, monkeypatch):
    plan = small()
    group = next(group for group in plan.groups if len(group.runs) == 4)
    done, bad, *_ = group.runs
    score(tmp_path, done, 600, 1200)
    score(tmp_path, group.runs[2], 600)
    trained = []

    def train(members):
        trained.append([(config.env_steps, path.relative_to(tmp_path / "runs")) for config, path in members])
        if any(str(path).endswith(bad.name) for _, path in members):
            raise OSError("disk full")
        return [Result(path, config.env_steps, True) for config, path in members]

    monkeypatch.setattr(training, "train_all", train)
    monkeypatch.setattr(_worker, "_score", score_each)
    assert _worker.work(tmp_path, group, plan) == 1
    names = [[str(path) for _, path in some] for some in trained]
    second, third, fourth = (run.name for run in group.runs[1:])
    # Together first, and each alone once that has failed.
    assert names == [[second, fourth], [second], [fourth], [third, fourth]]
    assert [{steps for steps, _ in some} for some in trained] == [{600}, {600}, {600}, {1200}]
    kinds = {state.run.name: state for state in _state.run_states(tmp_path, plan)}
    assert [kinds[run.name].kind for run in group.runs] == ["done", "failed", "done", "done"]
    assert "OSError: disk full" in kinds[bad.name].reason


def test_runs_go_on_together_without_the_one_that_failed(tmp_path, monkeypatch):
    plan = small()
    group = next(group for group in plan.groups if len(group.runs) == 4)
    bad, trained = group.runs[1], []

    def train(members):
        trained.append([str(member.folder.relative_to(tmp_path / "runs")) for member in members])
        if failed := [member for member in members if str(member.folder).endswith(bad.name)]:
            error = TrainingStopped("its loss is not finite")
            error.member = failed[0]
            raise error
        return [Result(path, config.env_steps, True) for config, path in members]

    monkeypatch.setattr(training, "train_all", train)
    monkeypatch.setattr(_worker, "_score", score_each)
    assert _worker.work(tmp_path, group, plan) == 1
    names = [run.name for run in group.runs]
    others = [name for name in names if name != bad.name]
    assert trained == [names, others, others]
    kinds = {state.run.name: state for state in _state.run_states(tmp_path, plan)}
    assert [kinds[name].kind for name in names] == ["done", "failed", "done", "done"]
    assert "its loss is not finite" in kinds[bad.name].reason


def test_a_signal_ends_runs_that_are_trained_one_by_one(tmp_path, monkeypatch):
    plan = small()
    group = next(group for group in plan.groups if len(group.runs) == 4)
    trained = []

    def train(members):
        if len(members) > 1:
            raise OSError("not together")
        trained.append(members[0].folder)
        return [Result(members[0].folder, 0, finished=False, signal=15)]

    monkeypatch.setattr(training, "train_all", train)
    assert _worker.work(tmp_path, group, plan) == 143
    assert len(trained) == 1


def test_what_ends_a_worker_is_told(tmp_path, monkeypatch):
    def work(*_):
        raise OSError(28, "No space left on device")

    plan = small()
    plan.write(tmp_path)
    monkeypatch.setattr(_worker, "_stop_with_parent", lambda: None)
    monkeypatch.setattr(_worker, "work", work)
    assert _worker.main([str(tmp_path), GROUP.name]) == 1
    failed = [state for state in _state.run_states(tmp_path, plan) if state.kind == "failed"]
    assert len(failed) == len(GROUP.runs)
    assert all("No space left on device" in state.reason for state in failed)


def test_an_interrupted_worker_leaves_the_rest_for_the_next(tmp_path, monkeypatch):
    plan = small()
    group = plan.groups[0]
    interrupted = Result(tmp_path, 0, finished=False, signal=15)
    monkeypatch.setattr(training, "train_all", lambda members: [interrupted for _ in members])
    assert _worker.work(tmp_path, group, plan) == 143
    states = {state.kind for state in _state.run_states(tmp_path, plan) if state.run in group.runs}
    assert states == {"interrupted"}
    assert _state.pending(tmp_path, plan) == list(plan.groups)


def test_a_worker_waits_until_another_has_let_go_of_its_group(tmp_path, monkeypatch):
    plan = small()
    plan.write(tmp_path)
    began, order = threading.Event(), []
    monkeypatch.setattr(_worker, "_stop_with_parent", lambda: None)
    monkeypatch.setattr(_worker, "work", lambda *_: order.append("second") or 0)

    def second():
        began.set()
        _worker.main([str(tmp_path), GROUP.name])

    with _worker._exclusive(tmp_path, GROUP.name):
        thread = threading.Thread(target=second)
        thread.start()
        began.wait()
        time.sleep(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_worker_that_is_not_heard_of_is_lost(tmp_path):
    plan = small()
    with _state.report_running(tmp_path, GROUP):
        assert _state.read_group(tmp_path, GROUP).kind == "running"
        path = _state._path(tmp_path, GROUP)
        os.utime(path, (0, time.time() - 2 * _state.LOST_SECONDS))
        assert _state.read_group(tmp_path, GROUP).kind == "interrupted"
    assert _status.line(_state.run_states(tmp_path, plan)).startswith("12 waiting")


def test_the_time_left_follows_from_the_rate(tmp_path):
    plan = small()
    run = plan.runs[0]
    states = [_state.RunState(run, "running", 200, rate=10.0), _state.RunState(run, "waiting", 0)]
    assert _status.eta(states) == (1000 + 1200) / 10
    assert _status.eta([_state.RunState(run, "waiting", 0)]) is None
    assert _status.eta([_state.RunState(run, "done", 1200)]) == 0.0
    assert _status.line(states) == "1 running, 1 waiting; 4 minutes left"


def test_progress_is_read_from_a_run_under_way(tmp_path):
    lines = [
        f'{{"env_steps": {100 * i}, "updates": 0, "seconds": {i}, "time": {1000 + 2 * i}}}'
        for i in range(1, 6)
    ]
    (tmp_path / "timing.jsonl").write_text("\n".join([*lines, '{"env_st']))
    assert _state._progress(tmp_path, 0.0) == (500, 50.0)
    assert _state._progress(tmp_path, 1009.0) == (500, 0.0)
    assert _state._progress(tmp_path / "nothing", 0.0) == (0, 0.0)
