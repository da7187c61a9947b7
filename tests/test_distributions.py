import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpld import distributions as d
from tests.golden_files import Golden, assert_close


@pytest.fixture(scope="module")
def heads():
    return Golden("decoder_heads")


def test_golden_bins(heads):
    bins = d.symexp_bins(len(heads["bins"]))
    np.testing.assert_allclose(bins, heads["bins"], rtol=1e-5)
    assert bins[len(bins) // 2] == 0
    np.testing.assert_array_equal(bins, -bins[::-1])


@pytest.mark.parametrize("case", ["twohot", "twohot_shaped", "rew"])
def test_golden_twohot(heads, case):
    target = heads["rew/target" if case == "rew" else "twohot/target"]
    logits = heads[f"{case}/logits"]
    assert_close(d.twohot_mean(logits), heads[f"{case}/pred"], 1e-5, "pred")
    assert_close(d.twohot_loss(logits, target), heads[f"{case}/loss"], 1e-5, "loss")


def test_golden_uniform_logits_predict_exactly_zero(heads):
    expected = heads["twohot_uniform/pred"]
    logits = jnp.stack([jnp.full(len(heads["bins"]), float(i)) for i in range(len(expected))])
    np.testing.assert_array_equal(d.twohot_mean(logits), expected)


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("bins", [15, 41, 63, 255])
def test_symmetric_logits_predict_exactly_zero_however_they_are_compiled(bins):
    half = np.random.default_rng(0).normal(size=(64, bins // 2)).astype(np.float32)
    logits = np.concatenate([half, np.zeros((64, 1), np.float32), half[:, ::-1]], axis=1)
    np.testing.assert_array_equal(jax.jit(d.twohot_mean)(logits), 0)
    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.map(d.twohot_mean, x))(logits), 0)


def test_golden_continue(heads):
    logit = heads["con/logit"]
    assert_close(jax.nn.sigmoid(logit), heads["con/prob"], 1e-5)
    assert_close(d.bernoulli_loss(logit, heads["con/target"]), heads["con/loss"], 1e-5)
    assert_close(d.bernoulli_loss(logit, heads["con/target_hard"]), heads["con/loss_hard"], 1e-5)


def test_golden_straight_through():
    g = Golden("rssm")
    weight, index, unimix = g["straight_through/weight"], g["straight_through/index"], g.scalar("cfg/unimix")

    def total(logits):
        # The sample itself adds nothing to the gradient, which is that of the probabilities.
        sample = jax.nn.one_hot(index, logits.shape[-1])
        return jnp.sum(weight * (sample + d.mixed_softmax(logits, unimix)))

    assert_close(jax.grad(total)(g["kl/post_logits"]), g["straight_through/grad_logits"], 1e-5)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6, width=32))
def test_symexp_inverts_symlog(x):
    np.testing.assert_allclose(d.symexp(d.symlog(jnp.float32(x))), np.float32(x), rtol=2e-5, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e5, 1e5, width=32))
def test_twohot_weights_have_the_target_as_mean(target):
    weights = d.twohot_weights(jnp.float32(target), 255)
    assert int((weights > 0).sum()) <= 2
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(weights @ d.symexp_bins(255), target, rtol=1e-5, atol=1e-6)


def test_twohot_gradient_is_that_of_the_dense_cross_entropy():
    logits = jax.random.normal(jax.random.key(0), (6, 41))
    target = jnp.array([-1e9, -3.0, 0.0, 0.3, 17.0, 1e9])
    weights = d.twohot_weights(target, 41)

    def dense(logits):
        return jnp.sum(jnp.arange(6.0) * -jnp.sum(weights * jax.nn.log_softmax(logits), -1))

    def loss(logits, target):
        return jnp.sum(jnp.arange(6.0) * d.twohot_loss(logits, target))

    grads = jax.grad(loss, (0, 1))(logits, target)
    np.testing.assert_allclose(grads[0], jax.grad(dense)(logits), atol=1e-6)
    assert not grads[1].any()


def test_samples_follow_the_probabilities():
    probs = jnp.array([[0.5, 0.25, 0.125, 0.125], [0.01, 0.01, 0.01, 0.97]])
    uniform = jax.random.uniform(jax.random.key(0), (100_000, 2))
    index = d.sample_classes(jnp.broadcast_to(probs, (100_000, 2, 4)), uniform)
    for row in range(2):
        counts = np.bincount(np.asarray(index[:, row]), minlength=4)
        expected = 100_000 * np.asarray(probs[row])
        assert np.sum((counts - expected) ** 2 / expected) < 16.3, counts  # chi-square, 3 d.o.f., p = 0.001


def test_sampling_at_the_ends_of_the_unit_interval_stays_in_range():
    # Probabilities that sum to slightly less than one, and the largest uniform number below one.
    probs = jnp.full((3,), 0.33333)
    assert d.sample_classes(probs, jnp.float32(0)) == 0
    assert d.sample_classes(probs, jnp.nextafter(jnp.float32(1), jnp.float32(0))) == 2


def test_normal_agrees_with_scipy():
    from scipy import stats

    policy = d.Normal(jnp.array([0.3, -0.5]), jnp.array([0.2, 1.0]))
    action = jnp.array([0.1, 2.0])
    reference = stats.norm(np.asarray(policy.mean), np.asarray(policy.std))
    np.testing.assert_allclose(policy.log_prob(action), reference.logpdf(action).sum(), rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), reference.entropy().sum(), rtol=1e-5)


def test_one_hot_policy():
    policy = d.OneHot(jnp.log(jnp.array([0.2, 0.3, 0.5])))
    np.testing.assert_allclose(policy.log_prob(jnp.array([0.0, 1.0, 0.0])), np.log(0.3), rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), -sum(p * np.log(p) for p in (0.2, 0.3, 0.5)), rtol=1e-5)
    np.testing.assert_array_equal(policy.sample(jnp.float32(0.45)), [0, 1, 0])


def test_kl_of_equal_distributions_is_zero_and_otherwise_positive():
    p = d.mixed_softmax(jax.random.normal(jax.random.key(0), (5, 3, 4)), 0.01)
    q = d.mixed_softmax(jax.random.normal(jax.random.key(1), (5, 3, 4)), 0.01)
    np.testing.assert_allclose(d.kl(p, p), 0, atol=1e-6)
    assert (d.kl(p, q) > 0).all()
