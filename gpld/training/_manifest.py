"""What a checkpoint consists of, and whether all of it is there."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpld.training import _files
from gpld.training._files import Digest

FORMAT = 1
"""Raised when checkpoints change so that older programs cannot read them."""

ARRAYS, LATENTS, BLOBS = "arrays", "latents", "blobs"
"""Folders of a checkpoint."""

_NAME, _CHECKSUM = "manifest.json", "manifest.sha256"


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read, in words for the user."""


class Damaged(Exception):  # noqa: N818
    """What is wrong with a checkpoint that cannot be used."""


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
        """Write it to the folder of its checkpoint, with a checksum as `sha256sum --check` wants it."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()
        digest = _files.write(folder / _NAME, text)
        _files.write(folder / _CHECKSUM, f"{digest.sha256}  {_NAME}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of the checkpoint in `folder`, or `Damaged`."""
        path, texts = folder, []
        try:
            for path in (folder / _NAME, folder / _CHECKSUM):
                texts.append(path.read_bytes())
        except FileNotFoundError:
            raise Damaged(f"{path} is missing") from None
        except OSError as error:
            raise Damaged(f"{path} cannot be read ({error.strerror})") from None
        if texts[1] != f"{hashlib.sha256(texts[0]).hexdigest()}  {_NAME}\n".encode():
            raise Damaged(f"{folder / _NAME} does not match {_CHECKSUM}")
        values = json.loads(texts[0])
        if (found := values.pop("format")) != FORMAT:
            raise CheckpointError(f"{folder} has format {found}, but this version of gpld reads {FORMAT}")
        values["chunks"] = [Chunk(begin, end, Digest(*digest)) for begin, end, digest in values["chunks"]]
        values["pieces"] = [(begin, end) for begin, end in values["pieces"]]
        values["files"] = {name: Digest(*digest) for name, digest in values["files"].items()}
        return cls(**values)

    def verify(self, folder: Path, chunks: Path, with_replay: bool) -> None:
        """Read all files, those of the replay if asked to. `Damaged` names each that is not as it was."""
        files = {
            folder / name: digest
            for name, digest in self.files.items()
            if with_replay or not name.startswith(f"{LATENTS}/")
        }
        if with_replay:
            files |= {chunks / chunk.name: chunk.digest for chunk in self.chunks}
        problems = [text for path, digest in files.items() if (text := _files.problem(path, digest))]
        if problems:
            raise Damaged("; ".join(problems))


def span(begin: int, end: int) -> str:
    """The steps [`begin`, `end`) in the name of a file."""
    return f"{begin:012d}-{end:012d}"
