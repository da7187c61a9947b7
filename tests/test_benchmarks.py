"""Smoke tests of the benchmarks, on made-up measurements: they run, and write what they found."""

import dataclasses
import json
import shutil
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.config import Config, ConfigError, ReplayConfig
from gpld.training import logs, provenance
from gpld.world_model import RSSM
from tests import scripts
from tests.fused.helpers import CONFIG, assert_same, noisy


def written(path):
    """The JSON in a file, without numbers that JSON does not have."""
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_learning(small_run, tmp_path):
    learning = scripts.load("benchmarks/learning.py")
    learning.main(learning.Options(small_run, out=tmp_path))
    found = written(tmp_path / "learning-cartpole-balance.json")
    (run,) = found["runs"]
    assert (found["env_steps"], run["method"], run["seed"]) == (400, "GPLD-DreamerV3", 3)
    assert run["env_steps"] == [200, 400]
    assert (tmp_path / "learning-cartpole-balance.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"^runs: there are none in "):
        learning.main(learning.Options(tmp_path, out=tmp_path))


def test_start(tmp_path, monkeypatch):
    start = scripts.load("benchmarks/start.py")
    seconds = iter([40.0, 9.0, 10.0])
    monkeypatch.setattr(start, "seconds_to_first_update", lambda typed, cache, folder: next(seconds))
    start.main(start.Options(seeds=2, preset=("nano", "cpu"), warm=2, out=tmp_path))
    rows = written(tmp_path / "start.json")["rows"]
    assert [(row["cache"], row["seconds"]) for row in rows] == [
        ("empty", 40.0),
        ("warm", 9.0),
        ("warm", 10.0),
    ]


class MadeUp:
    """A program that takes 2 ms, or 3 ms with the penalty."""

    compile_seconds, temporary, kernels, flops = 1.0, 2**30, 100, 1e9
    states = SimpleNamespace(skipped=jnp.zeros(1))

    def __init__(self, config, spaces, *, runs, updates):
        self.ms = 3.0 if config.agent.penalty.posterior else 2.0

    def time(self):
        return self.ms


def test_update(tmp_path, monkeypatch):
    update = scripts.load("benchmarks/update.py")
    monkeypatch.setattr(update, "Program", MadeUp)
    monkeypatch.setattr(update, "product_rate", lambda dtype: 1e12)
    update.main(update.Options(runs=(1,), variants=("probes", "baseline"), out=tmp_path))
    rows = written(tmp_path / "update.json")["rows"]
    assert [(row["variant"], row["ratio"]) for row in rows] == [("baseline", 1.0), ("probes", 1.5)]


def test_end_to_end(tmp_path, monkeypatch):
    benchmark = scripts.load("benchmarks/end_to_end.py")
    # The paper's run, 16 environments and 8 updates an iteration: 8 runs at 2 ms per update and run.
    loop = {"iterations": 100, "updates": 800, "seconds": 14.0, "parts_ms": {}}
    whole = loop | {"iterations": 1000, "updates": 8000, "seconds": 160.0, "evaluations": 3, "stopped": 0.5}
    saving = {name: {"stopped": 0.25, "written": 9.0} for name in ("empty", "full")}
    monkeypatch.setattr(
        benchmark,
        "measure",
        lambda *_: benchmark.summarize(Config("walker-run"), 8, whole, loop, 0.016, 3.125, saving, 60.0),
    )
    benchmark.main(benchmark.Options(runs=(8,), out=tmp_path))
    (row,) = written(tmp_path / "end_to_end.json")["rows"]
    assert row["env_steps_per_second"] == pytest.approx(8 * 32 / 0.160)
    assert row["ratio"] == pytest.approx(8 * 0.016 / 0.160)
    assert row["ratio_without_evaluation"] == pytest.approx(8 * 0.016 / 0.140)


def test_end_to_end_by_clocks(small_run, tmp_path):
    benchmark = scripts.load("benchmarks/end_to_end.py")
    folder = tmp_path / "runs"
    for seed in (0, 1):
        shutil.copytree(small_run, folder / f"seed{seed}")
        # A line each 100 updates and second, but for the second one, which waits for a checkpoint.
        clock = [(100 * i, 400 * i, 10 + i + (i > 1)) for i in range(6)]
        lines = [dict(zip(("updates", "env_steps", "seconds"), line, strict=True)) for line in clock]
        text = "".join(json.dumps(line | {"time": 0.0}) + "\n" for line in lines)
        (folder / f"seed{seed}" / logs.TIMING).write_text(text)
    (row,) = benchmark.main(benchmark.Options(trained=folder, alone=4.0, out=tmp_path))
    assert row["measured"] == {"updates": 500, "seconds": 6.0, "evaluations": 2}
    assert (row["runs"], row["updates_per_second_alone"]) == (2, 250.0)
    assert row["updates_per_second"] == pytest.approx(2 * 500 / 6)
    assert row["ratio"] == pytest.approx(2 * 500 / 6 / 250)
    assert row["ratio_without_evaluation"] == pytest.approx(2 * 100 / 250)
    found = written(tmp_path / "end_to_end.json")
    assert found["rows"] == [row]
    assert found["provenance"]["date"] == provenance.starts(small_run)[-1]["date"]
    for wrong, message in (
        ({"trained": folder}, "trained: it goes with --alone"),
        ({"trained": folder, "alone": 0.0}, "alone: 0 is not allowed"),
        ({"trained": small_run, "alone": 1.0}, "trained: .* has too few lines of metrics"),
        ({"trained": tmp_path / "nothing", "alone": 1.0}, "trained: there are no runs in"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            benchmark.main(benchmark.Options(**wrong, out=tmp_path))


@pytest.mark.parametrize("name", ["start", "update", "end_to_end"])
def test_a_wrong_option_is_refused_before_anything_is_written(name, tmp_path):
    script = scripts.load(f"benchmarks/{name}.py")
    with pytest.raises(ConfigError, match=r"^preset: '13m' is not a preset"):
        script.main(script.Options(preset=("13m",), out=tmp_path))
    assert not list(tmp_path.iterdir())


def test_environments_written_in_jax(tmp_path, monkeypatch):
    environments = scripts.load("benchmarks/environments.py")
    typed = f"--jax jax:gpld.envs:CartPole --runs 2 --count 3 --seconds 0.01 --out {tmp_path}"
    monkeypatch.setattr("sys.argv", ["environments.py", *typed.split()])
    environments.main()
    found = written(tmp_path / "environments-jax.json")
    assert (found["runs"], found["count"]) == (2, 3)
    rates = {name: rate for name, rate in found["agent_steps_per_second"].items() if name.startswith("jax:")}
    assert list(rates) == [f"jax:gpld.envs:CartPole, {steps} a program" for steps in (1, 100)]
    assert all(rate["agent steps/s"] > 0 for rate in rates.values())


def test_physics_tells_where_recordings_part(tmp_path, monkeypatch):
    physics = scripts.load("benchmarks/physics.py")

    def run(typed):
        monkeypatch.setattr("sys.argv", ["physics.py", *typed.split()])
        physics.main()

    task = "pendulum-swingup"
    run(f"record {tmp_path / 'old'} --engine dm_control --episodes 3 --tasks {task}")
    arrays = dict(np.load(tmp_path / "old" / "dm_control.npz"))
    assert arrays[f"{task} obs"].shape == (1001, 3, 3)
    arrays[f"{task} obs"][40:, 1] += 0.5
    arrays[f"{task} obs"][90:, 1] += 1.0
    arrays[f"{task} start"][2] += 1
    arrays[f"{task} returns"] += 2
    (tmp_path / "new").mkdir()
    np.savez(tmp_path / "new" / "dm_control.npz", **arrays)
    run(f"compare {tmp_path / 'old'} {tmp_path / 'new'} --out {tmp_path}")
    (row,) = written(tmp_path / "physics.json")["engines"]["dm_control"]["rows"]
    assert (row["first_difference"], row["equal_starts"]) == (40, pytest.approx(2 / 3))
    assert row["largest_onset"] == pytest.approx(0.5)
    assert row["largest_difference"] == pytest.approx({"10": 0.0, "100": 1.5, "1000": 1.5})
    assert row["return_change"] == pytest.approx({"mean": 2.0, "half_width": 0.0}, abs=1e-9)
    with pytest.raises(SystemExit, match="hold no recordings of the same engine"):
        run(f"compare {tmp_path} {tmp_path}")


@pytest.mark.slow
def test_foundations_agree_where_they_can_be_interpreted(tmp_path):
    compare = scripts.load("benchmarks/foundations/compare.py")
    options = compare.Options(runs=(2,), rows=128, deter=256, blocks=2, steps=1, repeats=1, out=tmp_path)
    rows = compare.main(options)
    foundations = {row["variant"].split(",")[0] for row in rows}
    assert foundations == {"xla", "today", "Pallas", "jax-triton", "CUDA"}
    errors = {row["variant"]: row["error"] for row in rows if "error" in row}
    expected = {"xla", "today", "Pallas, Triton, 64x64, 4 warps"}
    if compare.next_h.libraries.compiler(gpu=False):
        expected |= {"CUDA, 1 parts", "CUDA, 2 parts"}
    assert expected <= set(errors)
    assert max(errors.values()) < 0.01
    assert json.loads((tmp_path / "foundations.json").read_text())["rows"] == rows


def test_foundations_that_there_are_not_are_refused_by_name(tmp_path):
    compare = scripts.load("benchmarks/foundations/compare.py")
    with pytest.raises(
        ConfigError, match=r"^only: 'PTX' is no variant; allowed are xla, today, CUDA, 1 parts"
    ):
        compare.main(compare.Options(only=("xla", "PTX"), out=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_foundation_whose_results_are_no_numbers_is_left_out():
    compare = scripts.load("benchmarks/foundations/compare.py")
    with pytest.raises(FloatingPointError, match="not all numbers are finite"):
        compare.measure(lambda: (jnp.full(2, jnp.nan),), None, (), (jnp.zeros(2),), compare.Options())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["today", "recurrence", "chain", "both, stored"])
def test_candidates_for_dreams_dream_the_same(name):
    dreams = scripts.load("benchmarks/dreams.py")
    agent = dataclasses.replace(CONFIG, compute="float32")
    config = Config(task="walker-walk", agent=agent, replay=ReplayConfig(batch=16, length=2))
    keys = jax.random.split(jax.random.key(0), 2)
    rssm, policy, *others = jax.vmap(partial(dreams.random_inputs, config))(keys)
    inputs = (*noisy((rssm, policy), jax.random.key(1)), *others)
    expected = jax.jit(jax.vmap(RSSM.imagine))(*inputs)
    found = jax.jit(jax.vmap(partial(dreams.CANDIDATES[name], unroll=1)))(*inputs)
    np.testing.assert_array_equal(found.z, expected.z)
    assert_same((found.h, found.action), (expected.h, expected.action))


@pytest.mark.slow
def test_dreams_with_the_kernel_in_cuda_begin_the_same():
    """In bfloat16, in which classes soon differ by rounding."""
    dreams = scripts.load("benchmarks/dreams.py")
    if dreams.next_h_in_cuda.libraries.compiler(gpu=False) is None:
        pytest.skip("there is no C++ compiler")
    model = dataclasses.replace(CONFIG.model, deter=128)
    agent = dataclasses.replace(CONFIG, model=model, compute="bfloat16")
    config = Config(task="walker-walk", agent=agent, replay=ReplayConfig(batch=16, length=4))
    keys = jax.random.split(jax.random.key(0), 2)
    inputs = jax.vmap(partial(dreams.random_inputs, config))(keys)
    first = [
        jax.jit(jax.vmap(partial(dreams.CANDIDATES[name], unroll=1)))(*inputs).h[:, 1].astype(jnp.float32)
        for name in ("today", "next h in CUDA, 1 parts")
    ]
    assert float(jnp.abs(first[0]).max()) > 0.1
    assert_same(first[1], first[0], tolerance=0.02)


PROGRAM = """HloModule jit_update, is_scheduled=true

%fused (x: f32[4]) -> f32[4] {
  ROOT %add.1 = f32[4]{0} add(%x, %x)
}

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[], f32[4]{0}) parameter(0)
  %inner.1 = f32[4]{0} fusion(%state), kind=kLoop, calls=%fused
  ROOT %tuple.1 = (s32[], f32[4]{0}) tuple(%inner.1)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %empty = f32[9]{0} custom-call(), custom_call_target="AllocateBuffer"
  %outer.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %while = (s32[], f32[4]{0}) while(%outer.1), body=%body, backend_config={"known_trip_count":{"n":"25"}}
  ROOT %product = f32[4]{0} custom-call(%while), custom_call_target="__cublas$gemm"
}
"""


def test_kernels_of_a_gpu_program_are_counted_as_often_as_they_run():
    found = scripts.load("benchmarks/gpu_program.py").kernels(PROGRAM)
    assert [tuple(kernel) for kernel in found] == [
        ("outer.1", 1, False),
        ("inner.1", 25, True),
        ("product", 1, False),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runs": (8, 0)}, "runs: 0 is not allowed; it must be at least 1"),
        ({"rows": 0}, "rows: 0 is not allowed; it must be at least 1"),
        ({"estimators": ("prob",)}, "agent.penalty.estimator: 'prob' is not one of probes, vjp, exact"),
    ],
)
def test_wrong_options_of_a_gpu_program_are_named_before_anything_is_compiled(wrong, message):
    benchmark = scripts.load("benchmarks/gpu_program.py")
    with pytest.raises(ConfigError) as told:
        benchmark.main(benchmark.Options(**wrong))
    assert str(told.value) == message


def test_a_gpu_program_needs_the_compiler_for_gpus(monkeypatch):
    benchmark = scripts.load("benchmarks/gpu_program.py")
    for name in ("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")

    def missing(*_, **__):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(benchmark.topologies, "get_topology_desc", missing)
    with pytest.raises(SystemExit, match=r"pip install --no-deps jax-cuda12-plugin==\S+ jax-cuda12-pjrt=="):
        benchmark.main(benchmark.Options())
