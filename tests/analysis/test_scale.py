"""Ten thousand runs' worth of results are aggregated, tabulated and drawn at the cost of their number."""

import subprocess
import sys
from pathlib import Path

import pytest

# A program's own peak, in KiB: on Linux ru_maxrss counts the process that forked it too.
PEAK = """
import resource, sys
from pathlib import Path

def peak():
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
"""
PROGRAM = (
    PEAK
    + """
import time
import numpy as np
import pandas as pd
from gpld import results, studies
from gpld.studies import _show
from gpld.tasks import PROPRIO

folder, runs, points = Path(sys.argv[1]), int(sys.argv[2]), 100
study = studies.get("proprio")
seeds = -(-runs // 36)
everything = [PROPRIO, list(study.methods), range(seeds)]
names = pd.MultiIndex.from_product(everything, names=["task", "method", "seed"])
table = names.to_frame(index=False).iloc[:runs]
rng = np.random.default_rng(0)
table = table.assign(
    run=table["task"] + "/" + table["method"] + "/" + table["seed"].astype(str), study="proprio",
    hyperparameters="{}", return_std=0.0, episodes=3, version="0.1.0",
    level=rng.uniform(100, 900, len(table)))
rows = table.loc[table.index.repeat(points)].reset_index(drop=True)
step = np.tile(np.arange(1, points + 1) * 20_000, len(table))
rows = rows.assign(
    kind="evaluation", env_steps=step, agent_steps=step // 2, updates=step // 4, seconds=step / 100)
rows["return"] = rows["level"] * step / 2e6 + rng.normal(size=len(rows))
for _, some in rows.groupby(rows["seed"] % 50):
    results._store._write(folder / "results", f"{some['seed'].iloc[0]}-{time.time_ns()}.parquet", some)
begin = time.process_time()
loaded = results.load(folder / "results")
assert loaded["run"].nunique() == runs, loaded["run"].nunique()
tables = _show.tables(study, loaded, "made up")
figures = _show.draw(study, loaded)
for name, figure in figures.items():
    _show.figures.save(figure, folder, name, source="made up")
print(time.process_time() - begin, peak(), len(tables), *figures)
"""
)


def run(folder: Path, runs: int) -> tuple[float, int, list[str]]:
    """CPU seconds, peak memory in KiB, and what was shown."""
    command = [sys.executable, "-c", PROGRAM, str(folder), str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, kilobytes, *rest = done.stdout.split()
    return float(seconds), int(kilobytes), rest


@pytest.mark.slow
def test_many_runs_are_shown_in_little_memory_and_no_more_time_than_their_number_asks_for(tmp_path):
    few, many = 360, 10_000
    seconds = {}
    for runs in (few, many):
        seconds[runs], kilobytes, shown = run(tmp_path / str(runs), runs)
        assert shown == ["7", "aggregate", "tasks", "profile"]
        assert kilobytes < 2 * 2**20
    assert seconds[many] < many / few * seconds[few]


def peak_after(program: str) -> int:
    command = [sys.executable, "-c", f"{PEAK}\n{program}\nprint(peak())"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_only_a_programs_own_memory_counts():
    held = b"x" * 2**28  # of the process that starts it
    bare, larger = peak_after(""), peak_after("held = b'x' * 2**27")
    assert bare < len(held) // 1024 // 2
    assert larger - bare > 0.9 * 2**17
