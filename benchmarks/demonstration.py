"""What `make train` reaches: trains seeds 0, 1 and 2, one after the other, as a user does.

    python benchmarks/demonstration.py --out results

Seconds are those of training by the run's clock, with compilation and evaluations. The runs stay, and are not
trained again.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import tyro

from gpld import config as options
from gpld.display.curve import save_curve
from gpld.display.summary import LAST
from gpld.training import evaluation, logs, saved
from gpld.training.provenance import provenance

COMMAND = "gpld train cartpole-swingup --preset demo"


@dataclass(frozen=True)
class Options:
    """Options of this benchmark."""

    seeds: int = 3
    """Seeds, from 0."""
    runs: Path = Path("runs/demonstration")
    """Folder of the runs."""
    more: str = ""
    """Options added to the command."""
    out: Path = Path(".")
    """Folder for demonstration.json."""
    figure: Path = Path(".cache/learning_curve.png")
    """Where the learning curve is drawn; docs/learning_curve.png for the page about training."""


def measure(seed: int, more: list[str], folder: Path) -> dict[str, float]:
    """Train a seed as a user does, unless its run is there."""
    command = [sys.executable, "-m", *COMMAND.split(), "--seed", str(seed), "--out", str(folder), *more]
    if not (folder / saved.CONFIG).exists():
        subprocess.run(command, check=True)
    returns = logs.evaluations(folder)[1]
    return {
        "seed": seed,
        "return": round(float(np.mean(returns[-LAST:])), 1),
        "best": round(float(np.max(returns)), 1),
        "random": round(evaluation.random_return(options.load(folder / saved.CONFIG)), 1),
        "seconds": round(float(logs.read(folder, logs.TIMING)["seconds"].max())),
    }


def main(given: Options) -> None:
    """Measure, print and write."""
    rows = [measure(seed, given.more.split(), given.runs / f"seed{seed}") for seed in range(given.seeds)]
    about = provenance()
    found = {
        "command": " ".join([COMMAND, "--seed", "S", *given.more.split()]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": about["git"]["commit"][:7] if about["git"] else None,
        "machine": {"cores": os.cpu_count()},
        "jax": about["packages"]["jax"],
        "python": ".".join(about["python"].split(".")[:2]),
        "note": f"Means of the last {LAST} evaluations beside a random policy's.",
        "rows": rows,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "demonstration.json").write_text(json.dumps(found, indent=1) + "\n")
    curves = [logs.evaluations(given.runs / f"seed{row['seed']}") for row in rows]
    random = float(np.mean([row["random"] for row in rows]))
    runs = [("GPLD-DreamerV3", *curve) for curve in curves]
    given.figure.parent.mkdir(parents=True, exist_ok=True)
    save_curve(given.figure, runs, title="cartpole-swingup, preset demo", random_return=random)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
