"""What the penalty costs: forward and backward of every estimator, side by side.

    python benchmarks/penalty.py --runs 8 --dtype bfloat16 --out results

Times are of the penalty alone: sampling states, gathering them, the estimate and its gradient by the head's
parameters and by its input, for all runs in one program; shown per update and run. Probes by vector-Jacobian
products start from the head's input u, closed forms from the first preactivation, which the model has anyway.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpld import penalty

Target = Literal["posterior", "prior", "joint"]
Estimator = Literal["vjp probes", "closed-form probes", "closed-form exact"]


@dataclass(frozen=True)
class Options:
    """Shapes (the defaults are the 12M agent's) and what to measure."""

    deter: int = 2048
    """D: width of h."""
    units: int = 256
    """E: width of e."""
    hidden: int = 256
    """Width of the heads' hidden layers."""
    stoch: int = 32
    """K: rows."""
    classes: int = 16
    """C: classes per row."""
    states: int = 1024
    """B*T: states of a batch."""
    runs: int = 1
    """Runs in one program (vmapped)."""
    rho: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """Fractions of states."""
    targets: tuple[Target, ...] = ("posterior", "prior", "joint")
    """Heads to penalise."""
    estimators: tuple[Estimator, ...] = ("vjp probes", "closed-form probes", "closed-form exact")
    """Estimators to compare."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the operands of matrix products; of everything in the vector-Jacobian products."""
    repeats: int = 20
    """Timed calls, of which the median counts."""
    execute: bool = True
    """Time the programs, or only compile them and count their operations."""
    name: str = "penalty"
    """File name of the JSON without .json."""
    out: Path | None = None
    """Folder for the JSON; none is written without it."""


class Case(NamedTuple):
    """One program to measure."""

    labels: dict[str, Any]
    program: Callable[..., Any]
    arguments: tuple[Any, ...]
    runs: int


@dataclass(frozen=True)
class Measurement:
    """Cost of one case, per update and run.

    Operations and bytes are XLA's count for the compiled program. It counts the body of a loop once (the
    exact value of a prior, with its two hidden layers, loops over the C classes), and library calls on GPUs
    not at all.
    """

    labels: dict[str, Any]
    milliseconds: float | None
    gigaflops: float
    megabytes: float


def compile_all(cases: Sequence[Case]) -> Iterator[Any]:
    """Compiled programs, in order, several at a time."""
    with ThreadPoolExecutor() as pool:
        lowered = [jax.jit(case.program).lower(*case.arguments) for case in cases]
        yield from pool.map(lambda program: program.compile(), lowered)


def measure(case: Case, program: Any, repeats: int, execute: bool = True) -> Measurement:
    """Count and time a compiled case; per update and run."""
    cost = program.cost_analysis() or {}
    milliseconds = 1e3 * _median_seconds(program, case.arguments, repeats) / case.runs if execute else None
    return Measurement(
        case.labels,
        milliseconds,
        cost.get("flops", 0.0) / 1e9 / case.runs,
        cost.get("bytes accessed", 0.0) / 1e6 / case.runs,
    )


def _median_seconds(program: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    # Calls of a few microseconds are timed in groups, so that dispatch overlaps with the device's work.
    group = 1 if time.perf_counter() - start > 0.1 else 10
    jax.block_until_ready([program(*arguments) for _ in range(group)])
    seconds = []
    for _ in range(max(1, repeats // group)):
        start = time.perf_counter()
        jax.block_until_ready([program(*arguments) for _ in range(group)])
        seconds.append((time.perf_counter() - start) / group)
    return statistics.median(seconds)


def random_head(key: jax.Array, options: Options, inputs: int, layers: int) -> penalty.Head:
    """A head of the agent's shape with kernels of unit gain."""
    widths = [inputs] + layers * [options.hidden]
    keys = jax.random.split(key, layers + 1)

    def kernel(key: jax.Array, rows: int, columns: int) -> jax.Array:
        return jax.random.normal(key, (rows, columns)) / rows**0.5

    hidden = tuple(
        penalty.Hidden(kernel(key, *shape), jnp.zeros(shape[1]), jnp.ones(shape[1]))
        for key, shape in zip(keys[:-1], pairwise(widths), strict=True)
    )
    columns = options.stoch * options.classes
    out = penalty.Output(kernel(keys[-1], options.hidden, columns), jnp.zeros(columns))
    return penalty.Head(hidden, out, rows=options.stoch)


def probabilities(head: penalty.Head, u: jax.Array) -> jax.Array:
    """The head as a plain map from `u [d]` to `[K, C]`, for the estimator by vector-Jacobian products."""
    x = u
    for layer in head.layers:
        x = (x @ layer.kernel.astype(u.dtype)).astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x) + head.eps) * layer.scale
        x = jax.nn.silu(x).astype(u.dtype)
    logits = (x @ head.out.kernel.astype(u.dtype)).astype(jnp.float32)
    probs = jax.nn.softmax(logits.reshape(head.rows, -1), axis=-1)
    return (1 - head.unimix) * probs + head.unimix / probs.shape[-1]


def one_run(options: Options, estimator: Estimator, rho: float) -> Callable[..., Any]:
    """Value and gradients of the penalty of one run, by its heads and their inputs."""
    dtype = jnp.dtype(options.dtype)
    count = penalty.sampled_count(options.states, rho)

    def head_value(head: penalty.Head, x: jax.Array, key: jax.Array) -> jax.Array:
        if estimator == "vjp probes":
            keys = jax.random.split(key, count)
            values = jax.vmap(lambda u, key: penalty.hutchinson(lambda u: probabilities(head, u), u, key))
            return jnp.mean(values(x.astype(dtype), keys))
        epsilon = None
        if estimator == "closed-form probes":
            epsilon = penalty.draw_probes(key, (1, count, options.stoch, options.classes))
        return jnp.mean(penalty.closed_form(head, x, epsilon, dtype=dtype))

    def loss(heads: list[penalty.Head], inputs: list[jax.Array], key: jax.Array) -> jax.Array:
        key, *keys = jax.random.split(key, 1 + len(heads))
        indices = penalty.sample_states(key, options.states, rho)
        sampled = [penalty.take_states(x, indices) for x in inputs]
        return sum(head_value(*arguments) for arguments in zip(heads, sampled, keys, strict=True))

    return jax.value_and_grad(loss, argnums=(0, 1))


def penalty_cases(options: Options) -> Iterator[Case]:
    """The penalty alone, for every target, estimator and fraction of states."""
    for target in options.targets:
        widths = {"posterior": options.deter + options.units, "prior": options.deter}
        layers = {"posterior": 1, "prior": 2}
        names = list(widths) if target == "joint" else [target]
        for estimator in options.estimators:

            def arguments(key: jax.Array, names=names, estimator=estimator, widths=widths, layers=layers):
                keys = jax.random.split(key, 3)
                heads = [random_head(keys[0], options, widths[name], layers[name]) for name in names]
                wide = [widths[name] if estimator == "vjp probes" else options.hidden for name in names]
                inputs = [jax.random.normal(keys[1], (options.states, width)) for width in wide]
                return heads, inputs, keys[2]

            stacked = jax.vmap(arguments)(jax.random.split(jax.random.key(0), options.runs))
            for rho in options.rho:
                program = jax.vmap(one_run(options, estimator, rho))
                labels = {"target": target, "estimator": estimator, "rho": rho}
                yield Case(labels, program, stacked, options.runs)


def print_table(measurements: list[Measurement], title: str) -> None:
    """One line a measurement."""
    table = Table(title=title)
    for label in measurements[0].labels:
        table.add_column(label)
    for column in ("ms / update and run", "GFLOP", "MB accessed"):
        table.add_column(column, justify="right")
    for m in measurements:
        milliseconds = "-" if m.milliseconds is None else f"{m.milliseconds:.3f}"
        table.add_row(*map(str, m.labels.values()), milliseconds, f"{m.gigaflops:.2f}", f"{m.megabytes:.0f}")
    Console().print(table)


def main(options: Options) -> list[Measurement]:
    """Measure all cases, print them, and write them down if asked to."""
    cases = list(penalty_cases(options))
    programs = list(track(compile_all(cases), "Compiling", total=len(cases)))
    both = track(zip(cases, programs, strict=True), "Measuring", total=len(cases))
    measurements = [measure(*pair, options.repeats, options.execute) for pair in both]
    device = jax.devices()[0].device_kind
    title = f"The penalty alone: {options.runs} run(s) in one program, {options.dtype}, {device}"
    print_table(measurements, title)
    if options.out is not None:
        record = {
            "device": device,
            "jax": jax.__version__,
            "options": {name: value for name, value in asdict(options).items() if name != "out"},
            "measurements": [asdict(m) for m in measurements],
        }
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return measurements


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
