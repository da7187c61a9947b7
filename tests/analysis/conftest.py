"""What measurements of trained agents share: two of them, DreamerV3's and GPLD's, that saw the same data."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from gpld import agent, replay
from gpld import config as options
from gpld.analysis import rollouts
from gpld.training import saved
from gpld.training.checkpoints import Checkpoints
from gpld.training.saved import Trained
from gpld.types import Spaces
from tests.training.helpers import OBSERVATIONS, tiny

SPACES = Spaces.of({name: (size,) for name, size in OBSERVATIONS.items()}, 1)
STEPS = (800, 1600)
"""Env steps that their checkpoints say."""
WEIGHTS = {"dreamerv3": 0.0, "gpld": 50.0}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders of both runs, each with two checkpoints."""
    folder = tmp_path_factory.mktemp("pair")
    base = tiny(agent={"penalty": {"schedule": "none"}})
    config = base.agent
    state = agent.init(config, SPACES, jax.random.key(0))
    batch = rollouts.roll_out(Trained(folder, base, SPACES, state.model, 0, 0), episodes=8, steps=40)

    @partial(jax.jit, static_argnums=1)
    def train(state, updates):
        return jax.lax.fori_loop(0, updates, lambda _, state: agent.update(config, state, batch)[0], state)

    empty = replay.init(SPACES, 1, 8, config.model.deter, config.model.stoch, "float32", "host")
    for name, weight in WEIGHTS.items():
        learner = state._replace(hyper=state.hyper._replace(posterior=jnp.float32(weight)))
        (folder / name).mkdir()
        changed = options.override(base, {"agent": {"penalty": {"posterior": weight}}})
        options.save(changed, folder / name / saved.CONFIG)
        saved.write_spaces(folder / name, SPACES)
        with Checkpoints(folder / name / saved.CHECKPOINTS) as checkpoints:
            for step in STEPS:
                learner = train(learner, 100)
                checkpoints.save(step, {"agent": learner}, empty, info={"updates": int(learner.updates)})
    return {name: folder / name for name in WEIGHTS}
