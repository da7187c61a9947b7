"""What `make train` reaches: trains seeds 0, 1 and 2, one after the other, as a user does.

    python benchmarks/demonstration.py --out results

Seconds are those of the whole command: imports, compilation, training, evaluations and films. CPU seconds are
of all threads; a busy machine changes them less. The runs stay in runs/demonstration-*.
"""

import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import tyro

from gpld import config as options
from gpld.display.summary import LAST
from gpld.training import evaluation, logs, saved
from gpld.training.provenance import provenance

COMMAND = "gpld train cartpole-swingup --preset demo"


@dataclass(frozen=True)
class Options:
    """Options of this benchmark."""

    seeds: int = 3
    """Seeds, from 0."""
    jobs: int = 1
    """Seeds trained at a time; more than one disturbs the seconds."""
    more: str = ""
    """Options added to the command."""
    out: Path = Path(".")
    """Folder for demonstration.json."""


def measure(seed: int, more: list[str], folder: Path) -> dict[str, float]:
    """Train a seed as a user does."""
    command = [sys.executable, "-m", *COMMAND.split(), "--seed", str(seed), "--out", str(folder), *more]
    start = time.monotonic()
    child = os.spawnve(os.P_NOWAIT, sys.executable, command, dict(os.environ))
    _, status, used = os.wait4(child, 0)
    if status:
        raise RuntimeError(f"seed {seed} ended with status {os.waitstatus_to_exitcode(status)}")
    returns = logs.evaluations(folder)[1]
    return {
        "seed": seed,
        "return": round(float(np.mean(returns[-LAST:])), 1),
        "best": round(float(np.max(returns)), 1),
        "random": round(evaluation.random_return(options.load(folder / saved.CONFIG)), 1),
        "seconds": round(time.monotonic() - start),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
    }


def main(given: Options) -> None:
    """Measure, print and write."""
    Path("runs").mkdir(exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="demonstration-", dir="runs"))
    with ThreadPoolExecutor(given.jobs) as pool:
        each = [
            pool.submit(measure, seed, given.more.split(), place / f"seed{seed}")
            for seed in range(given.seeds)
        ]
        rows = [future.result() for future in each]
    about = provenance()
    found = {
        "command": " ".join([COMMAND, "--seed", "S", *given.more.split()]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": about["git"]["commit"][:7] if about["git"] else None,
        "machine": {"cores": os.cpu_count()},
        "jax": about["packages"]["jax"],
        "python": ".".join(about["python"].split(".")[:2]),
        "note": f"Means of the last {LAST} evaluations beside a random policy's; {given.jobs} at a time.",
        "rows": rows,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "demonstration.json").write_text(json.dumps(found, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
