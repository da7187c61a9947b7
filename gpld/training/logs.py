"""Metrics of a run, by env steps: lines of JSON always, TensorBoard and Weights & Biases as options.

`metrics.jsonl` is part of what a run computes: one object a line with `env_steps`, `updates` and the values,
and the same bytes whether or not the run was killed and resumed. So it holds no times. When each line was
made is in `timing.jsonl`, which also keeps the lines of work that a crash undid.

JSON has no numbers that are not finite: they are the strings "NaN", "Infinity" and "-Infinity", and `read`
gives them back as numbers. Each line ends with `crc`, the CRC-32 of the file up to there, so that damage is
seen; checkpoints remember how long the metrics were, so that missing lines are.
"""

import io
import itertools
import json
import logging
import math
import os
import socket
import struct
import sys
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from gpld import files, machine
from gpld.config import ConfigError, LogConfig
from gpld.files import DamagedFile
from gpld.pictures import FRAMES, Picture, gif, spaced
from gpld.training import _lines

if TYPE_CHECKING:
    import pandas

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
UNDONE = "metrics.undone.jsonl"
"""Lines that a run had written after the checkpoint it resumed from; most are in its metrics again."""

MARK = "metrics"
"""The name of the bytes of `Logs.mark` among the blobs of a checkpoint."""

_log = logging.getLogger(__name__)

Hyperparameters = Mapping[str, Any]
"""Dotted name of every option, and its value."""


class Logs:
    """Writes the metrics of one run.

    `resume_at` is the env step of the checkpoint that the run resumes from, or None if it starts from the
    beginning, and `mark` what the checkpoint knows of the metrics. Later lines of an earlier attempt move to
    another file, for they will be written again. Without a mark, those are the lines of later env steps.
    """

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        hyperparameters: Hyperparameters,
        *,
        resume_at: int | None = None,
        mark: bytes = b"",
    ):
        self.path = folder / METRICS
        """The file that is always written."""
        folder.mkdir(parents=True, exist_ok=True)
        if reason := _lines.differs(self.path, mark):
            if self.path.exists():
                raise DamagedFile(f"{reason}. Restore it, or move it away to continue without it")
            _log.warning("%s: a new one is written", reason)
        last = -1 if resume_at is None else resume_at
        moved = _cut(self.path, last, folder / UNDONE, _lines.size_of(mark))
        _cut(folder / TIMING, math.inf)
        if reason := _untimed(folder):
            _log.warning("%s", reason)
        self.undone = (
            f"{len(moved)} lines of metrics after the checkpoint are kept in {UNDONE}" if moved else ""
        )
        """A message about lines of an earlier attempt, or nothing."""
        with ExitStack() as stack:  # closes what was opened if a sink cannot be

            def opened(sink: Any) -> Any:
                stack.callback(sink.close)
                return sink

            self._metrics = opened(_Metrics(self.path))
            self._timing = opened(_Timing(folder / TIMING))
            self._sinks: list[Any] = [self._metrics]
            self._board = None
            if config.tensorboard:
                self._board = opened(_TensorBoard(folder, hyperparameters, min([last, *moved]) + 1))
                self._sinks.append(self._board)
            if config.wandb:
                self._sinks.append(opened(_WandB(folder, config, hyperparameters)))
            self._closing = stack.pop_all()

    def scalars(
        self,
        env_steps: int,
        updates: int,
        values: Mapping[str, SupportsFloat],
        *,
        clock: float | None = None,
    ) -> None:
        """Log values at a number of env steps and updates; both never decrease.

        `clock` was `time.monotonic` when they were made, if that is not now.
        """
        numbers = {name: float(value) for name, value in values.items()}
        for sink in self._sinks:
            sink.write(env_steps, updates, numbers)
        self._timing.write(env_steps, updates, time.monotonic() if clock is None else clock)

    def films(self, env_steps: int, films: Mapping[str, Sequence[Picture]]) -> None:
        """Write films by their names for TensorBoard, if it is on; of long ones some pictures."""
        if self._board is not None:
            for name, pictures in films.items():
                self._board.show(env_steps, name, gif([pictures[i] for i in spaced(len(pictures), FRAMES)]))

    def mark(self) -> bytes:
        """Size and checksum of the metrics, for a checkpoint: `Logs` of a resumed run compares them."""
        return self._metrics.mark()

    def flush(self) -> None:
        """Bring all lines to the disk, so that a checkpoint never outlives lines that came before it."""
        for sink in (*self._sinks, self._timing):
            sink.flush()

    def close(self) -> None:
        """Finish all files."""
        self._closing.close()

    def __enter__(self) -> "Logs":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(folder: Path | str, file: str = METRICS) -> "pandas.DataFrame":
    """A run's metrics (or `TIMING`) as a table: `env_steps`, `updates`, and floats, a column for each name.

    Works on a run that is being written. A value that a line does not have is NaN.
    """
    import pandas

    counts = {"env_steps": "int64", "updates": "int64"}
    if reason := (_shorter if file == METRICS else _untimed)(Path(folder)):
        _log.warning("%s", reason)
    table = pandas.DataFrame([row for _, row in _lines.rows(Path(folder) / file)])
    if table.empty:
        return pandas.DataFrame({name: pandas.Series(dtype=kind) for name, kind in counts.items()})
    return table.astype({name: counts.get(name, "float64") for name in table})


def evaluations(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Env steps and mean returns of a run's evaluations."""
    metrics = read(folder)
    if "eval/return" not in metrics:
        return np.zeros(0), np.zeros(0)
    found = metrics.dropna(subset=["eval/return"])
    return np.asarray(found["env_steps"]), np.asarray(found["eval/return"])


class _Lines:
    """A growing file of JSON objects. Each line reaches the system whole before the next is made."""

    def __init__(self, path: Path):
        self._path = path
        with _naming(path):
            self._file = _open_to_append(path)
        self._crc = zlib.crc32(files.read_bytes(path))

    def append(self, row: Mapping[str, int | float | str]) -> None:
        line, self._crc = _lines.seal(json.dumps(row, allow_nan=False).encode(), self._crc)
        with _naming(self._path):
            while line:  # a disk that is nearly full takes only a part
                line = line[os.write(self._file, line) :]

    def mark(self) -> bytes:
        size = os.fstat(self._file).st_size
        return json.dumps({"size": size, _lines.CRC: self._crc}).encode()

    def flush(self) -> None:
        with _naming(self._path):
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class _Metrics(_Lines):
    def write(self, env_steps: int, updates: int, values: Mapping[str, float]) -> None:
        encoded = {name: x if math.isfinite(x) else json.dumps(x) for name, x in values.items()}
        self.append({"env_steps": env_steps, "updates": updates, **encoded})


class _Timing(_Lines):
    def __init__(self, path: Path):
        super().__init__(path)
        self._start = time.monotonic()

    def write(self, env_steps: int, updates: int, clock: float) -> None:
        seconds, when = clock - self._start, time.time() - (time.monotonic() - clock)
        self.append(
            {
                "env_steps": env_steps,
                "updates": updates,
                "seconds": round(max(seconds, 0.0), 3),
                "time": round(when, 3),
            }
        )


class _Events:
    """An event file in the run folder, so that TensorBoard calls the run by the folder's name.

    Written here and now: tensorboardX's `SummaryWriter` writes in a thread, and waits for ever once a full
    disk has ended that thread.
    """

    FLUSH_SECONDS = 15.0

    def __init__(self, folder: Path, suffix: str):
        with _without("torch"):  # importing it takes seconds, and is not needed
            self.board = _import("tensorboardX", "log.tensorboard", "pip install tensorboardX")
        self._folder, self._flushed = folder, -math.inf
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}{suffix}"
        with _naming(folder / name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._file = os.fdopen(files.open_here(folder / name, flags), "wb")
        self.add(0, file_version="brain.Event:2")

    def add(self, step: int, **content: Any) -> None:
        event = self.board.proto.event_pb2.Event(wall_time=time.time(), step=step, **content)
        data = event.SerializeToString()
        with _naming(self._folder):
            for part in (struct.pack("<Q", len(data)), data):  # TFRecord: each with its checksum
                check = self.board.record_writer.masked_crc32c(part)
                self._file.write(part + struct.pack("<I", check))
        if time.monotonic() - self._flushed > self.FLUSH_SECONDS:
            self.flush()

    def show(self, step: int, name: str, picture: bytes) -> None:
        """A PNG, or a GIF, which moves."""
        from PIL import Image

        summary = self.board.proto.summary_pb2.Summary
        with Image.open(io.BytesIO(picture)) as opened:
            size = {"width": opened.width, "height": opened.height}
        image = summary.Image(**size, colorspace=3, encoded_image_string=picture)
        self.add(step, summary=summary(value=[summary.Value(tag=name, image=image)]))

    def flush(self) -> None:
        with _naming(self._folder):
            self._file.flush()
            os.fsync(self._file.fileno())
        self._flushed = time.monotonic()

    def close(self) -> None:
        with _naming(self._folder), closing(self._file):
            self.flush()


class _TensorBoard(_Events):
    def __init__(self, folder: Path, hyperparameters: Hyperparameters, purge_from: int):
        # Names contain the second of their start: number them, lest a quick restart overwrites the last file.
        earlier = sum(1 for _ in folder.glob("events.out.tfevents.*"))
        super().__init__(folder, f".{earlier:04d}")
        # TensorBoard drops points from this step on: they are of an attempt that was undone.
        session = self.board.proto.event_pb2.SessionLog
        self.add(purge_from, session_log=session(status=session.START))
        plain = {k: x if isinstance(x, (bool, int, float)) else str(x) for k, x in hyperparameters.items()}
        experiment, start, _ = self.board.summary.hparams(plain, {"eval/return": 0.0})
        self.add(purge_from, summary=experiment)
        self.add(purge_from, summary=start)

    def write(self, env_steps: int, updates: int, values: Mapping[str, float]) -> None:
        summary = self.board.proto.summary_pb2.Summary
        named = {"updates": float(updates), **values}
        points = [summary.Value(tag=name, simple_value=x) for name, x in named.items()]
        self.add(env_steps, summary=summary(value=points))


def show_pictures(folder: Path, env_steps: int, pictures: Mapping[str, Path]) -> None:
    """Write pictures of a run (PNG or GIF) for TensorBoard, in place of those of the same env steps."""
    suffix = f".pictures-{env_steps}"
    for earlier in folder.glob(f"events.out.tfevents.*{suffix}"):
        earlier.unlink()
    with closing(_Events(folder, suffix)) as events:
        for name, path in pictures.items():
            events.show(env_steps, name, files.read_bytes(path))


class _WandB:
    """One Weights & Biases run for all starts of a run. It ignores steps that it already has."""

    def __init__(self, folder: Path, config: LogConfig, hyperparameters: Hyperparameters):
        wandb = _import("wandb", "log.wandb", machine.install("wandb"))
        name = folder / "wandb-id"
        if not name.exists():
            files.write_text(name, uuid.uuid4().hex[:12])
        self._run = wandb.init(
            project=config.wandb_project,
            entity=config.wandb_entity or None,
            name=config.wandb_name or folder.resolve().name,
            id=files.read_text(name),
            resume="allow",
            dir=str(folder),
            config=dict(hyperparameters),
        )

    def write(self, env_steps: int, updates: int, values: Mapping[str, float]) -> None:
        self._run.log({"updates": updates, **values}, step=env_steps)

    def flush(self) -> None:
        pass  # its own process sends what it has

    def close(self) -> None:
        self._run.finish()


def _import(module: str, option: str, remedy: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{option}: needs {module}, which is not installed: {remedy}, or turn {option} off"
        ) from error


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Hide a module from imports meanwhile, unless it is loaded already."""
    absent = module not in sys.modules
    if absent:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        if absent:
            del sys.modules[module]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file's name to the system's errors of writing, which have none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _untimed(folder: Path) -> str:
    """Which times of a run are missing, or nothing: every line of metrics has one."""
    if not (folder / "checkpoints").is_dir():  # written from tables, which need not have times
        return ""
    lines, times = (
        {(row["env_steps"], row["updates"]) for _, row in _lines.rows(folder / name)}
        for name in (METRICS, TIMING)
    )
    if missing := len(lines - times):
        return f"{folder / TIMING} lacks {missing} lines that {METRICS} has: times are not known"
    return ""


def _shorter(folder: Path) -> str:
    """How the metrics of a run differ from the mark in its newest checkpoint, or nothing."""
    marks = sorted((folder / "checkpoints").glob(f"[0-9]*/blobs/{MARK}"))
    try:
        return _lines.differs(folder / METRICS, files.read_bytes(marks[-1])) if marks else ""
    except OSError:  # an error of the checkpoint, which may have been removed by now
        return ""


def _cut(path: Path, last: int | float, undone: Path | None = None, size: int | None = None) -> list[int]:
    """Move the lines beyond `size`, or after env step `last`, to the file `undone`, and drop a torn one.

    Returns the env steps of those that were moved.
    """
    if not path.exists():
        return []
    rows = list(_lines.rows(path))
    if size is None:
        stay = next((i for i, (_, row) in enumerate(rows) if row["env_steps"] > last), len(rows))
    else:
        stay = sum(end <= size for end in itertools.accumulate(len(line) for line, _ in rows))
    dropped = [line for line, _ in rows[stay:]]
    if undone and dropped:
        with _naming(undone), os.fdopen(_open_to_append(undone), "ab") as file:
            file.writelines(dropped)
            file.flush()
            os.fsync(file.fileno())
    with _naming(path), os.fdopen(_open_to_append(path), "ab") as file:
        file.truncate(sum(len(line) for line, _ in rows[:stay]))
    return [row["env_steps"] for _, row in rows[stay:]]


def _open_to_append(path: Path) -> int:
    """A descriptor that appends to a file, which need not exist."""
    return files.open_here(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
