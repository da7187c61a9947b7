"""Trained agents as single files: in a path, in this package by name, or at a URL with a checksum.

An agent file is a ZIP archive of

    config.json, spaces.json   as in the folder of a run
    evaluation.json            episodes that were played with the agent
    model/PATH.npy             every parameter, float32, by its path in `Model`

It is read where it is: nothing is unpacked, nothing in it is run, and members of other names are ignored.
"""

import hashlib
import io
import re
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpld import files, machine
from gpld.config import ConfigError

BOX = Path(__file__).parent / "agents"
"""The agents that come with this package, NAME.zip."""

REMOTE = BOX / "remote.json"
"""Agents too large for that: name to URL, SHA-256 and bytes."""

SUFFIX = ".zip"
MODEL = "model/"
LARGEST = 2**31
"""Bytes of the largest file that is downloaded."""
LARGEST_TEXT = 2**20
"""Bytes of the largest JSON in an agent file."""

_NAME = re.compile(r"[\w.-]+@[a-z][\w-]*")
_URL = re.compile(r"((?:https?|file)://[^#]+)(#.*)?", re.IGNORECASE)
_CHECKSUM = re.compile(r"#sha256=([0-9a-f]{64})", re.IGNORECASE)


class Remote(NamedTuple):
    """A file that somebody hosts."""

    url: str
    sha256: str
    size: int = LARGEST


def names() -> list[str]:
    """Agents that are known by name: those in this package, then those that are downloaded."""
    return [*sorted(path.stem for path in BOX.glob(f"*{SUFFIX}")), *_remote()]


def locate(run: str | Path) -> Path:
    """The folder or agent file that `run` means: a path, NAME@demo, or URL#sha256=CHECKSUM.

    What is at a URL is downloaded once, to the user's cache folder.
    """
    text = str(run)
    if found := _URL.fullmatch(text):
        url, checksum = found.groups()
        sha256 = _CHECKSUM.fullmatch(checksum or "")
        if sha256 is None:
            raise ConfigError(f"run: {text} needs a checksum: URL#sha256= and 64 hexadecimal digits")
        return download(Remote(url, sha256[1].lower()))
    path = Path(run)
    if path.exists() or not _NAME.fullmatch(text):
        return path
    if text not in names():
        known = ", ".join(names()) or "none"
        raise ConfigError(f"run: {text!r} is neither a path nor a known agent; known are {known}")
    return download(_remote()[text]) if text in _remote() else BOX / f"{text}{SUFFIX}"


def outputs(run: Path) -> Path:
    """Where films and measurements of a run go: its folder, or runs/NAME for an agent file."""
    return Path("runs") / run.stem if run.is_file() else run


def download(remote: Remote) -> Path:
    """The file at a URL. Nothing is kept of one that has another checksum."""
    name = re.sub(r"[^\w.@-]", "_", remote.url.rpartition("/")[2]) or f"agent{SUFFIX}"
    path = machine.user_cache() / "agents" / remote.sha256[:16] / name
    if files.is_file(path) and hashlib.sha256(files.read_bytes(path)).hexdigest() == remote.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), remote.size
    try:
        with (
            urllib.request.urlopen(remote.url, timeout=60) as source,
            files.in_one_move(path) as unfinished,
            unfinished.open("wb") as target,
        ):
            while chunk := source.read(2**20):
                digest.update(chunk)
                left -= len(chunk)
                if left < 0:
                    raise ConfigError(f"run: {remote.url} is larger than the {remote.size:,} bytes expected")
                target.write(chunk)
            if digest.hexdigest() != remote.sha256:
                got = f"its SHA-256 is {digest.hexdigest()}, and not {remote.sha256}"
                raise ConfigError(f"run: {remote.url} is refused: {got}")
    except (urllib.error.URLError, OSError) as error:
        raise ConfigError(f"run: {remote.url} cannot be downloaded ({error})") from error
    return path


def write(path: Path, texts: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    """Write an agent file in one move; its SHA-256. The same agent always gives the same bytes."""
    members = {name: text.encode() for name, text in texts.items()}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
        members[f"{MODEL}{name}.npy"] = buffer.getvalue()
    with files.in_one_move(path) as unfinished, zipfile.ZipFile(unfinished, "w") as archive:
        for name, data in members.items():  # ZipInfo's default date, not today's
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    return hashlib.sha256(files.read_bytes(path)).hexdigest()


class AgentFile:
    """An agent file opened to read. What is wrong with it is a `DamagedFile`."""

    def __init__(self, path: Path):
        self._path = path
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(files.read_bytes(path)))
        except (zipfile.BadZipFile, OSError) as error:
            raise files.DamagedFile(f"{path}: not an agent file ({error})") from error

    def text(self, name: str) -> bytes:
        """A member with text."""
        return self._read(name, LARGEST_TEXT)

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A parameter, float32, of this shape."""
        member = f"{MODEL}{name}.npy"
        data = self._read(member, 4 * int(np.prod(shape)) + 1024)
        try:
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except ValueError as error:
            raise files.DamagedFile(f"{self._path}: {member} is not an array ({error})") from error
        if array.dtype != np.float32 or array.shape != shape:
            found = f"{array.dtype}{list(array.shape)}"
            raise files.DamagedFile(f"{self._path}: {member} is {found}, not float32{list(shape)}")
        return array

    def _read(self, member: str, most: int) -> bytes:
        try:
            if (size := self._archive.getinfo(member).file_size) > most:
                raise files.DamagedFile(f"{self._path}: {member} has {size:,} bytes, more than {most:,}")
            return self._archive.read(member)
        except KeyError:
            raise files.DamagedFile(f"{self._path}: it has no {member}") from None
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
            if isinstance(error, files.DamagedFile):
                raise
            raise files.DamagedFile(f"{self._path}: {member} cannot be read ({error})") from error


def _remote() -> dict[str, Remote]:
    return {name: Remote(**values) for name, values in files.read_json(REMOTE).items()}
