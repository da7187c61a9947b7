"""A folder of Parquet files, one for each run, written in one move and never changed: workers share no file.

A run that is written again gets a new file, whose name ends with a later time, and its old one is removed.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from gpld import files
from gpld.config import ConfigError
from gpld.results import _collect
from gpld.results._collect import TYPES

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "results"
"""Where a study keeps its Parquet files."""

COLUMNS = tuple(TYPES)
"""Columns of every table of results."""


def can_write() -> bool:
    """Whether Parquet files can be written and read here: machines that only train may lack pyarrow."""
    return find_spec("pyarrow") is not None


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
    return _ordered(pd.concat(tables) if tables else _nothing())


def compact(folder: Path | str) -> Path | None:
    """Put all runs of a store into one file. Safe while others write: a reader meets each row once."""
    folder = Path(folder)
    parts = sorted(_files(folder), key=_written)
    if len(parts) <= 1:
        return parts[0] if parts else None
    try:
        rows = _ordered(_read(parts))
    except FileNotFoundError:  # a run has been written again: once more
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
    while parts := _files(store if store.is_dir() else place):
        try:
            return _read(parts)
        except FileNotFoundError:  # another process has just put it into a larger one
            continue
    tables = [_collect.collect(run) for run in _collect.runs_in(place)]
    tables = [table for table in tables if len(table)]
    return pd.concat(tables) if tables else _nothing()


def _files(folder: Path) -> list[Path]:
    """Files of results in a folder, at any depth; runs may keep Parquet files of other kinds."""
    return [path for path in folder.rglob("*.parquet") if _written(path)]


def _read(parts: Sequence[Path]) -> pd.DataFrame:
    """The rows of all files, of those written last at the end."""
    schema, tables = _schema(), []
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in sorted(parts, key=_written):
        try:
            with files.open_to_read(path) as file:
                tables.append(pq.ParquetFile(file).read())
        except FileNotFoundError:
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"results: {path} is not a file of results ({error})") from error
    return pa.concat_tables(table.cast(schema) for table in tables).unify_dictionaries().to_pandas()


def _schema() -> "pa.Schema":
    """Types of the columns in a file."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError("results: their Parquet files need pyarrow: pip install pyarrow") from error
    types = {"text": pa.dictionary(pa.int32(), pa.string()), "int64": pa.int64(), "float64": pa.float64()}
    return pa.schema([(name, types[kind]) for name, kind in TYPES.items()])


def _nothing() -> pd.DataFrame:
    kinds = {name: "category" if kind == "text" else kind for name, kind in TYPES.items()}
    return pd.DataFrame(columns=list(COLUMNS)).astype(kinds)


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in an order that does not depend on who wrote first, each of them once."""
    rows = rows.drop_duplicates(["run", "kind", "env_steps"], keep="last")
    texts = {name: rows[name].astype("category") for name in COLUMNS if TYPES[name] == "text"}
    rows = rows.assign(
        **{
            name: column.cat.set_categories(sorted(column.cat.remove_unused_categories().cat.categories))
            for name, column in texts.items()
        }
    )
    return rows.sort_values(["run", "kind", "env_steps"], kind="stable")[list(COLUMNS)].reset_index(drop=True)


def _write(folder: Path, name: str, rows: pd.DataFrame) -> Path:
    schema = _schema()
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(rows[list(COLUMNS)], schema=schema, preserve_index=False)
    path = folder / name
    with files.in_one_move(path) as unfinished, unfinished.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    return path


def _written(path: Path) -> int:
    """When the newest row in a file was written, in nanoseconds, by its name; 0 for other files."""
    end = path.stem.rpartition("-")[2]
    return int(end) if end.isdigit() and len(end) > 15 else 0


def _stem(run: str) -> str:
    """The prefix of a run's files, unique to the run."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.=-]+', '-', run)[-100:].strip('.-')}-{digest}"
