import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.penalty import average, draw_probes, sample_rows, sample_states, sampled_count, take_states

KEYS = jax.random.split(jax.random.key(0), 6000)


@pytest.mark.parametrize(
    ("total", "rho", "count"), [(1024, 0.5, 512), (8, 0.5, 4), (7, 0.5, 3), (8, 0.01, 1), (5, 1.0, 5)]
)
def test_the_count_is_rounded_down_and_at_least_one(total, rho, count):
    assert sampled_count(total, rho) == count
    indices = np.asarray(sample_states(jax.random.key(1), total, rho))
    assert indices.shape == (count,)
    assert len(set(indices.tolist())) == count
    assert indices.min() >= 0
    assert indices.max() < total


@pytest.mark.parametrize(
    "draw",
    [lambda key: sample_states(key, 6, 0.5), lambda key: sample_rows(key, 6, 3)],
    ids=["states", "rows"],
)
def test_all_subsets_are_equally_likely(draw):
    """Every index has probability 1/2, every pair 1/5, every triple 1/20: within four standard errors."""
    drawn = np.sort(np.asarray(jax.vmap(draw)(KEYS)), axis=1)
    for size, probability in ((1, 1 / 2), (2, 1 / 5), (3, 1 / 20)):
        error = (probability * (1 - probability) / len(KEYS)) ** 0.5
        for subset in itertools.combinations(range(6), size):
            frequency = np.mean(np.isin(drawn, subset).sum(axis=1) == size)
            assert abs(frequency - probability) < 4 * error


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: sample_states(key, 20, 0.5),
        lambda key: draw_probes(key, (5, 7)),
        lambda key: draw_probes(key, (5, 7), "gaussian"),
    ],
)
def test_a_run_draws_the_same_whatever_runs_beside_it(draw):
    together = jax.vmap(draw)(KEYS[:3])
    for i in range(3):
        np.testing.assert_array_equal(together[i], draw(KEYS[i]))


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_probes_have_identity_covariance(noise):
    draws = np.asarray(jax.vmap(lambda key: draw_probes(key, (2, 35), noise))(KEYS)).reshape(len(KEYS), -1)
    bound = 5 / len(KEYS) ** 0.5
    assert np.abs(draws.mean(axis=0)).max() < bound
    covariance = draws.T @ draws / len(KEYS)
    assert np.abs(covariance - np.eye(70)).max() < bound * 2**0.5
    if noise == "rademacher":
        assert set(np.unique(draws).tolist()) == {-1.0, 1.0}


def test_probes_come_in_the_type_asked_for():
    assert draw_probes(KEYS[0], (3,), "rademacher", jnp.bfloat16).dtype == jnp.bfloat16
    assert draw_probes(KEYS[0], (3,), "gaussian", jnp.bfloat16).dtype == jnp.bfloat16


def test_average_by_algorithm_1_and_by_the_authors_code():
    values = jnp.array([1.0, 2.0, 6.0])
    assert average(values, 12) == 3.0
    assert average(values, 12, "all") == 9 / 12  # the mean over all 12 with zeros elsewhere


def test_taking_states_sends_gradients_back_to_them():
    x, indices = jnp.arange(12.0).reshape(6, 2), jnp.array([4, 1, 3])
    np.testing.assert_array_equal(take_states(x, indices), x[indices])
    gradient = jax.grad(lambda x: jnp.sum(jnp.array([[1.0], [2.0], [3.0]]) * take_states(x, indices)))(x)
    np.testing.assert_array_equal(gradient[:, 0], [0, 2, 0, 3, 1, 0])


def test_wrong_options_say_what_is_allowed():
    with pytest.raises(ValueError, match=r"rho must be above 0 and at most 1, not 1\.5"):
        sampled_count(8, 1.5)
    with pytest.raises(ValueError, match="between 1 and the number of rows, 4, not 5"):
        sample_rows(KEYS[0], 4, 5)
