"""The lock of a run folder: it belongs to one run, and to one process at a time."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gpld import config as options, files
from gpld.config import Config, ConfigError
from gpld.training.checkpoints import SET_ASIDE, STEPS, saved_steps
from gpld.training.checkpoints.milestones import MILESTONES
from gpld.training.saved import CHECKPOINTS, CONFIG, FREE, PLACES
from gpld.training.warm_start import PARTS

LOCK = ".lock"
"""Held by the process that trains in a folder."""

WRITTEN = (
    CHECKPOINTS,
    f"{CHECKPOINTS}/{STEPS}",
    f"{CHECKPOINTS}/{SET_ASIDE}",
    MILESTONES,
    f"{MILESTONES}/{SET_ASIDE}",
    "wandb",
)
"""Folders in that of a run to which training writes, and in some of which it removes what is not needed."""


@contextmanager
def locked(config: Config, folder: Path) -> Iterator[None]:
    """Lock the folder, unless it holds another run or another process trains in it.

    If this fails before anything else is in the folder, it leaves nothing behind.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(files.open_here(folder / LOCK, os.O_WRONLY | os.O_CREAT), "w")
    except OSError as error:
        raise ConfigError(f"out: {error.filename or folder} cannot be written ({error.strerror})") from error
    for name in WRITTEN:
        if (folder / name).is_symlink():
            lock.close()
            raise ConfigError(f"out: {folder / name}: {files.LINK}")
    with lock:  # the system releases it when the process ends, however it ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"out: another process is training in {folder}") from None
        except OSError:
            pass  # a file system without locks
        try:
            refuse_other_options(config, folder)
            yield
        except BaseException:
            _leave_nothing(folder, made)
            raise


def _leave_nothing(folder: Path, made: Sequence[Path]) -> None:
    """Remove a lock that is alone in its folder, and the folders that were `made` for it."""
    with suppress(OSError):
        if os.listdir(folder) == [LOCK]:
            (folder / LOCK).unlink()
            for path in made:  # the innermost first, up to one that holds something
                path.rmdir()


def refuse_other_options(config: Config, folder: Path) -> None:
    """A `ConfigError` if the folder holds a run that these options cannot continue."""
    path = folder / CONFIG
    if not os.path.lexists(path):  # it is written before the first checkpoint
        if any(saved_steps(folder / name) for name in PLACES):
            raise ConfigError(
                f"out: {folder} has checkpoints, but no {CONFIG} that says what run they are of; "
                "put it back, or name another folder"
            )
        return
    before, now = (replace(each, init=each.init or PARTS) for each in (options.load(path), config))
    differences = {
        name: values
        for name, values in options.diff(before, now).items()
        if not name.startswith(FREE) and not (name == "env_steps" and values[0] < values[1])
    }
    if differences:
        lines = [f"  {name}: {old!r} there, {new!r} now" for name, (old, new) in differences.items()]
        raise ConfigError(
            "\n".join([f"out: {folder} holds a run with other options; name another folder", *lines])
        )
