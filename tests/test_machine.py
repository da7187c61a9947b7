import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import jax
import pytest

from gpld import machine
from gpld.machine import Memory, interruptible, sigterm_raises


def test_cores_are_those_of_this_process():
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)


def test_memory_is_positive_and_free_is_part_of_it():
    for memory in (machine.host_memory(), machine.device_memory()):
        assert memory.total > 2**28
        assert 0 < memory.free <= memory.total


def test_limits_of_enclosing_groups_are_all_found(tmp_path):
    inner = tmp_path / "root" / "job" / "step"
    inner.mkdir(parents=True)
    for folder, limit, used in (
        (inner, "max", 10),
        (inner.parent, "1000", 400),
        (tmp_path / "root", "5000", 5001),
    ):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    membership = tmp_path / "cgroup"
    membership.write_text("0::/job/step\n")
    limits = machine._group_limits(tmp_path / "root", membership)
    assert limits == [Memory(1000, 600), Memory(5000, 0)]


def test_without_groups_there_is_no_limit(tmp_path):
    assert machine._group_limits(tmp_path, tmp_path / "missing") == []


def test_the_compilation_cache_follows_the_environment(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/a/b")
    assert machine.compilation_cache() == Path("/a/b")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert machine.compilation_cache() == Path("/caches/gpld/jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert machine.compilation_cache() == Path.home() / ".cache/gpld/jax"


@pytest.mark.parametrize(
    ("configured", "variable", "kept_from"), [(1.0, None, 0.0), (0.5, None, 0.5), (1.0, "1", 1.0)]
)
def test_small_programs_are_kept_too_unless_jax_says_otherwise(monkeypatch, configured, variable, kept_from):
    least = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.values[least]
    if variable:
        monkeypatch.setenv(least.upper(), variable)
    try:
        jax.config.update(least, configured)
        machine.use_compilation_cache()
        assert jax.config.values[least] == kept_from
    finally:
        jax.config.update(least, before)


GOES = "import os; from gpld.machine import report_death\nwith report_death('it is gone'):\n    {}"


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("os._exit(3)", 3, "it is gone\n"),
        ("os.kill(os.getpid(), 9)", -9, "it is gone\n"),
        ("raise SystemExit(4)", 4, ""),
        ("pass", 0, ""),
    ],
)
def test_a_process_that_is_gone_is_told_of(what, status, said):
    done = subprocess.run([sys.executable, "-c", GOES.format(what)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_programs_are_forgotten_if_much_is_mapped():
    traced = []

    @jax.jit
    def program(x):
        traced.append(x)
        return x

    for most in (10**9, 0, 10**9):
        program(1.0)
        machine.forget_programs(most)
    program(1.0)
    assert len(traced) == 2


def test_a_process_that_leaves_gpus_computes_on_the_cpu():
    """Asked for a platform that is not there, JAX would fail; once GPUs are left, it does not look."""
    script = "from gpld import machine; machine.leave_gpus(); import jax; print(jax.default_backend())"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"JAX_PLATFORMS": "cuda"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "cpu"


ENDLESS = """
import hashlib
from gpld.machine import interruptible
with interruptible():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # hours in C, as compiling is minutes
"""


def test_ctrl_c_is_answered_while_python_cannot_and_the_second_one_ends():
    command = [sys.executable, "-c", ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "stopping after this step; Ctrl-C again to quit now\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() in (128 + signal.SIGINT, -signal.SIGINT)


@pytest.fixture
def handled():
    """Signals that reached the handler which this process had before."""
    numbers = []
    before = {n: signal.signal(n, lambda n, _: numbers.append(n)) for n in (signal.SIGINT, signal.SIGTERM)}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_nobody_was_told_of_is_passed_on(handled, number):
    with interruptible() as outer:
        with interruptible() as inner:
            assert inner() is None
            os.kill(os.getpid(), number)
        assert outer() == number
    assert handled == []  # since one was told of it
    with suppress(ZeroDivisionError), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), number)
        assert handled == []
        raise ZeroDivisionError
    assert handled == [signal.SIGTERM]  # once, and the first


def test_the_first_sigterm_raises_and_the_second_does_not_disturb_what_is_done_then(handled):
    done = []

    def work():
        try:
            with interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
            done.append("more")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("saved")

    with pytest.raises(ZeroDivisionError), sigterm_raises(ZeroDivisionError()):
        work()
    assert done == ["saved"]
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM]


def test_a_child_that_is_started_after_a_sigterm_heeds_its_own():
    """A study that is stopped may just have started a worker."""
    with sigterm_raises(ZeroDivisionError()):
        with suppress(ZeroDivisionError):
            os.kill(os.getpid(), signal.SIGTERM)
        child = subprocess.run(["sh", "-c", "kill -TERM $$"], check=False)
    assert child.returncode == -signal.SIGTERM
