"""What benchmarks/start.py types, waits for, and writes."""

import json
import re
import sys
from pathlib import Path

import pytest

from gpld.config import ConfigError
from tests import scripts


@pytest.fixture(scope="module")
def start():
    return scripts.load("benchmarks/start.py")


def test_every_start_is_new_and_all_but_the_first_find_its_cache(start, tmp_path: Path, monkeypatch):
    seen = []

    def made_up(typed, cache, folder):
        seen.append((cache, folder, list(folder.iterdir())))
        return 40.0 if len(seen) == 1 else 7.0 + len(seen)

    monkeypatch.setattr(start, "seconds_to_first_update", made_up)
    start.main(start.Options(seeds=2, preset=("nano", "cpu"), warm=2, name="start-2.5", out=tmp_path))
    (path,) = tmp_path.iterdir()
    written = json.loads(path.read_text())
    assert path.name == "start-2.5.json"
    assert [(row["cache"], row["seconds"]) for row in written["rows"]] == [
        ("empty", 40.0),
        ("warm", 9.0),
        ("warm", 10.0),
    ]
    assert written["typed"][:5] == ["walker-run", "--seeds", "0..1", "--method", "both"]
    assert str(tmp_path) not in written["options"]
    assert len({cache for cache, _, _ in seen}) == 1
    assert len({folder for _, folder, _ in seen}) == 3
    assert not any(inside for _, _, inside in seen)


def test_a_run_has_learned_when_it_has_logged_an_update(start, tmp_path: Path):
    timing = tmp_path / "runs" / "gpld-seed0" / "timing.jsonl"
    assert not start.has_learned(tmp_path)
    timing.parent.mkdir(parents=True)
    timing.write_text("")
    assert not start.has_learned(tmp_path)
    timing.write_text('{"env_steps": 64, "updates": 0, "seconds": 1.0}\n')
    assert not start.has_learned(tmp_path)
    with timing.open("a") as file:
        file.write('{"env_steps": 2080, "updates": 8, "seconds": 2.0}\n')
    assert start.has_learned(tmp_path)


def test_a_process_lives_until_its_first_update(start, tmp_path: Path, monkeypatch):
    typed, caches = [], []

    class Process:
        def __init__(self, command, *, env, **_):
            typed.extend(command)
            caches.append(env["JAX_COMPILATION_CACHE_DIR"])

        def poll(self):
            return None

        def kill(self):
            typed.append("killed")

        def wait(self):
            typed.append("gone")

    looked = iter([False, False, True])
    monkeypatch.setattr(start.subprocess, "Popen", Process)
    monkeypatch.setattr(start, "has_learned", lambda folder: next(looked))
    assert start.seconds_to_first_update(["walker-run"], tmp_path / "c", tmp_path) >= 2 * start.POLL_SECONDS
    assert caches == [str(tmp_path / "c")]
    assert typed[:5] == [sys.executable, "-m", "gpld", "train", "walker-run"]
    assert typed[-2:] == ["killed", "gone"]


def test_a_start_that_fails_says_why(start, tmp_path: Path):
    with pytest.raises(SystemExit, match="task: 'walker-fly' is not allowed"):
        start.seconds_to_first_update(["walker-fly"], tmp_path / "cache", tmp_path)


def test_a_machine_without_a_gpu_gets_small_agents(start):
    assert start.fitting() == ("nano", "cpu")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": 0}, "seeds: 0 is not allowed; it must be at least 1"),
        ({"warm": 0}, "warm: 0 is not allowed; it must be at least 1"),
        ({"preset": ("13m",)}, "preset: '13m' is not a preset"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_anything_is_written(start, tmp_path, wrong, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        start.main(start.Options(out=tmp_path, **wrong))
    assert not list(tmp_path.iterdir())
