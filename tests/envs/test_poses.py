import numpy as np
import pytest

from gpld.envs import Poses


def play(task, steps, seed=1):
    """Observations and positions of an episode with random actions, each held for two env steps."""
    from dm_control import suite

    domain, _, name = task.partition("-")
    env = suite.load(domain, name, task_kwargs={"random": seed})
    rng, actions, time_step = np.random.default_rng(seed), env.action_spec(), env.reset()
    for _ in range(steps):
        yield time_step.observation, env.physics.data.qpos.copy()
        action = rng.uniform(actions.minimum, actions.maximum)
        for _ in range(2):
            time_step = env.step(action)


@pytest.mark.parametrize(
    ("task", "tolerance"),
    [("cartpole-swingup", 1e-3), ("cheetah-run", 0.05), ("walker-run", 0.15), ("hopper-hop", 0.15)],
)
def test_poses_are_found_from_observations(task, tolerance):
    """Joint angles are those of the simulation, and what is not observed drifts little: how far one ran."""
    poses = Poses(task, action_repeat=2, render=False)
    for obs, positions in play(task, 15):
        found = poses.follow(obs)
        np.testing.assert_allclose(found, positions, atol=tolerance)
    poses.close()


def test_observed_angles_are_met_closely():
    poses = Poses("cheetah-run", action_repeat=2, render=False)
    for obs, positions in play("cheetah-run", 10):
        found = poses.follow(obs)
        np.testing.assert_allclose(found[1:], positions[1:], atol=0.01)  # all but how far it ran
    poses.close()
