"""Learning curves of runs as JSON and a picture, with published runs of DreamerV3 beside them.

    gpld train cartpole-swingup --seeds 0..3 --method both --preset 12m gpu --env-steps 100000
    python benchmarks/learning.py runs/cartpole-swingup

`scripts/results_tables.py` makes tables of the JSON.
"""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from gpld import config, files, results
from gpld.config import ConfigError
from gpld.display.curve import save_curve
from gpld.population import TITLES, method_of
from gpld.training import logs, provenance, saved


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    runs: Annotated[Path, tyro.conf.Positional]
    """Folder of the runs, which are of one task."""
    name: str = ""
    """File name of JSON and picture without suffix; by default learning-TASK, or learning-pixels-TASK."""
    out: Path = Path("results")
    """Folder for the JSON and the picture."""


def curve_of(folder: Path) -> dict[str, Any]:
    """Method, seed and evaluations of a run.

    By env steps also the returns of its training episodes, and its squared Jacobian norm, if penalised.
    """
    options, metrics = config.load(folder / saved.CONFIG), logs.read(folder)
    env_steps, returns = logs.evaluations(folder)
    run = {"method": TITLES[method_of(options)], "seed": options.seed}
    run["learning_rate"] = options.agent.optimizer.learning_rate
    run |= {"env_steps": env_steps.tolist(), "returns": returns.tolist()}
    for name, column in (("training", "train/return"), ("jacobian", "loss/penalty_posterior")):
        if column in metrics:
            rows = metrics.dropna(subset=[column])
            run[name] = dict(zip(rows["env_steps"].tolist(), rows[column].round(6).tolist(), strict=True))
    if "updates/skipped" in metrics:
        run["skipped"] = int(metrics["updates/skipped"].max())
    return run


def updates_per_second(folder: Path) -> float | None:
    """Median between lines of metrics, which leaves out evaluations and checkpoints; None for one line."""
    timing = logs.read(folder, logs.TIMING)
    updates, seconds = np.diff(timing["updates"]), np.diff(timing["seconds"] if len(timing) else [])
    learned = (updates > 0) & (seconds > 0)  # a resumed run counts its seconds from 0
    return float(np.median(updates[learned] / seconds[learned])) if learned.any() else None


def draw(path: Path, task: str, action_repeat: int, runs: Sequence[dict[str, Any]]) -> None:
    """Save the evaluations as a picture, beside the published runs of the task, if there are any.

    These are shown where they had taken as many agent steps: their actions were not repeated.
    """
    published = results.published()
    published["env_steps"] = published["agent_steps"] * action_repeat
    last = max(run["env_steps"][-1] for run in runs)
    published = published[(published["task"] == task) & (published["env_steps"] <= last)]
    lines = [(run["method"], run["env_steps"], run["returns"]) for run in runs]
    lines += [("published", x["env_steps"], x["return"]) for _, x in published.groupby("seed")]
    save_curve(path, lines, title=task)


def main(options: Options) -> None:
    """Write the JSON and the picture."""
    folders = results.runs_in(options.runs)
    if not folders:
        raise ConfigError(f"runs: there are none in {options.runs}")
    first, start = config.load(folders[0] / saved.CONFIG), provenance.starts(folders[0])[-1]
    task = f"pixels-{first.task}" if first.env.pixels else first.task
    runs, metrics = [curve_of(folder) for folder in folders], logs.read(folders[0])
    record = {
        "task": first.task,
        "observations": "64x64 images" if first.env.pixels else "states",
        "action_repeat": first.env.action_repeat,
        "provenance": {**start, "command": shlex.join(["gpld", *start["command"][1:]])},
        "env_steps": max(metrics["env_steps"], default=0),
        "updates": max(metrics["updates"], default=0),
        "updates_per_second": updates_per_second(folders[0]),
        "runs": runs,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name or f'learning-{task}'}.json"
    files.write_text(path, json.dumps(record, indent=1) + "\n")
    if all(run["returns"] for run in runs):
        draw(path.with_name(f"{path.stem}.png"), task, first.env.action_repeat, runs)
    print(f"written to {path}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"learning.py: {error}") from None
