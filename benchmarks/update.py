"""Time of one update, per run, for several numbers of runs in one program: DreamerV3 and GPLD side by side.

    python benchmarks/update.py --preset 12m gpu --runs 1 8 --variants baseline probes exact

Each variant is compiled for itself; a baseline is compiled without the penalty. Prints a table and writes a
JSON file, after each measurement: --name gives it another name than that of earlier results. With --pixels,
the walker is seen: 64x64 images instead of states. Ratios are those to the baseline, which comes first.

The last column is how fast the matrix products and convolutions of an update are, by the time of all of it,
beside one large product of the same type measured in the same process. Kernels are those that the compiled
program starts.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from gpld.analysis.cost import WALKER, Program
from gpld.config import Config, ConfigError, PenaltyConfig, validate, with_presets
from gpld.envs import pixel_spaces
from gpld.training.provenance import provenance

VARIANTS: dict[str, dict] = {
    "baseline": {"posterior": 0.0, "rho": 0.5},  # rho is not read, but may not be 0
    "probes": {},
    "vjp": {"estimator": "vjp"},
    "exact": {"estimator": "exact"},
    "prior": {"posterior": 0.0, "prior": 0.5},
    "joint": {"prior": 0.5},
    "joint exact": {"prior": 0.5, "estimator": "exact"},
}


@dataclasses.dataclass
class Options:
    """Options of the benchmark. The JSON has them without the folders, which `repr` leaves out."""

    preset: tuple[str, ...] = ()
    """Presets of the agent; by default 12m gpu on a GPU, nano cpu elsewhere."""
    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    variants: tuple[str, ...] = ("baseline", "probes", "exact")
    """What is compared: baseline, probes, vjp, exact, prior, joint, joint exact."""
    rho: tuple[float, ...] = (0.5,)
    """Fractions of states penalised."""
    pixels: bool = False
    """Observe images instead of states."""
    updates: int = 16
    """Updates in one timed call."""
    repeats: int = 5
    """Timed calls; their median is reported."""
    jobs: int = 1
    """Programs compiled at a time. With more than one, all are compiled first, and take longer each."""
    name: str = ""
    """File name of the JSON without .json; by default update, or update-pixels."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON."""


def product_rate(dtype: str) -> float:
    """FLOP/s of one large matrix product."""
    size, repeats = (1024, 10) if jax.default_backend() == "cpu" else (8192, 100)
    # Products with it neither grow nor shrink.
    x = (jax.random.normal(jax.random.key(0), (size, size)) / size**0.5).astype(dtype)
    products = jax.jit(lambda x: jax.lax.fori_loop(0, repeats, lambda _, y: x @ y, x))
    jax.block_until_ready(products(x))
    begin = time.perf_counter()
    jax.block_until_ready(products(x))
    return repeats * 2 * size**3 / (time.perf_counter() - begin)


def measure(program: Program, repeats: int, peak: float) -> dict[str, float]:
    """Milliseconds per update and run, what compiling took, and what was compiled."""
    times = [program.time() for _ in range(repeats)]
    ms = statistics.median(times)
    return {
        "ms": ms,
        "spread": max(times) - min(times),
        "compile_seconds": program.compile_seconds,
        "temporary_GiB": program.temporary / 2**30,
        "kernels": program.kernels,
        "gflop": program.flops / 1e9,
        "fraction_of_peak": program.flops / (ms / 1000) / peak,
        "skipped": int(jnp.sum(program.states.skipped)),
    }


def with_penalty(config: Config, rho: float, changes: dict) -> Config:
    """`config` with another penalty."""
    penalty = dataclasses.replace(PenaltyConfig(rho=rho), **changes)
    changed = dataclasses.replace(config, agent=dataclasses.replace(config.agent, penalty=penalty))
    validate(changed)
    return changed


def cases(options: Options, config: Config) -> Iterator[tuple[dict, Config]]:
    """What is measured, by what the table calls it; baselines before what is compared with them."""
    observations = "64x64 images" if options.pixels else "states"
    variants = sorted(options.variants, key=lambda name: name != "baseline")
    for runs in options.runs:
        for name in variants:
            for rho in options.rho if name != "baseline" else (0.0,):
                what = {"observations": observations, "runs": runs, "variant": name, "rho": rho}
                yield what, with_penalty(config, rho, VARIANTS[name])


def compiled(programs: Iterable[Callable[[], Program]], jobs: int) -> Iterator[Program]:
    """Every program: compiled when its turn comes, or all before the first is timed."""
    if jobs == 1:
        yield from (make() for make in programs)
    else:
        with ThreadPoolExecutor(jobs) as pool:
            yield from list(pool.map(lambda make: make(), programs))


def check(options: Options) -> None:
    """Refuse what cannot be measured."""
    runs = min(options.runs, default=0)
    numbers = {"runs": runs, "updates": options.updates, "repeats": options.repeats, "jobs": options.jobs}
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least 1")
    for name in options.variants:
        if name not in VARIANTS:
            raise ConfigError(f"variants: {name!r} is not allowed; it must be one of {', '.join(VARIANTS)}")


def main(options: Options) -> list[dict]:
    """Measure, print and write."""
    check(options)
    fitting = ("nano", "cpu") if jax.default_backend() == "cpu" else ("12m", "gpu")
    config = with_presets(Config(task="walker-walk"), options.preset or fitting)
    spaces = pixel_spaces(WALKER.actions) if options.pixels else WALKER
    listed = list(cases(options, config))
    peak = product_rate(config.agent.compute)
    rows = []
    record = {
        "provenance": provenance(),
        "options": str(options),
        "product_tflops": peak / 1e12,
        "rows": rows,
    }
    name = options.name or ("update-pixels" if options.pixels else "update")
    path = options.out / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    programs = (
        partial(Program, changed, spaces, runs=what["runs"], updates=options.updates)
        for what, changed in listed
    )
    baselines = {}
    for (what, _), program in zip(listed, compiled(programs, options.jobs), strict=True):
        result = measure(program, options.repeats, peak)
        if what["variant"] == "baseline":
            baselines[what["runs"]] = result["ms"]
        baseline = baselines.get(what["runs"])
        rows.append({**what, "ratio": result["ms"] / baseline if baseline else None, **result})
        print(json.dumps(rows[-1]), flush=True)
        path.write_text(json.dumps(record, indent=2) + "\n")
    Console().print(_table(rows))
    return rows


def _table(rows: Sequence[dict]) -> Table:
    numbers = ("ms per update and run", "spread", "ratio", "compile s", "temporary GiB", "kernels")
    table = Table("runs", "variant", "rho", *numbers, "of a product's rate")
    for row in rows:
        table.add_row(
            str(row["runs"]),
            row["variant"],
            f"{row['rho']:g}",
            f"{row['ms']:.3f}",
            f"{row['spread']:.3f}",
            "" if row["ratio"] is None else f"{row['ratio']:.3f}",
            f"{row['compile_seconds']:.1f}",
            f"{row['temporary_GiB']:.2f}",
            f"{row['kernels']:,.0f}",
            f"{row['fraction_of_peak']:.1%}",
        )
    return table


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"update.py: {error}") from None
