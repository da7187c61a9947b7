"""Agent steps per second of every task and backend, with random actions.

python benchmarks/environments.py --seconds 2 --out results

With --pixels, one image is drawn for each agent step: by each of EGL and OSMesa that works here, in each of
--processes many processes.

python benchmarks/environments.py --pixels --tasks cartpole-swingup quadruped-walk --out results

With --jax, environments written in JAX beside EnvPool's cartpole-swingup: --runs times --count streams, all
stepped together, as those of as many runs are.

python benchmarks/environments.py --jax jax:gpld.envs:CartPole --runs 8 --out results
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpld.envs import Fleet, JaxEnv, has_envpool, make, renderers, tasks
from gpld.machine import cores

Rates = dict[str, dict[str, float]]
"""Agent steps per second by task and then by what made them."""


class Rate(NamedTuple):
    """One measurement."""

    task: str
    by: str
    agent_steps_per_second: float


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


def from_states(options: argparse.Namespace) -> Iterator[Rate]:
    """Rates of each backend."""
    known = {task.name: task.backends for task in tasks()}
    measure = partial(steps_per_second, count=options.count, seconds=options.seconds, threads=options.threads)
    for task in track(options.tasks, "measuring"):
        for backend in known[task]:
            yield Rate(task, backend, measure(task, backend=backend))


def from_pixels(options: argparse.Namespace) -> Iterator[Rate]:
    """Rates of each renderer and number of processes."""
    ways = [(renderer, processes) for renderer in renderers() for processes in options.processes]
    if not ways:
        raise SystemExit("neither EGL nor OSMesa works here; `gpld doctor` says what to install")
    measure = partial(steps_per_second, count=options.count, seconds=options.seconds, warmup=3, pixels=True)
    for task in track(options.tasks, "measuring"):
        for renderer, processes in ways:
            # MuJoCo reads MUJOCO_GL once in a process.
            settings = {"initializer": _draw_with, "initargs": (renderer,)}
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(max_workers=1, mp_context=spawn, **settings) as fresh:
                rate = fresh.submit(measure, task, processes=processes).result()
            yield Rate(task, f"{renderer} x {processes}", rate)


def from_jax(options: argparse.Namespace) -> Iterator[Rate]:
    """Rates of environments written in JAX, a program for each step and for 100, and of EnvPool's."""
    if has_envpool():
        yield Rate("cartpole-swingup, EnvPool", "agent steps/s", fleet_steps_per_second(options))
    for task in track(options.jax, "measuring"):
        for steps in (1, 100):
            rate = jax_steps_per_second(task, steps, options)
            yield Rate(f"{task}, {steps} a program", "agent steps/s", rate)


def fleet_steps_per_second(options: argparse.Namespace) -> float:
    """Agent steps of all streams of all runs per second, on EnvPool."""
    own = {"count": options.count, "threads": options.threads, "share": options.runs}
    runs = [make("cartpole-swingup", seed=seed, **own) for seed in range(options.runs)]
    with Fleet(runs) as fleet:
        shape = (64, options.runs, options.count, fleet.spaces.actions)
        actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        return _rate(lambda i: fleet.step(actions[i % 64]), lambda step: step, options)


def jax_steps_per_second(task: str, steps: int, options: argparse.Namespace) -> float:
    """The same of environments written in JAX, whose random actions are drawn on the device."""
    envs = [make(task, count=options.count, seed=seed) for seed in range(options.runs)]
    assert isinstance(envs[0], JaxEnv)
    streams = envs[0].task
    states = jax.tree.map(lambda *x: np.stack(x), *(env.state for env in envs))
    shape = (options.runs, options.count, streams.spaces.actions)

    @partial(jax.jit, donate_argnums=0)
    def program(states, number):
        def one(states, key):
            states, step = jax.vmap(streams.step)(states, jax.random.uniform(key, shape, minval=-1.0))
            return states, step.reward.sum()

        return jax.lax.scan(one, states, jax.random.split(jax.random.key(number), steps))

    def advance(i: int):
        nonlocal states
        states, reward = program(states, i)
        return reward

    return steps * _rate(advance, jax.block_until_ready, options)


def _rate(advance, wait, options: argparse.Namespace) -> float:
    """Steps of all streams per second, after two calls that compile; every fourth is waited for."""
    for i in range(2):
        wait(advance(i))
    start = time.perf_counter()
    for calls in count(4, 4):
        for i in range(4):
            done = advance(calls + i)
        wait(done)
        if (elapsed := time.perf_counter() - start) > options.seconds:
            return calls * options.runs * options.count / elapsed
    raise AssertionError("unreachable")


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
    parser.add_argument("--jax", nargs="+", default=[], metavar="jax:MODULE:NAME", help="environments in JAX")
    parser.add_argument("--runs", type=int, default=8, help="with --jax: runs of so many streams each")
    parser.add_argument("--pixels", action="store_true", help="draw images, with dm_control")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=sorted({1, cores()}), help="processes that draw images"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each measurement")
    parser.add_argument("--name", help="file name without .json; environments[-pixels or -jax]")
    parser.add_argument("--out", type=Path, help="folder for the JSON; none is written without it")
    options = parser.parse_args()
    least = {"count": (options.count, 1), "threads": (options.threads, 0)}
    least |= {"runs": (options.runs, 1), "processes": (min(options.processes), 1)}
    for name, (value, smallest) in least.items():
        if value < smallest:
            parser.error(f"{name}: {value} is not allowed; it must be at least {smallest}")
    if not 0 < options.seconds < math.inf:
        parser.error(f"seconds: {options.seconds:g} is not allowed; it must be above 0, and finite")
    return options


def main() -> None:
    """Measure, print a table, and write JSON if asked, after each measurement."""
    options = parsed()
    kind = "jax" if options.jax else "pixels" if options.pixels else ""
    rates: Rates = {}
    for rate in {"jax": from_jax, "pixels": from_pixels, "": from_states}[kind](options):
        rates.setdefault(rate.task, {})[rate.by] = rate.agent_steps_per_second
        if options.out:
            name = options.name or "-".join(["environments", *filter(None, [kind])])
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(record(rates, options), indent=2) + "\n"
            (options.out / f"{name}.json").write_text(text)
    images = ", 64x64 images" if options.pixels else ""
    streams = f"{options.runs} x {options.count}" if options.jax else str(options.count)
    show(rates, f"Agent steps/s{images}, {streams} streams, action repeat 2, {cores()} cores")


def record(rates: Rates, options: argparse.Namespace) -> dict:
    """What is written: the rates, and what they were measured with."""
    machine = {"processor": platform.processor() or platform.machine(), "cores": cores()}
    packages = ["mujoco", "dm_control", *(["envpool"] if has_envpool() else [])]
    if options.jax:
        machine |= {"device": jax.devices()[0].device_kind}
        packages += ["jax"]
    return {
        "machine": machine,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "runs": options.runs if options.jax else 1,
        "count": options.count,
        "action_repeat": 2,
        "agent_steps_per_second": rates,
    }


if __name__ == "__main__":
    main()
