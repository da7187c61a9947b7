"""Seconds from typing `gpld train` to the first update, with an empty compilation cache and from the cache.

    python benchmarks/start.py --task walker-run --seeds 4 --preset 12m gpu

Each start is a process of its own, which is killed after its first updates: everything counts, from Python's
imports on. The first has an empty cache, the others find what it compiled. Prints a table and writes a JSON
file: --name gives it another name than that of earlier results.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from gpld import cli
from gpld.config import ConfigError
from gpld.training import logs
from gpld.training.provenance import provenance

POLL_SECONDS = 0.05


@dataclasses.dataclass
class Options:
    """Options of the benchmark. The JSON has them without the folders, which `repr` leaves out."""

    task: str = "walker-run"
    """A task of the suite."""
    seeds: int = 4
    """Seeds of DreamerV3, and of GPLD."""
    preset: tuple[str, ...] = ()
    """Presets of the runs; by default 12m gpu on a GPU, nano cpu elsewhere."""
    warm: int = 2
    """Starts from the cache."""
    name: str = "start"
    """File name of the JSON without .json."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON."""


def arguments(options: Options) -> list[str]:
    """What is typed after `gpld train`, without a folder."""
    # A line of metrics as soon as there is something to tell; it changes nothing that is compiled.
    frequent, seeds = ["--log.every", "1"], f"0..{options.seeds - 1}"
    return [options.task, "--seeds", seeds, "--method", "both", "--preset", *options.preset, *frequent]


def fitting() -> tuple[str, ...]:
    """Presets for this machine's device, which another process looks at: it would take a GPU's memory."""
    code = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return ("nano", "cpu") if found.stdout.strip() == "cpu" else ("12m", "gpu")


@contextmanager
def running(command: Sequence[str], environment: dict[str, str], output: Path) -> Iterator[subprocess.Popen]:
    """A process that is killed at the end."""
    with output.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def seconds_to_first_update(typed: Sequence[str], cache: Path, folder: Path) -> float:
    """How long a new process takes until a run in `folder` has learned."""
    command = [sys.executable, "-m", "gpld", "train", *typed, "--out", str(folder / "runs")]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    begin = time.perf_counter()
    with running(command, environment, folder / "output") as process:
        while not has_learned(folder):
            if process.poll() is not None:
                raise SystemExit(f"gpld train ended early:\n{(folder / 'output').read_text()}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - begin


def has_learned(folder: Path) -> bool:
    """Whether a run below a folder has logged an update."""
    found = (logs.read(path.parent, logs.TIMING)["updates"] for path in folder.rglob(logs.TIMING))
    return any(updates.max() > 0 for updates in found if len(updates))


def check(options: Options) -> None:
    """Refuse what cannot be measured."""
    for name in ("seeds", "warm"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name}: {getattr(options, name)} is not allowed; it must be at least 1")
    cli.parse_train(arguments(options))


def main(options: Options) -> list[dict[str, str | float]]:
    """Measure, print and write."""
    options = dataclasses.replace(options, preset=options.preset or fitting())
    check(options)
    typed = arguments(options)
    rows: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory() as own:
        for number in range(1 + options.warm):
            folder = Path(own) / str(number)
            folder.mkdir()
            seconds = seconds_to_first_update(typed, Path(own) / "cache", folder)
            rows.append({"cache": "warm" if number else "empty", "seconds": seconds})
            print(json.dumps(rows[-1]), flush=True)
    # Asks JAX for its devices, which takes their memory: not before the runs have had it.
    record = {"provenance": provenance(), "options": str(options), "typed": typed, "rows": rows}
    path = options.out / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    table = Table("compilation cache", "seconds to the first update", title=f"gpld train {' '.join(typed)}")
    for row in rows:
        table.add_row(str(row["cache"]), f"{row['seconds']:.1f}")
    Console().print(table)
    return rows


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"start.py: {error}") from None
