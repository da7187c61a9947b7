"""Training on environments written in JAX, which are stepped on the device."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from gpld.config import override
from gpld.envs import EnvironmentFailure
from gpld.population import Member
from gpld.training import _program, saved, train, train_all
from gpld.training.loop import Training, TrainingStopped
from gpld.training.score import score
from tests.training.helpers import arrays_of, contents, differing, metrics, opened, tiny

TASK = "jax:gpld.envs:CartPole"
SHORT = {"env_steps": 1200, "env": {"count": 4, "limit": 50}, "eval": {"every": 300, "episodes": 2}}
"""Episodes of 26 agent steps, 100 updates, two evaluations."""
NO_UPDATES = {"train_ratio": 0.001}


def short(task=TASK, **changes):
    return tiny(task, **SHORT | changes)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "straight"
    assert train(short(), folder).finished
    return folder


def envs_of(folder):
    """The states of environments in the newest checkpoint."""
    newest = max((folder / "checkpoints").glob("0*"))
    return (newest / "blobs" / "env").read_bytes()


def test_a_run_that_is_saved_and_resumed_ends_with_the_same_bits(straight, tmp_path):
    for until in (200, 700):  # before the first update, and between two
        assert not train_all([Member(short(), tmp_path / "run")], until=until)[0].finished
    assert train(short(), tmp_path / "run").finished
    assert differing(contents(short(), straight), contents(short(), tmp_path / "run")) == []
    assert metrics(straight) == metrics(tmp_path / "run")
    assert envs_of(straight) == envs_of(tmp_path / "run")


def assert_near(one, two):
    """Other programs may round otherwise."""
    for name in one:
        if "waiting" not in name:  # the step that the host had when it was saved
            np.testing.assert_allclose(one[name], two[name], rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.slow
def test_steps_on_the_device_are_those_on_the_host(tmp_path, monkeypatch):
    config = short(replay=NO_UPDATES)
    train(config, tmp_path / "device")
    one = contents(config, tmp_path / "device")
    assert one["[0]['arrays']['recent'].episodes"] == [4 * 5]
    stored = short(replay=NO_UPDATES | {"storage": "host"})
    train(stored, tmp_path / "stored")
    assert_near(one, contents(stored, tmp_path / "stored"))
    monkeypatch.setattr(Training, "_to_device", lambda self: None)  # then they are stepped as any other
    train(config, tmp_path / "host")
    assert_near(one, contents(config, tmp_path / "host"))


@pytest.mark.slow
def test_runs_beside_each_other_are_what_they_are_alone(tmp_path):
    config = short(replay=NO_UPDATES)
    members = [Member(replace(config, seed=seed), tmp_path / f"seed{seed}") for seed in (0, 5)]
    train_all(members)
    together = arrays_of(members)
    for run, member in enumerate(members):
        train(member.config, tmp_path / f"alone{run}")
        alone = contents(member.config, tmp_path / f"alone{run}")
        own = {name: x[run : run + 1] if x.ndim else x for name, x in together.items()}
        assert_near(alone, own)


@pytest.mark.parametrize(("task", "leaves"), [(TASK, False), ("jax:tests.envs.jax_custom:Calls", True)])
def test_steps_and_actions_stay_on_the_device(task, leaves, tmp_path):
    """Transfer guards see nothing on a CPU, so that is read from the compiled program."""
    with opened(short(task, replay=NO_UPDATES), tmp_path / "run") as training:
        state, how = training.state, (training.config.agent, training._jax_envs[0].task, None)
        arrays = (state.agent.model, state.replay, state.envs, state.carry, training.keys.act)
        text = _program._step_act_and_append.lower(*how, *arrays, 0).compile().as_text()
    transfers = ("outfeed", "infeed", "send(", "host-transfer", "callback")
    assert any(transfer in text for transfer in transfers) == leaves


def test_faults_are_counted_and_stop_the_run(tmp_path):
    config = short("jax:tests.envs.jax_custom:breaking", replay=NO_UPDATES, eval={"every": 0})
    with pytest.raises(EnvironmentFailure, match="not finite 12 times, more than the 10 restarts allowed"):
        train(config, tmp_path / "run")
    config = override(config, {"env": {"restarts": 1000}})
    with opened(config, tmp_path / "other") as training:
        for _ in range(30):
            training.advance()
        training.save()
        # A first observation, env steps 1 and 2, env step 3: each third agent step in all four environments.
        assert training.episodes.faults.tolist() == [40]


def test_an_agent_without_numbers_stops_the_run(tmp_path):
    with opened(short(replay=NO_UPDATES), tmp_path / "run") as training:
        training.advance()
        carry = training.state.carry
        latent = carry.latent._replace(h=carry.latent.h * jnp.nan)
        training.state = training.state._replace(carry=carry._replace(latent=latent))
        training.advance()  # the host does not wait for what it did
        with pytest.raises(TrainingStopped, match="the policy's actions are not finite"):
            training.save()


def test_a_trained_agent_is_evaluated(straight):
    trained = saved.load(straight)
    found = score(trained, episodes=3, seed=1)
    assert len({*found.returns}) == 3
    assert found.returns == score(trained, episodes=3, seed=1).returns
    assert all(0 < value < 50 for value in found.returns)
