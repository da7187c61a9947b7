"""Files of run folders: no link is followed, and nothing but files is opened."""

import ast
import json
import os
from pathlib import Path

import pytest

from gpld import config as options, files, results
from gpld.analysis.report import _runs
from gpld.config import Config, ConfigError, LogConfig
from gpld.files import DamagedFile
from gpld.training import _program_cache, provenance
from gpld.training._lock import locked
from gpld.training.logs import Logs
from gpld.training.score import Score
from tests.results.helpers import rows


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("of somebody else")
    yield path
    assert path.read_text() == "of somebody else"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_a_lock_that_is_a_link_is_refused(run, secret):
    (run / ".lock").symlink_to(secret)
    words = r"out: .*\.lock cannot be written \(it is a symbolic link"
    with pytest.raises(ConfigError, match=words), locked(Config("walker-walk"), run):
        pass


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        "checkpoints/steps",
        "checkpoints/set-aside",
        "milestones",
        "milestones/set-aside",
        "wandb",
    ],
)
def test_folders_that_are_links_are_refused(run, tmp_path, name):
    (tmp_path / "other").mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(tmp_path / "other")
    words = f"out: .*{name}: it is a symbolic link"
    with pytest.raises(ConfigError, match=words), locked(Config("walker-walk"), run):
        pass


def test_writing_replaces_a_link_and_what_lies_in_the_way(run, secret):
    for name in ("evaluation.json", "evaluation.json.partial", f".evaluation.json.{os.getpid()}.partial"):
        (run / name).symlink_to(secret)
    path = Score("walker-walk", 1, 1, 0, [1.0]).write(run)
    assert not path.is_symlink()
    assert json.loads(path.read_text())["returns"] == [1.0]


def test_what_was_not_written_whole_is_not_there(run):
    with pytest.raises(ZeroDivisionError), files.in_one_move(run / "file") as unfinished:
        unfinished.write_text("half" * (1 // 0))
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "metrics.undone.jsonl"])
def test_metrics_are_not_written_through_a_link(run, secret, name):
    if name == "metrics.undone.jsonl":
        (run / "metrics.jsonl").write_text('{"env_steps": 8, "updates": 1}\n')
    (run / name).symlink_to(secret)
    with pytest.raises(OSError, match="it is a symbolic link"):
        Logs(run, options.LogConfig(tensorboard=False), {})


@pytest.mark.parametrize(
    "read",
    [
        lambda run: options.load(run / "config.json"),
        lambda run: provenance.starts(run),
        lambda run: files.read_bytes(run / "film.png"),
    ],
)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_files_are_read(run, secret, read, kind):
    for name in ("config.json", "run.json", "film.png"):
        if kind == "link":
            (run / name).symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(run / name)
        else:
            (run / name).mkdir()
    words = {"link": "it is a symbolic link", "pipe": "it is not a regular file", "folder": "Is a directory"}
    with pytest.raises((OSError, ConfigError), match=words[kind]):
        read(run)


def test_a_film_that_is_a_link_is_not_in_the_report(run, secret):
    (run / "film.png").symlink_to(secret)
    assert _runs.films_of("run", run) == []
    (run / "film-1.png").write_bytes(b"a picture")
    (run / "film-1.mp4").symlink_to(secret)
    (film,) = _runs.films_of("run", run)
    assert film.playing is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"starts": 3}', '{"starts": [3]}', "[" * 100_000])
def test_a_damaged_list_is_named(run, text):
    (run / "run.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"run\.json: not a list of starts .* move it away to continue"):
        provenance.starts(run)


@pytest.mark.parametrize("name", ["parquet", "events", "program"])
def test_results_tensorboard_and_programs_are_not_written_or_read_through_links(
    name, run, secret, tmp_path, monkeypatch
):
    before = secret.read_bytes()
    if name == "parquet":
        table = rows(tasks=["t"], methods=["m"], seeds=1)
        path = results.write(run, table)
        elsewhere = tmp_path / "elsewhere"
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        with pytest.raises(ConfigError, match=files.LINK):
            results.load(run)
        monkeypatch.setattr("time.time_ns", lambda: int(path.stem.rpartition("-")[2]))
        path.unlink()
        path.symlink_to(secret)
        results.write(run, table)
        assert not path.is_symlink()
    elif name == "events":
        monkeypatch.setattr("time.time", lambda: 1000.0)
        monkeypatch.setattr("socket.gethostname", lambda: "here")
        (run / "events.out.tfevents.1000.here.0001").symlink_to(secret)
        with pytest.raises(OSError, match=files.LINK):
            Logs(run, LogConfig(tensorboard=True), {})
    else:
        path = run / "program"
        path.symlink_to(secret)
        assert not _program_cache._is_own(path)
        _program_cache._write(path, lambda: b"compiled")
        assert path.read_bytes() == b"compiled"
        assert not path.is_symlink()
    assert secret.read_bytes() == before


def test_everything_is_written_by_these_functions():
    """Or to the new, empty file that `in_one_move` gives."""
    package = Path(files.__file__).parent
    found = {
        f"{path.relative_to(package).as_posix()}: {ast.unparse(call)[:80]}"
        for path in package.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and writes(call)
    }
    # A new file in a folder that has no name yet, and strings.
    assert {text for text in found if "path.open('xb')" not in text} == set()


def writes(call):
    """Whether a call writes to a path, unless that is one of ours, still without its name."""
    name, owner = getattr(call.func, "attr", ""), ast.unparse(getattr(call.func, "value", call.func))
    given = [ast.unparse(argument) for argument in call.args]
    if name in ("write_text", "write_bytes"):
        return owner not in ("files", "unfinished")
    if name in ("to_csv", "savefig"):
        return bool(given) and given[0] != "unfinished"
    if name == "open" or getattr(call.func, "id", "") == "open":
        mode = next((text for text in given if text in MODES), "")
        return bool(mode) and owner not in ("unfinished", "av")
    return False


MODES = {repr(a + b) for a in "wax" for b in ("", "b", "t")}
