"""The candidates of `benchmarks/persistent`, on a CPU, where threads stand for warps."""

import dataclasses
import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.config import AgentConfig, Config, ConfigError, ModelConfig, ReplayConfig
from tests import scripts
from tests.fused import test_observe
from tests.fused.helpers import assert_same

measure = scripts.load("benchmarks/persistent/measure.py")
one_kernel, Cut = measure.one_kernel, measure.Cut
libraries = one_kernel.libraries

pytestmark = pytest.mark.skipif(libraries.compiler(False) is None, reason="there is no C++ compiler")


def config(deter, blocks, hidden, stoch, classes, compute="float32", batch=16, length=4):
    sizes = ModelConfig(
        deter=deter, blocks=blocks, hidden=hidden, stoch=stoch, classes=classes, units=32, bins=31
    )
    agent = AgentConfig(model=sizes, compute=compute)
    return Config(task="walker-walk", agent=agent, replay=ReplayConfig(batch=batch, length=length))


def example(direction, of, seeds):
    """What a scan takes, and its results in float32, with an axis of runs."""
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    return jax.jit(jax.vmap(partial(measure.DIRECTIONS[direction].inputs, of)))(keys)


def compute(scan, inputs, **options):
    return jax.block_until_ready(jax.jit(jax.vmap(partial(scan, **options)))(*inputs))


SMALL = config(128, 2, 32, 4, 8)
SHAPES = {
    "small": (SMALL, Cut(4, 2, 2)),
    # Two share the sum of one tile of what reads h.
    "more thread blocks than tiles": (config(256, 4, 32, 8, 16, length=2), Cut(16, 4, 2)),
    # Room for some of the weights alone.
    "streamed, more rows": (config(128, 2, 64, 8, 16, batch=32, length=3), Cut(4, 2, 4, 90_000)),
    # Of two pieces for each warp, with room for some weights beside it; and of four, with room for few.
    "through a small ring": (
        config(128, 2, 64, 8, 16, batch=32, length=3),
        Cut(4, 2, 4, 120 * 1024, 8 * 1024),
    ),
    "through a ring": (config(128, 2, 128, 8, 16, length=3), Cut(4, 2, 2, 102 * 1024, 8 * 1024)),
    "one step, no clusters": (config(64, 2, 32, 4, 8, length=1), Cut(2, 1, 1)),
}
"""Sizes, and how they are spread."""
SLOW = ("small", "one step, no clusters")


@pytest.mark.parametrize("direction", measure.DIRECTIONS)
@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SHAPES]
)
def test_one_kernel_does_what_the_plain_scan_does_in_every_run(direction, shape, monkeypatch):
    monkeypatch.setattr(measure, "FIRST", 0.3)
    of, cut = SHAPES[shape]
    inputs, expected = example(direction, of, seeds=range(2))
    assert_same(compute(measure.DIRECTIONS[direction].persistent, inputs, cut=cut), expected)


@pytest.mark.parametrize("direction", measure.DIRECTIONS)
def test_in_bfloat16_it_is_as_near_to_float32_as_the_plain_scan(direction):
    scans = measure.DIRECTIONS[direction]
    inputs, exact = example(direction, config(128, 2, 32, 4, 8, "bfloat16", length=16), seeds=range(2))
    plain = measure.differences(compute(scans.plain, inputs, unroll=1), exact)
    found = measure.differences(compute(scans.persistent, inputs, cut=Cut(4, 2, 2)), exact)
    assert 1e-4 < found["error"] < 1.1 * plain["error"] < 0.05
    assert found["error_z"] <= 1.1 * plain["error_z"]


def test_a_class_is_drawn_as_the_plain_scan_draws_it():
    (layers, start, given), _ = example("forwards", SMALL, seeds=[7])
    uniform = jax.random.uniform(jax.random.key(1), given.uniform.shape)
    given = given._replace(uniform=uniform.at[:, 0, 0].set(0.0).at[:, 0, 1].set(1 - 2**-24))
    _, expected = compute(measure._observe._run, (layers, start, given), unroll=1)
    _, found = compute(one_kernel.run, (layers, start, given), cut=Cut(4, 2, 2))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found.sum(-1), SMALL.agent.model.stoch)


def test_arrays_of_another_size_are_refused_by_name():
    (layers, start, given), _ = example("forwards", SMALL, seeds=[0])
    given = given._replace(e_part=given.e_part[..., :-1])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^INVALID_ARGUMENT: e has another size or type"):
        compute(one_kernel.run, (layers, start, given), cut=Cut(4, 2, 2))


def test_gradients_through_both_kernels_equal_those_of_the_plain_scan():
    arguments = test_observe.example(SMALL.agent.model, 3, 16)

    def traced(twin):
        return jax.jit(partial(test_observe.gradients(test_observe.total), twin)).trace(*arguments)

    with one_kernel.instead(lambda: (Cut(4, 2, 2), Cut(4, 2, 2))):
        ours = traced(test_observe.in_kernels)
    assert str(ours.jaxpr).count("ffi_call[") == 2
    with one_kernel.instead(lambda: None):
        assert "ffi_call[" not in str(traced(test_observe.in_kernels).jaxpr)
    found, expected = (
        program.lower().compile()(*arguments) for program in (ours, traced(test_observe.plain))
    )
    assert_same(found, expected)


@pytest.mark.parametrize("updates", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_measures(updates, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "with_presets", lambda *_: dataclasses.replace(SMALL))
    monkeypatch.setattr(
        measure, "cuts", lambda ctas, runs: {"one": Cut(4, 2, 2), "none": Cut(4, 2, 2, 20_000)}
    )
    directions = tuple(measure.DIRECTIONS) if updates else ("forwards",)
    options = measure.Options(runs=(2,), directions=directions, fresh=2, repeats=1, updates=updates)
    rows = measure.main(dataclasses.replace(options, out=tmp_path))
    assert json.loads((tmp_path / "persistent.json").read_text())["rows"] == rows
    found = {(row["direction"], row["candidate"]): row for row in rows}
    assert len(found) == len(rows) == 4 * len(directions) + 2 * updates
    for (direction, name), row in found.items():
        if direction == "update":
            assert row["ms"] > 0
            assert row["skipped"] == 0
        elif name == "none":
            assert re.search(
                r"observe\w*.cu does not compile: .*static assertion failed: without room", row["failed"]
            )
        else:
            assert row["repeatable"]
            assert row["error"] < 1e-5
            assert row["ms"] > 0
    lines = capsys.readouterr().out.splitlines()
    checked = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["candidate"] for row in checked] == ["today", "plain", "one", "none"] * len(directions)
    assert len(lines) == len(checked) + 1 + len(checked) + 3 * updates


def test_thread_blocks_are_shared_by_the_runs():
    assert [cut[:3] for cut in measure.cuts(128, 3).values()] == [
        (32, 8, 16),
        (32, 4, 16),
        (32, 2, 16),
        (16, 8, 16),
        (16, 16, 16),
        (32, 8, 8),
        (32, 4, 8),
        (16, 8, 8),
    ]


def test_few_thread_blocks_have_rings():
    found = measure.cuts(128, 5)
    assert {cut.ctas for cut in found.values()} == {16}
    assert [(name, *cut[1:3], cut.ring) for name, cut in found.items() if cut.ring] == [
        ("16 CTAs by 8, 16 warps, 80 KB ring", 8, 16, 80 * 1024),
        ("16 CTAs by 8, 16 warps, 48 KB ring", 8, 16, 48 * 1024),
        ("16 CTAs by 8, 8 warps, 80 KB ring", 8, 8, 80 * 1024),
        ("16 CTAs by 4, 16 warps, 64 KB ring", 4, 16, 64 * 1024),
        ("16 CTAs by 4, 8 warps, 64 KB ring", 4, 8, 64 * 1024),
    ]


def row(direction, candidate, ms, error):
    return {"runs": 1, "direction": direction, "candidate": candidate, "ms": ms, "error": error}


def test_updates_take_the_fastest_kernels_that_are_right():
    spread, options = measure.cuts(128, 1), measure.Options()
    first, second, third = list(spread)[:3]
    rows = [row(direction, "today", 2.0, 0.01) for direction in measure.DIRECTIONS]
    rows += [row("forwards", first, 0.1, 1.4), row("forwards", second, 0.5, 0.02)]
    rows += [row("backwards", second, 0.6, 0.01), row("backwards", third, 0.5, 0.01)]
    assert measure.fastest(rows, 1, options) == (spread[second], spread[third])
    assert measure.fastest(rows[:-2], 1, options) is None
    assert measure.fastest(rows, 8, options) is None


def test_a_result_that_is_no_number_is_refused_at_once():
    (_, start, _), exact = example("forwards", SMALL, seeds=[0])
    calls = []

    def program(x):
        calls.append(x)
        return exact[0].at[0, 0].set(jnp.nan), exact[1]

    with pytest.raises(FloatingPointError, match="not all numbers are finite"):
        measure.check(program, [start[:1]] * 3, [exact] * 3)
    assert len(calls) == 2


def test_a_candidate_that_fails_leaves_the_others(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "with_presets", lambda *_: dataclasses.replace(SMALL))
    monkeypatch.setattr(measure, "cuts", lambda ctas, runs: {"one": Cut(4, 2, 2)})
    real = measure.time_in_turns

    def timed(programs, inputs, repeats):
        if inputs[2].keep.shape[0] == 2:
            raise RuntimeError("the launch failed")
        return real(programs, inputs, repeats)

    monkeypatch.setattr(measure, "time_in_turns", timed)
    options = measure.Options(
        runs=(2, 1),
        directions=("forwards",),
        fresh=1,
        repeats=1,
        updates=True,
        without=("plain",),
        out=tmp_path,
    )
    rows = measure.main(options)
    assert {(row["runs"], row["candidate"], row.get("failed")) for row in rows} == {
        (2, "today", "RuntimeError: the launch failed"),
        (2, "one", "RuntimeError: the launch failed"),
        (1, "today", None),
        (1, "one", None),
    }
    assert "the launch failed" in capsys.readouterr().out


def test_nothing_is_awaited_of_a_gpu_that_is_dead(monkeypatch):
    def dead(_):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(jax, "block_until_ready", dead)
    with pytest.raises(SystemExit, match="computes no more after 'one': start again, and leave it out"):
        libraries.stop_if_dead("one")


SANITIZED = ("-fsanitize=thread", "-g", "-O1", "-x", "c++", "-std=c++20", "-pthread", "-w")
SIZES = [
    "DETER=128",
    "BLOCKS=2",
    "HIDDEN=64",
    "STOCH=8",
    "CLASSES=16",
    "CTAS=4",
    "CLUSTER=2",
    "WARPS=2",
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["observe", "observe_back"])
@pytest.mark.parametrize(
    ("barrier", "room", "ring"),
    [
        *((barrier, 120_000, 0) for barrier in (None, "  sync(c);", "  sync_cluster(c);", "    wait(c);")),
        (None, 64 * 1024, 4096),
        ("  begin_stream(c);", 64 * 1024, 4096),
    ],
)
def test_no_thread_reads_what_another_may_be_writing(kernel, barrier, room, ring, tmp_path):
    """By the thread sanitizer, which notices where a barrier is left out, or comes after a stream begins."""
    shutil.copytree(one_kernel.HERE, tmp_path, dirs_exist_ok=True)
    source, program = tmp_path / f"{kernel}.cu", tmp_path / "races"
    if barrier:
        before, after = source.read_text().rsplit(f"\n{barrier}\n", 1)
        if ring:
            before, late = before.rsplit("\n", 1)
            assert late.startswith("  sync")
            after = f"{barrier}\n{late}\n{after}"
        source.write_text(f"{before}\n{after}")
    sizes = (*SIZES, f"SHARED_LIMIT={room}", f"RING={ring}")
    macros = [f"-D{macro}" for macro in (*sizes, f'SOURCE="{source}"', f"KERNEL={kernel}")]
    harness = str(Path(__file__).with_name("races.cpp"))
    command = [
        libraries.compiler(False),
        *SANITIZED,
        "-isystem",
        jax.ffi.include_dir(),
        "-I",
        libraries.HERE,
        *macros,
        harness,
    ]
    subprocess.run([*command, "-o", str(program)], check=True)
    # Beside other work, threads may by chance take turns so that a race is not seen.
    for _ in range(3 if barrier else 1):
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        if "FATAL: ThreadSanitizer" in done.stderr:
            pytest.skip("the thread sanitizer does not work here")
        if done.returncode:
            break
    assert ("WARNING: ThreadSanitizer: data race" in done.stderr) == (barrier is not None), done.stderr
    assert (done.returncode == 0) == (barrier is None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runs": (8, 0)}, "runs: 0 is not allowed; it must be from 1 to 128"),
        ({"fresh": 0}, "fresh: 0 is not allowed; it must be at least 1"),
        ({"ctas": 132}, "ctas: 132 is not allowed; it must be a power of two"),
        (
            {"without": ("64 CTAs",)},
            "without: '64 CTAs' is no candidate; there are today, plain, 128 CTAs by 8",
        ),
        ({"directions": ("up",)}, "directions: 'up' is none; allowed are forwards, backwards"),
        ({"preset": ("13m",)}, "preset: '13m' is not a preset"),
    ],
)
def test_wrong_options_are_named_before_anything_is_compiled(wrong, message, tmp_path):
    with pytest.raises(ConfigError) as told:
        measure.main(measure.Options(**wrong, out=tmp_path))
    assert str(told.value).startswith(message)
    assert not list(tmp_path.iterdir())
