"""The two programs of a run against their parts, called one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import replay
from gpld.envs import Step
from gpld.training import _program, _program_cache
from gpld.training._program import RandomKeys
from gpld.types import Spaces
from tests.training.helpers import OBSERVATIONS, tiny

CONFIG = tiny("gym:Pole-v0")
SPACES = Spaces.of({name: (size,) for name, size in OBSERVATIONS.items()}, 1)
COUNT, LENGTH = CONFIG.env.count, CONFIG.replay.length
KEYS = RandomKeys.of_all([CONFIG.seed])

pytestmark = pytest.mark.usefixtures("optimized")


def env_step(live, index):
    """What the environments give at a step; episodes have ten."""
    rng = np.random.default_rng(index)
    shape = live.carry.action.shape[:2]
    obs = {name: rng.normal(size=(COUNT, size)).astype(np.float32) for name, size in OBSERVATIONS.items()}
    obs = {name: np.broadcast_to(x, (*shape, x.shape[-1])) for name, x in obs.items()}
    first, last = np.full(shape, index % 10 == 0), np.full(shape, index % 10 == 9)
    reward = np.broadcast_to(np.where(first[0], 0, rng.normal(size=COUNT)).astype(np.float32), shape)
    return Step(obs, reward, first, last, np.zeros(shape, bool))


def after(steps, storage="device"):
    """A fresh agent that has acted."""
    live = _program.init(CONFIG, SPACES, storage, [CONFIG])
    for index in range(steps):
        live = _program.act(CONFIG, live, env_step(live, index), index, KEYS.act)
    return live


def arrays(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.array(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


def same(one, two):
    return all(a.tobytes() == b.tobytes() for a, b in zip(arrays(one), arrays(two), strict=True))


def alone(tree):
    """The first run, without the run axis."""
    return jax.tree.map(lambda x: x[0], tree)


def copied(tree):
    """A copy that survives the donation of the original."""
    return jax.tree.map(lambda x: np.array(x) if isinstance(x, np.ndarray) else jnp.copy(x), tree)


def test_every_use_of_random_numbers_has_its_own_key():
    keys = [jax.random.key_data(key).tolist() for seed in range(3) for key in RandomKeys.of(seed)]
    assert len({tuple(key) for key in keys}) == 12
    assert [jax.random.key_data(key).tolist() for key in RandomKeys.of(2)] == keys[8:]


def test_a_fresh_run_has_nothing_remembered_and_nothing_summed():
    live = _program.init(CONFIG, SPACES, "device", [CONFIG])
    assert (replay.stored(live.replay), live.replay.slots) == (range(0), 100)
    assert {"loss/total", "norm/gradient", "updates/skipped"} < live.sums.keys()
    assert {float(total[0]) for total in live.sums.values()} == {0.0}
    assert all(total.shape == (1,) and total.dtype == jnp.float32 for total in live.sums.values())


def test_acting_remembers_what_was_seen_with_the_action_and_latent_that_followed():
    live = _program.init(CONFIG, SPACES, "device", [CONFIG])
    for index in range(3):
        seen = env_step(live, index)
        live = _program.act(CONFIG, live, seen, index, KEYS.act)
        row = np.asarray(replay.export(live.replay, index, index + 1, ["steps"])["steps"])[0, :, 0]
        flags = [x[..., None] for x in (seen.reward, seen.is_first, seen.is_last, seen.is_terminal)]
        expected = [seen.obs["position"], seen.obs["velocity"], np.asarray(live.carry.action), *flags]
        np.testing.assert_array_equal(row, np.concatenate(expected, axis=-1)[0])
        latents = replay.export(live.replay, index, index + 1, ["h", "z"])
        np.testing.assert_array_equal(latents["h"][:, :, 0], live.carry.latent.h)
        np.testing.assert_array_equal(latents["z"][:, :, 0], live.carry.latent.z)
    assert np.abs(np.asarray(live.carry.action)).max() > 0


def test_actions_are_drawn_by_the_steps_number_alone():
    draws = []
    for index in (5, 5, 6):
        live = _program.init(CONFIG, SPACES, "device", [CONFIG])
        draws.append(np.asarray(_program.act(CONFIG, live, env_step(live, 0), index, KEYS.act).carry.action))
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_acting_is_the_same_with_a_replay_in_host_memory():
    device, host = after(12), after(12, "host")
    assert host.replay.host
    assert same(device.replay, host.replay)
    assert same(device.carry, host.carry)


@pytest.mark.slow
@pytest.mark.usefixtures("without_jax_cache")
def test_learning_by_a_program_from_the_disk_has_the_same_bits(tmp_path, monkeypatch):
    lives = [after(40) for _ in range(3)]
    learned = [_program.learn(CONFIG, lives[0], 2, KEYS.sample)]
    monkeypatch.setattr(_program_cache, "cache_folder", lambda: tmp_path)
    for live in lives[1:]:  # compiled, and from the disk
        monkeypatch.setattr(_program._learn, "_programs", {})
        learned.append(_program.learn(CONFIG, live, 2, KEYS.sample))
    assert len(list(tmp_path.glob("gpld-learn-*"))) == 1
    assert int(learned[2].agent.updates[0]) == 2
    assert same(learned[0], learned[1])
    assert same(learned[0], learned[2])


def test_what_updates_tell_is_known_from_the_disk(tmp_path, monkeypatch):
    fresh = _program.init(CONFIG, SPACES, "device", [CONFIG])
    monkeypatch.setattr(_program_cache, "cache_folder", lambda: tmp_path)
    _program.init(CONFIG, SPACES, "device", [CONFIG])
    monkeypatch.setattr(_program, "_traced_update", None)
    assert same(_program.init(CONFIG, SPACES, "device", [CONFIG]), fresh)


def test_learning_is_an_update_on_a_fresh_batch_whose_latents_are_written_back():
    live = after(40)
    before = copied(live)
    live = _program.learn(CONFIG, live, 1, KEYS.sample)
    memory, batch, indices = replay.sample(
        alone(copied(before.replay)), jax.random.fold_in(KEYS.sample[0], 0), CONFIG.replay.batch, LENGTH
    )
    state, latents, metrics = _program._traced_update(CONFIG.agent, alone(before.agent), batch)

    assert int(live.agent.updates[0]) == 1
    for one, two in zip(arrays(alone(live.agent)), arrays(state), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)  # two programs, which may round otherwise
    assert not same(live.agent.model, before.agent.model)
    for name, value in metrics.items():
        assert float(live.sums[name][0]) == pytest.approx(float(value), rel=1e-5, abs=1e-6), name
    for one, two in zip(
        arrays(alone(live.replay)), arrays(replay.write_back(memory, indices, latents, True)), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
    changed = np.any(np.asarray(live.replay.h)[0] != np.asarray(before.replay.h)[0], axis=-1)
    trained = {
        (int(stream), int(start) + 1 + t)
        for stream, start in zip(*indices, strict=True)
        for t in range(LENGTH)
    }
    assert set(map(tuple, np.argwhere(changed).tolist())) <= trained
    assert changed.sum() > LENGTH


def test_metrics_are_summed_over_updates():
    live = after(40)
    totals = []
    for _ in range(2):
        live = _program.learn(CONFIG, live, 1, KEYS.sample)
        totals.append(float(live.sums["loss/total"][0]))
    alone = live._replace(sums=jax.tree.map(jnp.zeros_like, live.sums))
    third = float(_program.learn(CONFIG, copied(alone), 1, KEYS.sample).sums["loss/total"][0])
    both = float(_program.learn(CONFIG, live, 1, KEYS.sample).sums["loss/total"][0])
    assert totals[1] > totals[0] > 0
    assert both == pytest.approx(totals[1] + third, rel=1e-6)


def test_an_update_that_is_not_finite_changes_no_parameter_and_no_latent():
    live = after(40)
    numbers = live.agent.hyper.numbers | {"behavior.entropy": jnp.full(1, np.nan, jnp.float32)}
    bad = live.agent._replace(hyper=live.agent.hyper._replace(numbers=numbers))
    before = copied(live._replace(agent=bad))
    live = _program.learn(CONFIG, live._replace(agent=bad), 1, KEYS.sample)
    state = alone(live.agent)
    assert (int(state.updates), int(state.skipped), int(state.skipped_in_row)) == (1, 1, 1)
    assert same(live.agent.model, before.agent.model)
    assert same(live.agent.optimizer, before.agent.optimizer)
    assert same((live.replay.h, live.replay.z), (before.replay.h, before.replay.z))
    assert int(live.replay.consumed[0]) > int(before.replay.consumed[0])


@pytest.mark.slow
def test_updates_in_one_program_are_updates_one_by_one():
    one_by_one = together = after(40)
    one_by_one = copied(together)
    for _ in range(3):
        one_by_one = _program.learn(CONFIG, one_by_one, 1, KEYS.sample)
    together = _program.learn(CONFIG, together, 3, KEYS.sample)
    assert same(together.replay, one_by_one.replay)
    one, all_three = one_by_one.agent.model, together.agent.model
    assert same((all_three.world, all_three.value), (one.world, one.value))
    # Each number of updates is compiled for itself, and the policy's loss may be rounded differently.
    for a, b in zip(arrays(together.agent), arrays(one_by_one.agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
