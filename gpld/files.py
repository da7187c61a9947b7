"""Files of run folders, which may come from others: no link is followed, and only regular files are opened.

Reading or writing through a symbolic link would reach files outside of the folder; opening a device or a pipe
would wait for ever.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_HERE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a pipe is opened at once, seen not to be a file, and refused."""


class DamagedFile(RuntimeError):  # noqa: N818
    """A file of a run that does not hold what it should, in words for the user."""


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


LINK = "it is a symbolic link, and none is followed"
NO_FILE = "it is no regular file"


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


def read_list(path: Path, name: str) -> list[dict[str, Any]]:
    """The list of objects that a file of JSON has under a name, or none where there is no such file.

    A `DamagedFile` if it holds something else.
    """
    if not os.path.lexists(path):
        return []
    try:
        found = json.loads(read_text(path))[name]
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise TypeError(f"{name} is not a list of objects")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path}: not a list of {name} ({error!r}); move it away to go on") from error
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
