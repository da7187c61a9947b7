"""DreamerV3 and GPLD learn a task side by side, several seeds of both in one program: the curves as JSON.

    python benchmarks/learning.py --task cartpole-swingup --seeds 3 --preset 12m gpu --env-steps 100000

The runs are those of `gpld train TASK --seeds ... --method both`, in the same folders. Stopped at any time,
or by --seconds, they go on with the same command.
"""

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import tyro

from gpld import population
from gpld.config import Config, override, with_presets
from gpld.population import TITLES, Member, method_of
from gpld.training import logs, summary, train_all
from gpld.training.provenance import provenance


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    task: str = "cartpole-swingup"
    """A task of the suite."""
    seeds: int = 3
    """Seeds of each method."""
    preset: tuple[str, ...] = ("12m", "gpu")
    """Presets of the runs."""
    env_steps: int = 100_000
    """Env steps of each run."""
    horizon: int | None = None
    """Imagined steps, if not those of the presets."""
    seconds: float = float("inf")
    """Stop after this time."""
    runs: Path = Path("runs")
    """Folder of the runs, in one named by the task."""
    out: Path = Path("results")
    """Folder for the JSON."""


def curves(members: Sequence[Member]) -> list[dict]:
    """Method, seed and evaluations of each run; and its squared Jacobian norm by env steps, if penalised."""
    found = []
    for member in members:
        metrics = logs.read(member.folder)
        env_steps, returns = summary.evaluations(member.folder)
        run = {"method": TITLES[method_of(member.config)], "seed": member.config.seed}
        run |= {"env_steps": env_steps.tolist(), "returns": returns.tolist()}
        if "loss/penalty_posterior" in metrics:
            rows = metrics.dropna(subset=["loss/penalty_posterior"])
            values = rows["loss/penalty_posterior"].round(6)
            run["jacobian"] = dict(zip(rows["env_steps"].tolist(), values.tolist(), strict=True))
        if "updates/skipped" in metrics:
            run["skipped"] = int(metrics["updates/skipped"].max())
        found.append(run)
    return found


def main(options: Options) -> None:
    """Train all runs, and write their curves."""
    config = with_presets(Config(task=options.task, env_steps=options.env_steps), options.preset)
    if options.horizon:
        config = override(config, {"agent": {"behavior": {"horizon": options.horizon}}})
    seeds = range(options.seeds)
    members = population.members(config, seeds, ("dreamerv3", "gpld"), options.runs / options.task)
    if options.seconds < float("inf"):
        stop = threading.Timer(options.seconds, os.kill, (os.getpid(), signal.SIGTERM))
        stop.daemon = True
        stop.start()
    results = train_all(members)
    record = {
        "task": options.task,
        "env_steps": results[0].env_steps,
        "runs": curves(members),
        "options": str(options),
        "provenance": provenance(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"learning-{options.task}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    if all(len(run["returns"]) for run in record["runs"]):
        summary.show_all(members)
    print(f"written to {path}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
