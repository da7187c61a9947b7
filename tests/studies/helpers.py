"""What the tests of studies share: a study that trains nothing, and one that trains a little."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas

from gpld import config as options, results
from gpld.analysis import rollouts
from gpld.studies import Plan, _state, _study as study_files, plan
from gpld.studies._tables import OpenedResults
from gpld.training import saved
from gpld.training.score import Score
from gpld.types import Spaces

TEXT = """
title = "Small"
purpose = "For tests."
tasks = ["cartpole-balance", "walker-walk"]
seeds = [3, 4]
env_steps = [600, 1200]
presets = ["nano", "cpu"]

[methods.DreamerV3]
agent.penalty = { posterior = 0.0 }

[methods."half, rho 1"]
agent.penalty = { posterior = 0.5, rho = 1.0 }

[methods."quarter, rho 1"]
agent.penalty = { posterior = 0.25, rho = 1.0 }
"""


def small(**changes) -> Plan:
    """A plan of 12 runs; `changes` are entries of the study's file."""
    import tomllib

    return plan(study_files.from_dict(tomllib.loads(TEXT) | changes, "small"))


def opened(plan: Plan, folder: Path, until: int | None = None) -> OpenedResults:
    """A study's results in a folder, to be shown."""
    return OpenedResults(plan, folder, folder, folder / results.FOLDER, until=until)


def finish(folder: Path, run, *env_steps: int, episodes: int = 20, every: int = 300) -> Path:
    """Leave behind what a trained and scored run does, files of a few bytes each; its folder.

    Evaluations have the return env_steps / 10 + seed, and scores 1,000 more.
    """
    path, last = _state.run_folder(folder, run), env_steps[-1]
    for place in (f"checkpoints/{last:012d}/arrays", f"checkpoints/{last:012d}/latents", "checkpoints/steps"):
        (path / place).mkdir(parents=True)
        (path / place / "data").write_text(run.name)
    options.save(replace(run.config, env_steps=last), path / saved.CONFIG)
    saved.write_spaces(path, Spaces.of({"position": (3,)}, 1))
    lines = [
        {"env_steps": step, "updates": step // 4, "eval/return": step / 10 + run.seed, "eval/episodes": 3}
        for step in range(every, last + 1, every)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in env_steps:
        returns = [1000 + step / 10 + run.seed] * episodes
        results.add_score(path, Score(run.task, step, step // 4, 0, returns))
    return path


def measure(path: Path, name: str, env_steps: int) -> None:
    """Leave behind a row of a measurement in a run's folder, with those of other models."""
    columns = ("run", *results.KEY, *results.TABLES[name])
    row = pandas.DataFrame({**dict.fromkeys(columns, 0.1), "env_steps": [env_steps]})
    rollouts._merge(rollouts.path_of(path, name), row)


def comparable(folder: Path):
    """Results without what may differ between two that compute the same: the clock, and a changed tree."""
    table = results.load(folder / results.FOLDER).drop(columns=["seconds", "version"])
    return table.astype({name: str for name in table if str(table[name].dtype) == "category"})


def same(one, two) -> bool:
    """Whether two such tables are the same to the bit."""
    return one.shape == two.shape and all(
        np.array_equal(one[name].to_numpy(), two[name].to_numpy(), equal_nan=one[name].dtype.kind == "f")
        for name in one
    )
