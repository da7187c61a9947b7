"""A folder of Parquet files, one for each run, written in one move and never changed: workers share no file.

A run that is written again gets a new file, whose name ends with a later time, and its old one is removed.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gpld.config import ConfigError
from gpld.results import _collect

FOLDER = "results"
"""Where a study keeps its Parquet files."""

_TEXT = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("run", _TEXT),  # tells runs apart; nothing is to be read out of it
        ("study", _TEXT),
        ("task", _TEXT),
        ("method", _TEXT),
        ("seed", pa.int64()),
        ("hyperparameters", _TEXT),  # every option but task and seed, as JSON by dotted name
        ("kind", _TEXT),  # evaluation: while training; score: of a checkpoint, with more episodes
        ("env_steps", pa.int64()),
        ("agent_steps", pa.int64()),
        ("updates", pa.int64()),
        ("return", pa.float64()),  # mean over the episodes
        ("return_std", pa.float64()),
        ("episodes", pa.int64()),
        ("seconds", pa.float64()),  # wall-clock spent on the run until then, all its starts together
        ("version", _TEXT),
    ]
)

COLUMNS = tuple(SCHEMA.names)
"""Columns of every table of results."""


def write(folder: Path | str, rows: pd.DataFrame) -> Path:
    """Write all rows of one run to the store in `folder`, in place of those it had; the file's path."""
    (run,) = rows["run"].unique()
    folder, stem = Path(folder), _stem(run)
    earlier = list(folder.glob(f"{stem}-*.parquet"))
    path = _write(folder, f"{stem}-{time.time_ns()}.parquet", rows)
    for old in earlier:
        old.unlink(missing_ok=True)
    return path


def load(*places: Path | str) -> pd.DataFrame:
    """Results as one table with the columns `COLUMNS`, ordered by run, kind and env steps.

    A place is the folder of a study, a store of Parquet files, or a folder of runs at any depth. Without one,
    everything under `studies` and `runs` is loaded.
    """
    found = places or tuple(path for path in ("studies", "runs") if Path(path).is_dir())
    tables = [_load_one(Path(place)) for place in found]
    return _ordered(pd.concat(tables) if tables else _frame(SCHEMA.empty_table()))


def compact(folder: Path | str) -> Path | None:
    """Put all runs of a store into one file. Safe while others write: a reader meets each row once."""
    folder = Path(folder)
    parts = sorted(_files(folder), key=_written)
    if len(parts) <= 1:
        return parts[0] if parts else None
    try:
        rows = _ordered(_frame(_read(parts)))
    except FileNotFoundError:  # a run has been written again: begin anew
        return compact(folder)
    path = _write(folder, f"compact-{time.time_ns()}-{_written(parts[-1])}.parquet", rows)
    for part in parts:
        part.unlink(missing_ok=True)
    return path


def with_options(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """`rows` with a column for each of some options, by their dotted names (agent.penalty.rho)."""
    texts = rows["hyperparameters"].unique()
    parsed = {text: json.loads(text) for text in texts}
    columns = {
        name: rows["hyperparameters"].map({text: parsed[text].get(name) for text in texts}).astype(object)
        for name in names
    }
    return rows.assign(**{name: pd.Series(column).infer_objects() for name, column in columns.items()})


def _load_one(place: Path) -> pd.DataFrame:
    if not place.is_dir():
        raise ConfigError(f"results: {str(place)!r} is not a folder of runs or of a study")
    store = place / FOLDER
    while files := _files(store if store.is_dir() else place):
        try:
            return _frame(_read(files))
        except FileNotFoundError:  # another process has just put it into a larger one
            continue
    tables = [_collect.collect(run) for run in _collect.runs_in(place)]
    tables = [table for table in tables if len(table)]
    return pd.concat(tables) if tables else _frame(SCHEMA.empty_table())


def _files(folder: Path) -> list[Path]:
    """Files of results in a folder, at any depth; runs may keep Parquet files of other kinds."""
    return [path for path in folder.rglob("*.parquet") if _written(path)]


def _read(files: Sequence[Path]) -> pa.Table:
    """The rows of all files, of those written last at the end."""
    tables = []
    for path in sorted(files, key=_written):
        try:
            tables.append(pq.ParquetFile(path).read())
        except FileNotFoundError:
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"results: {path} is not a file of results ({error})") from error
    return pa.concat_tables(table.cast(SCHEMA) for table in tables).unify_dictionaries()


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas()


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in an order that does not depend on who wrote first, each of them once."""
    rows = rows.drop_duplicates(["run", "kind", "env_steps"], keep="last")
    texts = {name: rows[name].astype("category") for name in COLUMNS if SCHEMA.field(name).type == _TEXT}
    rows = rows.assign(
        **{
            name: column.cat.set_categories(sorted(column.cat.remove_unused_categories().cat.categories))
            for name, column in texts.items()
        }
    )
    return rows.sort_values(["run", "kind", "env_steps"], kind="stable")[list(COLUMNS)].reset_index(drop=True)


def _write(folder: Path, name: str, rows: pd.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(rows[list(COLUMNS)], schema=SCHEMA, preserve_index=False)
    path, partial = folder / name, folder / f".{name}.{os.getpid()}.partial"
    try:
        pq.write_table(table, partial, compression="zstd")
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _written(path: Path) -> int:
    """When the newest row in a file was written, in nanoseconds, by its name; 0 if it is not one of ours."""
    end = path.stem.rpartition("-")[2]
    return int(end) if end.isdigit() and len(end) > 15 else 0


def _stem(run: str) -> str:
    """How the names of a run's files begin, and those of no other run."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.=-]+', '-', run)[-100:].strip('.-')}-{digest}"
