"""Rollouts of trained agents, as batches to measure their world models on."""

import dataclasses
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas

from gpld import agent, files, results
from gpld.config import AgentConfig, ConfigError
from gpld.files import DamagedFile
from gpld.training import evaluation, saved
from gpld.training.saved import Trained
from gpld.types import Batch

_act = jax.jit(agent.act, static_argnums=0)


def roll_out(
    trained: Trained,
    *,
    episodes: int = 4,
    steps: int = 0,
    seed: int = 0,
    task: Callable[[], Any] | None = None,
) -> Batch:
    """Trajectories of `episodes` episodes played side by side by the agent's own policy, `[T, episodes]`.

    `steps` is T, in agent steps, and where an episode ends before it another begins; 0 for as long as the
    longest first episode, up to the run's `eval.limit`. The seed decides where they begin, and what is random
    in the actions. `task` is a factory, as `train` takes it.
    """
    config, key = trained.config, jax.random.key(seed)
    steps_taken: list[Batch] = []
    with evaluation.make_env(config, episodes, seed, task=task) as env:
        carry = agent.init_carry(config.agent, env.spaces, episodes)
        action, done = np.zeros((episodes, env.spaces.actions), np.float32), np.zeros(episodes, bool)
        while len(steps_taken) < (steps or config.eval.limit) and (steps or not done.all()):
            step = env.step(action)
            done |= step.is_last
            steps_taken.append(Batch(step.obs, action, *step[1:], start=None))
            noise = jax.random.fold_in(key, len(steps_taken))
            carry = _act(config.agent, trained.model, carry, step.obs, step.is_first, noise)
            action = np.asarray(carry.action)
    start = agent.init_carry(in_float32(config.agent), trained.spaces, episodes).latent
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *steps_taken)._replace(start=start)


def in_float32(config: AgentConfig) -> AgentConfig:
    """The same agent in float32: bfloat16 does not resolve a thousandth of a step."""
    return dataclasses.replace(config, compute="float32")


Measure = Callable[..., pandas.DataFrame]
"""Rows of numbers about one agent, from it, its rollout and the option `seed`."""


def measure_all(
    folder: Path,
    measures: Mapping[str, Measure],
    *,
    all_checkpoints: bool = False,
    step: int | None = None,
    episodes: int = 4,
    steps: int = 0,
    seed: int = 0,
    task: Callable[[], Any] | None = None,
) -> dict[str, pandas.DataFrame]:
    """Measure a run's newest checkpoint, that of `step`, or all its models; write the rows to its folder.

    All measurements use the same trajectories. The rows have columns for run, task, method, seed, env steps
    and updates, and are in `NAME.csv`, with those of checkpoints that were measured before and removed.
    """
    found: dict[str, list[pandas.DataFrame]] = {name: [] for name in measures}
    for model in saved.steps(folder) if all_checkpoints else [step]:
        trained = saved.load(folder, model)
        batch = roll_out(trained, episodes=episodes, steps=steps, seed=seed, task=task)
        about = {
            "run": str(folder),
            "task": trained.config.task,
            "method": results.method_of(trained.config),
            "seed": trained.config.seed,
            "env_steps": trained.env_steps,
            "updates": trained.updates,
        }
        for name, measure in measures.items():
            rows = measure(trained, batch, seed=seed)
            for column, value in reversed(about.items()):
                rows.insert(0, column, value)
            found[name].append(rows)
    return {
        name: _merge(path_of(folder, name), pandas.concat(rows, ignore_index=True))
        for name, rows in found.items()
    }


def _merge(path: Path, rows: pandas.DataFrame) -> pandas.DataFrame:
    """Write rows with those of other checkpoints, in one move; all of them."""
    if os.path.lexists(path):
        before = _table(path)
        others = before.loc[~before["env_steps"].isin(rows["env_steps"])]
        rows = pandas.concat([others, rows], ignore_index=True)
        rows = rows.sort_values("env_steps", kind="stable", ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)  # an agent file's
    files.write_sealed(path, rows.to_csv(index=False))
    return rows


def last_checkpoints(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows about each run's last checkpoint."""
    return rows.loc[rows["env_steps"] == rows.groupby("run")["env_steps"].transform("max")]


def runs_in(folders: Sequence[Path | str]) -> list[Path]:
    """The runs in some folders, each of which is one or holds some, and agent files (`saved.locate`)."""
    found = []
    for folder in map(saved.locate, folders):
        inside = results.runs_in(folder) if folder.is_dir() else [folder] * folder.is_file()
        if not inside:
            raise ConfigError(f"run: {str(folder)!r} is not the folder of a run, nor one that holds runs")
        found += inside
    return list(dict.fromkeys(found))


def path_of(run: Path, name: str) -> Path:
    """Where a run's folder keeps the rows of a measurement."""
    return saved.outputs(run) / f"{name}.csv"


def measured_steps(run: Path, name: str) -> set[int]:
    """Env steps of the models of a run of which there are rows of a measurement."""
    rows = read_run(run, name)
    return set(rows["env_steps"].tolist()) if len(rows) else set()


def read_run(run: Path, name: str) -> pandas.DataFrame:
    """The rows of a measurement that a run's folder keeps; empty if there are none."""
    path = path_of(run, name)
    return _table(path) if os.path.lexists(path) else pandas.DataFrame()


def read(folders: Sequence[Path], name: str) -> pandas.DataFrame:
    """The rows that `measure_all` wrote for all runs in some folders; empty if there are none."""
    found = [rows for run in runs_in(folders) if len(rows := read_run(run, name))]
    return pandas.concat(found, ignore_index=True) if found else pandas.DataFrame()


def _table(path: Path) -> pandas.DataFrame:
    """The rows in a file."""
    try:
        rows = pandas.read_csv(io.StringIO(files.read_sealed(path)))
    except ValueError as error:
        raise DamagedFile(f"{path}: not a table of measurements ({error}); move it away") from error
    columns = ("run", *results.KEY, *results.TABLES.get(path.stem, ("env_steps",)))
    if missing := [name for name in columns if name not in rows]:
        raise DamagedFile(f"{path}: the column {missing[0]} is missing; move it away")
    return rows
