"""Runs on several devices are those on one."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from gpld.config import Config, ConfigError, override
from gpld.training import _devices, train_all
from tests.training.helpers import ROOT, Pole, arrays_of, lines
from tests.training.on_devices import members


@contextmanager
def run(folder, *specs, devices=4, **more):
    """Train in a process that has several simulated devices."""
    environment = (
        os.environ
        | more
        | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            # Not that of one device: JAX tells programs for several devices from others by too little.
            "JAX_COMPILATION_CACHE_DIR": f"{jax.config.jax_compilation_cache_dir}-devices",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
    )
    command = [sys.executable, "-m", "tests.training.on_devices", str(folder), *specs]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four runs on four devices, one whose batches four share, and both on this one."""
    folder = tmp_path_factory.mktemp("devices")
    with run(folder, "spread=4x4", "shared=1x4") as process:
        train_all(members(folder / "one", 4), task=Pole)
        train_all(members(folder / "alone", 1), task=Pole)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert '["spread", 4, [true, true, true, true]]' in said
    assert '["shared", 4, [true]]' in said
    assert "on each of 4 devices" in said
    return folder


def assert_agree(one, two):
    """Every line of metrics, and all arrays at the end."""
    for ours, theirs in zip(one, two, strict=True):
        assert len(lines(ours.folder)) > 15
        for x, y in zip(lines(ours.folder), lines(theirs.folder), strict=True):
            # A latent on the edge between two classes may fall to the other side, later.
            assert x == pytest.approx(y, rel=1e-3, abs=1e-4 if x["updates"] <= 3 else 0.05)
    ours, theirs = arrays_of(one, Pole), arrays_of(two, Pole)
    assert ours.keys() == theirs.keys()
    rate = one[0].config.agent.optimizer.learning_rate
    for path in ours:
        x, y = ours[path].astype(float), theirs[path].astype(float)
        if ".optimizer" in path and ".average" in path:
            assert np.linalg.norm(x - y) < 0.01 * np.linalg.norm(y), path
        elif ".model" in path:
            # 63 updates move a parameter by up to 63 learning rates.
            np.testing.assert_allclose(x, y, rtol=0, atol=10 * rate, err_msg=path)
        elif "replay" in path:
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-3, err_msg=path)


@pytest.mark.slow
def test_runs_spread_over_devices_are_those_on_one(trained):
    assert_agree(members(trained / "spread", 4), members(trained / "one", 4))


@pytest.mark.slow
def test_runs_that_devices_cannot_share_evenly_are_those_on_one(trained, tmp_path):
    with run(tmp_path, "uneven=3x2") as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert '["uneven", 4, [true, true, true]]' in said
    assert "on each of 2 devices" in said
    assert_agree(members(tmp_path / "uneven", 3), members(trained / "one", 4)[:3])


@pytest.mark.slow
def test_a_run_whose_batches_are_shared_is_that_on_one_device(trained):
    assert_agree(members(trained / "shared", 1), members(trained / "alone", 1))


@pytest.mark.slow
def test_two_processes_that_share_batches_train_what_one_does(trained, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    more = {"COORDINATOR": address, "PROCESSES": "2"}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(run(tmp_path, "both=1x2", devices=2, PROCESS=str(i), **more))
            for i in range(2)
        ]
        said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    assert all('["both", 4, [true]]' in text for text in said)
    assert "env steps 800 of 800" in said[0]
    assert "env steps" not in said[1]
    assert_agree(members(tmp_path / "both", 1), members(trained / "alone", 1))


def test_devices_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="devices: 3 is not allowed; JAX has 1 here"):
        train_all(members(tmp_path, 2), task=Pole, devices=3)


def test_one_device_needs_no_mesh():
    assert _devices.mesh_for(4, 16, 0) is None
    assert _devices.mesh_for(1, 16, 1) is None


def test_devices_that_share_a_batch_do_without_our_kernels():
    config = Config(task="walker-walk")
    one = np.array(jax.devices()[:1])
    assert _devices.compiled_for(config, None) is config
    assert _devices.compiled_for(config, Mesh(one, (_devices.RUN,))) is config
    shared = Mesh(one, (_devices.BATCH,))
    assert _devices.compiled_for(config, shared).agent.kernels == "plain"
    asked = override(config, {"agent": {"kernels": "fused"}})
    with pytest.raises(ConfigError, match=r"agent\.kernels: 'fused' is not allowed where devices share"):
        _devices.compiled_for(asked, shared)
