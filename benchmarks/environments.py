"""Agent steps per second of every task and backend, with random actions.

python benchmarks/environments.py --seconds 2 --out results

With --pixels, one image is drawn for each agent step: by each of EGL and OSMesa that works here, in each of
--processes many processes.

python benchmarks/environments.py --pixels --tasks cartpole-swingup quadruped-walk --out results
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpld.envs import has_envpool, make, renderers, tasks
from gpld.machine import cores

Rates = dict[str, dict[str, float]]
"""Agent steps per second by task and then by what made them."""


def steps_per_second(task: str, *, count: int, seconds: float, warmup: int = 20, **options) -> float:
    """Agent steps of all streams per second, resets included, after a warm-up."""
    with make(task, count=count, seed=0, **options) as env:
        rng = np.random.default_rng(0)
        actions = rng.uniform(-1, 1, (64, count, env.spaces.actions)).astype(np.float32)
        for action in actions[:warmup]:
            env.step(action)
        steps, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            env.step(actions[steps % 64])
            steps += 1
    return steps * count / elapsed


def from_states(options: argparse.Namespace) -> Rates:
    """Rates of each backend."""
    known = {task.name: task.backends for task in tasks()}
    measure = partial(steps_per_second, count=options.count, seconds=options.seconds, threads=options.threads)
    return {
        task: {backend: measure(task, backend=backend) for backend in known[task]}
        for task in track(options.tasks, "measuring")
    }


def from_pixels(options: argparse.Namespace) -> Rates:
    """Rates of each renderer and number of processes."""
    ways = [(renderer, processes) for renderer in renderers() for processes in options.processes]
    if not ways:
        raise SystemExit("neither EGL nor OSMesa draws here; `gpld doctor` says what to install")
    measure = partial(steps_per_second, count=options.count, seconds=options.seconds, warmup=3, pixels=True)
    rates: Rates = {task: {} for task in options.tasks}
    for task in track(options.tasks, "measuring"):
        for renderer, processes in ways:
            # MuJoCo reads MUJOCO_GL once in a process.
            settings = {"initializer": _draw_with, "initargs": (renderer,)}
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(max_workers=1, mp_context=spawn, **settings) as fresh:
                rate = fresh.submit(measure, task, processes=processes).result()
            rates[task][f"{renderer} x {processes}"] = rate
    return rates


def _draw_with(renderer: str) -> None:
    os.environ["MUJOCO_GL"] = renderer


def show(rates: Rates, title: str) -> None:
    """Print a table."""
    columns = list(next(iter(rates.values())))
    table = Table("task", title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for task, row in rates.items():
        table.add_row(task, *(f"{row[column]:,.0f}" for column in columns))
    Console().print(table)


def parsed() -> argparse.Namespace:
    """Options of the command line."""
    known = [task.name for task in tasks()]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=known, default=known, metavar="TASK")
    parser.add_argument("--count", type=int, default=16, help="streams")
    parser.add_argument("--threads", type=int, default=0, help="EnvPool's threads; 0 is one a core")
    parser.add_argument("--pixels", action="store_true", help="draw images, with dm_control")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=sorted({1, cores()}), help="processes that draw images"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each measurement")
    parser.add_argument("--name", help="file name without .json; environments, or environments-pixels")
    parser.add_argument("--out", type=Path, help="folder for the JSON; none is written without it")
    options = parser.parse_args()
    least = {"count": (options.count, 1), "threads": (options.threads, 0)}
    least |= {"processes": (min(options.processes), 1)}
    for name, (value, smallest) in least.items():
        if value < smallest:
            parser.error(f"{name}: {value} is not allowed; it must be at least {smallest}")
    if not 0 < options.seconds < math.inf:
        parser.error(f"seconds: {options.seconds:g} is not allowed; it must be above 0, and finite")
    return options


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    options = parsed()
    rates = from_pixels(options) if options.pixels else from_states(options)
    images = ", 64x64 images" if options.pixels else ""
    show(rates, f"Agent steps/s{images}, {options.count} streams, action repeat 2, {cores()} cores")
    if options.out:
        machine = {"processor": platform.processor() or platform.machine(), "cores": cores()}
        packages = ["mujoco", "dm_control", *(["envpool"] if has_envpool() else [])]
        result = {
            "machine": machine,
            "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "count": options.count,
            "action_repeat": 2,
            "agent_steps_per_second": rates,
        }
        name = options.name or ("environments-pixels" if options.pixels else "environments")
        path = options.out / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
