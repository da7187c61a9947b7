"""The checkpoints of a run, written by a thread and verified before they are read."""

import logging
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from gpld.replay import Replay
from gpld.training.checkpoints import _files
from gpld.training.checkpoints._manifest import LATENTS, CheckpointError, Damaged, Manifest
from gpld.training.checkpoints._snapshot import Blob, Restored, Snapshot, load

NAME = r"[0-9]{12}|[1-9][0-9]{12,17}"
"""The name of a checkpoint's folder: its step, with twelve digits or more."""

STEPS = "steps"
"""The folder of chunks."""

_log = logging.getLogger(__name__)


def is_replay(path: Path) -> bool:
    """Whether a path in the folder of checkpoints is of the replay, which only a longer run would need."""
    return path.parts[0] == STEPS or LATENTS in path.parts


def discard_replay(folder: Path) -> None:
    """Remove the replay from a folder of checkpoints; agents can still be loaded."""
    for path in (folder / STEPS, *folder.glob(f"*/{LATENTS}")):
        if not any(place.is_symlink() for place in (folder, path.parent)):  # `rmtree` refuses links itself
            shutil.rmtree(path, ignore_errors=True)


def saved_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, damaged or not, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if re.fullmatch(NAME, path.name))


class _Barrier:
    """Checkpoints of several runs at one step: none gets its name before all of them are on disk."""

    def __init__(self, runs: int):
        self._reason, self._complete = "", False
        self._barrier = threading.Barrier(runs, action=self._passed)

    def _passed(self) -> None:
        self._complete = True

    def wait(self) -> None:
        """Return when all are on disk. A `CheckpointError` if one of them cannot be written."""
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise CheckpointError(self._reason) from None

    def fail(self, reason: str) -> None:
        """Pass on to the others why one of them cannot be written."""
        if not self._complete:
            self._reason = self._reason or reason
            self._barrier.abort()


class Checkpoints:
    """The checkpoints of one run.

    Only `save` changes files, so another process may `restore` while the run trains. It copies its arguments,
    where they are if there is room, and returns; a thread does the rest. Its errors are raised by the next
    call, as a `CheckpointError`.
    """

    def __init__(self, folder: str | Path, *, keep: int = 2):
        if keep < 1:
            raise ValueError(f"checkpoint.keep is {keep}; it must be at least 1")
        # Orbax refuses a path with `..` in it. The folder itself may be a link, which is not followed.
        self.folder = Path(folder).parent.resolve() / Path(folder).name
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
        """Return when the checkpoint being written, if any, is on disk."""
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

    def save(
        self,
        step: int,
        arrays: PyTree,
        replay: Replay,
        *,
        blobs: dict[str, Blob] | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        """Save a run after `step`. If that step is saved already, nothing happens.

        `arrays` are JAX's, random keys included, or numpy's; `info` is anything that JSON can hold. They and
        the replay may be changed or donated as soon as this returns.
        """
        self.wait()
        if not self._has(step):
            since = self._newest.end if self._newest else 0
            snapshot = Snapshot.take(step, arrays, replay, blobs or {}, info or {}, since)
            self._submit(snapshot, _Barrier(1))

    def _has(self, step: int) -> bool:
        """Whether a step is saved already; an error if it cannot be."""
        newest = self._newest
        if newest is None and (found := saved_steps(self.folder)):
            raise CheckpointError(f"{self.folder} holds a checkpoint of step {found[-1]}: restore it first")
        if newest is not None and step < newest.step:
            raise ValueError(f"step {step} cannot be saved after step {newest.step}")
        return newest is not None and step == newest.step

    def _submit(self, snapshot: Snapshot, barrier: _Barrier) -> None:
        self._pending = self._thread.submit(self._write_or_explain, snapshot, barrier)

    def restore(
        self, like: PyTree, replay: Replay | None = None, *, part: bool = False, step: int | None = None
    ) -> Restored | None:
        """The newest good checkpoint, or None if there is none; with `step`, that of this step and no other.

        `like` has the structure, shapes and types of the arrays that were saved, or with `part` of some of
        them; `ShapeDtypeStruct`s will do. `replay` is an empty one to be filled, and donated; without it,
        steps and latents are not read. A warning names each missing or damaged file, and the checkpoint
        before is used instead.
        """
        self.wait()
        damaged: dict[int, str] = {}
        # Listed each time: the run may have replaced a checkpoint while it was read here.
        while untried := [n for n in saved_steps(self.folder) if n not in damaged and step in (None, n)]:
            newest = untried[-1]
            try:
                manifest = self._verified(newest, with_replay=replay is not None)
                return self._load(manifest, like, replay, part=part)
            except Damaged as reason:
                damaged[newest] = str(reason)
        if damaged:
            raise CheckpointError(_all_damaged(self.folder, damaged.values()))
        return None

    def _verified(self, step: int, with_replay: bool) -> Manifest:
        """The manifest of a good checkpoint. `Damaged`, and a warning, if it is not good."""
        with self._warning_of_damage(step) as folder:
            return _good(folder, step, self._chunks, with_replay=with_replay)

    def _load(self, manifest: Manifest, like: PyTree, replay: Replay | None, part: bool = False) -> Restored:
        with self._warning_of_damage(manifest.step) as folder:
            restored = load(manifest, folder, self._chunks, like, replay, part=part)
        self._newest = manifest
        return restored

    @contextmanager
    def _warning_of_damage(self, step: int) -> Iterator[Path]:
        """The folder of a checkpoint; a warning if what is done with it finds damage."""
        folder = self._path(step)
        try:
            yield folder
        except Damaged as reason:
            if folder.exists():
                _log.warning("checkpoint %s cannot be used: %s", folder, reason)
            raise

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:012d}"

    def _write_or_explain(self, snapshot: Snapshot, barrier: _Barrier) -> None:
        """Write a checkpoint in the thread."""
        try:
            self._write(snapshot, barrier)
        except Exception as error:
            with suppress(OSError):
                self._tidy()
            explained = isinstance(error, CheckpointError)
            reason = str(error) if explained else self._explain(snapshot.step, error)
            barrier.fail(reason)
            raise CheckpointError(reason) from error

    def _write(self, snapshot: Snapshot, barrier: _Barrier) -> None:
        for folder in (self.folder, self._chunks):
            _files.make_folder(folder)
        _files.sync_folder(self.folder.parent)
        self._set_aside()
        self._tidy()
        chunks = [*(self._newest.chunks if self._newest else []), *snapshot.write_steps(self._chunks)]
        path = self._path(snapshot.step)
        manifest = snapshot.write(_files.temporary(path), chunks)
        barrier.wait()
        _files.publish(path)
        self._newest = manifest
        self._tidy()

    def _set_aside(self) -> None:
        """Move away what this run repeats, having resumed from an older checkpoint than its newest."""
        newest = self._newest
        if newest is None or not (later := [step for step in saved_steps(self.folder) if step > newest.step]):
            return
        used = {chunk.name for chunk in newest.chunks}
        pattern = re.compile(rf"({NAME})-.*")
        chunks = [
            path
            for path in self._chunks.glob("*.npy")
            if path.name not in used and (found := pattern.match(path.name)) and int(found[1]) >= newest.end
        ]
        for path in [*map(self._path, later), *chunks]:
            _log.warning("%s", f"{path} is set aside: {_files.set_aside(path, self.folder)}")

    def _tidy(self) -> None:
        """Remove all but the newest checkpoints: older ones, their chunks, and what crashes left."""
        _files.refuse_link(self._chunks)
        _files.remove_unfinished(self.folder)
        kept: list[Manifest] = []
        for step in reversed(saved_steps(self.folder)):
            found = Manifest.try_read(self._path(step), step) if len(kept) < self.keep else None
            if found is None:
                _files.remove(self._path(step))
            else:
                kept.append(found)
        needed = {chunk.name for manifest in kept for chunk in manifest.chunks}
        for path in self._chunks.iterdir():
            if path.name not in needed:
                _files.remove(path)

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
    blobs: Sequence[dict[str, Blob]],
    info: dict[str, Any],
) -> None:
    """`Checkpoints.save` for R runs in step, whose arrays and replay have a leading run axis.

    `own` are arrays that each run has besides. No checkpoint gets its name before all of them are on disk, so
    that after a kill all runs have it, or get it from `complete`, or none has it.
    """
    for run in runs:
        run.wait()
    saved = [run._has(step) for run in runs]
    if all(saved):
        return
    since = min(run._newest.end if run._newest else 0 for run in runs)
    snapshots = Snapshot.take(step, arrays, replay, {}, info, since).split(own, blobs)
    barrier = _Barrier(len(runs))
    for run, snapshot in zip(runs, snapshots, strict=True):
        run._submit(snapshot, barrier)


def complete(folders: Sequence[Path]) -> None:
    """Name checkpoints that a killed `save_all` had written: if one has its name, all are on disk.

    Others are removed: a run that resumes from the one before writes its later metrics again, so the later
    one must never get its name.
    """
    named = {step for folder in folders for step in saved_steps(folder)}
    for folder in folders:
        for step in named - set(saved_steps(folder)):
            path = folder / f"{step:012d}"
            with suppress(Damaged):
                _good(_files.temporary(path), step, folder / STEPS)
                _files.publish(path)
        with suppress(FileNotFoundError):  # another process of the same run removes them too
            _files.remove_unfinished(folder)


def newest_good(folder: Path) -> int:
    """Step of the newest intact checkpoint, 0 if there never was one; an error if all are damaged."""
    damaged = []
    for step in reversed(saved_steps(folder)):
        try:
            _good(folder / f"{step:012d}", step, folder / STEPS)
        except Damaged as reason:
            damaged.append(str(reason))
        else:
            return step
    if damaged:
        raise CheckpointError(_all_damaged(folder, damaged))
    return 0


def _good(path: Path, step: int, chunks: Path, *, with_replay: bool = True) -> Manifest:
    """The manifest of an intact checkpoint. `Damaged` if it is not."""
    manifest = Manifest.read(path, step)
    manifest.verify(path, chunks, with_replay=with_replay)
    return manifest


def restore_all(
    runs: Sequence[Checkpoints], like: Sequence[PyTree], replays: Sequence[Replay]
) -> list[Restored] | None:
    """`Checkpoints.restore` for R runs: the newest step of which all have a good checkpoint, or None."""
    damaged: list[str] = []
    for step in sorted(set.intersection(*(set(saved_steps(run.folder)) for run in runs)), reverse=True):
        try:
            manifests = [run._verified(step, with_replay=True) for run in runs]
            found = zip(runs, manifests, like, replays, strict=True)
            return [run._load(manifest, example, replay) for run, manifest, example, replay in found]
        except Damaged as reason:
            damaged.append(str(reason))
    if damaged:
        folders = ", ".join(str(run.folder) for run in runs)
        raise CheckpointError(_all_damaged(folders, damaged))
    return None


def _all_damaged(folders: object, reasons: Iterable[str]) -> str:
    return (
        f"no checkpoint in {folders} can be used: {'; '.join(dict.fromkeys(reasons))}. Restore these "
        "files, or name another folder for a run from the beginning"
    )
