"""Time of one update, per run, for several numbers of runs in one program: DreamerV3 and GPLD side by side.

    python benchmarks/update.py --preset 12m gpu --runs 1 8 --variants baseline probes exact

Each variant is compiled for itself; a baseline is compiled without the penalty. Prints a table and writes a
JSON file.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from gpld import agent
from gpld.config import Config, PenaltyConfig, with_presets
from gpld.profiling import random_batch
from gpld.training.provenance import provenance
from gpld.types import Spaces

WALKER = Spaces.of({"height": (), "orientations": (14,), "velocity": (9,)}, 6)
VARIANTS: dict[str, dict] = {
    "baseline": {"posterior": 0.0},
    "probes": {},
    "exact": {"estimator": "exact"},
    "prior": {"posterior": 0.0, "prior": 0.5},
    "joint": {"prior": 0.5},
    "joint exact": {"prior": 0.5, "estimator": "exact"},
}


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    preset: tuple[str, ...] = ()
    """Presets of the agent; by default 12m gpu on a GPU, nano cpu elsewhere."""
    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    variants: tuple[str, ...] = ("baseline", "probes", "exact")
    """What is compared: baseline, probes, exact, prior, joint, joint exact."""
    rho: tuple[float, ...] = (0.5,)
    """Fractions of states penalised."""
    updates: int = 16
    """Updates in one timed call."""
    repeats: int = 5
    """Timed calls; their median is reported."""
    out: Path = Path("results")
    """Folder for the JSON."""


def measure(config: Config, runs: int, updates: int, repeats: int) -> dict[str, float]:
    """Milliseconds per update and run, and what compiling took."""
    keys = jax.random.split(jax.random.key(0), runs)
    states = jax.jit(jax.vmap(partial(agent.init, config.agent, WALKER)))(keys)
    batches = jax.jit(jax.vmap(partial(random_batch, config, WALKER)))(keys)
    update = jax.vmap(partial(agent.update, config.agent)) if runs > 1 else _alone(config)

    @partial(jax.jit, donate_argnums=0)
    def program(states, batches):
        def one(_, states):
            states, _, metrics = update(states, batches)
            # The metrics are part of the work.
            return states._replace(skipped=states.skipped + 0 * jnp.int32(metrics["loss/total"]))

        return jax.lax.fori_loop(0, updates, one, states)

    begin = time.perf_counter()
    compiled = program.lower(states, batches).compile()
    compile_seconds = time.perf_counter() - begin
    states = jax.block_until_ready(compiled(states, batches))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        states = jax.block_until_ready(compiled(states, batches))
        times.append(1000 * (time.perf_counter() - begin) / updates / runs)
    usage = compiled.memory_analysis()
    return {
        "ms": statistics.median(times),
        "spread": max(times) - min(times),
        "compile_seconds": compile_seconds,
        "temporary_GiB": usage.temp_size_in_bytes / 2**30,
        "skipped": int(jnp.sum(states.skipped)),
    }


def _alone(config: Config):
    def update(states, batches):
        state, batch = jax.tree.map(lambda x: x[0], (states, batches))
        return jax.tree.map(lambda x: x[None], agent.update(config.agent, state, batch))

    return update


def with_penalty(config: Config, rho: float, changes: dict) -> Config:
    """`config` with another penalty."""
    penalty = dataclasses.replace(PenaltyConfig(rho=rho), **changes)
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, penalty=penalty))


def main(options: Options) -> list[dict]:
    """Measure, print and write."""
    fitting = ("nano", "cpu") if jax.default_backend() == "cpu" else ("12m", "gpu")
    config = with_presets(Config(task="walker-walk"), options.preset or fitting)
    rows = []
    for runs in options.runs:
        baseline = None
        for name in options.variants:
            for rho in options.rho if name != "baseline" else (0.0,):
                changed = with_penalty(config, rho or 0.5, VARIANTS[name])
                result = measure(changed, runs, options.updates, options.repeats)
                baseline = result["ms"] if name == "baseline" else baseline
                ratio = result["ms"] / baseline if baseline else float("nan")
                rows.append({"runs": runs, "variant": name, "rho": rho, "ratio": ratio, **result})
                print(json.dumps(rows[-1]), flush=True)
    Console().print(_table(rows))
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(), "options": str(options), "rows": rows}
    (options.out / "update.json").write_text(json.dumps(record, indent=2) + "\n")
    return rows


def _table(rows: Sequence[dict]) -> Table:
    table = Table(
        "runs", "variant", "rho", "ms per update and run", "spread", "ratio", "compile s", "temporary GiB"
    )
    for row in rows:
        table.add_row(
            str(row["runs"]),
            row["variant"],
            f"{row['rho']:g}",
            f"{row['ms']:.3f}",
            f"{row['spread']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['compile_seconds']:.1f}",
            f"{row['temporary_GiB']:.2f}",
        )
    return table


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
