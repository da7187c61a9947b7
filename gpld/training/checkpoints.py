"""Checkpoints: everything a run needs to go on as if it had never stopped.

    checkpoints/
      set-aside/                           what a damaged checkpoint made the run come to again
      steps/000000000000-000000004096.npy  what the replay was given between two checkpoints, written once
      000000065536/                        one checkpoint, named by its step:
        arrays/                              agent, carry and other arrays, by Orbax
        latents/                             the replay's latents, which training changes
        blobs/                               bytes, such as the states of environments
        manifest.json, manifest.sha256       size and SHA-256 of every file, those in steps/ included

Files and folders get these names when all of them is on the disk, and what they replace is removed after
that. So there is a good checkpoint to go back to whenever the process, the machine or the disk gives up.
"""

import logging
import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from gpld.replay import Replay
from gpld.training import _files
from gpld.training._manifest import CheckpointError, Damaged, Manifest
from gpld.training._snapshot import Restored, Snapshot, load

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Restored",
    "complete",
    "newest_good",
    "restore_all",
    "save_all",
    "saved_steps",
]

NAMED = r"[0-9]{12}|[1-9][0-9]{12,17}"
"""What the folder of a checkpoint is called: its step, with twelve digits or more."""

STEPS = "steps"
"""The folder of chunks."""

_log = logging.getLogger(__name__)


def saved_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, damaged or not, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if re.fullmatch(NAMED, path.name))


class _Together:
    """Checkpoints of several runs at one step: none gets its name before all of them are on the disk."""

    def __init__(self, runs: int):
        self._reason, self._all_are_there = "", False
        self._barrier = threading.Barrier(runs, action=self._passed)

    def _passed(self) -> None:
        self._all_are_there = True

    def wait(self) -> None:
        """Return when all are on the disk. A `CheckpointError` if one of them cannot be written."""
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise CheckpointError(self._reason) from None

    def fail(self, reason: str) -> None:
        """Let the others know why one of them cannot be written."""
        if not self._all_are_there:
            self._reason = self._reason or reason
            self._barrier.abort()


class Checkpoints:
    """The checkpoints of one run.

    Only `save` changes files, so another process may `restore` from the folder of a run under way. It copies
    what it is given to host memory and returns; a thread does the rest. What goes wrong there is raised by
    the next call, as a `CheckpointError`.
    """

    def __init__(self, folder: str | Path, *, keep: int = 2):
        if keep < 1:
            raise ValueError(f"checkpoint.keep is {keep}; it must be at least 1")
        self.folder = Path(folder).absolute()
        self.keep = keep
        self._chunks = self.folder / STEPS
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._pending: Future[None] | None = None
        self._newest: Manifest | None = None
        """The checkpoint written or restored last."""

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, which `save` would wait for."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Return when the checkpoint being written, if any, is safe on the disk."""
        if self._pending is not None:
            error = self._pending.exception()
            self._pending = None
            if error is not None:
                raise error

    def close(self) -> None:
        """`wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def saved(self) -> list[int]:
        """Steps of the checkpoints in the folder, damaged or not, the oldest first."""
        return saved_steps(self.folder)

    def save(
        self,
        step: int,
        arrays: PyTree,
        replay: Replay,
        *,
        blobs: dict[str, bytes] | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        """Save a run as it is after `step`. If that step is saved already, nothing happens.

        `arrays` are JAX's, random keys included, or numpy's; `info` is anything that JSON can hold. They and
        the replay may be changed or donated as soon as this returns.
        """
        self.wait()
        if not self._has(step):
            since = self._newest.end if self._newest else 0
            self._submit(Snapshot.take(step, arrays, replay, blobs or {}, info or {}, since))

    def _has(self, step: int) -> bool:
        """Whether a step is saved already; an error if it cannot be."""
        newest = self._newest
        if newest is None and (found := self.saved()):
            raise CheckpointError(f"{self.folder} holds a checkpoint of step {found[-1]}: restore it first")
        if newest is not None and step < newest.step:
            raise ValueError(f"step {step} cannot be saved after step {newest.step}")
        return newest is not None and step == newest.step

    def _submit(self, snapshot: Snapshot, together: _Together | None = None) -> None:
        self._pending = self._thread.submit(self._write_or_explain, snapshot, together or _Together(1))

    def restore(
        self, like: PyTree, replay: Replay | None = None, *, part: bool = False, step: int | None = None
    ) -> Restored | None:
        """The newest good checkpoint, or None if there is none; with `step`, that of this step and no other.

        `like` has the structure, shapes and types of the arrays that were saved, or with `part` of some of
        them; `ShapeDtypeStruct`s will do. `replay` is an empty one to be filled, and donated; without it,
        steps and latents are not looked at. Each missing or damaged file is named in a warning, and the
        checkpoint before it taken instead.
        """
        self.wait()
        damaged: dict[int, str] = {}
        # Listed anew each time: a run under way may have replaced a checkpoint while it was read here.
        while untried := [n for n in self.saved() if n not in damaged and step in (None, n)]:
            newest = untried[-1]
            try:
                manifest = self._verified(newest, with_replay=replay is not None)
            except Damaged as reason:
                damaged[newest] = str(reason)
                continue
            return self._load(manifest, like, replay, part=part)
        if damaged:
            raise CheckpointError(_hopeless(self.folder, damaged.values()))
        return None

    def _verified(self, step: int, with_replay: bool) -> Manifest:
        """The manifest of a good checkpoint. `Damaged`, and a warning, if it is not good."""
        folder = self._path(step)
        try:
            return _good(folder, step, self._chunks, with_replay=with_replay)
        except Damaged as reason:
            if folder.exists():
                _log.warning("checkpoint %s cannot be used: %s", folder, reason)
            raise

    def _load(self, manifest: Manifest, like: PyTree, replay: Replay | None, part: bool = False) -> Restored:
        restored = load(manifest, self._path(manifest.step), self._chunks, like, replay, part=part)
        self._newest = manifest
        return restored

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:012d}"

    def _write_or_explain(self, snapshot: Snapshot, together: _Together) -> None:
        """What the thread does."""
        try:
            self._write(snapshot, together)
        except Exception as error:
            with suppress(OSError):
                self._tidy()
            told = isinstance(error, CheckpointError)
            reason = str(error) if told else self._explain(snapshot.step, error)
            together.fail(reason)
            raise CheckpointError(reason) from error

    def _write(self, snapshot: Snapshot, together: _Together) -> None:
        self._chunks.mkdir(parents=True, exist_ok=True)
        _files.sync_folder(self.folder.parent)
        self._set_aside()
        self._tidy()
        chunks = [*(self._newest.chunks if self._newest else []), *snapshot.write_steps(self._chunks)]
        path = self._path(snapshot.step)
        manifest = snapshot.write(_files.temporary(path), chunks)
        together.wait()
        _files.publish(path)
        self._newest = manifest
        self._tidy()

    def _set_aside(self) -> None:
        """Make room where this run comes again: it goes on from an older checkpoint than its newest."""
        newest = self._newest
        if newest is None or not (later := [step for step in self.saved() if step > newest.step]):
            return
        used = {chunk.name for chunk in newest.chunks}
        chunks = [path for path in self._chunks.glob("*.npy") if path.name not in used]
        chunks = [path for path in chunks if _begins_at(path) >= newest.end]
        for path in [*map(self._path, later), *chunks]:
            told = f"{path} is set aside: {_files.set_aside(path, self.folder)}"
            _log.warning("%s", told)

    def _tidy(self) -> None:
        """Remove what no kept checkpoint needs: older ones, and what crashes left behind."""
        for path in self.folder.glob(f"{_files.TEMPORARY}*"):
            _files.remove(path)
        kept: list[Manifest] = []
        for step in reversed(self.saved()):
            manifest = self._manifest(step) if len(kept) < self.keep else None
            if manifest is None:
                _files.remove(self._path(step))
            else:
                kept.append(manifest)
        needed = {chunk.name for manifest in kept for chunk in manifest.chunks}
        for path in self._chunks.iterdir():
            if path.name not in needed:
                _files.remove(path)

    def _manifest(self, step: int) -> Manifest | None:
        """The manifest of a checkpoint that one could go back to."""
        try:
            return Manifest.read(self._path(step), step)
        except (Damaged, CheckpointError):
            return None

    def _explain(self, step: int, error: Exception) -> str:
        reason = str(error)
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        with suppress(OSError):
            reason += f" ({shutil.disk_usage(self.folder).free / 2**20:.1f} MiB free)"
        last = self._path(self._newest.step) if self._newest else None
        left = f"the last one, {last}, is intact" if last else "there is none before it"
        return f"checkpoint {self._path(step)} could not be written: {reason}; {left}"


def save_all(
    runs: Sequence[Checkpoints],
    step: int,
    arrays: PyTree,
    replay: Replay,
    *,
    own: Sequence[PyTree],
    blobs: Sequence[dict[str, bytes]],
    info: dict[str, Any],
) -> None:
    """`Checkpoints.save` for R runs in step, whose arrays and replay have a leading run axis.

    `own` are arrays that each run has besides. No run's checkpoint gets its name before those of all are on
    the disk, so a kill leaves all of them with it, or what `complete` makes of it, or none.
    """
    for run in runs:
        run.wait()
    known = [run._has(step) for run in runs]
    if all(known):
        return
    since = min(run._newest.end if run._newest else 0 for run in runs)
    snapshots = Snapshot.take(step, arrays, replay, {}, info, since).split(own, blobs)
    together = _Together(len(runs))
    for run, snapshot in zip(runs, snapshots, strict=True):
        run._submit(snapshot, together)


def complete(folders: Sequence[Path]) -> None:
    """Give checkpoints their names that `save_all` had written when it was killed while it named them.

    One that has its name says that all were on the disk.
    """
    named = {step for folder in folders for step in saved_steps(folder)}
    for folder in folders:
        for step in named - set(saved_steps(folder)):
            path = folder / f"{step:012d}"
            with suppress(Damaged):
                _good(_files.temporary(path), step, folder / STEPS)
                _files.publish(path)


def newest_good(folder: Path) -> int:
    """Step of the newest checkpoint of which every byte is there; 0 if there never was one.

    A `CheckpointError` if there are some, and all are damaged.
    """
    damaged = []
    for step in reversed(saved_steps(folder)):
        try:
            _good(folder / f"{step:012d}", step, folder / STEPS)
        except Damaged as reason:
            damaged.append(str(reason))
        else:
            return step
    if damaged:
        raise CheckpointError(_hopeless(folder, damaged))
    return 0


def _good(path: Path, step: int, chunks: Path, *, with_replay: bool = True) -> Manifest:
    """The manifest of a checkpoint of which every byte is there. `Damaged` if it is not."""
    manifest = Manifest.read(path, step)
    manifest.verify(path, chunks, with_replay=with_replay)
    return manifest


def _begins_at(chunk: Path) -> int:
    begin = chunk.name.partition("-")[0]
    return int(begin) if re.fullmatch(NAMED, begin) else -1


def restore_all(
    runs: Sequence[Checkpoints], like: Sequence[PyTree], replays: Sequence[Replay]
) -> list[Restored] | None:
    """`Checkpoints.restore` for R runs: the newest step of which all have a good checkpoint, or None."""
    damaged: list[str] = []
    for step in sorted(set.intersection(*(set(run.saved()) for run in runs)), reverse=True):
        try:
            manifests = [run._verified(step, with_replay=True) for run in runs]
        except Damaged as reason:
            damaged.append(str(reason))
            continue
        found = zip(runs, manifests, like, replays, strict=True)
        return [run._load(manifest, example, replay) for run, manifest, example, replay in found]
    if damaged:
        folders = ", ".join(str(run.folder) for run in runs)
        raise CheckpointError(_hopeless(folders, damaged))
    return None


def _hopeless(folders: object, reasons: Iterable[str]) -> str:
    return (
        f"no checkpoint in {folders} can be used: {'; '.join(dict.fromkeys(reasons))}. Bring these files "
        "back, or name another folder for a run that begins from the start"
    )
