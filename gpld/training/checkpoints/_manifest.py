"""The manifest of a checkpoint: which files it consists of, and their hashes."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpld.files import LINK, read_bytes
from gpld.training.checkpoints import _files
from gpld.training.checkpoints._files import Digest

FORMAT = 2
"""The version of the format. In 1, which can still be read, environments were pickled, and are left out."""

ARRAYS, LATENTS, BLOBS = "arrays", "latents", "blobs"
"""Folders of a checkpoint."""

_NAME, _CHECKSUM = "manifest.json", "manifest.sha256"


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read, with a message for the user."""


class Damaged(Exception):  # noqa: N818
    """A checkpoint that cannot be used, with the reason."""


class Chunk(NamedTuple):
    """A file with the steps [`begin`, `end`) of all streams. Several checkpoints may need it."""

    begin: int
    end: int
    digest: Digest

    @property
    def name(self) -> str:
        """Its name in the folder of chunks."""
        return f"{span(self.begin, self.end)}.npy"


@dataclass(frozen=True)
class Manifest:
    """One checkpoint."""

    step: int
    begin: int
    """The oldest step that the replay holds, counted in each stream."""
    end: int
    """Steps ever appended to each stream of the replay."""
    consumed: int | list[int]
    """The replay's counter of this name, or one of each run."""
    chunks: list[Chunk]
    """Where the steps [`begin`, `end`) are, the oldest first."""
    pieces: list[tuple[int, int]]
    """How the latents of these steps are distributed over files."""
    arrays: dict[str, str]
    """Type and shape of every array."""
    keys: dict[str, str]
    """The generator of every array of random keys."""
    info: dict[str, Any]
    files: dict[str, Digest]
    """Everything else in the folder of this checkpoint, by relative path."""

    def write(self, folder: Path) -> None:
        """Write it to the folder of its checkpoint, with a checksum for `sha256sum --check`."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()
        digest = _files.write(folder / _NAME, text)
        _files.write(folder / _CHECKSUM, f"{digest.sha256}  {_NAME}\n".encode())

    @classmethod
    def read(cls, folder: Path, step: int) -> "Manifest":
        """The manifest of the checkpoint of `step` in `folder`, or `Damaged`."""
        for place in (folder.parent, folder):
            if place.is_symlink():
                raise Damaged(f"{place}: {LINK}")
        text, checksum = (_read(folder / name) for name in (_NAME, _CHECKSUM))
        if checksum != f"{hashlib.sha256(text).hexdigest()}  {_NAME}\n".encode():
            raise Damaged(f"{folder / _NAME} does not match {_CHECKSUM}")
        try:
            values = json.loads(text)
            if isinstance(values, dict) and type(found := values.get("format")) is int and found > FORMAT:
                reads = f"this version of gpld reads up to {FORMAT}"
                raise CheckpointError(f"{folder} has format {found}, but {reads}")
            manifest = cls._parsed(values)
            if manifest.step != step:
                raise ValueError(f"it is of step {manifest.step}")
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{folder / _NAME} is not the manifest of a checkpoint here: {error}") from None
        return manifest

    @classmethod
    def try_read(cls, folder: Path, step: int) -> "Manifest | None":
        """The manifest, or None if the checkpoint cannot be restored."""
        try:
            return cls.read(folder, step)
        except (Damaged, CheckpointError):
            return None

    @classmethod
    def _parsed(cls, values: Any) -> "Manifest":
        """The manifest of these values. A `ValueError` names what is wrong with them."""
        if not isinstance(values, dict) or values.keys() != _FIELDS.keys():
            found = sorted(values) if isinstance(values, dict) else type(values).__name__
            raise ValueError(f"it has {found} instead of {sorted(_FIELDS)}")
        for name, kind in _FIELDS.items():
            if type(values[name]) not in (kind if isinstance(kind, tuple) else (kind,)):
                raise ValueError(f"{name} is {str(values[name])[:60]!r}")
        if (found := values.pop("format")) < 1:
            raise ValueError(f"format is {found}")
        for name in ("step", "begin", "end"):
            _count(values[name])
        chunks = _lists(values["chunks"], 3)
        values["chunks"] = [Chunk(*_pair(chunk[:2]), _digest(chunk[2])) for chunk in chunks]
        values["pieces"] = [_pair(piece) for piece in _lists(values["pieces"], 2)]
        values["files"] = {_inside(name): _digest(digest) for name, digest in values["files"].items()}
        consumed = values["consumed"]
        for each in consumed if isinstance(consumed, list) else [consumed]:
            _count(each)
        for name in ("arrays", "keys"):
            if not all(isinstance(text, str) for text in values[name].values()):
                raise ValueError(f"{name} are not all texts")
        return cls(**values)

    def verify(self, folder: Path, chunks: Path, with_replay: bool) -> None:
        """Read all files, those of the replay only with `with_replay`. `Damaged` names all that changed."""
        files = {
            folder / name: digest
            for name, digest in self.files.items()
            if with_replay or not name.startswith(f"{LATENTS}/")
        }
        if with_replay:
            files |= {chunks / chunk.name: chunk.digest for chunk in self.chunks}
        folders = {folder.parent, folder, *({chunks} if with_replay else ())}
        folders |= {
            parent for name in self.files for parent in (folder / name).parents if folder in parent.parents
        }
        problems = [f"{path}: {LINK}" for path in sorted(folders) if path.is_symlink()]
        problems += [text for path, digest in files.items() if (text := _files.problem(path, digest))]
        if problems:
            raise Damaged("; ".join(problems))


_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("format", "step", "begin", "end"), int),
    "consumed": (int, list),
    **dict.fromkeys(("chunks", "pieces"), list),
    **dict.fromkeys(("arrays", "keys", "info", "files"), dict),
}


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:60]!r} is not a count")
    return value


def _lists(values: list[Any], length: int) -> list[list[Any]]:
    for value in values:
        if not isinstance(value, list) or len(value) != length:
            raise ValueError(f"{str(value)[:60]!r} is not a list of {length}")
    return values


def _pair(value: list[Any]) -> tuple[int, int]:
    begin, end = map(_count, value)
    if begin > end:
        raise ValueError(f"{value} are no steps")
    return begin, end


def _digest(value: Any) -> Digest:
    (size, sha256), *_ = _lists([value], 2)
    if not isinstance(sha256, str):
        raise ValueError(f"{str(sha256)[:60]!r} is not a checksum")
    return Digest(_count(size), sha256)


def _inside(name: str) -> str:
    """A path below the folder of a checkpoint, and none that leads out of it."""
    if not name.startswith((f"{ARRAYS}/", f"{LATENTS}/", f"{BLOBS}/")) or ".." in name.split("/"):
        raise ValueError(f"{name[:60]!r} is not a file of a checkpoint")
    return name


def span(begin: int, end: int) -> str:
    """The steps [`begin`, `end`) in the name of a file."""
    return f"{begin:012d}-{end:012d}"
