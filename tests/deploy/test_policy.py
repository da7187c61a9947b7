import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from dm_env import specs
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import gpld
from gpld import agent
from gpld.config import ConfigError
from gpld.deploy import Policy
from gpld.training import evaluation, saved
from gpld.types import Spaces
from tests.training.helpers import tiny

ROOT = Path(__file__).parents[2]
OBS = {"position": np.array([0.1, 0.2, -0.3]), "velocity": np.array([1.0, -1.0])}
DISCRETE = Spaces.of({"height": (), "arm": (2, 3)}, actions=5, discrete=True)


@pytest.fixture
def policy(small_run):
    return gpld.load(small_run, seed=11)


@pytest.fixture(scope="module")
def chooser():
    """A policy of discrete actions, and its observations of one and of three environments."""
    config = tiny("gym:Arm-v0")
    model = jax.jit(agent.init, static_argnums=(0, 1))(config.agent, DISCRETE, jax.random.key(0)).model
    rng = np.random.default_rng(0)
    one = {"height": 1.5, "arm": rng.normal(size=(2, 3))}
    three = {"height": rng.normal(size=3), "arm": rng.normal(size=(3, 2, 3))}
    return (lambda **options: Policy(config, DISCRETE, model, **options)), one, three


def batched(count):
    rng = np.random.default_rng(count)
    return {"position": rng.normal(size=(count, 3)), "velocity": rng.normal(size=(count, 2))}


def test_it_acts_as_in_evaluation(small_run):
    """The same numbers as `play` draws with the key of the seed, over whole episodes that begin again."""
    trained = saved.load(small_run)
    policy = gpld.load(small_run, seed=4)
    seen, sent = [], []
    with evaluation.make_env(trained.config, 2, number=9) as env:
        send = env.send

        def spy(action):
            sent.append(action)
            send(action)

        env.send = spy
        evaluation.play(trained.config.agent, trained.model, env, jax.random.key(4), seen.append)
    assert len(seen) == 501
    given = [policy.act(s.obs, s.is_first) for s in seen]
    expected = [np.clip(action, -1, 1) for action in sent[1:]]
    np.testing.assert_array_equal(given[:-1], expected)
    assert len(np.unique(given)) > 500


def test_one_environment_is_a_batch_of_one(policy, small_run):
    other = gpld.load(small_run, seed=11)
    for _ in range(3):
        one = policy.act(OBS)
        (of_batch,) = other.act({name: value[None] for name, value in OBS.items()})
        assert (one.shape, one.dtype) == ((1,), np.float32)
        np.testing.assert_array_equal(one, of_batch)


def test_actions_are_within_bounds_and_reach_them(policy):
    actions = policy.act(batched(500))
    assert actions.shape == (500, 1)
    assert (actions.min(), actions.max()) == (-1.0, 1.0)
    assert 0.3 < np.mean(np.abs(actions) < 1) < 0.9


def test_the_seed_decides(policy, small_run):
    same, other = gpld.load(small_run, seed=11), gpld.load(small_run, seed=12)
    acts = [[p.act(OBS).item() for _ in range(5)] for p in (policy, same, other)]
    assert acts[0] == acts[1]
    assert {x for x in acts[0] if abs(x) < 1}.isdisjoint(acts[2])


def latent(policy):
    return np.asarray(policy._carry.latent.h)


def test_it_remembers_until_an_episode_begins(policy):
    policy.act(OBS)
    first = latent(policy)
    policy.act(OBS)
    assert np.abs(latent(policy) - first).max() > 1e-3
    for begin in (lambda: policy.act(OBS, True), lambda: (policy.reset(), policy.act(OBS))):
        begin()
        # h depends on the past alone: that of a first observation is always the same.
        np.testing.assert_array_equal(latent(policy), first)
        policy.act(OBS, is_first=False)


def test_each_environment_begins_for_itself(policy):
    obs = batched(3)
    policy.act(obs)
    first = latent(policy)
    policy.act(obs, np.array([False, True, False]))
    np.testing.assert_array_equal(latent(policy)[1], first[1])
    assert np.abs(latent(policy) - first).max(-1)[[0, 2]].min() > 1e-4


def test_deterministic_actions_are_the_likeliest(policy, small_run):
    other = gpld.load(small_run, seed=12)
    for _ in range(3):
        action = policy.act(OBS, deterministic=True)
        np.testing.assert_array_equal(action, other.act(OBS, deterministic=True))
        np.testing.assert_array_equal(policy._carry.latent.z, other._carry.latent.z)
    policy.reset()
    mean = policy.act({name: value[None] for name, value in OBS.items()}, deterministic=True)
    policy.reset()
    drawn = policy.act({name: np.repeat(value[None], 500, 0) for name, value in OBS.items()})
    assert abs(mean.item()) < 1
    assert drawn.min() < mean.item() < drawn.max()


SPACE = Dict({"position": Box(-9, 9, (3,)), "velocity": Box(-9, 9, (2,))})


def test_with_an_environment_it_speaks_that_environments_language(small_run):
    trained = saved.load(small_run)
    space = Box(np.array([[0.0]]), np.array([[8.0]]), dtype=np.float64)
    plain = gpld.load(small_run, seed=3)
    own = gpld.load(small_run, seed=3, env=SimpleNamespace(action_space=space, observation_space=SPACE))
    for _ in range(3):
        action = own.act({"position": OBS["position"], "velocity": OBS["velocity"]})
        assert (action.shape, action.dtype) == ((1, 1), np.float64)
        np.testing.assert_allclose(action.item(), 4 + 4 * plain.act(OBS).item())
    both = gpld.load(small_run, env=SimpleNamespace(action_space=space, observation_space=SPACE)).act(
        batched(2)
    )
    assert both.shape == (2, 1, 1)
    spec = specs.BoundedArray((1,), np.float32, minimum=-2.0, maximum=0.0)
    suite = gpld.load(small_run, seed=3, env=SimpleNamespace(action_spec=lambda: spec))
    first = gpld.load(small_run, seed=3).act(OBS).item()
    np.testing.assert_allclose(suite.act(OBS), [first - 1], rtol=1e-6)
    for wrong in (Box(-1, 1, (2,)), Discrete(1)):
        with pytest.raises(
            ValueError, match=r"^env: its actions, .*, do not fit the agent's, which are 1 numbers"
        ):
            Policy(*trained[1:4], env=SimpleNamespace(action_space=wrong, observation_space=SPACE))


def test_discrete_actions_of_an_environment(chooser):
    make, one, three = chooser
    space = Dict({"height": Box(-9, 9, ()), "arm": Box(-9, 9, (2, 3))})
    env = SimpleNamespace(action_space=MultiDiscrete([5, 1], start=[7, 1]), observation_space=space)
    plain, own = make(seed=1), make(seed=1, env=env)
    assert own.act(one).tolist() == [7 + plain.act(one), 1]
    for policy in (plain, own):
        policy.reset()
    assert own.act(three).tolist() == [[7 + choice, 1] for choice in plain.act(three)]


def test_discrete_actions_are_numbers(chooser):
    make, one, three = chooser
    policy = make(seed=1)
    action = policy.act(one)
    assert type(action) is int
    policy.reset()
    drawn = np.array([policy.act(three) for _ in range(40)])
    assert drawn.shape == (40, 3)
    assert set(np.unique(drawn)) == set(range(5))  # a fresh policy is nearly uniform


WRONG = {
    "missing": ({"position": OBS["position"]}, "must have position [3], velocity [2], and nothing else"),
    "unknown": (OBS | {"hight": 1.0}, "it has position, velocity, hight"),
    "nothing": ({}, "it has nothing"),
    "shape": (OBS | {"velocity": np.zeros(3)}, "obs['velocity'] must have shape [2] or [N, 2], not [3]"),
    "axes": (OBS | {"velocity": np.zeros((1, 1, 2))}, "must have shape [2] or [N, 2], not [1, 1, 2]"),
    "empty": ({n: np.zeros((0, len(x))) for n, x in OBS.items()}, "shape [3] or [N, 3], not [0, 3]"),
    "scalar": (OBS | {"position": 1.0}, "obs['position'] must have shape [3] or [N, 3], not []"),
    "mixed": (
        batched(3) | {"velocity": np.zeros((2, 2))},
        "numbers of environments (position: 3, velocity: 2)",
    ),
    "half": (OBS | {"velocity": np.zeros((1, 2))}, "numbers of environments (position: one, velocity: 1)"),
    "nan": (OBS | {"position": [0, np.nan, 0]}, "obs['position'] must be finite, but is nan at [1]"),
    "large": (OBS | {"position": [0, 0, -1e300]}, "obs['position'] must be finite, but is -inf at [2]"),
    "words": (OBS | {"velocity": ["fast", "slow"]}, "obs['velocity'] is not an array of numbers"),
    "ragged": (OBS | {"velocity": [[1], [1, 2]]}, "obs['velocity'] is not an array of numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_observations_are_named_and_change_nothing(policy, small_run, case):
    obs, message = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.act(obs)
    np.testing.assert_array_equal(policy.act(OBS), gpld.load(small_run, seed=11).act(OBS))


def test_an_array_without_a_name_is_refused(policy):
    with pytest.raises(
        ValueError, match=re.escape("a dictionary with position [3], velocity [2], not ndarray")
    ):
        policy._observations(np.zeros(5))


def test_another_number_of_environments_needs_a_reset(policy):
    policy.act(batched(2))
    with pytest.raises(
        ValueError, match=r"of a batch of 3, but this policy acts for a batch of 2; call reset"
    ):
        policy.act(batched(3))
    with pytest.raises(ValueError, match=r"of one environment, but this policy acts for a batch of 2"):
        policy.act(OBS)
    policy.reset()
    assert policy.act(batched(3)).shape == (3, 1)


@pytest.mark.parametrize("flags", [True, [True], [1, 0], [True, False, True]])
def test_wrong_flags_are_refused(policy, flags):
    with pytest.raises(ValueError, match="is_first must be 2 bools, one for each environment, not"):
        policy.act(batched(2), flags)
    with pytest.raises(ValueError, match="is_first must be a bool, not"):
        policy.act(OBS, [True])


def test_loading_without_a_run_says_so(tmp_path):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        gpld.load(tmp_path)


def test_the_package_offers_load_and_nothing_by_mistake():
    code = "import gpld, sys; gpld.load; assert 'jax' in sys.modules; gpld.laod"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "AttributeError: module 'gpld' has no attribute 'laod'" in shown.stderr


def test_no_simulator_is_needed(small_run):
    """Where neither EnvPool, dm_control nor MuJoCo can be imported."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(['envpool', 'dm_control', 'mujoco']); import gpld; "
        f"print(gpld.load({str(small_run)!r}).act({{'position': [0, 0, 0], 'velocity': [0, 0]}}).shape)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.stdout == "(1,)\n", shown.stderr
