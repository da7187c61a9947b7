import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import agent, config as options, replay
from gpld.config import ConfigError
from gpld.training import CheckpointError, saved
from gpld.training.checkpoints import Checkpoints
from gpld.types import Spaces
from tests.training.helpers import tiny

SPACES = Spaces.of({"height": (), "arm": (2, 3)}, actions=3, discrete=True)
CONFIG = tiny("gym:Arm-v0")


def write(folder, steps=(100,), **more):
    """A run folder whose checkpoint of step n has parameters that are all n."""
    folder.mkdir()
    options.save(CONFIG, folder / saved.CONFIG)
    saved.write_spaces(folder, SPACES)
    sizes = CONFIG.agent.model
    empty = replay.init(SPACES, 1, 8, sizes.deter, sizes.stoch, "float32", "host")
    state = jax.jit(agent.init, static_argnums=(0, 1))(CONFIG.agent, SPACES, jax.random.key(0))
    with Checkpoints(folder / saved.CHECKPOINTS) as checkpoints:
        for step in steps:
            model = jax.tree.map(partial(jnp.full_like, fill_value=step), state.model)
            arrays = {"agent": state._replace(model=model), **more}
            checkpoints.save(step, arrays, empty, info={"updates": 7 * step})
    return folder


def test_spaces_come_back(tmp_path):
    saved.write_spaces(tmp_path, SPACES)
    assert saved.read_spaces(tmp_path) == SPACES
    assert [path.name for path in tmp_path.iterdir()] == ["spaces.json"]
    assert json.loads((tmp_path / "spaces.json").read_text())["obs"] == {"arm": [2, 3], "height": []}


def test_bounds_come_back_and_older_runs_have_none(tmp_path):
    bounded = Spaces.of({"height": ()}, actions=2, bounds=[(-1.0, 1.1), (0.0, 0.8)])
    saved.write_spaces(tmp_path, bounded)
    assert saved.read_spaces(tmp_path).bounds == ((-1.0, 1.1), (0.0, 0.8))
    older = {"obs": {"height": []}, "actions": 2, "discrete": False}
    (tmp_path / "spaces.json").write_text(json.dumps(older))
    assert saved.read_spaces(tmp_path).bounds == ()
    # What is compiled for one is what is compiled for the other.
    assert saved.read_spaces(tmp_path) == bounded
    assert repr(saved.read_spaces(tmp_path)) == repr(bounded)
    (tmp_path / "spaces.json").write_text(json.dumps(older | {"bounds": [[0.0, 1.0]]}))
    with pytest.raises(ConfigError, match="there are 1 for 2 actions"):
        saved.read_spaces(tmp_path)


def test_the_newest_checkpoint_is_loaded_without_a_replay_or_environment(tmp_path):
    folder = write(tmp_path / "run", steps=(100, 200))
    found = saved.load(folder)
    assert found[:3] == (folder, CONFIG, SPACES)
    assert (found.env_steps, found.updates) == (200, 1400)
    leaves = jax.tree.leaves(found.model)
    assert sum(leaf.size for leaf in leaves) > 1000
    assert all((np.asarray(leaf) == 200).all() for leaf in leaves)


def test_a_folder_is_found_from_another_one(tmp_path, monkeypatch):
    """Orbax takes no path with dots in it."""
    write(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert saved.load("../run").env_steps == 100


def test_the_checkpoint_of_a_step_is_loaded_and_no_other(tmp_path):
    folder = write(tmp_path / "run", steps=(100, 200))
    assert saved.steps(folder) == [100, 200]
    found = saved.load(folder, 100)
    assert (found.env_steps, found.updates) == (100, 700)
    assert all((np.asarray(leaf) == 100).all() for leaf in jax.tree.leaves(found.model))
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 150; it has 100, 200"):
        saved.load(folder, 150)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, caplog):
    folder = write(tmp_path / "run", steps=(100, 200))
    data = max((folder / "checkpoints" / f"{200:012d}").rglob("d/*"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1])
    assert saved.load(folder).env_steps == 100
    assert str(data) in caplog.text


def test_what_else_a_checkpoint_holds_does_not_matter(tmp_path):
    folder = write(tmp_path / "run", sums={"loss/of_another_version": np.zeros(3)})
    assert saved.load(folder).env_steps == 100


def test_other_sizes_than_the_checkpoints_are_named(tmp_path):
    folder = write(tmp_path / "run")
    options.save(options.override(CONFIG, {"agent": {"model": {"units": 9}}}), folder / saved.CONFIG)
    with pytest.raises(CheckpointError, match=r"agent\.model\.\S+ is float32\[.*8.*\] there, .*9.* here"):
        saved.load(folder)


def test_a_folder_without_a_run_or_checkpoint_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere' is not the folder of a run \(it has no config.json\)"):
        saved.load(tmp_path / "nowhere")
    folder = write(tmp_path / "run", steps=())
    with pytest.raises(CheckpointError, match=r"has no checkpoint yet: .* every 10 minutes"):
        saved.load(folder)
    (folder / saved.SPACES).write_text('{"obs": 3}')
    with pytest.raises(ConfigError, match=r"spaces.json: not a description of spaces"):
        saved.load(folder)
