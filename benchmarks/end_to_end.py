"""The real training loop against its updates alone: env steps and updates per second, and what is lost where.

    python benchmarks/end_to_end.py --task walker-run --preset 12m gpu --runs 8 --seconds 300

Each number of runs is trained in one process by the loop that `gpld train` uses, half of them as DreamerV3,
with its environments, replay and logs: first without evaluations, then for --seconds with evaluations as
often as the options say, and one checkpoint of a full replay. (It is full of zeros: only its size counts.)
Runs save every ten minutes, so a shorter time says less than is true. Checkpoints go to TMPDIR: those of
eight runs of 12m need 40 GB. Prints a table and writes a JSON file: --name gives it another name than that of
earlier results.

    python benchmarks/end_to_end.py --trained studies/locomotion-short/runs/walker-run --alone 2.92

reads the clocks of runs that were trained in one program instead; `benchmarks/update.py` times updates alone.
"""

import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.console import Console
from rich.table import Table

from gpld import machine, population
from gpld.config import Config, ConfigError, load, override, with_presets
from gpld.population import Member
from gpld.training import _program, logs, saved
from gpld.training._groups import plan
from gpld.training.evaluation import make_env
from gpld.training.loop import Training
from gpld.training.provenance import provenance, starts

PAPER_RUNS, PAPER_ENV_STEPS = 10, 1_000_000
"""The paper's comparison of a task: five seeds of two methods."""


@dataclasses.dataclass
class Options:
    """Options of the benchmark. The JSON has them without the folders, which `repr` leaves out."""

    task: str = "walker-run"
    """A task of the suite."""
    preset: tuple[str, ...] = ()
    """Presets of the runs; by default 12m gpu on a GPU, nano cpu elsewhere."""
    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    devices: int = 0
    """Devices to use; 0 for all that the runs can be spread over."""
    seconds: float = 60.0
    """Time to train with evaluations and a checkpoint, for each number of runs; a third as long without."""
    trained: Path | None = dataclasses.field(default=None, repr=False)
    """Folder of runs of one program that have been trained: their clocks are read, and nothing is run."""
    alone: float | None = None
    """Milliseconds of an update and run alone, for --trained."""
    name: str = "end_to_end"
    """File name of the JSON without .json."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON."""


class Stopwatch:
    """Seconds spent in each part of a loop."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

        return timed


PARTS = {
    "_receive": "environments",
    "_send": "actions to the environments",
    "_log": "logging",
    "end_evaluation": "waiting for evaluations",
    "save": "checkpoints",
}
PROGRAMS = {"act": "handing over acting", "learn": "handing over learning"}


@contextmanager
def watched(training: Training) -> Iterator[Stopwatch]:
    """Time the parts of an iteration. What is in none of them is waiting for the device's actions."""
    watch, before = Stopwatch(), {name: getattr(_program, name) for name in PROGRAMS}
    for name, part in PARTS.items():
        setattr(training, name, watch.around(part, getattr(training, name)))
    for name, part in PROGRAMS.items():
        setattr(_program, name, watch.around(part, before[name]))
    try:
        yield watch
    finally:
        for name in PARTS:
            delattr(training, name)
        for name, function in before.items():
            setattr(_program, name, function)


def members_of(config: Config, runs: int, folder: Path) -> list[Member]:
    """Seeds of both methods, or of GPLD alone if they cannot be halved."""
    if runs % 2:
        return population.members(config, range(runs), ("gpld",), folder)
    return population.members(config, range(runs // 2), ("gpld", "dreamerv3"), folder)


def measure(config: Config, runs: int, options: Options, folder: Path) -> dict[str, Any]:
    """Everything about a number of runs."""
    config = override(config, {"checkpoint": {"minutes": 1e9, "keep": 1}})  # saved when it is told to
    members = members_of(config, runs, folder)
    shared = population.shared(members)
    with make_env(shared, 1) as env:
        spaces = env.spaces
    (group, *more), messages = plan(members, shared, spaces, options.devices or jax.local_device_count())
    print("\n".join(messages), flush=True)
    if more:
        raise SystemExit(f"{runs} runs do not fit at once")
    with Training(group, shared, devices=options.devices) as training:
        begin, evaluated = time.perf_counter(), training.config
        training.config = override(evaluated, {"eval": {"every": 0}})
        while not training.updates:
            training.advance()
        jax.block_until_ready(training.state.sums)
        prepared = time.perf_counter() - begin
        loop = time_loop(training, options.seconds / 6)
        due = max(1, round(loop["updates"] / loop["iterations"]))
        alone = time_learning(training, due, options.seconds / 6)
        training.config = evaluated
        evaluation = time_twice(training)
        saving = {"empty": time_saving(training)}
        fill(training)
        time_saving(training)  # with all its steps, which are written once
        training.advance()
        saving["full"] = time_saving(training)
        whole = time_loop(training, options.seconds, save_at=options.seconds / 3)
    return summarize(config, runs, whole, loop, alone, evaluation, saving, prepared)


def fill(training: Training) -> None:
    """Pretend that the replay is full, and all of it trained on."""
    memory = training.state.replay
    sequences = memory.slots // (training.config.replay.length + 1) * memory.streams
    full = dataclasses.replace(
        memory, appended=memory.appended * 0 + memory.slots, consumed=memory.consumed * 0 + sequences
    )
    training.state = training.state._replace(replay=full)
    training.advance()


def time_loop(training: Training, seconds: float, save_at: float = math.inf) -> dict[str, Any]:
    """Iterations of the loop as they are, with a checkpoint after some seconds."""
    for _ in range(3):
        training.advance()
    jax.block_until_ready(training.state.sums)
    updates, iterations, first, stopped = training.updates, training.iterations, training.agent_steps, 0.0
    with watched(training) as watch:
        begin = time.perf_counter()
        while not training.reached() and (now := time.perf_counter() - begin) < seconds:
            training.advance()
            if not stopped and now > save_at:
                stopped = timed(training.save)
        jax.block_until_ready(training.state.sums)
        passed = time.perf_counter() - begin
    count = training.iterations - iterations
    parts = {name: 1000 * spent / count for name, spent in watch.seconds.items()}
    parts["waiting for the device"] = 1000 * passed / count - sum(parts.values())
    made, every = training.updates - updates, training.config.eval.every
    evaluations = training.agent_steps // every - first // every if every else 0
    known = {"evaluations": evaluations, "stopped": stopped, "parts_ms": parts}
    return {"iterations": count, "updates": made, "seconds": passed, **known}


def timed(function: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def time_learning(training: Training, updates: int, seconds: float) -> float:
    """Seconds per update of all runs, of the program that learns and nothing else."""
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        training.state = _program.learn(
            training.config, training.state, updates, training.keys.sample, training._mesh
        )
        jax.block_until_ready(training.state.sums)
        times.append((time.perf_counter() - start) / updates)
    return statistics.median(times)


def time_twice(training: Training) -> float:
    """Seconds of the second evaluation, which compiles nothing, while nothing is trained."""

    def evaluate() -> None:
        training._evaluate()
        training.end_evaluation()

    jax.block_until_ready(training.state.sums)
    return [timed(evaluate) for _ in range(2)][-1]


def time_saving(training: Training) -> dict[str, float]:
    """Seconds for which a checkpoint stops training, and until it is written."""
    jax.block_until_ready(training.state.sums)
    stopped = timed(training.save)
    waited = timed(lambda: [run.wait() for run in training.checkpoints])
    return {"stopped": stopped, "written": stopped + waited}


def summarize(
    config: Config,
    runs: int,
    whole: dict[str, Any],
    loop: dict[str, Any],
    alone: float,
    evaluation: float,
    saving: dict[str, dict[str, float]],
    prepared: float,
) -> dict[str, Any]:
    """What follows from the measurements: `whole` with evaluations and a checkpoint, `loop` without."""
    count, repeat = config.env.count, config.env.action_repeat
    busy = whole["seconds"] / whole["iterations"]
    per_iteration = whole["updates"] / whole["iterations"]
    quiet = alone * loop["updates"] / loop["seconds"]
    paper = with_env_steps(config, PAPER_ENV_STEPS)
    paper_updates = paper.updates_at(paper.agent_steps)
    return {
        "runs": runs,
        "env_steps_per_second": runs * count * repeat / busy,
        "updates_per_second": runs * per_iteration / busy,
        "updates_per_second_alone": runs / alone,
        "ratio": per_iteration * alone / busy,
        "ratio_without_evaluation": quiet,
        "ms_per_update_and_run": 1000 * busy / per_iteration / runs,
        "ms_per_update_and_run_alone": 1000 * alone / runs,
        "iteration_ms": 1000 * loop["seconds"] / loop["iterations"],
        "parts_ms": loop["parts_ms"],
        "parts_ms_whole": whole["parts_ms"],
        "evaluation_seconds": evaluation,
        "checkpoint": {
            "stopped": saving["empty"]["stopped"],
            "written": saving["empty"]["written"],
            "stopped_when_full": saving["full"]["stopped"],
            "written_when_full": saving["full"]["written"],
            "stopped_while_training": whole["stopped"],
        },
        "prepared_seconds": prepared,
        "paper_gpu_hours": PAPER_RUNS * paper_updates * busy / per_iteration / runs / 3600,
        "measured": {key: whole[key] for key in ("iterations", "updates", "seconds", "evaluations")},
    }


def timed_runs(folder: Path) -> list[Path]:
    """Folders of all runs in a folder that have clocks."""
    found = sorted(path.parent for path in folder.glob(f"**/{logs.TIMING}"))
    if not found:
        raise ConfigError(f"trained: there are no runs in {folder}")
    return found


def by_clocks(folders: list[Path], alone: float) -> dict[str, Any]:
    """What follows from the clocks of runs, from their first line of metrics to the last."""
    runs, run = len(folders), folders[0]
    # Lines that wait for an evaluation have their own times, and its line that of its end.
    lines = logs.read(run, logs.TIMING).drop_duplicates("updates")
    if len(lines) < 2:
        raise ConfigError(f"trained: {run} has too few lines of metrics")
    steps = lines.diff().iloc[1:]
    updates, seconds = steps["updates"].sum(), steps["seconds"].sum()
    busy, quiet = seconds / updates, (steps["seconds"] / steps["updates"]).median()
    paper = with_env_steps(load(run / saved.CONFIG), PAPER_ENV_STEPS)
    return {
        "runs": runs,
        "env_steps_per_second": runs * steps["env_steps"].sum() / seconds,
        "updates_per_second": runs / busy,
        "updates_per_second_alone": 1000 / alone,
        "ratio": alone * runs / 1000 / busy,
        "ratio_without_evaluation": alone * runs / 1000 / quiet,
        "ms_per_update_and_run": 1000 * busy / runs,
        "ms_per_update_and_run_alone": alone,
        "paper_gpu_hours": PAPER_RUNS * paper.updates_at(paper.agent_steps) * busy / runs / 3600,
        "measured": {
            "updates": int(updates),
            "seconds": float(seconds),
            "evaluations": len(logs.evaluations(run)[0]),
        },
    }


def with_env_steps(config: Config, env_steps: int) -> Config:
    """`config` with another length."""
    return dataclasses.replace(config, env_steps=env_steps)


def check(options: Options) -> None:
    """Refuse what cannot be measured."""
    least = {"runs": (min(options.runs, default=0), 1), "devices": (options.devices, 0)}
    for name, (value, smallest) in least.items():
        if value < smallest:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least {smallest}")
    if (options.trained is None) != (options.alone is None):
        raise ConfigError("trained: it goes with --alone, the milliseconds of an update and run alone")
    if options.alone is not None and not 0 < options.alone < math.inf:
        raise ConfigError(f"alone: {options.alone:g} is not allowed; it must be above 0, and finite")
    if not 0 < options.seconds < math.inf:
        raise ConfigError(f"seconds: {options.seconds:g} is not allowed; it must be above 0, and finite")


def main(options: Options) -> list[dict[str, Any]]:
    """Measure, print and write."""
    check(options)
    if options.trained is not None and options.alone is not None:
        folders = timed_runs(options.trained)
        rows = [by_clocks(folders, options.alone)]
        write(rows, options, {**starts(folders[0])[-1], "command": sys.argv})
        print(json.dumps(rows[0], indent=2))
        return rows
    machine.use_compilation_cache()
    fitting = ("nano", "cpu") if jax.default_backend() == "cpu" else ("12m", "gpu")
    config = with_presets(Config(task=options.task), options.preset or fitting)
    rows = []
    for runs in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(config, runs, options, Path(folder)))
        print(json.dumps(rows[-1]), flush=True)
        if config.eval.every and not rows[-1]["measured"]["evaluations"]:
            print("no evaluation fell into the time that was measured: give more --seconds", flush=True)
        write(rows, options, provenance())
    console = Console()
    console.print(_table(rows))
    console.print(_parts(rows))
    return rows


def write(rows: list[dict[str, Any]], options: Options, made: dict[str, Any]) -> None:
    """Write the JSON; `made` is how the measured runs were made."""
    path = options.out / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": made, "options": str(options), "rows": rows}, indent=2) + "\n")


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "runs",
        "env steps/s",
        "updates/s",
        "updates alone/s",
        "ratio",
        "ms per update and run",
        "evaluation s",
        "checkpoint stops s",
        f"hours for {PAPER_RUNS} runs of {PAPER_ENV_STEPS:,}",
    )
    for row in rows:
        table.add_row(
            str(row["runs"]),
            f"{row['env_steps_per_second']:,.0f}",
            f"{row['updates_per_second']:,.1f}",
            f"{row['updates_per_second_alone']:,.1f}",
            f"{row['ratio']:.3f}",
            f"{row['ms_per_update_and_run']:.3f}",
            f"{row['evaluation_seconds']:.2f}",
            f"{row['checkpoint']['stopped_when_full']:.2f}",
            f"{row['paper_gpu_hours']:.2f}",
        )
    return table


def _parts(rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row["parts_ms_whole"]))
    table = Table("ms per iteration", *(f"{row['runs']} runs" for row in rows))
    for name in names:
        table.add_row(name, *(f"{row['parts_ms_whole'].get(name, 0.0):.2f}" for row in rows))
    return table


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"end_to_end.py: {error}") from None
