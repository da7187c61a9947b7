"""The results of one run, out of its folder."""

import json
import math
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
    config = options.load(folder / saved.CONFIG)
    rows = pd.concat([_evaluations(folder), _scores(folder)], ignore_index=True)
    return pd.DataFrame(
        {
            "run": run or str(folder),
            "study": study,
            "task": config.task,
            "method": method or method_of(config),
            "seed": config.seed,
            "hyperparameters": hyperparameters(config),
            "kind": rows["kind"],
            "env_steps": rows["env_steps"],
            "agent_steps": rows["env_steps"] // config.env.action_repeat,
            "updates": rows["updates"],
            "return": rows["return"],
            "return_std": rows["return_std"],
            "episodes": rows["episodes"],
            "seconds": seconds_at(folder, np.asarray(rows["env_steps"])),
            "version": version(folder),
        },
        index=range(len(rows)),
    )


_TYPES = {
    "kind": "object",
    "env_steps": "int64",
    "updates": "int64",
    "return": "float64",
    "return_std": "float64",
    "episodes": "int64",
}


def _evaluations(folder: Path) -> pd.DataFrame:
    metrics = logs.read(folder)
    names = ("eval/return", "eval/return_std", "eval/episodes")
    metrics = metrics.reindex(columns=["env_steps", "updates", *names])
    rows = metrics.loc[metrics["eval/return"].notna()].rename(columns=lambda name: name.removeprefix("eval/"))
    return rows.assign(kind="evaluation", episodes=rows["episodes"].fillna(0)).astype(_TYPES)


def _scores(folder: Path) -> pd.DataFrame:
    rows = [
        {
            "kind": "score",
            "env_steps": score["env_steps"],
            "updates": score["updates"],
            "return": score["mean"],
            "return_std": score["std"],
            "episodes": len(score["returns"]),
        }
        for score in read_scores(folder)
    ]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


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
    restarted = np.diff(clock, prepend=clock[:1]) < 0  # each start counts from zero
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
