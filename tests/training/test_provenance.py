import json
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version

import jax
import pytest

import gpld
from gpld.files import DamagedFile
from gpld.training import provenance as module
from gpld.training.provenance import RUN, provenance, record


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_it_says_what_ran():
    found = provenance()
    assert found["gpld"] == gpld.__version__
    assert found["packages"]["jax"] == version("jax")
    assert found["packages"]["mujoco"] == version("mujoco")
    assert found["device"] == {
        "platform": "cpu",
        "kind": jax.devices()[0].device_kind,
        "count": jax.device_count(),
    }
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found["date"])).total_seconds()) < 60
    assert found["command"]


def test_the_commit_is_that_of_the_checkout(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "a")
    (tmp_path / "untracked").write_text("1")
    assert module._git(tmp_path) == {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a.py").write_text("2")
    assert module._git(tmp_path)["dirty"] is True


def test_somebody_elses_checkout_is_not_taken_for_ours(tmp_path):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "theirs")
    (tmp_path / "site-packages").mkdir()
    assert module._git(tmp_path / "site-packages") is None


@pytest.mark.parametrize("content", [None, "gitdir: /nowhere"])
def test_without_git_it_does_not_fail(tmp_path, monkeypatch, content):
    if content is None:
        git(tmp_path, "init")
        monkeypatch.setenv("PATH", "")
    else:
        (tmp_path / ".git").write_text(content)
    assert module._git(tmp_path) is None


def test_what_is_missing_is_none(monkeypatch):
    def fail():
        raise RuntimeError("no device")

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setattr(module, "PACKAGES", ("jax", "not-a-package"))
    found = provenance()
    assert found["device"] is None
    assert found["packages"] == {"jax": version("jax"), "not-a-package": None}


def test_every_start_is_recorded(tmp_path):
    record(tmp_path, 0)
    record(tmp_path, 5000)
    starts = json.loads((tmp_path / RUN).read_text())["starts"]
    assert [start["env_steps"] for start in starts] == [0, 5000]
    assert starts[1]["packages"] == provenance()["packages"]
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / RUN).write_text("{")
    with pytest.raises(DamagedFile, match=r"run\.json: not a list of starts"):
        record(tmp_path, 0)
