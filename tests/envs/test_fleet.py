"""Environments of several runs beside each other are those of each run alone."""

import jax
import numpy as np
import pytest

from gpld import envs
from gpld.envs import EnvironmentFailure, Fleet
from tests.envs.helpers import need, run, same

COUNT, SEEDS = 3, (0, 5)


def make(seed, backend):
    return envs.make("cartpole-balance", count=COUNT, seed=seed, backend=backend)


def actions(steps):
    return np.random.default_rng(0).uniform(-1, 1, (steps, len(SEEDS), COUNT, 1)).astype(np.float32)


def of_run(steps, index):
    return [jax.tree.map(lambda x: x[index], step) for step in steps]


@pytest.mark.parametrize("backend", ["envpool", "dm_control"])
def test_every_run_steps_as_if_it_were_alone_and_goes_on_from_its_own_state(backend):
    need(backend)
    sequence = actions(12)
    with Fleet([make(seed, backend) for seed in SEEDS]) as fleet:
        assert (fleet.count, dict(fleet.spaces.obs)) == (COUNT, {"position": (3,), "velocity": (2,)})
        steps = [fleet.step(action) for action in sequence[:6]]
        states = fleet.save()
        steps += [fleet.step(action) for action in sequence[6:]]
        assert fleet.faults.tolist() == [0, 0]
    for index, seed in enumerate(SEEDS):
        with make(seed, backend) as alone:
            assert same(of_run(steps, index), run(alone, sequence[:, index]))
    with Fleet([make(seed, backend) for seed in SEEDS]) as fleet:
        assert fleet.restore(states) == [[], []]
        assert same([fleet.step(action) for action in sequence[6:]], steps[6:])


def test_a_run_that_fails_is_named():
    with Fleet([make(seed, "dm_control") for seed in SEEDS]) as fleet:

        def fail():
            raise EnvironmentFailure("the belt slipped")

        fleet.runs[1].recv = fail
        with pytest.raises(EnvironmentFailure, match="run 1 of 2: the belt slipped"):
            fleet.step(actions(1)[0])
        del fleet.runs[1].recv
