import shutil

import jax
import numpy as np
import pytest

from gpld.training import CheckpointError, saved, warm_start
from gpld.training.checkpoints import _trees, milestones, saved_steps
from gpld.training.checkpoints._copies import Room
from gpld.training.checkpoints._manifest import Manifest
from tests.training.test_saved import write


def kept(folder):
    return saved_steps(folder / milestones.MILESTONES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs with checkpoints of steps 100 and 200 and milestones of 50 and 150; models are numbers."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "one", steps=(100, 200))
    shutil.copytree(folder / "one", folder / "two")
    zeros = jax.tree.map(lambda x: np.zeros_like(x, shape=(2, *x.shape)), saved.load(folder / "one").model)
    for step in (50, 150):
        models = jax.tree.map(
            lambda x, n=step: x + np.float32([n, n + 1]).reshape(2, *[1] * (x.ndim - 1)), zeros
        )
        milestones.save([folder / "one", folder / "two"], step, models, updates=3 * step)
    return folder


@pytest.fixture
def runs(made, tmp_path):
    """The two runs, to be changed."""
    shutil.copytree(made, tmp_path / "runs")
    return [tmp_path / "runs" / name for name in ("one", "two")]


def test_each_run_keeps_its_own_model_and_reads_it_by_its_step(made):
    for number, name in enumerate(("one", "two")):
        folder = made / name
        assert kept(folder) == [50, 150]
        assert saved.steps(folder) == [50, 100, 150, 200]
        found = saved.load(folder, 150)
        assert (found.env_steps, found.updates) == (150, 450)
        assert all((np.asarray(leaf) == 150 + number).all() for leaf in jax.tree.leaves(found.model))
    assert saved.load(made / "one").env_steps == 200  # the newest checkpoint, as before
    with pytest.raises(CheckpointError, match="has no checkpoint of step 75; it has 50, 100, 150, 200"):
        saved.load(made / "one", 75)


def test_they_hold_the_parameters_and_nothing_else(made):
    manifest = Manifest.read(made / "one" / "milestones" / f"{50:012d}", 50)
    parameters = {
        f"agent.model.{name}" for name in _trees.copy(saved.load(made / "one").model, Room()).values
    }
    assert manifest.arrays.keys() == parameters
    assert manifest.chunks == manifest.pieces == []
    assert {name.partition("/")[0] for name in manifest.files} == {"arrays"}


def test_every_file_is_checked(runs, caplog):
    data = max((runs[0] / "milestones" / f"{50:012d}").rglob("d/*"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[::-1])
    with pytest.raises(CheckpointError, match=f"{data} does not match its checksum"):
        saved.load(runs[0], 50)
    assert str(data) in caplog.text
    assert saved.load(runs[1], 50).env_steps == 50


def test_a_milestone_is_taken_where_all_checkpoints_are_damaged(runs):
    for path in (runs[0] / "checkpoints").glob("0*/manifest.json"):
        path.unlink()
    assert saved.load(runs[0]).env_steps == 150
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*checkpoints can be used"):
        saved.load(runs[0], 200)
    shutil.rmtree(runs[0] / "milestones")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*checkpoints can be used"):
        saved.load(runs[0])


def test_what_comes_again_is_set_aside_and_what_is_torn_is_removed(runs):
    torn = runs[0] / "milestones" / ".tmp-000000000250"
    torn.mkdir()
    aside = milestones.set_aside(runs[0], after=100)
    assert sorted(path.name for path in (runs[0] / "milestones").iterdir()) == [f"{50:012d}", "set-aside"]
    assert [path.name for path in aside] == [f"{150:012d}"]
    assert (aside[0] / "manifest.json").exists()
    assert milestones.set_aside(runs[1], after=150) == []
    assert kept(runs[1]) == [50, 150]
    assert len(milestones.set_aside(runs[1], after=0)) == 2
    assert kept(runs[1]) == []
    assert saved.load(runs[1]).env_steps == 200


def test_none_is_written_behind_a_link(runs, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "milestones").symlink_to(tmp_path / "elsewhere")
    models = jax.tree.map(lambda x: x[None], saved.load(runs[0]).model)
    with pytest.raises(OSError, match="it is a symbolic link"):
        milestones.save([tmp_path / "run"], 50, models, updates=1)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_can_begin_with_a_step_of_another(runs, tmp_path):
    assert warm_start.source_of(f"{runs[0]}@150") == (str(runs[0]), 150)
    assert warm_start.source_of(str(runs[0])) == (str(runs[0]), None)
    for name in ("me@home", "run@3"):  # folders may be called so
        (tmp_path / name).mkdir()
        assert warm_start.source_of(str(tmp_path / name)) == (str(tmp_path / name), None)
