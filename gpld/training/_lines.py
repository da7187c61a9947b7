"""Lines of metrics on the disk: each has the CRC-32 of the file up to it."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpld import files
from gpld.files import DamagedFile

CRC = "crc"
"""The last name in a line."""


def rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Every complete line and its values. A last line without its end is torn, or being written.

    Lines of older versions have no checksum, but none comes after one that has.
    """
    lines = files.read_bytes(path).split(b"\n") if path.exists() else [b""]
    crc, sealed = 0, False
    for number, line in enumerate(lines, start=1):
        whole, problem = line + b"\n", f"{path}, line {number}: not a line of metrics: {line[:60]!r}"
        if number == len(lines):
            if line and _row(line[:-1]) is not None:  # complete, but with another end
                raise DamagedFile(problem)
            return
        row = _row(line)
        if row is None:
            raise DamagedFile(problem)
        body = line.rpartition(b', "' + CRC.encode())[0] + b"}"
        sealed = row.pop(CRC, None) is not None or sealed
        if sealed and seal(body, crc)[0] != whole:
            raise DamagedFile(f"{path}, line {number}: it does not match its checksum: {line[:60]!r}")
        crc = zlib.crc32(whole, crc)
        yield whole, row


def _row(line: bytes) -> dict[str, Any] | None:
    """The values of a line, or None if it is not one of metrics."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(type(row.get(n)) is int for n in ("env_steps", "updates")):
        return None
    values = [value for name, value in row.items() if name != CRC]
    known = all(type(x) in (int, float) or x in ("NaN", "Infinity", "-Infinity") for x in values)
    return row if known else None


def seal(line: bytes, before: int) -> tuple[bytes, int]:
    """A line with its checksum and end, and the CRC of the file up to there; `before` is that before it."""
    body = line[:-1] + b', "' + CRC.encode() + b'": "'
    whole = body + f"{zlib.crc32(body, before):08x}".encode() + b'"}\n'
    return whole, zlib.crc32(whole, before)


def size_of(mark: bytes) -> int | None:
    """How long the metrics were at a checkpoint; None if its mark does not say."""
    try:
        return int(json.loads(mark)["size"])
    except (ValueError, KeyError, TypeError):
        return None


def differs(path: Path, mark: bytes) -> str:
    """How metrics differ from a checkpoint's mark of them; nothing if they do not, or if there is no mark."""
    if not mark:
        return ""
    try:
        size, crc = (int(json.loads(mark)[name]) for name in ("size", CRC))
    except (ValueError, KeyError, TypeError):
        return f"{path}: its size in the checkpoint cannot be read"
    if size and not path.exists():
        return f"{path} is missing"
    data = files.read_bytes(path) if size else b""
    if len(data) < size:
        return f"{path} has {len(data)} bytes, and had {size} at the checkpoint: lines are missing"
    return "" if zlib.crc32(data[:size]) == crc else f"{path} is not as it was at the checkpoint"
