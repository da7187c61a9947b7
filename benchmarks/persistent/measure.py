"""The scan over observed steps as one persistent CUDA kernel, beside today's kernels, on a Hopper GPU.

    python benchmarks/persistent/measure.py --runs 1 8

Whether that is faster is what this is to find out: nothing in the package uses it. Today a step is about
seven kernels, each of which waits for the one before. Here all steps are one kernel, whose thread blocks keep
their weights in shared memory, and wait for each other three times a step. Weights without room there are
read in every step: from L2 when they are multiplied, or before that, through a ring.

First, on fresh inputs again and again: the error against the plain scan in float32, beside that of today's
kernels, the share of classes that are the same, and whether the same inputs give the same bits twice. Then,
when nothing is compiled any more, the time, in turns; and at last that of whole updates, with the fastest
kernel of each direction and with today's. Prints and writes `persistent.json` as it measures. What does not
compile or fit is left out by name.

All thread blocks of a kernel must run at once. A cluster lies in one part of a GPU, and not all parts are as
large: of 132 multiprocessors, clusters of eight may find room on 120. So there are spreads that need less.
"""

import dataclasses
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array, PyTree

from gpld import agent
from gpld.analysis.cost import WALKER, Program
from gpld.config import Config, ConfigError, with_presets
from gpld.distributions import mixed_softmax
from gpld.fused import _observe
from gpld.fused._cell import Cell
from gpld.fused._observe import Inputs, Layers, Outputs
from gpld.nets import cast
from gpld.training.provenance import provenance

sys.path.append(str(Path(__file__).parent))

import one_kernel
from one_kernel import Cut

FIRST = 0.02
"""The share of steps that begin an episode."""
FEW = 16
"""With so many thread blocks for a run, most weights are streamed in every step."""
KB = 1024


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    directions: tuple[str, ...] = ("forwards", "backwards")
    """Of the scan."""
    preset: tuple[str, ...] = ("12m", "gpu")
    """Presets of the agent."""
    ctas: int = 128
    """Thread blocks that all runs share: a power of two, at most as many as the GPU has multiprocessors."""
    fresh: int = 20
    """Inputs that results are compared on."""
    repeats: int = 15
    """Timed turns; their median is reported."""
    updates: bool = True
    """Time whole updates, too."""
    without: tuple[str, ...] = ()
    """Names of candidates that are left out."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON."""


def random_layers(config: Config, key: Array) -> Layers:
    """Those of a fresh agent in its compute type, biases and scales not zero and one."""
    rssm = agent.init(config.agent, WALKER, key).model.world.dynamics
    leaves, structure = jax.tree.flatten(rssm)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        x + 0.1 * jax.random.normal(k, x.shape) if x.ndim == 1 else x
        for k, x in zip(keys, leaves, strict=True)
    ]
    rssm = structure.unflatten(noisy)
    dtype = jnp.dtype(config.agent.compute)
    cell, posterior = Cell.of(rssm, dtype), cast(rssm.posterior, dtype)
    first = posterior.mlp.layers[0].linear.weight[: config.agent.model.deter]
    head = eqx.tree_at(lambda head: head.mlp.layers[0].linear, posterior, None)
    return Layers(cell, first, head, rssm.stoch, rssm.unimix)


def random_given(config: Config, key: Array) -> tuple[tuple[Array, Array], Inputs]:
    """Where a scan starts, and what it is given."""
    model, dtype = config.agent.model, jnp.dtype(config.agent.compute)
    keys = jax.random.split(key, 6)
    batch, all_steps = config.replay.batch, (config.replay.length, config.replay.batch)
    h = jnp.tanh(jax.random.normal(keys[0], (batch, model.deter))).astype(dtype)
    classes = jax.random.randint(keys[1], (batch, model.stoch), 0, model.classes)
    z = jax.nn.one_hot(classes, model.classes, dtype=dtype).reshape(batch, -1)
    keep = (jax.random.uniform(keys[2], (*all_steps, 1)) >= FIRST).astype(jnp.float32)
    action = jax.random.normal(keys[3], (*all_steps, model.deter)).astype(dtype)
    e = jax.random.normal(keys[4], (*all_steps, model.hidden)).astype(dtype)
    return (h, z), Inputs(keep, action, e, jax.random.uniform(keys[5], (*all_steps, model.stoch)))


def as_float32(tree: PyTree) -> PyTree:
    """The same numbers in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


Pair = tuple[Array, Array]


def forward_inputs(config: Config, key: Array) -> tuple[tuple[Layers, Pair, Inputs], Pair]:
    """What the forward scan takes, and its results in float32.

    Each class is drawn from the middle of its share, so that rounding draws no other.
    """
    layers, (start, given) = (
        make(config, k) for make, k in zip((random_layers, random_given), jax.random.split(key), strict=True)
    )
    plain, x = as_float32(layers), as_float32(given)
    with jax.default_matmul_precision("highest"):
        h, z = _observe._run(plain, as_float32(start), x, unroll=1)
        logits = plain.posterior(h @ plain.first + x.e_part)[1]
    probs = mixed_softmax(logits.reshape(*x.uniform.shape, -1), layers.unimix)
    middle = jnp.sum((jnp.cumsum(probs, -1) - probs / 2) * z.reshape(probs.shape), -1)
    return (layers, start, given._replace(uniform=middle)), (h, z)


def backward_inputs(
    config: Config, key: Array
) -> tuple[tuple[Layers, _observe._Local, Outputs, Array, Pair], Pair]:
    """What the backward scan takes, and its results in float32: slopes of the forward one, any gradients."""
    (layers, (h, z), given), exact = forward_inputs(config, key)
    hs, zs = (x.astype(h.dtype) for x in exact)
    keep = given.keep.astype(h.dtype)
    before = (jnp.concatenate([first[None], rest[:-1]]) * keep for first, rest in ((h, hs), (z, zs)))
    found, local = _observe._all_steps(layers, *before, given.action_part, given.e_part)
    keys = jax.random.split(key, len(found))
    gradients = [jax.random.normal(k, x.shape).astype(x.dtype) for k, x in zip(keys, found, strict=True)]
    inputs = layers, local, Outputs(*gradients), given.keep, (jnp.zeros_like(h), jnp.zeros_like(z))
    with jax.default_matmul_precision("highest"):
        return inputs, _observe._run_back(*as_float32(inputs), unroll=1)


def persistent_back(*inputs: Any, cut: Cut) -> Pair:
    """The candidate with the arguments of the scan, whose last are zeros."""
    return one_kernel.run_back(*inputs[:-1], cut=cut)


class Direction(NamedTuple):
    """A scan in one direction, as it is and in one kernel."""

    inputs: Callable[[Config, Array], tuple[Any, Pair]]
    plain: Callable[..., Pair]
    today: Callable[..., Pair]
    persistent: Callable[..., Pair]


DIRECTIONS = {
    "forwards": Direction(forward_inputs, _observe._run, _observe._fused_run, one_kernel.run),
    "backwards": Direction(backward_inputs, _observe._run_back, _observe._fused_run_back, persistent_back),
}


def described(cut: Cut) -> str:
    """The cut as a candidate's name."""
    ring = f", {cut.ring // KB} KB ring" if cut.ring else ""
    return f"{cut.ctas} CTAs by {cut.cluster}, {cut.warps} warps{ring}"


def cuts(ctas: int, runs: int) -> dict[str, Cut]:
    """How so many thread blocks can be spread over so many runs."""
    each = 1 << (ctas // runs).bit_length() - 1
    half = each // 2
    tried = [Cut(each, 8), Cut(each, 4), Cut(each, 2)]
    # Half as many warps have twice the registers, and so more loads under way each.
    if each > FEW:
        tried += [Cut(half, 8), Cut(half, 16), Cut(each, 8, 8), Cut(each, 4, 8), Cut(half, 8, 8)]
    else:
        tried += [Cut(each, 8, 8), Cut(each, 8, ring=80 * KB), Cut(each, 8, ring=48 * KB)]
        tried += [Cut(each, 8, 8, ring=80 * KB), Cut(each, 4, ring=64 * KB), Cut(each, 4, 8, ring=64 * KB)]
    return {described(cut): cut for cut in tried if cut.ctas >= cut.cluster}


def differences(found: Pair, exact: Pair) -> dict[str, Array]:
    """Relative errors of both results, and the share of rows of the second that are right."""

    def error(x, y):
        return jnp.linalg.norm((x.astype(jnp.float32) - y).ravel()) / jnp.linalg.norm(y.ravel())

    same = (found[1].astype(jnp.float32) == exact[1]).all(-1).mean()
    return {"error": error(found[0], exact[0]), "error_z": error(found[1], exact[1]), "same": same}


@jax.jit
def compare(first: Pair, again: Pair, exact: Pair) -> dict[str, Array]:
    """The same of the first of two results of the same inputs, and of both."""
    finite = [jnp.isfinite(x).all() for x in (*first, *again)]
    equal = [(x == y).all() for x, y in zip(first, again, strict=True)]
    return {
        **differences(first, exact),
        "finite": jnp.array(finite).all(),
        "repeatable": jnp.array(equal).all(),
    }


def check(program: Any, made: Sequence[Any], exact: Sequence[Pair]) -> dict[str, Any]:
    """The worst over all inputs. The first numbers that are none are refused."""
    every = []
    for x, y in zip(made, exact, strict=True):
        every.append(jax.device_get(compare(program(*x), program(*x), y)))
        if not every[-1]["finite"]:
            raise FloatingPointError("not all numbers are finite")
    worst = {name: float(max(one[name] for one in every)) for name in ("error", "error_z")}
    same = float(min(one["same"] for one in every))
    return {**worst, "same": same, "repeatable": all(bool(one["repeatable"]) for one in every)}


def failed(error: Exception) -> dict[str, str]:
    """What a row says of it."""
    return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}


def time_in_turns(programs: dict[str, Any], inputs: Any, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a scan of all runs together."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats + 1):  # the first warms up
        for name, program in programs.items():
            begin = time.perf_counter()
            for _ in range(8):
                out = program(*inputs)
            jax.block_until_ready(out)
            if turn:
                times[name].append((time.perf_counter() - begin) / 8 * 1e3)
    return {name: {"ms": statistics.median(x), "spread": max(x) - min(x)} for name, x in times.items()}


class Programs(NamedTuple):
    """All of one direction and so many runs, being compiled."""

    inputs: Any
    candidates: dict[str, Any]


def start_compiling(name: str, config: Config, runs: int, options: Options, pool: Executor) -> Programs:
    """Compile at once what is measured later."""

    def program(function, *arguments):
        return pool.submit(lambda: jax.jit(jax.vmap(function)).lower(*arguments).compile())

    direction, keys = DIRECTIONS[name], jax.random.split(jax.random.key(0), runs)
    make = partial(direction.inputs, config)
    shapes, _ = jax.eval_shape(jax.vmap(make), keys)
    spread = cuts(options.ctas, runs)
    scans = {
        "today": partial(direction.today, unroll=config.agent.unroll),
        "plain": partial(direction.plain, unroll=config.agent.unroll),
        **{name: partial(direction.persistent, cut=cut) for name, cut in spread.items()},
    }
    chosen = {name: scan for name, scan in scans.items() if name not in options.without}
    inputs = program(make, keys)
    return Programs(inputs, {name: program(scan, *shapes) for name, scan in chosen.items()})


@contextmanager
def cancelling(pool: Executor) -> Iterator[None]:
    """What an error leaves to compile is not waited for."""
    try:
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def placed(at: tuple[int, str], row: dict[str, Any]) -> dict[str, Any]:
    """The row, of so many runs and a direction."""
    return {"runs": at[0], "direction": at[1], **row}


Add = Callable[[dict[str, Any]], dict[str, Any]]
"""Adds a row, and gives it back."""


def check_all(compiling: Programs, runs: int, options: Options, add: Add) -> tuple[Any, dict[str, Any]]:
    """A row for each candidate. Inputs to time on, and what is to be timed with its row."""
    make, right = compiling.inputs.result(), {}
    keys = [jax.random.split(jax.random.key(seed), runs) for seed in range(options.fresh)]
    made, exact = zip(*map(make, keys), strict=True)
    for name, compiled in compiling.candidates.items():
        try:
            program = compiled.result()
            right[name] = program, add({"candidate": name, **check(program, made, exact)})
        except Exception as error:  # of whatever kind: the others are timed
            add({"candidate": name, **failed(error)})
    return made[0], right


def time_all(inputs: Any, right: dict[str, Any], options: Options) -> None:
    """Into the rows."""
    try:
        times = time_in_turns(
            {name: program for name, (program, _) in right.items()}, inputs, options.repeats
        )
    except Exception as error:  # of whatever kind: others are timed
        times = dict.fromkeys(right, failed(error))
        one_kernel.libraries.stop_if_dead(" or ".join(right))
    for name, (_, row) in right.items():
        row.update(times[name])


def fastest(rows: Sequence[dict[str, Any]], runs: int, options: Options) -> tuple[Cut, Cut] | None:
    """The cuts forwards and backwards, if there are any whose errors are like those of today's kernels."""
    spread, best = cuts(options.ctas, runs), []
    for direction in DIRECTIONS:
        here = {row["candidate"]: row for row in rows if (row["runs"], row["direction"]) == (runs, direction)}
        most = max(2 * here.get("today", {}).get("error", 0.0), 1e-3)
        right = [
            name for name in spread if name in here and "ms" in here[name] and here[name]["error"] <= most
        ]
        if not right:
            return None
        best.append(spread[min(right, key=lambda name: here[name]["ms"])])
    return best[0], best[1]


def measure_updates(
    config: Config, rows: Sequence[dict[str, Any]], options: Options, pool: Executor
) -> list[dict[str, Any]]:
    """Whole updates, milliseconds for each run."""
    here = threading.local()

    def program(runs: int, chosen: tuple[Cut, Cut] | None) -> Program:
        here.cuts = chosen
        return Program(config, runs=runs)

    with one_kernel.instead(lambda: getattr(here, "cuts", None)):
        compiling = {
            (runs, name): pool.submit(program, runs, chosen)
            for runs in options.runs
            if (best := fastest(rows, runs, options))
            for name, chosen in (("today", None), ("one kernel each", best))
        }
        wait(compiling.values())
    found, times = {}, {}
    for key, compiled in compiling.items():
        found[key] = {"direction": "update", "runs": key[0], "candidate": key[1]}
        if error := compiled.exception():
            found[key] |= failed(error)
        else:
            times[key] = []
    for _ in range(options.repeats):
        for key, every in times.items():
            every.append(compiling[key].result().time())
    for key, every in times.items():
        done = compiling[key].result()
        found[key] |= {"ms": statistics.median(every), "spread": max(every) - min(every)}
        found[key] |= {"kernels": done.kernels, "compile_seconds": done.compile_seconds}
        found[key] |= {"skipped": int(jnp.sum(done.states.skipped))}
    return list(found.values())


def table(rows: list[dict[str, Any]]) -> str:
    """The rows to read."""
    head = f"{'runs':>4} {'scan':<10} {'candidate':<34} {'ms':>8} {'spread':>7} {'error':>8} {'z':>8}"
    lines = [f"{head} same bits"]
    for row in rows:
        begin = f"{row['runs']:>4} {row['direction']:<10} {row['candidate']:<34}"
        if "failed" in row:
            lines.append(f"{begin} {row['failed'][:60]}")
        elif "ms" in row:
            lines.append(f"{begin} {row['ms']:>8.3f} {row['spread']:>7.3f}")
            if "error" in row:
                errors = f"{row['error']:>8.1e} {row['error_z']:>8.1e} {row['same']:.3f}"
                lines[-1] += f" {errors} {row['repeatable']}"
    return "\n".join(lines)


def validate(options: Options) -> None:
    """Refuse what cannot be measured, before anything is."""
    if unknown := set(options.directions) - set(DIRECTIONS):
        raise ConfigError(f"directions: {min(unknown)!r} is none; allowed are {', '.join(DIRECTIONS)}")
    for name in ("fresh", "repeats"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name}: {getattr(options, name)} is not allowed; it must be at least 1")
    if options.ctas < 1 or options.ctas & options.ctas - 1:
        raise ConfigError(f"ctas: {options.ctas} is not allowed; it must be a power of two")
    if bad := [runs for runs in options.runs if not 1 <= runs <= options.ctas]:
        raise ConfigError(f"runs: {bad[0]} is not allowed; it must be from 1 to {options.ctas}")
    known = [
        "today",
        "plain",
        *dict.fromkeys(name for runs in options.runs for name in cuts(options.ctas, runs)),
    ]
    if unknown := set(options.without) - set(known):
        raise ConfigError(f"without: {min(unknown)!r} is no candidate; there are {', '.join(known)}")
    if one_kernel.libraries.compiler(jax.default_backend() == "gpu") is None:
        raise ConfigError("there is no compiler: nvcc for a GPU, a C++ compiler for a CPU")


def main(options: Options) -> list[dict[str, Any]]:
    """Measure, print and write."""
    validate(options)
    config = with_presets(Config(task="walker-walk"), options.preset)
    rows: list[dict[str, Any]] = []
    record = {"provenance": provenance(), "options": str(options), "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        (options.out / "persistent.json").write_text(json.dumps(record, indent=2) + "\n")

    def add(row: dict[str, Any]) -> dict[str, Any]:
        rows.append(row)
        print(json.dumps(row), flush=True)
        write()
        if "failed" in row:
            one_kernel.libraries.stop_if_dead(row["candidate"])
        return row

    with ThreadPoolExecutor(os.cpu_count()) as pool, cancelling(pool):
        compiling = {
            (runs, name): start_compiling(name, config, runs, options, pool)
            for runs in options.runs
            for name in options.directions
        }
        # Then all is compiled: what is timed is alone.
        checked = [
            check_all(programs, runs, options, lambda row, at=(runs, name): add(placed(at, row)))
            for (runs, name), programs in compiling.items()
        ]
        for inputs, right in checked:
            time_all(inputs, right, options)
            write()
        print(table(rows), flush=True)
        if options.updates:
            more = measure_updates(config, rows, options, pool)
            rows += more
            write()
            print(table(more), flush=True)
    return rows


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"measure.py: {error}") from None
