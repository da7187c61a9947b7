"""What measurements of trained agents share: two of them, DreamerV3's and GPLD's, that saw the same data."""

import shutil
from functools import partial

import jax
import pytest

from gpld import agent, config as options, replay
from gpld.analysis import rollouts
from gpld.training import saved
from gpld.training.checkpoints import Checkpoints
from gpld.training.saved import Trained
from gpld.types import Spaces
from tests.sharing import made_once
from tests.training.helpers import OBSERVATIONS, tiny

SPACES = Spaces.of({name: (size,) for name, size in OBSERVATIONS.items()}, 1)
STEPS = (800, 1600)
"""Env steps that their checkpoints say."""
WEIGHTS = {"dreamerv3": 0.0, "gpld": 50.0}


@pytest.fixture(scope="session")
def runs(tmp_path_factory, small_run):
    """Folders of both runs, each with two checkpoints; tests may write there."""
    own = tmp_path_factory.mktemp("pair")
    made = made_once(tmp_path_factory, "pair", partial(train_both, small_run))
    shutil.copytree(made, own, dirs_exist_ok=True)
    return {name: own / name for name in WEIGHTS}


def train_both(small_run, folder):
    """Both begin as that run does, which saves the compilation of a beginning."""
    base = tiny(agent={"penalty": {"schedule": "none"}})
    config = base.agent
    shapes = jax.eval_shape(partial(agent.init, config, SPACES), jax.random.key(0))
    with Checkpoints(small_run / saved.CHECKPOINTS) as checkpoints:
        state = checkpoints.restore({"agent": shapes._replace(hyper=None)}, part=True).arrays["agent"]
    batch = rollouts.roll_out(Trained(folder, base, SPACES, state.model, 0, 0), episodes=2, steps=40)

    @jax.jit
    def train(state, batch):
        return jax.lax.fori_loop(0, 100, lambda _, state: agent.update(config, state, batch)[0], state)

    empty = replay.init(SPACES, 1, 8, config.model.deter, config.model.stoch, "float32", "host")
    for name, weight in WEIGHTS.items():
        changed = options.override(base, {"agent": {"penalty": {"posterior": weight}}})
        learner = state._replace(hyper=agent.Hyper.of(changed.agent))
        (folder / name).mkdir()
        options.save(changed, folder / name / saved.CONFIG)
        saved.write_spaces(folder / name, SPACES)
        with Checkpoints(folder / name / saved.CHECKPOINTS) as checkpoints:
            for step in STEPS:
                learner = train(learner, batch)
                checkpoints.save(step, {"agent": learner}, empty, info={"updates": int(learner.updates)})
