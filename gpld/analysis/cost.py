"""The cost of the penalty: time, arithmetic, memory and kernels of an update, with and without it.

Every setting is compiled for itself and warmed up. Then all of them are timed in turn, round after round, so
that whatever else the machine does falls on all alike, and a setting's ratio is taken to the baseline of the
same round.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas

from gpld import agent, machine, results
from gpld.analysis.tables import NOTHING, Table
from gpld.config import AgentConfig, Config, override
from gpld.display.curve import COLOURS
from gpld.profiling import random_batch
from gpld.training.duration import in_words
from gpld.types import Spaces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WALKER = Spaces.of({"height": (), "orientations": (14,), "velocity": (9,)}, 6)
"""The walker's spaces: data are random, no environment is needed."""

UPDATES, REPEATS = 16, 10
"""Updates in one timed call, and timed calls of every setting."""

COMPILING = 4 * 2**30
"""Bytes of the host's memory that are left for each program while it is compiled."""

ENV_STEPS = 500_000
"""Length of the runs whose times the paper reports."""


class Setting(NamedTuple):
    """A penalty: the fraction of states it sees, its weights, and its estimator; all 0 for DreamerV3."""

    rho: float
    posterior: float
    prior: float
    estimator: str = "probes"


BASELINE = Setting(0.0, 0.0, 0.0, "")

PAPER = {"ratio": "paper", "std": "paper_std", "seconds_more": "paper_seconds_more"}
"""Columns of what the paper reports, and their names beside what is measured here."""

ESTIMATORS = {"": NOTHING, "vjp": "by products", "probes": "in closed form", "exact": "exact"}
"""Names of the penalty's estimators in tables; the paper's were vector-Jacobian products."""


def paper_settings() -> list[Setting]:
    """The twelve of the paper's table, each by the products that the paper timed and in closed form."""
    rows = results.paper_cost()[["rho", "posterior", "prior"]]
    return [
        Setting(*map(float, row), estimator)
        for row in rows.itertuples(index=False)
        for estimator in ("vjp", "probes")
    ]


def setting_of(config: Config) -> Setting:
    """The setting of a run."""
    penalty = config.agent.penalty
    on = penalty.posterior or penalty.prior
    return Setting(penalty.rho, penalty.posterior, penalty.prior, penalty.estimator) if on else BASELINE


def with_penalty(config: Config, setting: Setting) -> Config:
    """`config` with another penalty, whose other options stay as they are."""
    penalty = config.agent.penalty
    own = {"rho": setting.rho or penalty.rho, "estimator": setting.estimator or penalty.estimator}
    return override(config, {"agent": {"penalty": setting._asdict() | own}})


class Program:
    """Some updates of some runs as one compiled program, ready to be timed."""

    def __init__(self, config: Config, spaces: Spaces = WALKER, *, runs: int = 1, updates: int = 16):
        keys = jax.random.split(jax.random.key(0), runs)
        self.runs, self.updates = runs, updates
        self.states = jax.jit(jax.vmap(partial(agent.init, config.agent, spaces)))(keys)
        self._batches = jax.jit(jax.vmap(partial(random_batch, config, spaces)))(keys)
        update = partial(agent.update, config.agent)

        def alone(*run: Any) -> Any:
            """One run without the machinery for several."""
            return jax.tree.map(lambda x: x[None], update(*jax.tree.map(lambda x: x[0], run)))

        begin = time.perf_counter()
        program = partial(_updates, jax.vmap(update) if runs > 1 else alone)
        jitted = jax.jit(program, static_argnums=0, donate_argnums=1)
        self.compiled = jitted.lower(updates, self.states, self._batches).compile()
        self.compile_seconds = time.perf_counter() - begin
        one = jax.tree.map(lambda x: x[0], (self.states, self._batches))
        self.flops = matrix_flops(jax.make_jaxpr(update)(*one).jaxpr)
        """Operations in the matrix products and convolutions of one update of one run."""
        self.time()

    def time(self) -> float:
        """Milliseconds per update and run, of one call."""
        begin = time.perf_counter()
        self.states = jax.block_until_ready(self.compiled(self.states, self._batches))
        return 1000 * (time.perf_counter() - begin) / self.updates / self.runs

    @property
    def temporary(self) -> int:
        """Bytes of memory that it needs besides states and data."""
        usage = self.compiled.memory_analysis()
        return int(usage.temp_size_in_bytes) if usage else 0

    @property
    def kernels(self) -> float:
        """Operations that the compiled program starts, per update of all runs."""
        return kernel_count(self.compiled.as_text() or "") / self.updates


def _updates(
    update: Callable[..., Any], updates: int, states: agent.AgentState, batches: Any
) -> agent.AgentState:
    def one(_: Any, states: agent.AgentState) -> agent.AgentState:
        states, _, metrics = update(states, batches)
        # The metrics are part of the work.
        return states._replace(skipped=states.skipped + 0 * jnp.int32(metrics["loss/total"]))

    return jax.lax.fori_loop(0, updates, one, states)


def matrix_flops(jaxpr: Any) -> int:
    """Multiplications and additions in a program's matrix products and convolutions, all turns of its loops.

    A convolution is counted as if its padding were data.
    """
    total = 0
    for equation in jaxpr.eqns:
        if terms := _terms(equation):
            total += 2 * math.prod(equation.outvars[0].aval.shape) * terms
        else:
            times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            if "grid_mapping" in equation.params:  # a kernel, once for each place of its grid
                times = math.prod(equation.params["grid_mapping"].grid)
            total += times * sum(matrix_flops(inner) for inner in _inner(equation.params.values()))
    return total


def _terms(equation: Any) -> int:
    """Products that are summed for each number of an operation's result; 0 for operations without any."""
    dimensions = equation.params.get("dimension_numbers")
    if equation.primitive.name == "dot_general":
        operand, axes = 0, dimensions[0][0]
    elif equation.primitive.name == "conv_general_dilated":
        operand, axes = 1, dimensions.rhs_spec[1:]  # all of the kernel for one channel, of a group's inputs
    else:
        return 0
    return math.prod(equation.invars[operand].aval.shape[axis] for axis in axes)


def _inner(values: Iterable[Any]) -> list[Any]:
    """Programs among the parameters of an operation."""
    found = []
    for value in values:
        if isinstance(value, (tuple, list)):
            found += _inner(value)
        elif hasattr(value, "eqns"):
            found.append(value)
        elif hasattr(value, "jaxpr"):
            found.append(value.jaxpr)
    return found


_NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"),
    *("while", "call", "conditional", "iota", "replica-id", "opt-barrier"),
}
_LINE = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][a-z\-]*)\(", re.M)


def kernel_count(text: str) -> int:
    """Operations that a compiled program starts, from its text; loops of unknown length count once."""
    bodies = dict(re.findall(r"^(?:ENTRY )?%?([\w.\-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S))
    entry = re.search(r"^ENTRY %?([\w.\-]+) ", text, re.M)

    def count(name: str) -> int:
        total = 0
        for line in bodies[name].splitlines():
            found = _LINE.match(line)
            if found is None:
                continue
            total += found[1] not in _NO_KERNEL
            trips = re.search(r"known_trip_count[^\d]*(\d+)", line)
            for called in re.findall(r"(?:body|to_apply|branch_computations)=\{?%?([\w.\-]+)", line):
                if found[1] in ("while", "call", "conditional"):
                    total += count(called) * (int(trips[1]) if trips else 1)
        return total

    return count(entry[1]) if entry else 0


def updates_in(config: Config, env_steps: int) -> float:
    """Updates that a run of this length makes."""
    replayed = config.replay.batch * config.replay.length
    return env_steps / config.env.action_repeat * config.replay.train_ratio / replayed


def measure(config: Config, settings: Sequence[Setting] | None = None, **options: Any) -> pandas.DataFrame:
    """The paper's overheads on this machine: a row for the baseline and one for each of `settings`."""
    settings = paper_settings() if settings is None else settings
    return compare([with_penalty(config, setting) for setting in (BASELINE, *settings)], **options)


def compare(
    configs: Sequence[Config],
    *,
    spaces: Spaces = WALKER,
    runs: int = 1,
    updates: int = UPDATES,
    repeats: int = REPEATS,
    progress: Callable[[list[Any], str], Iterable[Any]] = lambda items, what: items,
) -> pandas.DataFrame:
    """A row for each configuration; the first is the baseline.

    `ratio` and `ratio_std` are the mean and standard deviation over rounds of a setting's time to the
    baseline's; `ms` is the median time of an update and run, `spread` the range of all but its slowest tenth;
    `seconds_more` is what the mean ratio adds to all updates of a run of `ENV_STEPS`. `gflop` are those of
    one update's matrix products and convolutions, `temporary_mib` the program's memory besides its states,
    `kernels` the operations that it starts per update. `paper`, `paper_std` and `paper_seconds_more` are what
    the paper reports of a penalty of this rho and these weights, which it estimated by products.
    """
    kinds = {_kind(config): config for config in configs}
    at_a_time = min(machine.cores(), machine.host_memory().free // COMPILING)
    with ThreadPoolExecutor(max(1, at_a_time)) as pool:
        program = partial(Program, spaces=spaces, runs=runs, updates=updates)
        futures = {kind: pool.submit(program, config) for kind, config in kinds.items()}
        compiled = {kind: futures[kind].result() for kind in progress(list(kinds), "compile")}
    programs = [compiled[_kind(config)] for config in configs]
    times = np.array(
        [[program.time() for program in programs] for _ in progress(list(range(repeats)), "time")]
    )
    rows = []
    for config, program, column in zip(configs, programs, times.T, strict=True):
        setting, ratios = setting_of(config), column / times[:, 0]
        more = (ratios.mean() - 1) * np.median(times[:, 0]) / 1000
        rows.append(
            {
                **setting._asdict(),
                "ratio": ratios.mean(),
                "ratio_std": ratios.std(),
                "ms": np.median(column),
                "spread": np.quantile(column, 0.9) - column.min(),
                "seconds_more": more * updates_in(configs[0], ENV_STEPS),
                "gflop": program.flops / 1e9,
                "temporary_mib": program.temporary / 2**20,
                "kernels": program.kernels,
                "compile_seconds": program.compile_seconds,
            }
        )
    paper = results.paper_cost().rename(columns=PAPER)
    paper.loc[len(paper)] = [*BASELINE[:3], 1.0, 0.0, 0.0]
    return pandas.DataFrame(rows).merge(paper, how="left", on=list(Setting._fields[:3]))


def print_progress(items: list[Any], what: str) -> Iterable[Any]:
    """The items, with a printed line for each and what it leaves to wait for, for logs."""
    begin = time.monotonic()
    for number, item in enumerate(items):
        left = (time.monotonic() - begin) / number * (len(items) - number) if number else 0.0
        wait = f", about {in_words(left)} left" if number else ""
        print(f"{what}: {number + 1} of {len(items)}{wait}", flush=True)
        yield item


def _kind(config: Config) -> AgentConfig:
    """The options that decide the program: weights are arrays, and only whether they are zero is compiled."""
    penalty = config.agent.penalty
    on = {name: float(getattr(penalty, name) > 0) for name in ("posterior", "prior")}
    return override(config.agent, {"penalty": on})


def table(rows: pandas.DataFrame, *, title: str, notes: Sequence[str] = ()) -> Table:
    """The paper's table, its own numbers beside those of here; rows may have names, as `method`."""
    header = ("method",) * ("method" in rows) + ("rho", "lambda_post", "lambda_prior", "estimated")
    header += ("time / baseline's", "paper's", "extra s in 500k env steps", "paper's extra s")
    header += ("ms per update", "GFLOP", "temporary MiB", "kernels")
    about = (
        "mean \u00b1 standard deviation, here over rounds of updates and in the paper over whole runs; "
        "median ms with its spread, of the fastest nine in ten",
        "by products: vector-Jacobian products by automatic differentiation, as the paper timed them; "
        "in closed form: the same estimate without them, which training uses",
    )
    cells = tuple(map(_cells, rows.to_dict("records")))
    return Table(title, header, cells, (*about, *notes), labels=header.index("estimated") + 1)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    baseline = not row["posterior"] and not row["prior"]
    known = not baseline and not math.isnan(row["paper"])
    return (
        *([row["method"]] if "method" in row else []),
        NOTHING if baseline else f"{row['rho']:g}",
        f"{row['posterior']:g}",
        f"{row['prior']:g}",
        ESTIMATORS[row["estimator"]],
        f"{row['ratio']:.3f} \u00b1 {row['ratio_std']:.3f}",
        f"{row['paper']:.2f} \u00b1 {row['paper_std']:.3f}" if known else NOTHING,
        f"{row['seconds_more']:.0f}",
        f"{row['paper_seconds_more']:.0f}" if known else NOTHING,
        f"{row['ms']:.3g} ({row['spread']:.2g})",
        f"{row['gflop']:.3g}",
        f"{row['temporary_mib']:.0f}",
        f"{row['kernels']:.0f}",
    )


def draw(rows: pandas.DataFrame) -> "Figure":
    """Ratios with their standard deviations, of rows with a `method`; the paper's as crosses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 0.6 + 0.28 * len(rows)), dpi=160, layout="constrained")
    axis, places = figure.subplots(), np.arange(len(rows))[::-1]
    axis.errorbar(rows["ratio"], places, xerr=rows["ratio_std"], fmt="o", color=COLOURS[0], label="here")
    axis.plot(rows["paper"], places, "x", color=COLOURS[1], label="the paper")
    axis.axvline(1.0, color="#888888", linewidth=0.8)
    axis.set(xlabel="time of an update / the baseline's", yticks=places, yticklabels=rows["method"])
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure
