"""The results of one run, out of its folder."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpld import config as options, files, population
from gpld.config import Config
from gpld.training import logs, provenance, saved
from gpld.training.score import Score

METHODS = tuple(population.TITLES[name] for name in reversed(population.BOTH))
"""Names of the paper's two methods, the baseline first."""

TYPES = {
    "run": "text",  # identifies runs; it is not parsed
    "study": "text",
    "task": "text",
    "method": "text",
    "seed": "int64",
    "hyperparameters": "text",  # every option but task and seed, as JSON by dotted name
    "kind": "text",  # evaluation: while training; score: of a checkpoint, with more episodes
    "env_steps": "int64",
    "agent_steps": "int64",
    "updates": "int64",
    "return": "float64",  # mean over the episodes
    "return_std": "float64",
    "episodes": "int64",
    "seconds": "float64",  # wall-clock spent on the run until then, all its starts together
    "version": "text",
}
"""Columns of a table of results."""

SCORES = "scores.json"
"""The file in a run's folder, with the list `scores`, one entry for each env step at which it was scored."""


def method_of(config: Config) -> str:
    """The method of a run that belongs to no study: whether it has a penalty, and whether as launched."""
    return population.TITLES[population.method_of(config)]


def runs_in(folder: Path) -> list[Path]:
    """Folders of runs, at any depth: each has its own configuration."""
    return sorted(path.parent for path in folder.rglob(saved.CONFIG))


def collect(
    folder: Path, *, run: str | None = None, study: str = "", method: str | None = None
) -> pd.DataFrame:
    """Evaluations and scores in a run's folder, by env steps. Works on a run that is being written."""
    config, numbers = options.load(folder / saved.CONFIG), ["return", "return_std", "episodes"]
    evaluations = logged(logs.read(folder), "eval/", numbers).fillna({"episodes": 0})
    found = [{"kind": "evaluation", **row} for row in evaluations.to_dict("records")]
    for score in read_scores(folder):
        values = (score["mean"], score["std"], len(score["returns"]))
        at = {"kind": "score", "env_steps": score["env_steps"], "updates": score["updates"]}
        found.append(at | dict(zip(numbers, values, strict=True)))
    rows = pd.DataFrame(found, columns=["kind", "env_steps", "updates", *numbers])
    rows = rows.assign(
        run=run or str(folder),
        study=study,
        task=config.task,
        method=method or method_of(config),
        seed=config.seed,
        hyperparameters=hyperparameters(config),
        agent_steps=rows["env_steps"] // config.env.action_repeat,
        seconds=seconds_at(folder, rows["env_steps"].to_numpy()),
        version=version(folder),
    )
    return rows.astype({name: kind for name, kind in TYPES.items() if kind != "text"})[list(TYPES)]


def logged(metrics: pd.DataFrame, prefix: str, names: Sequence[str]) -> pd.DataFrame:
    """Env steps and updates of the lines of a log with a return, and some of their metrics."""
    rows = metrics.reindex(columns=["env_steps", "updates", *(prefix + name for name in names)])
    rows = rows.loc[rows[f"{prefix}return"].notna()]
    return rows.set_axis(["env_steps", "updates", *names], axis=1)


def hyperparameters(config: Config) -> str:
    """Every option but task and seed, and the length of the run, which may still grow; by dotted names."""
    flat = {name: x for name, x in options.flat(config).items() if name not in ("task", "seed", "env_steps")}
    return json.dumps(flat, sort_keys=True)


def seconds_at(folder: Path, env_steps: np.ndarray) -> np.ndarray:
    """Wall-clock seconds that a run had taken at some env steps, all its starts together."""
    timing = logs.read(folder, logs.TIMING)
    if not len(timing):
        return np.full(len(env_steps), math.nan)
    clock = timing["seconds"].to_numpy()
    passed, counted = (np.diff(x, prepend=x[:1]) for x in (timing["time"].to_numpy(), clock))
    # Each start counts from zero: less than before, or no more than has passed since the last line.
    restarted = (counted < 0) | ((clock <= passed) & (passed > counted + 1))
    before = np.cumsum(np.where(restarted, np.roll(clock, 1), 0.0))
    # Of work that a crash undid there are two times: the last counts.
    last = dict(zip(timing["env_steps"].tolist(), (clock + before).tolist(), strict=True))
    return np.array([last.get(step, math.nan) for step in env_steps.tolist()], np.float64)


def version(folder: Path) -> str:
    """Version and commit of the code that a run was last started with."""
    starts = provenance.starts(folder)
    if not starts:
        return ""
    git = starts[-1].get("git")
    commit = f"+{git['commit'][:12]}{'.dirty' if git['dirty'] else ''}" if git else ""
    return f"{starts[-1].get('gpld', '')}{commit}"


def read_scores(folder: Path) -> list[dict[str, Any]]:
    """Scores in a run's folder, by env steps: `env_steps`, `updates`, `mean`, `std` and `returns`."""
    return files.read_list(folder / SCORES, "scores")


def add_score(folder: Path, score: Score) -> None:
    """Add a score to those in a run's folder, in one move; one at the same env steps is replaced."""
    entry = {**score._asdict(), "mean": score.mean, "std": score.std}
    others = [old for old in read_scores(folder) if old["env_steps"] != score.env_steps]
    scores = sorted([*others, entry], key=lambda old: old["env_steps"])
    files.write_json(folder / SCORES, {"scores": scores}, indent=1)
