"""Files of run folders, which may come from others: no link is followed, and only regular files are opened.

Reading or writing through a symbolic link would reach files outside of the folder; opening a device or a pipe
would wait for ever.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_HERE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a pipe is opened at once, seen not to be a file, and refused."""


class DamagedFile(RuntimeError):  # noqa: N818
    """A file of a run with wrong contents, with a message for the user."""


def open_here(path: Path, flags: int) -> int:
    """A descriptor of a regular file that is no link; `flags` are those of `os.open`. Else an `OSError`."""
    try:
        descriptor = os.open(path, flags | _HERE, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(error.errno, LINK, str(path)) from None
        if error.errno == errno.ENXIO:  # a pipe or a socket
            raise OSError(error.errno, NO_FILE, str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else NO_FILE, str(path))
    return descriptor


LINK = "it is a symbolic link; links are not followed"
NO_FILE = "it is not a regular file"


def open_to_read(path: Path) -> IO[bytes]:
    """The bytes of a file."""
    return os.fdopen(open_here(path, os.O_RDONLY), "rb")


def read_bytes(path: Path) -> bytes:
    """All of a file."""
    with open_to_read(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """All of a file, as text in UTF-8. A `ValueError` if it is none."""
    return read_bytes(path).decode()


CHECKSUM = "checksum"
"""The last name in an object of JSON that was sealed."""


def write_json(path: Path, values: Mapping[str, Any], *, indent: int = 2) -> None:
    """Write an object in one move, sealed by a checksum of what it says; how it is laid out is free."""
    write_text(path, dump_json(values, indent=indent))


def dump_json(values: Mapping[str, Any], *, indent: int = 2) -> str:
    """The text that `write_json` writes."""
    plain = json.loads(json.dumps(values))
    return json.dumps({**plain, CHECKSUM: _sha256(json.dumps(plain))[:16]}, indent=indent) + "\n"


def read_json(path: Path) -> Any:
    """What a file of JSON says. A `ValueError` if it is none, or not what was sealed in it.

    Files of older versions have no checksum.
    """
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> Any:
    """What the text of such a file says."""
    values = json.loads(text)
    sealed = values.pop(CHECKSUM, None) if isinstance(values, dict) else None
    if sealed is not None and sealed != _sha256(json.dumps(values))[:16]:
        remedy = f"if it was changed on purpose, remove its line {CHECKSUM!r}"
        raise ValueError(f"it does not match its checksum; {remedy}")
    return values


def write_sealed(path: Path, text: str) -> None:
    """Write a text in one move, with its checksum in another file, FILE.sha256, for formats without a place.

    That file comes first and has the checksum of what is there, too: whenever this is killed, one agrees.
    """
    before = [hashlib.sha256(read_bytes(path)).hexdigest()] if is_file(path) else []
    write_text(_seal_of(path), "\n".join([_sha256(text), *before]) + "\n")
    write_text(path, text)


def read_sealed(path: Path) -> str:
    """The text that `write_sealed` was given, or a `ValueError`; older files have no checksum."""
    text, seal = read_text(path), _seal_of(path)
    if os.path.lexists(seal) and _sha256(text) not in read_text(seal).split():
        raise ValueError(f"it does not match {seal.name}")
    return text


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_list(path: Path, name: str) -> list[dict[str, Any]]:
    """The list of objects under a name in a file of JSON; none without the file, else a `DamagedFile`."""
    if not os.path.lexists(path):
        return []
    try:
        found = read_json(path)[name]
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise TypeError(f"{name} is not a list of objects")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path}: not a list of {name} ({error!r}); move it away to continue") from error
    return found


def is_file(path: Path) -> bool:
    """Whether it is a regular file, and no link to one."""
    return path.is_file() and not path.is_symlink()


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """A new, empty file beside `path` to be written; when the block ends without an error, it is `path`.

    A reader never sees half of it. A link at either name is replaced and not followed.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    unfinished.unlink(missing_ok=True)
    try:
        os.close(open_here(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one move."""
    with in_one_move(path) as unfinished:
        unfinished.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 in one move."""
    write_bytes(path, text.encode())
