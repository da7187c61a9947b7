"""A snapshot of a run: how it is written to disk and read back."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from gpld import files
from gpld.replay import Replay, export_latents, export_steps, restore as restore_replay, stored
from gpld.training.checkpoints import _files, _trees
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
from gpld.training.checkpoints._trees import HostTree

PIECE_BYTES = 2**28
"""Latents moved between device and host at a time: the device may have no room for a copy of them all."""


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
    """The latents of the steps [`begin`, `end`)."""

    begin: int
    end: int
    latents: dict[str, np.ndarray]


@dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint in host memory, where training cannot change them."""

    step: int
    tree: HostTree
    held: range
    """Steps that the replay holds."""
    new: range
    """Those of them that no checkpoint holds yet."""
    rows: np.ndarray
    """The new steps, `[..., n, F]`."""
    pieces: list[Piece]
    consumed: int | list[int]
    blobs: dict[str, bytes]
    info: dict[str, Any]

    @classmethod
    def take(
        cls,
        step: int,
        arrays: PyTree,
        replay: Replay,
        blobs: dict[str, bytes],
        info: dict[str, Any],
        since: int,
    ) -> "Snapshot":
        """Copy everything; of the replay's steps, those from `since` on."""
        held = stored(replay)
        new = range(max(held.start, since), held.stop)
        return cls(
            step=step,
            tree=_trees.fetch(arrays),
            held=held,
            new=new,
            rows=np.asarray(export_steps(replay, new.start, new.stop)),
            pieces=list(_pieces(replay, held)),
            consumed=np.asarray(replay.consumed).tolist(),
            blobs=dict(blobs),
            info=json.loads(json.dumps(info)),
        )

    def split(self, own: Sequence[PyTree], blobs: Sequence[dict[str, bytes]]) -> list["Snapshot"]:
        """The snapshot of each run, of one whose arrays and replay have a leading run axis.

        `own` are arrays, and `blobs` bytes, that each run has besides.
        """
        trees = self.tree.split(len(own))
        consumed = self.consumed if isinstance(self.consumed, list) else [self.consumed]
        return [
            replace(
                self,
                tree=trees[r].joined(_trees.fetch(own[r])),
                rows=self.rows[r],
                pieces=[Piece(p.begin, p.end, {k: x[r] for k, x in p.latents.items()}) for p in self.pieces],
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
        digest = _files.write_array(_files.temporary(path), self.rows)
        _files.publish(path)
        return [Chunk(self.new.start, self.new.stop, digest)]

    def write(self, folder: Path, chunks: list[Chunk]) -> Manifest:
        """Write all but the steps to a new folder, on top of all chunks written so far."""
        for name in (LATENTS, BLOBS):
            (folder / name).mkdir(parents=True)
        _trees.write(folder / ARRAYS, self.tree.values)
        written = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path: _files.sync_and_hash(path) for path in written}
        for piece in self.pieces:
            for name, values in piece.latents.items():
                path = folder / _latents_name(piece.begin, piece.end, name)
                files[path] = _files.write_array(path, values)
        for name, data in self.blobs.items():
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


def _pieces(replay: Replay, held: range) -> Iterator[Piece]:
    step_bytes = (replay.h.nbytes + replay.z.nbytes) // replay.slots
    size = max(PIECE_BYTES // step_bytes, 1)
    for begin in held[::size]:
        end = min(begin + size, held.stop)
        latents = export_latents(replay, begin, end)
        yield Piece(begin, end, {name: np.asarray(values) for name, values in latents.items()})


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
