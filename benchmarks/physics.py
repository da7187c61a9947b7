"""The suite's physics with two sets of simulators: the same seeds and random actions, compared.

Each set records in its own virtual environment, in which this package is found (PYTHONPATH=.):

    python benchmarks/physics.py record OLD --engine envpool --episodes 256
    python benchmarks/physics.py record NEW --engine envpool --episodes 256
    python benchmarks/physics.py compare OLD NEW --out results

OLD and NEW are folders. Each may hold recordings of EnvPool and of dm_control, which are compared with their
like. Trajectories of chaotic systems part after any rounding, so returns are compared as well: of pairs of
episodes that begin in the same state.
"""

import argparse
import json
import os
import platform
import time
import zlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

os.environ.setdefault("MUJOCO_GL", "off")

from gpld.envs import tasks
from gpld.envs._envpool import pool_name
from gpld.tasks import DMC

FRAMES = 1000
TRACED = 8
"""Episodes whose every observation is recorded."""
AT = (10, 100, FRAMES)
"""Env steps within which the largest difference is shown."""

Frames = Iterator[tuple[np.ndarray, np.ndarray]]
"""Observations `[E, O]` and rewards `[E]` of all episodes, an env step at a time; the first rewards are 0."""


def envpool_frames(task: str, actions: np.ndarray) -> Frames:
    """Episodes of EnvPool, all at once; episode i has seed i."""
    import envpool

    count = actions.shape[1]
    pool = envpool.make_gymnasium(pool_name(task), num_envs=count, num_threads=2, seed=list(range(count)))
    keys = [key for key, _ in next(own.spaces.obs for own in tasks() if own.name == task)]

    def flat(obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.reshape(obs[key], (count, -1)) for key in keys], 1)

    yield flat(pool.reset()[0]), np.zeros(count)
    for action in actions:
        obs, reward, *_ = pool.step(action)
        yield flat(obs), reward


def dm_control_frames(task: str, actions: np.ndarray) -> Frames:
    """Episodes of dm_control; episode i has seed i."""
    from dm_control import suite

    envs = [suite.load(*task.split("-"), task_kwargs={"random": i}) for i in range(actions.shape[1])]

    def flat(obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(obs[key]) for key in sorted(obs)])

    yield np.stack([flat(env.reset().observation) for env in envs]), np.zeros(len(envs))
    for action in actions:
        steps = [env.step(own) for env, own in zip(envs, action, strict=True)]
        yield np.stack([flat(step.observation) for step in steps]), np.array([step.reward for step in steps])


ENGINES = {"envpool": envpool_frames, "dm_control": dm_control_frames}


def record(options: argparse.Namespace) -> None:
    """Write FOLDER/ENGINE.npz: all first observations and returns, and TRACED episodes frame by frame."""
    arrays: dict[str, np.ndarray] = {}
    widths = {task.name: task.spaces.actions for task in tasks()}
    for task in track(options.tasks, options.engine):
        shape = (FRAMES, options.episodes, widths[task])
        actions = np.random.default_rng(zlib.crc32(task.encode())).uniform(-1, 1, shape)
        obs, rewards = zip(*ENGINES[options.engine](task, actions), strict=True)
        traced = {"obs": np.stack([x[:TRACED] for x in obs]), "rewards": np.stack(rewards)[:, :TRACED]}
        found = traced | {"start": obs[0], "returns": np.sum(rewards, 0, np.float64)}
        arrays |= {f"{task} {name}": np.asarray(value, np.float64) for name, value in found.items()}
    packages = ["envpool"] if options.engine == "envpool" else ["dm_control", "mujoco"]
    about = {name: version(name) for name in packages} | {"python": platform.python_version()}
    options.folder.mkdir(parents=True, exist_ok=True)
    np.savez(options.folder / f"{options.engine}.npz", about=np.array(json.dumps(about)), **arrays)


def compared(task: str, old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What differs in one task."""
    starts = [data[f"{task} start"] for data in (old, new)]
    obs, rewards = (np.abs(new[f"{task} {name}"] - old[f"{task} {name}"]) for name in ("obs", "rewards"))
    differs = np.flatnonzero(obs.any((1, 2)) | rewards.any(1))
    size = obs.max(2)  # [frame, episode]
    onset = size[(size > 0).argmax(0), np.arange(size.shape[1])]
    returns = [data[f"{task} returns"] for data in (old, new)]
    return {
        "task": task,
        "equal_starts": float((starts[0] == starts[1]).all(1).mean()),
        "first_difference": int(differs[0]) if differs.size else None,
        "largest_onset": float(onset.max()),  # an episode's first difference, which chaos has not grown
        "largest_difference": {str(step): float(obs[: step + 1].max()) for step in AT},
        "largest_reward_difference": {str(step): float(rewards[: step + 1].max()) for step in AT},
        "return_old": mean(returns[0]),
        "return_new": mean(returns[1]),
        "return_change": mean(returns[1] - returns[0]),
    }


def mean(values: np.ndarray) -> dict[str, float]:
    """Mean, and half of its 95% interval."""
    error = values.std(ddof=1) / len(values) ** 0.5
    return {"mean": float(values.mean()), "half_width": float(1.96 * error)}


def compare(options: argparse.Namespace) -> None:
    """Print tables, and write physics.json."""
    engines = {}
    for engine in ENGINES:
        paths = [folder / f"{engine}.npz" for folder in (options.old, options.new)]
        if not all(path.exists() for path in paths):
            continue
        old, new = map(np.load, paths)
        shared = [task.name for task in tasks() if all(f"{task.name} obs" in data for data in (old, new))]
        rows = [compared(task, old, new) for task in shared]
        about = {name: json.loads(str(data["about"])) for name, data in (("old", old), ("new", new))}
        engines[engine] = {"versions": about, "episodes": len(old[f"{shared[0]} returns"]), "rows": rows}
        show(engine, rows)
    if not engines:
        raise SystemExit(f"compare: {options.old} and {options.new} hold no recordings of the same engine")
    if options.out:
        command = "python benchmarks/physics.py compare OLD NEW --out results"
        about = {"command": command, "date": time.strftime("%Y-%m-%d", time.gmtime()), "traced": TRACED}
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "physics.json").write_text(json.dumps(about | {"engines": engines}, indent=2) + "\n")


def show(engine: str, rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(
        "task", "equal starts", "first difference", "largest onset", *(f"within {step}" for step in AT)
    )
    for name in ("return_old", "return_new", "return_change"):
        table.add_column(name)
    table.title = engine
    for row in rows:
        means = [row[name] for name in ("return_old", "return_new", "return_change")]
        table.add_row(
            row["task"],
            f"{row['equal_starts']:.0%}",
            str(row["first_difference"]),
            f"{row['largest_onset']:.1e}",
            *(f"{x:.1e}" for x in row["largest_difference"].values()),
            *(f"{x['mean']:.2f} ± {x['half_width']:.2f}" for x in means),
        )
    Console().print(table)


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("folder", type=Path)
    recorder.add_argument("--engine", choices=ENGINES, required=True)
    recorder.add_argument("--episodes", type=int, default=256)
    recorder.add_argument("--tasks", nargs="+", choices=DMC, default=DMC, metavar="TASK")
    recorder.set_defaults(run=record)
    comparer = commands.add_parser("compare")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    comparer.add_argument("--out", type=Path, help="folder for physics.json; none is written without it")
    comparer.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
