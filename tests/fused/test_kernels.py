"""GPU kernels, interpreted, against plain functions. Those of the scan are tested where it is."""

import dataclasses
import re
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from gpld import agent, behavior, distributions as d, fused
from gpld.config import Config, ConfigError, ReplayConfig
from gpld.fused import _choice, _twohot, kernels
from gpld.fused._layers import dense_with_product
from gpld.fused.kernels import Part, _activation, _tiles
from gpld.nets import Dense
from gpld.profiling import random_batch
from gpld.types import Spaces
from gpld.world_model import States
from tests.fused.helpers import CONFIG, SIZES, noisy


@pytest.mark.parametrize(
    ("capability", "taken", "says"),
    [("9.0", True, ""), ("7.5", False, ""), ("gfx942", False, "do not work here.*gfx942")],
)
def test_gpus_that_cannot_run_them_get_plain_functions(monkeypatch, recwarn, capability, taken, says):
    _choice.work_here.cache_clear()
    monkeypatch.setattr(_choice, "interpreted", lambda: False)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)])
    config = dataclasses.replace(CONFIG, compute="bfloat16")
    assert (_choice._twins(config, 16) is fused.IN_KERNELS) == taken
    assert re.search(says, "".join(str(warning.message) for warning in recwarn))
    assert bool(recwarn) == bool(says)
    _choice.work_here.cache_clear()


def test_where_triton_fails_plain_functions_are_taken(monkeypatch):
    def activate(x, bias, scale):
        raise RuntimeError("no Triton")

    _choice.work_here.cache_clear()
    monkeypatch.setattr(_choice, "interpreted", lambda: False)
    monkeypatch.setattr(_choice, "activate", activate)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    with pytest.warns(UserWarning, match="XLA's are used instead.*no Triton"):
        twins = _choice._twins(dataclasses.replace(CONFIG, compute="bfloat16"), 16)
    assert twins is fused.FOR_GPUS
    _choice.work_here.cache_clear()


@pytest.mark.gpu
def test_functions_that_a_gpu_has():
    x = jnp.concatenate([jnp.linspace(-80, 80, 1023), jnp.array([-jnp.inf])])
    whole = pl.BlockSpec((1024,), lambda: (0,))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def kernel(x, exp, sigmoid):
        exp[...], sigmoid[...] = _tiles.exp(x[...]), _tiles.sigmoid(x[...])

    exp, sigmoid = _tiles.call(kernel, (), [(x, whole)], [(shape, whole)] * 2, _tiles.Tile())
    # The exponent of 2 has 24 bits, some of which are before its point.
    np.testing.assert_allclose(exp, jnp.exp(x), rtol=1e-5)
    np.testing.assert_allclose(sigmoid, jax.nn.sigmoid(x), rtol=1e-5)


@pytest.mark.parametrize("many", [16, 8192])
def test_activation_and_its_gradients(monkeypatch, many):
    monkeypatch.setattr(_activation, "MANY", many)
    layer = noisy(Dense.init(8, 32, key=jax.random.key(0)), jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (192, 8))
    weights = jax.random.normal(jax.random.key(3), (192, 32))

    @jax.jit
    def gradients(layer, x):
        def total(layer, x, twins):
            return jnp.sum(weights * fused.replaced(layer, twins)(x))

        return [jax.value_and_grad(total, (0, 1))(layer, x, twins) for twins in ({}, fused.IN_KERNELS)]

    plain, found = (jax.tree.leaves(tree) for tree in gradients(layer, x))
    for a, b in zip(plain, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("enough", [4, 1000])
def test_products_of_few_rows(monkeypatch, transposed, enough):
    monkeypatch.setattr(_tiles, "ENOUGH", enough)
    x = jax.random.normal(jax.random.key(0), (2, 32, 512))
    weight = jax.random.normal(jax.random.key(1), (2, 512, 64))
    weights = weight.swapaxes(1, 2) if transposed else weight
    read = partial(kernels.read, transposed=transposed)
    program = str(jax.make_jaxpr(jax.vmap(read))(x, weights))
    assert ("pallas_call" in program) == (enough == 4)
    np.testing.assert_allclose(jax.vmap(read)(x, weights), x @ weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(read(x[0], weights[0]), x[0] @ weight[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.vmap(read, (0, None))(x, weights[0]), x @ weight[0], rtol=1e-4, atol=1e-4)


def test_a_kernel_is_told_over_how_many_runs_it_is_mapped():
    @_tiles.with_runs
    def times_runs(parts, scale, *, runs=1):
        return [runs * scale * part.array + part.index for part in parts]

    x = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(times_runs([Part(x[0], 1)], 2.0)[0], 2 * x[0] + 1)
    np.testing.assert_array_equal(jax.vmap(lambda x: times_runs([Part(x, 1)], 2.0)[0])(x), 6 * x + 1)
    both = jax.jit(jax.vmap(lambda x, y: times_runs([Part(x, 1), Part(y)], 2.0), (0, None)))(x, x[0])
    np.testing.assert_array_equal(both[0], 6 * x + 1)
    np.testing.assert_array_equal(both[1], jnp.tile(6 * x[0], (3, 1)))


def test_few_runs_are_cut_into_more_tiles():
    tile = _tiles.Tile(rows=64, columns=128)
    assert [tile.enough(1024, 256, runs).rows for runs in (1, 2, 4, 8)] == [16, 32, 64, 64]
    assert tile.enough(64, 128, 1).rows == 16
    assert tile.enough(8, 128, 1).rows == 8


def test_layer_whose_product_is_known():
    layer = noisy(Dense.init(8, 32, key=jax.random.key(0)), jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (48, 8))
    weights = jax.random.normal(jax.random.key(3), (48, 32))
    others = jnp.full((48, 32), jnp.nan)

    @jax.jit
    def gradients(layer):
        def total(layer, known):
            product = Part(
                jnp.concatenate([others, jax.lax.stop_gradient(x @ layer.linear.weight)], axis=1), 1
            )
            return jnp.sum(weights * (dense_with_product(layer, x, product) if known else layer(x)))

        return [jax.value_and_grad(total)(layer, known) for known in (False, True)]

    plain, known = (jax.tree.leaves(tree) for tree in gradients(layer))
    for a, b in zip(plain, known, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("padding", [0, 1])
def test_twohot(padding):
    keys = jax.random.split(jax.random.key(0), 4)
    product = 3 * jax.random.normal(keys[0], (4, 24, 31 + padding))
    bias = jax.random.normal(keys[1], (31 + padding,))
    targets = [10 * jax.random.normal(keys[2], (4, 24)), jnp.linspace(-1e9, 1e9, 96).reshape(4, 24)]
    weights = jax.random.normal(keys[3], (2, 4, 24))

    def total(product, bias, in_kernels):
        logits = product + jnp.broadcast_to(bias, product.shape)
        value = fused.TwoHot.of(product, bias) if in_kernels else d.TwoHot(logits[..., :31])
        return jnp.sum(weights * jnp.stack(value.losses(*targets))), value.mean()

    (expected, mean), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(product, bias, False)
    (loss, fused_mean), fused_gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(product, bias, True)
    # The outer bins stand for half a billion: means are sums of large numbers of both signs.
    np.testing.assert_allclose(fused_mean, mean, rtol=1e-5, atol=1e-6 * float(jnp.abs(mean).max()))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for a, b in zip(fused_gradients, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1])
def test_uniform_twohot_is_exactly_zero(padding):
    zeros = jnp.zeros((8, 31 + padding))
    np.testing.assert_array_equal(fused.TwoHot.of(zeros, zeros[0]).mean(), 0)


@pytest.mark.parametrize("count", [15, 31, 255])
def test_the_bins_around_a_target_are_found_without_a_search(count):
    bins = np.asarray(d.symexp_bins(count))
    targets = np.concatenate(
        [bins, np.nextafter(bins, np.float32(np.inf)), np.nextafter(bins, np.float32(-np.inf))]
    )
    targets = targets[(targets == 0) | (np.abs(targets) > 1e-30)]  # XLA takes subnormal numbers for 0
    below, share = _twohot._neighbours(jnp.asarray(targets), count)
    np.testing.assert_array_equal(below, np.clip(np.searchsorted(bins, targets, "right") - 1, 0, count - 2))
    weights = np.asarray(d.twohot_weights(jnp.asarray(targets), count))
    rows = np.arange(len(targets))
    np.testing.assert_allclose(weights[rows, below + 1], share, atol=1e-6)
    np.testing.assert_allclose(weights[rows, below], 1 - share, atol=1e-6)


@pytest.mark.slow
def test_a_head_in_kernels_is_the_plain_one():
    from gpld.world_model import TwoHotHead

    head = noisy(TwoHotHead.init(SIZES, 2, key=jax.random.key(0)), jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (3, 16, SIZES.deter + SIZES.stoch * SIZES.classes))
    target = jnp.linspace(-5.0, 5.0, 48).reshape(3, 16)

    def total(head, twins):
        value = fused.replaced(head, twins)(x)
        return jnp.sum(value.losses(target)[0]), value.mean()

    (loss, mean), gradient = jax.value_and_grad(total, has_aux=True)(head, {})
    (found, found_mean), found_gradient = jax.value_and_grad(total, has_aux=True)(head, fused.IN_KERNELS)
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-4, atol=1e-6 * float(jnp.abs(mean).max()))
    for a, b in zip(jax.tree.leaves(found_gradient), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_dreams_and_what_heads_make_of_them_are_the_same():
    state = agent.init(CONFIG, Spaces.of({"x": (3,)}, 2), jax.random.key(0))
    model, slow_value = noisy((state.model, state.slow_value), jax.random.key(1))
    h = jax.random.normal(jax.random.key(2), (32, SIZES.deter))
    z = jax.nn.one_hot(jax.random.randint(jax.random.key(3), (32, 4), 0, 16), 16).reshape(32, -1)
    batch = random_batch(
        Config(task="walker-walk", agent=CONFIG, replay=ReplayConfig(batch=16, length=2)),
        Spaces.of({"x": (3,)}, 2),
        jax.random.key(4),
    )
    noise = agent.draw_noise(CONFIG, model, batch, jax.random.key(5)).dream

    @partial(jax.jit, static_argnums=0)
    def dream(in_kernels):
        own, slow = fused.replaced((model, slow_value), fused.IN_KERNELS if in_kernels else {})
        dream = own.world.dynamics.imagine(own.policy, States(h, z), noise)
        scores = behavior.score(own.world, own.policy, own.value, slow, dream)
        return dream.feature, dream.action, scores._replace(value=scores.value.mean())

    (feature, action, scores), (found, found_action, found_scores) = dream(False), dream(True)
    np.testing.assert_array_equal(found[..., SIZES.deter :], feature[..., SIZES.deter :])
    np.testing.assert_allclose(found, feature, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found_action, action, rtol=1e-4, atol=1e-5)
    for a, b in zip(jax.tree.leaves(found_scores), jax.tree.leaves(scores), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * float(jnp.abs(b).max()))


@pytest.mark.slow
def test_the_agent_learns_the_same_in_every_run():
    spaces = Spaces.of({"x": (3,)}, 2)
    config = Config(task="walker-walk", agent=CONFIG, replay=ReplayConfig(batch=16, length=2))
    keys = jax.random.split(jax.random.key(0), 2)
    states = jax.vmap(partial(agent.init, CONFIG, spaces))(keys)
    states = states._replace(model=noisy(states.model, jax.random.key(1)))
    batches = jax.vmap(partial(random_batch, config, spaces))(keys)

    def learn(kernels):
        chosen = dataclasses.replace(CONFIG, kernels=kernels)

        def gradients(state, batch):
            noise = agent.draw_noise(chosen, state.model, batch, jax.random.key(2))
            loss = partial(agent.loss, chosen, state=state, batch=batch, noise=noise)
            (total, out), by_model = jax.value_and_grad(loss, has_aux=True)(state.model)
            return total, out.metrics, by_model

        return jax.jit(jax.vmap(gradients))(states, batches)

    (total, metrics, plain), (fused_total, fused_metrics, found) = learn("plain"), learn("fused")
    np.testing.assert_allclose(fused_total, total, rtol=1e-4)
    for name, value in metrics.items():
        np.testing.assert_allclose(fused_metrics[name], value, rtol=2e-3, atol=1e-4, err_msg=name)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("estimator", ["probes", "vjp", "exact"])
def test_every_penalty_has_gradients_on_a_gpu(monkeypatch, estimator):
    """As traced for one: kernels with a GPU's own instructions can be differentiated by their rules alone."""
    monkeypatch.setattr(_tiles, "interpreted", lambda: False)
    spaces = Spaces.of({"x": (3,)}, 2)
    penalty = dataclasses.replace(CONFIG.penalty, estimator=estimator, prior=0.5)
    chosen = dataclasses.replace(CONFIG, kernels="fused", penalty=penalty)
    config = Config(task="walker-walk", agent=chosen, replay=ReplayConfig(batch=16, length=2))
    state = jax.eval_shape(partial(agent.init, chosen, spaces), jax.random.key(0))
    batch = jax.eval_shape(partial(random_batch, config, spaces), jax.random.key(0))
    updated, _, metrics = jax.eval_shape(partial(agent.update, chosen), state, batch)
    assert jax.tree.structure(updated) == jax.tree.structure(state)
    assert {"loss/penalty_posterior", "loss/penalty_prior"} <= set(metrics)


def test_what_does_not_fit_is_refused_only_when_asked_for():
    asked = dataclasses.replace(CONFIG, kernels="fused")
    assert _choice._twins(asked, 32) is fused.IN_KERNELS
    assert _choice._twins(CONFIG, 32) == {}  # no GPU here
    assert _choice._twins(dataclasses.replace(CONFIG, kernels="plain"), 32) == {}
    with pytest.raises(ConfigError, match=r"agent\.kernels: 'fused' needs powers of two"):
        _choice._twins(asked, 24)
    for odd in ({"deter": 96}, {"classes": 128}, {"bins": 41}):
        with pytest.raises(ConfigError, match=r"deter over blocks"):
            _choice._twins(dataclasses.replace(asked, model=dataclasses.replace(SIZES, **odd)), 32)


def test_twins_have_the_same_parameters():
    model = agent.init(CONFIG, Spaces.of({"x": (3,)}, 2), jax.random.key(0)).model
    twin = fused.replaced(model, fused.IN_KERNELS)
    assert type(twin.world.dynamics) is fused.RSSM
    assert type(twin.policy.mlp.layers[0]) is fused.Dense
    for a, b in zip(jax.tree.leaves(twin), jax.tree.leaves(model), strict=True):
        assert a is b
