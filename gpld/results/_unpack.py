"""Runs out of tables: folders that hold what the tables say of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from gpld import config as options, files
from gpld.config import Config
from gpld.results._collect import add_score
from gpld.results._tables import LOGGED, MEASURED, NOT_LOGGED, TABLES, RunRecord, Tables, of_run
from gpld.training import logs, provenance, saved
from gpld.training.score import Score


def unpack(tables: Tables, folders: Mapping[tuple[str, str, int], Path]) -> None:
    """Write folders of runs, by task, method and seed, that hold what the tables say of them.

    They have no checkpoints, and of the metrics those of evaluations and ends of training episodes alone.
    Whatever looks at results then reads them as it reads any run.
    """
    for run in tables.runs:
        if run.key not in folders:
            continue
        folder, own = folders[run.key], {name: of_run(rows, run) for name, rows in tables.tables.items()}
        folder.mkdir(parents=True, exist_ok=True)
        options.save(_config(run), folder / saved.CONFIG)
        start = {"env_steps": 0, **run.provenance}
        files.write_text(folder / provenance.RUN, json.dumps({"starts": [start]}, indent=1) + "\n")
        _write_metrics(folder, own)
        by_step = own["scores"].groupby(["env_steps", "updates"], sort=False)["return"]
        for checkpoint, returns in by_step:
            env_steps, updates = cast("tuple[int, int]", checkpoint)
            add_score(folder, Score(run.task, int(env_steps), int(updates), 0, returns.tolist()))
        for name in MEASURED:
            if len(own[name]):
                with files.in_one_move(folder / f"{name}.csv") as unfinished:
                    own[name].assign(run=str(folder)).to_csv(unfinished, index=False)


def _config(run: RunRecord) -> Config:
    """A run's configuration, as far as its options still exist."""
    nested: dict[str, Any] = {}
    known = options.flat(Config(task=""))
    for name, value in run.options.items():
        if name in known:
            nested = options.merged(nested, options.nested(name, value))
    return options.override(Config(task=run.task), nested)


def _write_metrics(folder: Path, own: Mapping[str, pd.DataFrame]) -> None:
    lines, clock = [], []
    for name, prefix in LOGGED.items():
        values = [column for column in TABLES[name] if column not in NOT_LOGGED]
        for row in own[name].to_dict("records"):
            about = {"env_steps": row["env_steps"], "updates": row["updates"]}
            lines.append(about | {prefix + value: row[value] for value in values})
            if np.isfinite(row.get("seconds", np.nan)):
                clock.append(about | {"seconds": row["seconds"], "time": 0.0})
    for name, found in ((logs.METRICS, lines), (logs.TIMING, clock)):
        found.sort(key=lambda line: line["env_steps"])
        files.write_text(folder / name, "".join(json.dumps(line) + "\n" for line in found))
