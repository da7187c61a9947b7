"""A finished `smoke` study for all tests of studies."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests.sharing import made_once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cached():
    """Environment of a process that shares the tests' compiled programs."""
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="session")
def gpld(cached):
    """Runs a `gpld` command; what it printed."""

    def run(*arguments, status=0, within=500):
        command = [sys.executable, "-m", "gpld", *map(str, arguments)]
        done = subprocess.run(
            command, env=cached, capture_output=True, text=True, timeout=within, cwd=ROOT, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def smoke(gpld, tmp_path_factory):
    """The folder of the study `smoke`, run on this machine, with its report."""

    def make(folder):
        output = gpld("study", "run", "smoke", "--out", folder)
        assert "8 runs in 2 groups" in output
        assert output.splitlines()[-1] == "8 done"
        assert gpld("study", "report", "smoke", "--out", folder).strip() == str(folder / "report.html")

    return made_once(tmp_path_factory, "smoke", make)
