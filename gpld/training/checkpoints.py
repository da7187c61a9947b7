"""Checkpoints: everything a run needs to go on as if it had never stopped.

    checkpoints/
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
import shutil
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

__all__ = ["CheckpointError", "Checkpoints", "Restored", "restore_all", "save_all", "saved_steps"]

_log = logging.getLogger(__name__)


def saved_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, damaged or not, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


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
        self._chunks = self.folder / "steps"
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

    def _submit(self, snapshot: Snapshot) -> None:
        self._pending = self._thread.submit(self._write_or_explain, snapshot)

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
            manifest = Manifest.read(folder)
            manifest.verify(folder, self._chunks, with_replay=with_replay)
        except Damaged as reason:
            if folder.exists():
                _log.warning("checkpoint %s cannot be used: %s", folder, reason)
            raise
        return manifest

    def _load(self, manifest: Manifest, like: PyTree, replay: Replay | None, part: bool = False) -> Restored:
        restored = load(manifest, self._path(manifest.step), self._chunks, like, replay, part=part)
        self._newest = manifest
        return restored

    def clear(self) -> None:
        """Remove all checkpoints, for a run that begins anew."""
        self.wait()
        for step in self.saved():
            _files.remove_folder(self._path(step))
        self._newest = None

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:012d}"

    def _write_or_explain(self, snapshot: Snapshot) -> None:
        """What the thread does."""
        try:
            self._write(snapshot)
        except Exception as error:
            with suppress(OSError):
                self._tidy()
            raise CheckpointError(self._explain(snapshot.step, error)) from error

    def _write(self, snapshot: Snapshot) -> None:
        self._chunks.mkdir(parents=True, exist_ok=True)
        _files.sync_folder(self.folder.parent)
        self._tidy()
        chunks = [*(self._newest.chunks if self._newest else []), *snapshot.write_steps(self._chunks)]
        path = self._path(snapshot.step)
        manifest = snapshot.write(_files.temporary(path), chunks)
        _files.publish(path)
        self._newest = manifest
        self._tidy()

    def _tidy(self) -> None:
        """Remove what no kept checkpoint needs: older ones, damaged ones, and what crashes left behind."""
        for path in self.folder.glob(f"{_files.TEMPORARY}*"):
            _files.remove_folder(path)
        kept: list[Manifest] = []
        for step in reversed(self.saved()):
            manifest = self._manifest(step) if len(kept) < self.keep else None
            if manifest is None:
                _files.remove_folder(self._path(step))
            else:
                kept.append(manifest)
        needed = {chunk.name for manifest in kept for chunk in manifest.chunks}
        for path in self._chunks.iterdir():
            if path.name not in needed:
                path.unlink()

    def _manifest(self, step: int) -> Manifest | None:
        """The manifest of a checkpoint that one could go back to.

        Not of one newer than that which this run goes on from: it was damaged, and its steps are lived anew.
        """
        if self._newest is None or step > self._newest.step:
            return None
        try:
            return Manifest.read(self._path(step))
        except Damaged:
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

    `own` are arrays that each run has besides. No run is saved before the last step is safe in all: if they
    keep two checkpoints or more, there is always a step that all of them have.
    """
    for run in runs:
        run.wait()
    known = [run._has(step) for run in runs]
    if all(known):
        return
    since = min(run._newest.end if run._newest else 0 for run in runs)
    snapshots = Snapshot.take(step, arrays, replay, {}, info, since).split(own, blobs)
    for run, snapshot in zip(runs, snapshots, strict=True):
        run._submit(snapshot)


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
        "back, or remove the folder of the run to start it anew"
    )
