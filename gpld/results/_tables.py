"""A study's results as a folder of small text files, to be committed, read anywhere and read by people.

    runs.json         the study's definition, and the options, versions and device of every run
    evaluations.csv   one row for each run and evaluation while training
    training.csv      one row for each run and end of training episodes
    scores.csv        one row for each run, scored checkpoint and episode
    sensitivity.csv   one row for each run, measured checkpoint, map and length of a step
    quality.csv       one row for each run, measured checkpoint and number of steps ahead

A study that times updates instead of training has one table besides `runs.json`:

    cost.csv          one row for each run

A run is known by its task, method and seed. Tables are checked whenever they are read. Refused by name are:
a missing column, a return that is not finite, a count that is not a whole number from 0, a row that is there
twice, a score that lacks episodes, a run that `runs.json` lacks, and one whose options differ from those of
its method.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from gpld import config as options, files
from gpld.config import Config, ConfigError
from gpld.results._collect import add_score, logged, read_scores, seconds_at
from gpld.training import logs, provenance, saved
from gpld.training.score import Score

RUNS = "runs.json"
KEY = ("task", "method", "seed")
"""Columns that identify a run."""

TABLES: Mapping[str, tuple[str, ...]] = {
    "evaluations": ("env_steps", "updates", "return", "return_std", "episodes", "seconds"),
    "training": ("env_steps", "updates", "return", "episodes"),
    "scores": ("env_steps", "updates", "episode", "return"),
    "sensitivity": (
        *("env_steps", "updates", "map", "magnitude"),
        *("length", "kl", "total_variation", "jacobian"),
    ),
    "quality": ("env_steps", "updates", "ahead", "latent", "reward", "observation", "count"),
    "cost": (
        *("device", "rho", "posterior", "prior", "estimator", "ratio", "ratio_std", "ms", "spread"),
        *("seconds_more", "gflop", "temporary_mib", "kernels", "compile_seconds"),
        *("paper", "paper_std", "paper_seconds_more"),
    ),
}
"""Columns of each table after those of `KEY`."""


def tables_of(study: Mapping[str, Any]) -> tuple[str, ...]:
    """The tables that a study has, by its definition."""
    timed = study.get("work") == "time"
    return tuple(name for name in TABLES if (name == "cost") == timed)


_WITHIN = {
    "evaluations": ("env_steps",),
    "training": ("env_steps",),
    "scores": ("env_steps", "episode"),
    "sensitivity": ("env_steps", "map", "magnitude"),
    "quality": ("env_steps", "ahead"),
}
"""Columns that identify a row of one run; of `cost`, it has one."""
MEASURED = ("sensitivity", "quality", "cost")
"""Tables of measurements, each a file in a run's folder."""
LOGGED = {
    "evaluations": ("eval/", ("return", "return_std", "episodes")),
    "training": ("train/", ("return", "episodes")),
}
"""Tables of metrics that were logged while training: how their names begin, and how they end."""
_COUNTS = ("seed", "env_steps", "updates", "episodes", "episode", "ahead")
_MOST = 2**53
"""Whole numbers up to this are the same as floating-point numbers."""
_TEXTS = ("task", "method", "map", "device", "estimator")
FLOATS = "%.6g"
"""How numbers are written."""
_OWN = ("task", "seed")
"""Options in which runs of one method may differ."""


@dataclass(frozen=True)
class RunRecord:
    """A run's identity, options and provenance."""

    task: str
    method: str
    seed: int
    options: Mapping[str, Any]
    """Every option by its dotted name."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Code, versions, device and command of its last start."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.task}, {self.method}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, str, int]:
        """Its task, method and seed."""
        return self.task, self.method, self.seed


@dataclass(frozen=True)
class Tables:
    """The results of a study, checked."""

    study: Mapping[str, Any]
    """The study's definition when they were made."""
    runs: tuple[RunRecord, ...]
    tables: Mapping[str, pd.DataFrame]
    """All of `TABLES`; those that the study does not have are empty."""


def collect_tables(study: Mapping[str, Any], folders: Mapping[tuple[str, str, int], Path]) -> Tables:
    """The tables of a study's runs, by task, method and seed, out of their folders."""
    records, parts = [], {name: [] for name in TABLES}
    for (task, method, seed), folder in folders.items():
        flat = _plain(options.flat(options.load(folder / saved.CONFIG)))
        records.append(RunRecord(task, method, seed, flat, last_start(folder)))
        for name, rows in _rows_of(folder).items():
            key = dict(zip(KEY, (task, method, seed), strict=True))
            parts[name].append(rows.assign(**key)[[*KEY, *TABLES[name]]])
    tables = {name: _joined(name, own) for name, own in parts.items()}
    return check(Tables(study, tuple(records), tables), "the study's runs")


def merge(old: Tables, new: Tables) -> Tables:
    """Both together, by the definition of the newer. A run that both have must be the same in both."""
    shared = {run.key for run in old.runs} & {run.key for run in new.runs}
    for run in new.runs:
        if run.key in shared:
            for name in TABLES:
                before, after = (of_run(tables.tables[name], run) for tables in (old, new))
                written = {rows.to_csv(float_format=FLOATS) for rows in (before, after) if len(rows)}
                if len(written) > 1:
                    raise ConfigError(
                        f"results: {run.name} is already there with other numbers ({name}.csv); results are "
                        "never replaced: remove the run by hand if it is wrong"
                    )
    others = [run for run in old.runs if run.key not in shared]
    joined = {}
    for name in TABLES:
        before, after = old.tables[name], new.tables[name]
        newer = set(after[[*KEY]].itertuples(index=False, name=None))
        stays = [key not in newer for key in before[[*KEY]].itertuples(index=False, name=None)]
        joined[name] = _joined(name, [before.loc[stays], after])
    return check(Tables(new.study, (*others, *new.runs), joined), "the results together")


def write_tables(tables: Tables, folder: Path | str) -> list[Path]:
    """Write all files of a folder, each in one move; their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    order = sorted(tables.runs, key=lambda run: run.key)
    common = _common([run.options for run in order])
    made: list[Mapping[str, Any]] = []
    for run in order:
        if run.provenance not in made:
            made.append(run.provenance)
    runs = [
        {
            **dict(zip(KEY, run.key, strict=True)),
            "provenance": made.index(run.provenance),
            "options": {name: x for name, x in run.options.items() if name not in (*common, *_OWN)},
        }
        for run in order
    ]
    described = {"study": tables.study, "options": common, "provenance": made, "runs": runs}
    texts = {RUNS: json.dumps(described, indent=1) + "\n"}
    for name in tables_of(tables.study):
        texts[f"{name}.csv"] = tables.tables[name].to_csv(
            index=False, lineterminator="\n", float_format=FLOATS
        )
    for name, text in texts.items():
        files.write_text(folder / name, text)
    return [folder / name for name in texts]


def read_tables(folder: Path | str) -> Tables:
    """The tables in a folder, checked."""
    folder = Path(folder)
    try:
        described = json.loads((folder / RUNS).read_text())
        common, made = described["options"], described["provenance"]
        runs = tuple(
            RunRecord(
                run["task"],
                run["method"],
                run["seed"],
                {"task": run["task"], "seed": run["seed"], **common, **run["options"]},
                _provenance(made[run["provenance"]]),
            )
            for run in described["runs"]
        )
        study = {**described["study"]}
    except FileNotFoundError:
        raise ConfigError(
            f"results: {str(folder)!r} holds no results of a study (it has no {RUNS})"
        ) from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"results: {folder / RUNS} is not a description of runs ({error!r})") from error
    tables = {
        name: _read(folder / f"{name}.csv", columns) if name in tables_of(study) else _joined(name, [])
        for name, columns in TABLES.items()
    }
    return check(Tables(study, runs, tables), str(folder))


def _provenance(made: Mapping[str, Any]) -> dict[str, Any]:
    """Where and with what runs were made; a `TypeError` if it is not a description of that."""
    for name, value in [("provenance", made), *((name, {**made}.get(name)) for name in ("git", "packages"))]:
        if not isinstance(value or {}, Mapping):
            raise TypeError(f"{name} is {value!r}")
    return {**made}


def check(tables: Tables, where: str) -> Tables:
    """Refuse tables that contradict themselves, by the run's name; the tables."""
    known = [run.key for run in tables.runs]
    if repeated := [run.name for run in tables.runs if known.count(run.key) > 1]:
        raise ConfigError(f"results: {repeated[0]} is there twice in {where}")
    methods: dict[str, RunRecord] = {}
    for run in tables.runs:
        first = methods.setdefault(run.method, run)
        refuse_differences(first.options, run, f" in {where}", first.name)
    for name, rows in tables.tables.items():
        unique = _identity(name)
        if (twice := rows.duplicated(unique)).any():
            row = rows.loc[twice].iloc[0]
            which = ", ".join(f"{column} {row[column]}" for column in unique)
            raise ConfigError(f"results: {name}.csv in {where} has a row twice: {which}")
        for task, method, seed in dict.fromkeys(rows[[*KEY]].itertuples(index=False, name=None)):
            if (task, method, seed) not in known:
                raise ConfigError(
                    f"results: {name}.csv in {where} has {task}, {method}, seed {seed}, which {RUNS} lacks"
                )
    _check_scores(tables, where)
    return tables


def _check_scores(tables: Tables, where: str) -> None:
    """Refuse scores with fewer or more episodes than the study plays, or of several models at one step."""
    count = tables.study.get("score_episodes")
    for checkpoint, own in tables.tables["scores"].groupby([*KEY, "env_steps"], sort=False):
        task, method, seed, step = cast("tuple[str, str, int, int]", checkpoint)
        place = f"scores.csv in {where}: {task}, {method}, seed {seed}, {step} env steps"
        if len(updates := dict.fromkeys(own["updates"])) > 1:
            raise ConfigError(f"results: {place} has different updates: {' and '.join(map(str, updates))}")
        if sorted(own["episode"]) != list(range(count or len(own))):
            numbers = f"the {count} that the study plays" if count else "numbered from 0 without gaps"
            raise ConfigError(f"results: {place} has {len(own)} episodes, which are not {numbers}")


def refuse_differences(expected: Mapping[str, Any], run: RunRecord, where: str, source: str) -> None:
    """Refuse a run in which an option, other than task and seed, is not as `source` has it.

    Both may be of different versions of the code: an option that one lacks has its default there, as in a
    configuration that is loaded, and options that no longer exist are not compared.
    """
    for name, default in _plain(options.flat(Config(task=""))).items():
        one, two = expected.get(name, default), run.options.get(name, default)
        if name not in _OWN and one != two:
            raise ConfigError(
                f"results: {run.name}{where} is a run of another configuration: {name} is {two!r}, but "
                f"{one!r} in {source}"
            )


def _plain(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON holds them."""
    return json.loads(json.dumps(flat))


def _rows_of(folder: Path) -> dict[str, pd.DataFrame]:
    """The rows of each table in a run's folder."""
    metrics = logs.read(folder)
    found = {name: logged(metrics, *names) for name, names in LOGGED.items()}
    found["evaluations"]["seconds"] = seconds_at(folder, found["evaluations"]["env_steps"].to_numpy())
    found["scores"] = pd.DataFrame(
        [
            (score["env_steps"], score["updates"], episode, value)
            for score in read_scores(folder)
            for episode, value in enumerate(score["returns"])
        ],
        columns=list(TABLES["scores"]),
    )
    for name in MEASURED:
        path = folder / f"{name}.csv"
        found[name] = _read_csv(path) if path.exists() else pd.DataFrame(columns=list(TABLES[name]))
    return found


def _read_csv(path: Path) -> pd.DataFrame:
    """A table in which texts stay as they are, though a method may be called 1.0 or None."""
    return pd.read_csv(path, dtype=dict.fromkeys(_TEXTS, "str"), keep_default_na=False, na_values=[""])


def _read(path: Path, columns: Iterable[str]) -> pd.DataFrame:
    needed = [*KEY, *columns]
    try:
        rows = _read_csv(path)
    except FileNotFoundError:
        raise ConfigError(f"results: {path} is missing") from None
    except ValueError as error:
        raise ConfigError(f"results: {path} is not a table ({error})") from error
    if missing := [name for name in needed if name not in rows]:
        raise ConfigError(f"results: {path} has no column {', '.join(missing)}; it needs {', '.join(needed)}")
    try:
        rows = rows[needed]
        for name in needed:
            if name in _COUNTS or name == "return":
                _refuse_impossible(name, np.asarray(rows[name], np.float64))
        return _typed(rows)
    except ValueError as error:
        raise ConfigError(f"results: {path} is not a table of results ({error})") from error


def _refuse_impossible(name: str, numbers: np.ndarray) -> None:
    """A `ValueError` for a count that is not a whole number from 0, or a return that is not finite."""
    good = np.isfinite(numbers)
    if name in _COUNTS:
        good &= (numbers >= 0) & (numbers <= _MOST) & (np.floor(numbers) == numbers)
    if not good.all():
        row = int(np.argmin(good))
        allowed = f"a whole number from 0 to {_MOST}" if name in _COUNTS else "finite"
        raise ValueError(f"{name} is {numbers[row]:g} in row {row + 1}; it must be {allowed}")


def _typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers, texts, and floats for the rest, in tables without rows too; no text is an empty one."""
    texts = {name: rows[name].astype(object) for name in _TEXTS if name in rows}
    rows = rows.assign(**{name: own.where(own.notna(), "") for name, own in texts.items()})
    kinds = dict.fromkeys(_COUNTS, "int64") | dict.fromkeys(_TEXTS, "str")
    return rows.astype({name: kinds.get(name, "float64") for name in rows})


def _joined(name: str, parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of all runs in one order, independent of the order of writing."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return _typed(pd.DataFrame(columns=[*KEY, *TABLES[name]]))
    return _typed(pd.concat(parts).sort_values(_identity(name), kind="stable", ignore_index=True))


def _identity(name: str) -> list[str]:
    """Columns that identify a row of a table."""
    return [*KEY, *_WITHIN.get(name, ())]


def of_run(rows: pd.DataFrame, run: RunRecord) -> pd.DataFrame:
    """The rows of a table that are about one run."""
    same = (rows["task"] == run.task) & (rows["method"] == run.method) & (rows["seed"] == run.seed)
    return rows.loc[same].reset_index(drop=True)


def _common(all_options: list[Mapping[str, Any]]) -> dict[str, Any]:
    first = all_options[0] if all_options else {}
    return {
        name: value
        for name, value in first.items()
        if name not in _OWN and all(other.get(name) == value for other in all_options)
    }


_MADE_WITH = ("gpld", "git", "python", "packages", "device", "xla_flags")


def last_start(folder: Path) -> dict[str, Any]:
    """Provenance of a run's last start, with its date."""
    starts = provenance.starts(folder)
    if not starts:
        return {}
    return {"date": starts[-1]["date"][:10], **{name: starts[-1].get(name) for name in _MADE_WITH}}


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
    for name, (prefix, values) in LOGGED.items():
        for row in own[name].to_dict("records"):
            about = {"env_steps": row["env_steps"], "updates": row["updates"]}
            lines.append(about | {prefix + value: row[value] for value in values})
            if np.isfinite(row.get("seconds", np.nan)):
                clock.append(about | {"seconds": row["seconds"], "time": 0.0})
    for name, found in ((logs.METRICS, lines), (logs.TIMING, clock)):
        found.sort(key=lambda line: line["env_steps"])
        files.write_text(folder / name, "".join(json.dumps(line) + "\n" for line in found))
