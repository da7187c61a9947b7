"""A snapshot of a run: how it is written to disk and read back."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from gpld import files
from gpld.replay import Replay, export, restore as restore_replay, stored
from gpld.training.checkpoints import _files, _trees
from gpld.training.checkpoints._copies import Copied, Room
from gpld.training.checkpoints._manifest import (
    ARRAYS,
    BLOBS,
    LATENTS,
    CheckpointError,
    Chunk,
    Damaged,
    Manifest,
    span,
)
from gpld.training.checkpoints._trees import CopiedTree

PIECE_BYTES = 2**28
"""Steps or latents moved between device and host at a time: neither may have room for a copy of them all."""

Blob = bytes | Callable[[], bytes]
"""Bytes, or a function that gives them, which the thread that writes calls."""

OBSOLETE = "agent.hyper."
"""Arrays of older checkpoints that are not read: hyperparameters are in a run's configuration."""


class Restored(NamedTuple):
    """The contents of a checkpoint."""

    step: int
    arrays: PyTree
    replay: Replay | None
    blobs: dict[str, bytes]
    info: dict[str, Any]


class Piece(NamedTuple):
    """The latents of the steps [`begin`, `end`), or the steps themselves."""

    begin: int
    end: int
    values: dict[str, Copied]

    def of(self, run: int) -> "Piece":
        """The piece of a run, of one with a leading run axis."""
        return self._replace(values={name: value.of(run) for name, value in self.values.items()})


@dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint, copied so that training cannot change them."""

    step: int
    tree: CopiedTree
    held: range
    """Steps that the replay holds."""
    new: range
    """Those of them that no checkpoint holds yet."""
    rows: list[Piece]
    """The new steps."""
    pieces: list[Piece]
    """The latents of all that are held."""
    consumed: int | list[int]
    blobs: dict[str, Blob]
    info: dict[str, Any]

    @classmethod
    def take(
        cls,
        step: int,
        arrays: PyTree,
        replay: Replay,
        blobs: dict[str, Blob],
        info: dict[str, Any],
        since: int,
    ) -> "Snapshot":
        """Copy everything; of the replay's steps, those from `since` on."""
        held, room = stored(replay), Room()
        new = range(max(held.start, since), held.stop)
        return cls(
            step=step,
            tree=_trees.copy(arrays, room),
            held=held,
            new=new,
            rows=list(_pieces(replay, ("steps",), new, room)),
            pieces=list(_pieces(replay, ("h", "z"), held, room)),
            consumed=np.asarray(replay.consumed).tolist(),
            blobs=dict(blobs),
            info=json.loads(json.dumps(info)),
        )

    def split(self, own: Sequence[PyTree], blobs: Sequence[dict[str, Blob]]) -> list["Snapshot"]:
        """The snapshot of each run, of one whose arrays and replay have a leading run axis.

        `own` are arrays, and `blobs` bytes, that each run has besides.
        """
        trees = self.tree.split(len(own))
        consumed = self.consumed if isinstance(self.consumed, list) else [self.consumed]
        return [
            replace(
                self,
                tree=trees[r].joined(_trees.copy(own[r], Room())),
                rows=[piece.of(r) for piece in self.rows],
                pieces=[piece.of(r) for piece in self.pieces],
                consumed=consumed[r],
                blobs=dict(blobs[r]),
            )
            for r in range(len(own))
        ]

    def write_steps(self, folder: Path) -> list[Chunk]:
        """Write the new steps, if there are any, as one more chunk, which is then complete."""
        if not self.new:
            return []
        path = folder / f"{span(self.new.start, self.new.stop)}.npy"
        rows = np.concatenate([piece.values["steps"].fetch() for piece in self.rows], axis=-2)
        digest = _files.write_array(_files.temporary(path), rows)
        _files.publish(path)
        return [Chunk(self.new.start, self.new.stop, digest)]

    def write(self, folder: Path, chunks: list[Chunk]) -> Manifest:
        """Write all but the steps to a new folder, on top of all chunks written so far."""
        for name in (LATENTS, BLOBS):
            (folder / name).mkdir(parents=True)
        _trees.write(folder / ARRAYS, {name: value.fetch() for name, value in self.tree.values.items()})
        written = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path: _files.sync_and_hash(path) for path in written}
        for piece in self.pieces:
            for name, values in piece.values.items():
                path = folder / _latents_name(piece.begin, piece.end, name)
                files[path] = _files.write_array(path, values.fetch())
        for name, blob in self.blobs.items():
            data = blob() if callable(blob) else blob
            files[folder / BLOBS / name] = _files.write(folder / BLOBS / name, data)
        manifest = Manifest(
            step=self.step,
            begin=self.held.start,
            end=self.held.stop,
            consumed=self.consumed,
            chunks=[chunk for chunk in chunks if chunk.end > self.held.start],
            pieces=[(piece.begin, piece.end) for piece in self.pieces],
            arrays=self.tree.specs,
            keys=self.tree.keys,
            info=self.info,
            files={path.relative_to(folder).as_posix(): digest for path, digest in files.items()},
        )
        manifest.write(folder)
        _files.sync_tree(folder)
        return manifest


def load(
    manifest: Manifest, folder: Path, chunks: Path, like: PyTree, replay: Replay | None, *, part: bool = False
) -> Restored:
    """Read a verified checkpoint; with `part`, only the arrays of `like`. `Damaged` if unreadable."""
    held = {name: spec for name, spec in manifest.arrays.items() if not name.startswith(OBSOLETE)}
    if differences := _trees.differences(like, held, part=part):
        more = [f"{len(differences) - 5} more"] if len(differences) > 5 else []
        raise CheckpointError(f"{folder} holds other arrays: {'; '.join(differences[:5] + more)}")
    try:
        arrays = _trees.read(folder / ARRAYS, like, manifest.keys)
    except ValueError as error:
        raise Damaged(f"{folder / ARRAYS} cannot be read ({error})") from error
    if replay is not None:
        consumed = np.asarray(manifest.consumed, np.int32)
        for begin, end in manifest.pieces:
            try:
                latents = {}
                for name in ("h", "z"):
                    with files.open_to_read(folder / _latents_name(begin, end, name)) as file:
                        latents[name] = np.load(file, allow_pickle=False)
                rows = _rows(manifest, chunks, begin, end)
                replay = restore_replay(replay, begin, rows, latents, consumed)
            except (ValueError, TypeError, IndexError) as error:  # and no other try: it may be half filled
                raise CheckpointError(f"the replay of {folder} cannot be read ({error})") from error
        if (held := stored(replay)) != range(manifest.begin, manifest.end):
            raise CheckpointError(
                f"{folder} has the steps [{manifest.begin}, {manifest.end}) of each stream, but a replay of "
                f"{replay.slots} slots would hold [{held.start}, {held.stop})"
            )
    blobs = {
        os.path.basename(name): files.read_bytes(folder / name)
        for name in manifest.files
        if name.startswith(f"{BLOBS}/")
    }
    return Restored(manifest.step, arrays, replay, blobs, manifest.info)


def _pieces(replay: Replay, rings: Sequence[str], steps: range, room: Room) -> Iterator[Piece]:
    """Copies of some steps in some of the rings, piece by piece."""
    step_bytes = sum(getattr(replay, ring).nbytes // replay.slots for ring in rings)
    size = max(PIECE_BYTES // step_bytes, 1)
    for begin in steps[::size]:
        end = min(begin + size, steps.stop)
        count = end - begin
        # Of few sizes, each of which is a program to compile.
        copies = export(replay, begin, end, rings, min(size, 1 << (count - 1).bit_length()))
        yield Piece(begin, end, {ring: room.keep(copy, count) for ring, copy in copies.items()})


def _latents_name(begin: int, end: int, name: str) -> str:
    return f"{LATENTS}/{span(begin, end)}.{name}.npy"


def _rows(manifest: Manifest, chunks: Path, begin: int, end: int) -> np.ndarray:
    """The steps [`begin`, `end`), gathered from the chunks that hold them."""
    parts = [
        np.load(chunks / chunk.name, mmap_mode="r", allow_pickle=False)[
            ..., max(begin - chunk.begin, 0) : end - chunk.begin, :
        ]
        for chunk in manifest.chunks
        if chunk.begin < end and begin < chunk.end
    ]
    return np.concatenate(parts, axis=-2)
