"""Agent steps per second of every task and backend, with random actions.

python benchmarks/environments.py --seconds 2 --out results
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpld.envs import make, tasks


def steps_per_second(task: str, backend: str, count: int, threads: int, seconds: float) -> float:
    """Agent steps of all streams per second, resets included, after a warm-up of 20 steps."""
    with make(task, count=count, seed=0, backend=backend, threads=threads) as env:
        rng = np.random.default_rng(0)
        actions = rng.uniform(-1, 1, (64, count, env.spaces.actions)).astype(np.float32)
        for action in actions[:20]:
            env.step(action)
        steps, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            env.step(actions[steps % 64])
            steps += 1
    return steps * count / elapsed


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    known = {task.name: task.backends for task in tasks()}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=known, default=list(known), metavar="TASK")
    parser.add_argument("--count", type=int, default=16, help="streams")
    parser.add_argument("--threads", type=int, default=0, help="EnvPool's threads; 0 is one a core")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each measurement")
    parser.add_argument("--out", type=Path, help="folder for environments.json")
    options = parser.parse_args()

    rates = {
        task: {
            backend: steps_per_second(task, backend, options.count, options.threads, options.seconds)
            for backend in known[task]
        }
        for task in track(options.tasks, "measuring")
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    title = f"Agent steps/s, {options.count} streams, action repeat 2, {cores} cores"
    table = Table("task", title=title)
    backends = next(iter(known.values()))
    for backend in backends:
        table.add_column(backend, justify="right")
    for task, row in rates.items():
        table.add_row(task, *(f"{row[backend]:,.0f}" for backend in backends))
    Console().print(table)
    if options.out:
        machine = {"processor": platform.processor() or platform.machine(), "cores": cores}
        result = {
            "machine": machine,
            "count": options.count,
            "action_repeat": 2,
            "agent_steps_per_second": rates,
        }
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "environments.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
