"""Files that survive a crash: hashed while they are written, and synced before anything refers to them."""

import errno
import hashlib
import io
import itertools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpld import files

BLOCK = 2**24
"""Bytes hashed and written at a time."""

TEMPORARY = ".tmp-"
"""The prefix of names that are incomplete, or being removed."""

SET_ASIDE = "set-aside"
"""The folder for what a run did after the step that it resumes from: nothing that was trained is deleted."""


class Digest(NamedTuple):
    """Size and hash of a file."""

    size: int
    sha256: str


def write(path: Path, *parts: bytes | np.ndarray) -> Digest:
    """Write and sync bytes, or arrays of bytes, one after the other to a new file."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for part in map(memoryview, parts):
            for begin in range(0, len(part), BLOCK):
                block = part[begin : begin + BLOCK]
                digest.update(block)
                file.write(block)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return Digest(size, digest.hexdigest())


def write_array(path: Path, array: np.ndarray) -> Digest:
    """Write an array as .npy, without another copy of it in memory."""
    array, header = np.ascontiguousarray(array), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return write(path, header.getvalue(), array.reshape(-1).view(np.uint8))


def sync_and_hash(path: Path) -> Digest:
    """Sync a file that others wrote, and hash it."""
    with files.open_to_read(path) as file:
        os.fsync(file.fileno())
        return Digest(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def problem(path: Path, expected: Digest) -> str | None:
    """A message about what is wrong with a file, or None."""
    try:
        with files.open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return f"{path} has {size} bytes instead of {expected.size}"
            if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
                return f"{path} does not match its checksum"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """`sync_folder` for a folder and all folders in it."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync_folder(path)


def temporary(path: Path) -> Path:
    """Where to write what will be renamed to `path`."""
    return path.with_name(TEMPORARY + path.name)


def publish(path: Path) -> None:
    """Give what was written to `temporary(path)` its name, in one step."""
    os.replace(temporary(path), path)
    sync_folder(path.parent)


def refuse_link(folder: Path) -> None:
    """An `OSError` if it is a link, behind which are files of somebody else."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, files.LINK, str(folder))


def make_folder(folder: Path) -> None:
    """Make a folder that may be there already, but not as a link."""
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder: renamed first, so that a part of it is never taken for the whole."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    if not path.name.startswith(TEMPORARY):
        doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
        os.replace(path, doomed)
        path = doomed
    shutil.rmtree(path)


def remove_unfinished(folder: Path) -> None:
    """Remove what a crash left in a folder before it got its name."""
    refuse_link(folder)
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


def set_aside(path: Path, folder: Path) -> Path:
    """Move something to `folder/set-aside`, under a name that nothing there has yet; its new path."""
    aside = folder / SET_ASIDE
    make_folder(aside)
    names = (aside / f"{path.name}{f'-{number}' if number else ''}" for number in itertools.count())
    target = next(name for name in names if not os.path.lexists(name))
    os.replace(path, target)
    for changed in (aside, path.parent, folder):
        sync_folder(changed)
    return target
