"""Agents in single files: packed, found by name, downloaded, refused."""

import hashlib
import json
import zipfile

import jax
import numpy as np
import pytest

import gpld
from gpld import cli
from gpld.config import ConfigError
from gpld.files import DamagedFile
from gpld.training import CheckpointError, agent_files, saved
from tests.training.test_saved import CONFIG, SPACES, write

SCORE = {"task": "gym:Arm-v0", "env_steps": 100, "updates": 700, "returns": [1.0, 2.0], "mean": 1.5}


@pytest.fixture
def packed(tmp_path):
    """A run's agent in a file, and its checksum."""
    trained, path = saved.load(write(tmp_path / "run")), tmp_path / "arm.zip"
    provenance = {"provenance": {"command": ["gpld", "pack", "/home/me/secret"], "gpld": "1"}}
    return path, saved.pack(trained, SCORE | provenance, path)


def test_an_packed_agent_comes_back_and_the_same_bytes_are_written_twice(packed, tmp_path):
    path, sha256 = packed
    found = saved.load(path)
    assert found.config == saved.config_of(path) == CONFIG
    assert found.spaces == SPACES
    assert (found.env_steps, found.updates) == (100, 700)
    assert saved.steps(path) == [100]
    assert all((np.asarray(leaf) == 100).all() for leaf in jax.tree.leaves(found.model))
    assert saved.evaluation_of(path)["mean"] == 1.5
    assert saved.pack(found, saved.evaluation_of(path), tmp_path / "again.zip") == sha256
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    with pytest.raises(CheckpointError, match="no checkpoint of step 5; it has 100"):
        saved.load(path, 5)


def test_no_path_of_this_machine_is_in_the_file(packed):
    provenance = saved.evaluation_of(packed[0])["provenance"]
    assert provenance == {"gpld": "1"}


def test_what_is_made_of_an_agent_file_goes_to_runs_and_not_beside_it(packed, tmp_path):
    assert str(saved.load(packed[0]).folder) == "runs/arm"
    assert saved.outputs(tmp_path / "run") == tmp_path / "run"


def altered(path, out, change):
    """A copy of an agent file with a changed dictionary of members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out


def test_other_members_are_never_unpacked(packed, tmp_path):
    path = altered(packed[0], tmp_path / "x.zip", lambda members: members.update({"../../evil": b"!"}))
    before = sorted(tmp_path.rglob("*"))
    assert saved.load(path).config == CONFIG
    assert sorted(tmp_path.rglob("*")) == before


BIAS, SCALE = "model/value.out.bias.npy", "model/value.mlp.layers.0.norm.scale.npy"


def pickled(members):
    members[BIAS] = members[BIAS].replace(b"'<f4'", b"'|O' ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.pop(BIAS), f"it has no {BIAS}"),
        (lambda members: members.pop("config.json"), "it has no config.json"),
        (pickled, "is not an array .*allow_pickle"),
        (lambda members: members.update({BIAS: b"\0" * 10**6}), "has 1,000,000 bytes, more than"),
        (
            lambda members: members.update({BIAS: members["model/value.mlp.layers.0.norm.scale.npy"]}),
            "is float32",
        ),
        (lambda members: members.update({"spaces.json": b"{"}), "spaces.json: Expecting"),
        (
            lambda members: members.update(
                {"config.json": members["config.json"].replace(b'"seed": 0', b'"seed": 1')}
            ),
            "does not match its checksum",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(packed, tmp_path, change, message):
    path = altered(packed[0], tmp_path / "x.zip", change)
    with pytest.raises(DamagedFile, match=rf"x\.zip: .*{message}"):
        saved.load(path)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x.zip").write_text("no")
    with pytest.raises(DamagedFile, match=r"x\.zip: not an agent file"):
        saved.load(tmp_path / "x.zip")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpld" / "agents"


def test_a_url_is_downloaded_once_and_verified(packed, cache):
    path, sha256 = packed
    found = agent_files.locate(f"{path.as_uri()}#sha256={sha256.upper()}")
    assert found.is_relative_to(cache)
    assert found.read_bytes() == path.read_bytes()
    assert saved.load(f"{path.as_uri()}#sha256={sha256}").config == CONFIG
    path.unlink()
    assert agent_files.locate(f"{path.as_uri()}#sha256={sha256}") == found
    found.write_bytes(b"changed")
    with pytest.raises(ConfigError, match=r"arm\.zip cannot be downloaded"):
        agent_files.locate(f"{path.as_uri()}#sha256={sha256}")


def test_a_wrong_checksum_is_refused_and_leaves_nothing(packed, cache):
    path, sha256 = packed
    wrong = "0" * 64
    with pytest.raises(ConfigError, match=rf"its SHA-256 is {sha256}, and not {wrong}"):
        agent_files.locate(f"{path.as_uri()}#sha256={wrong}")
    assert [file for file in cache.rglob("*") if file.is_file()] == []


def test_a_url_needs_a_checksum_and_a_size_is_kept(packed, cache):
    path, sha256 = packed
    for wrong in ("", "#sha256=00", f"#{sha256}"):
        with pytest.raises(ConfigError, match="needs a checksum"):
            agent_files.locate(path.as_uri() + wrong)
    with pytest.raises(ConfigError, match="larger than the 1,000 bytes"):
        agent_files.download(agent_files.Remote(path.as_uri(), sha256, 1000))
    assert [file for file in cache.rglob("*") if file.is_file()] == []


def test_larger_agents_are_named_in_a_table(packed, cache, tmp_path, monkeypatch):
    path, sha256 = packed
    table = {"arm@large": {"url": path.as_uri(), "sha256": sha256, "size": path.stat().st_size}}
    (tmp_path / "remote.json").write_text(json.dumps(table))
    monkeypatch.setattr(agent_files, "REMOTE", tmp_path / "remote.json")
    assert "arm@large" in agent_files.names()
    assert saved.load("arm@large").config == CONFIG


def test_an_unknown_name_lists_those_there_are(capsys):
    assert cli.main(["eval", "cartpole-swingup@dmeo"]) == 2
    message = capsys.readouterr().err
    assert "'cartpole-swingup@dmeo' is neither a path nor a known agent" in message
    assert "cartpole-swingup@demo" in message


@pytest.mark.parametrize("name", agent_files.names())
def test_the_agents_of_this_package_are_small_and_scored(name):
    path = agent_files.locate(name)
    assert path.stat().st_size <= 1_000_000
    about = saved.evaluation_of(path)
    assert about["task"] == name.partition("@")[0] == saved.load(name).config.task
    assert len(about["returns"]) >= 10
    assert about["mean"] == pytest.approx(np.mean(about["returns"]))


def test_an_agent_of_this_package_acts_and_is_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    policy = gpld.load("cartpole-swingup@demo")
    action = policy.act({"position": np.array([0.0, -1.0, 0.0]), "velocity": np.zeros(2)})
    assert action.shape == (1,)
    assert abs(action[0]) <= 1
    assert cli.main(["eval", "cartpole-swingup@demo", "--episodes", "2"]) == 0
    assert "written to runs/cartpole-swingup@demo/evaluation.json" in capsys.readouterr().out
    found = json.loads((tmp_path / "runs/cartpole-swingup@demo/evaluation.json").read_text())
    assert found["mean"] > 600
