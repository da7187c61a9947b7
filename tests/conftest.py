"""Strict arithmetic for every test, quick compilation, and one cache for all of them."""

import os
from importlib.metadata import version
from pathlib import Path

# XLA compiles in a third of the time without its newer emitters of fused loops. `make test-full` keeps them.
# JAX 0.11 and later have no others, and end the process at a flag that they do not know.
if version("jax").startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

# Silent promotion hides bugs: a missing axis or a stray float64 must fail here, not slow a run down.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compiling takes most of the tests' time, and running tiny models nearly none. Also for processes they start.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_runtest_setup(item):
    """Where there is no GPU, skip what needs one."""
    if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
        pytest.skip("needs a GPU")


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Forget compiled programs before they are too many."""
    from gpld import machine  # not earlier: it is imported so that annotations are checked

    yield
    machine.forget_programs()


@pytest.fixture(scope="module")
def optimized():
    """Compile as users do. For tests that hold two programs to the same bits."""
    _optimize(True)
    yield
    _optimize(False)


def _optimize(on: bool) -> None:
    jax.config.update("jax_disable_most_optimizations", not on)
    jax.clear_caches()


@pytest.fixture
def without_jax_cache():
    """Compile everything again. For tests of what is kept besides."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()  # or it goes on with the folder
    yield
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """The folder of a finished run: cartpole-balance, two evaluations, and no update to compile."""
    from gpld.training import train
    from tests.training.helpers import tiny

    config = tiny(env_steps=400, replay={"train_ratio": 0.001}, eval={"every": 100, "episodes": 2}, seed=3)
    folder = tmp_path_factory.mktemp("runs") / "cartpole-balance-seed3"
    assert train(config, folder).finished
    return folder
