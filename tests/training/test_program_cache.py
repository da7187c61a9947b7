"""Programs that are kept on disk as they were compiled."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from gpld import agent
from gpld.training import _program_cache
from gpld.training._program_cache import CachedProgram


@pytest.fixture
def setting():
    """Change a setting of JAX until the test ends."""
    before = {}

    def change(name, value):
        before.setdefault(name, jax.config.values[name])
        jax.config.update(name, value)

    yield change
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def kept(tmp_path, monkeypatch, without_jax_cache):
    """A folder for programs, as there is one on a GPU. JAX's own cache is off, and cannot stand in for it."""
    monkeypatch.setattr(_program_cache, "cache_folder", lambda: tmp_path)
    return tmp_path


class State(eqx.Module):
    weight: jax.Array
    keys: jax.Array
    name: str = eqx.field(static=True)


class Traced:
    """A step of some state, and how often Python was asked what it is."""

    def __init__(self):
        self.times = 0

    def step(self, factor: int, state: State, more: jax.Array) -> State:
        self.times += 1
        noise = jax.random.normal(state.keys, ())
        return State(factor * state.weight + more + noise, jax.random.fold_in(state.keys, 1), state.name)

    def __call__(self, factor: int = 2, size: int = 3, name: str = "a") -> State:
        """As a process does that has just begun."""
        state = State(jnp.arange(size, dtype=jnp.float32), jax.random.key(0), name)
        return CachedProgram(self.step, static=1)(factor, state, jnp.float32(1))


@pytest.fixture
def traced():
    return Traced()


def same(one: State, two: State) -> bool:
    numbers = [(x.weight, jax.random.key_data(x.keys)) for x in (one, two)]
    return all(np.array_equal(x, y) for x, y in zip(*numbers, strict=True))


def test_the_next_process_gets_the_program_without_tracing_it(kept, traced):
    first, again = traced(), traced()
    assert traced.times == 1
    (file,) = kept.iterdir()
    assert file.name.startswith("gpld-step-")
    assert again.name == "a"
    assert same(first, again)
    assert same(first, jax.jit(Traced().step, static_argnums=0)(2, start(), jnp.float32(1)))


def start() -> State:
    return State(jnp.arange(3, dtype=jnp.float32), jax.random.key(0), "a")


def test_a_process_looks_once(kept, traced):
    step, state, one = CachedProgram(traced.step, static=1), start(), jnp.float32(1)
    state = step(2, state, one)
    next(kept.iterdir()).unlink()
    step(2, state, one)
    assert traced.times == 1
    assert not list(kept.iterdir())


def test_what_goes_in_is_donated(kept, traced):
    for _ in range(2):  # compiled, and from the disk
        state = start()
        CachedProgram(traced.step, static=1)(2, state, jnp.float32(1))
        assert state.weight.is_deleted()


@pytest.mark.parametrize("other", [{"factor": 3}, {"size": 4}, {"name": "b"}])
def test_another_question_has_another_answer(kept, traced, other):
    first, second = traced(), traced(**other)
    assert traced.times == 2
    assert len(list(kept.iterdir())) == 2
    assert not same(first, second) or second.name == "b"


@pytest.mark.parametrize("process", ["the same", "another"])
@pytest.mark.parametrize("which", ["code", "packages", "kernels", "flags", "settings"])
def test_other_circumstances_have_another_answer(kept, traced, monkeypatch, setting, which, process):
    changes = {
        "code": lambda: monkeypatch.setattr(_program_cache, "_CODE", "changed"),
        "packages": lambda: monkeypatch.setattr(_program_cache, "_packages", lambda: ("jax 99.0",)),
        "kernels": lambda: monkeypatch.setattr(agent, "has_kernels", lambda: True),
        "flags": lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true"),
        "settings": lambda: setting("jax_default_matmul_precision", "highest"),
    }
    first = CachedProgram(traced.step, static=1)
    second = first if process == "the same" else CachedProgram(traced.step, static=1)
    first(2, start(), jnp.float32(1))
    changes[which]()
    second(2, start(), jnp.float32(1))
    assert traced.times == 2
    assert len(list(kept.iterdir())) == 2


def test_code_is_known_by_every_file(tmp_path):
    for name in ("a.py", "inside/b.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    digests = [_program_cache._digest(tmp_path)]
    (tmp_path / "notes.txt").write_text("not code")
    assert _program_cache._digest(tmp_path) == digests[0]
    (tmp_path / "inside" / "b.py").write_text("x = 2\n")
    digests.append(_program_cache._digest(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    digests.append(_program_cache._digest(tmp_path))
    assert len(set(digests)) == 3


def test_what_compiles_is_known_with_its_version():
    assert f"jaxlib {jaxlib.__version__}" in _program_cache._packages()
    assert f"equinox {eqx.__version__}" in _program_cache._packages()


def test_where_caches_are_and_what_is_logged_does_not_matter(kept, traced, setting):
    traced()
    setting("jax_compilation_cache_dir", "/elsewhere")
    setting("jax_log_compiles", True)
    traced()
    assert traced.times == 1


@pytest.fixture
def jax_cache(kept, setting):
    """JAX keeps everything, too, in a folder of its own."""
    setting("jax_compilation_cache_dir", str(kept / "own"))
    setting("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("jax_cache")
def test_what_jax_had_itself_is_not_written_again(kept, traced):
    """On CPUs that makes programs which cannot be executed."""
    first = traced()
    (file,) = kept.glob("gpld-*")
    file.unlink()
    jax.clear_caches()
    assert same(traced(), first)
    assert traced.times == 2
    assert not list(kept.glob("gpld-*"))


def test_what_jax_had_of_other_programs_does_not_matter(kept, traced):
    def step(*arguments):
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")  # while it is traced
        return traced.step(*arguments)

    CachedProgram(step, static=1)(2, start(), jnp.float32(1))
    assert len(list(kept.iterdir())) == 1


def damage(folder):
    (file,) = folder.glob("gpld-*")
    file.write_bytes(file.read_bytes()[:100])
    return file


def test_a_damaged_file_is_made_anew(kept, traced):
    first, file = traced(), damage(kept)
    with pytest.warns(UserWarning, match=f"{file} cannot be used and is removed"):
        again = traced()
    assert same(first, again)
    assert same(first, traced())
    assert traced.times == 2


@pytest.mark.usefixtures("jax_cache")
def test_a_damaged_file_is_removed_where_jax_has_the_program(kept, traced):
    first, file = traced(), damage(kept)
    jax.clear_caches()
    with pytest.warns(UserWarning, match=f"{file} cannot be used and is removed"):
        again = traced()
    assert same(first, again)
    assert not file.exists()
    assert same(first, traced())


def test_a_folder_that_cannot_be_written_costs_time_alone(kept, traced, monkeypatch):
    blocked = kept / "file"
    blocked.write_text("")
    monkeypatch.setattr(_program_cache, "cache_folder", lambda: blocked / "inside")
    with pytest.warns(UserWarning, match="could not be written, and starts will take longer"):
        one = traced()
    assert same(one, jax.jit(Traced().step, static_argnums=0)(2, start(), jnp.float32(1)))


def test_shapes_are_asked_once(kept):
    asked = []

    def shapes(name):
        asked.append(name)
        return {name: jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), "b": jax.ShapeDtypeStruct((), jnp.float32)}

    first = _program_cache.cached_shapes(shapes, "a")
    assert _program_cache.cached_shapes(shapes, "a") == first == shapes("a")
    assert _program_cache.cached_shapes(shapes, "c") == shapes("c")
    assert asked == ["a", "a", "c", "c"]
    for file in kept.iterdir():
        file.write_text("{")
    assert _program_cache.cached_shapes(shapes, "a") == first


def test_nothing_is_kept_for_a_cpu_or_without_a_cache(tmp_path, monkeypatch, setting, traced):
    setting("jax_compilation_cache_dir", str(tmp_path))
    assert _program_cache.cache_folder() is None
    traced()
    assert not list(tmp_path.glob("gpld-*"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _program_cache.cache_folder() == tmp_path
    setting("jax_enable_compilation_cache", False)
    assert _program_cache.cache_folder() is None
    setting("jax_enable_compilation_cache", True)
    for elsewhere in ("gs://bucket/cache", None):
        setting("jax_compilation_cache_dir", elsewhere)
        assert _program_cache.cache_folder() is None


@pytest.mark.gpu
def test_on_a_gpu_a_second_process_learns_by_the_kept_program(tmp_path):
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    command = [sys.executable, "-m", "gpld", "train", "cartpole-balance", "--preset", "nano", "gpu"]
    metrics, written = [], []
    for name in "ab":
        options = ["--env-steps", "2300", "--log.every", "10", "--out", str(tmp_path / name)]
        subprocess.run([*command, *options], env=environment, check=True)
        metrics.append((tmp_path / name / "metrics.jsonl").read_bytes())
        written.append({path.name: path.stat().st_mtime for path in tmp_path.glob("cache/gpld-learn-*")})
    assert written[0]
    assert written[0] == written[1]
    assert metrics[0] == metrics[1]
