"""The tapped scan against plain automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpld.config import ModelConfig
from gpld.nets import BlockLinear, Dense, Linear, deferred_scan
from gpld.types import Latent
from gpld.world_model import Dynamics, _rssm, observe


def plain_scan(step, layers, carry, xs, *, unroll=1):
    return jax.lax.scan(lambda c, x: step(layers, c, x), carry, xs, unroll=unroll)


def assert_same(actual, expected):
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = max(float(jnp.abs(want).max()), 1e-6)
        assert float(jnp.abs(got - want).max()) / scale < 1e-5


# Every example compiles programs of its own, so there are few.
@settings(max_examples=4, deadline=None)
@given(
    time=st.integers(1, 6),
    batch=st.integers(1, 4),
    blocks=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 5),
    layers=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    seed=st.integers(0, 2**31 - 1),
    first=st.floats(0, 1),
)
def test_gradients_of_observe_equal_autodiff(time, batch, blocks, width, layers, seed, first):
    sizes = ModelConfig(
        deter=4 * width,
        blocks=blocks,
        hidden=width + 1,
        stoch=width,
        classes=3,
        units=width,
        posterior_layers=layers[0],
        prior_layers=layers[1],
    )
    keys = jax.random.split(jax.random.key(seed), 8)
    dynamics = Dynamics.init(sizes, 2, key=keys[0])
    e = jax.random.normal(keys[1], (time, batch, width))
    action = jax.random.normal(keys[2], (time, batch, 2))
    is_first = jax.random.uniform(keys[3], (time, batch)) < first
    uniform = jax.random.uniform(keys[4], (time, batch, width))
    h = jax.random.normal(keys[5], (batch, 4 * width))
    z = jax.random.randint(keys[6], (batch, width), 0, 3).astype(jnp.uint8)
    # Random cotangents with a random mask, so that no output is treated alike.
    weights = jax.random.normal(keys[7], (time, batch, 4 * width))
    weights = jnp.where(jax.random.uniform(keys[6], (time, batch, 1)) < 0.7, weights, 0)

    def total(scan, dynamics, h, e, action):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_rssm, "deferred_scan", scan)
            seen = observe(dynamics, Latent(h, z), e, action, is_first, uniform)
        return (
            jnp.sum(weights * seen.h)
            + jnp.sum(jnp.sin(seen.logits))
            + jnp.sum(seen.z**2)
            + jnp.sum(seen.first)
        )

    @jax.jit
    def gradients(*x):
        return [jax.grad(total, (1, 2, 3, 4))(scan, *x) for scan in (deferred_scan, plain_scan)]

    assert_same(*gradients(dynamics, h, e, action))


def _toy(seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    layers = {"a": Dense.init(6, 6, key=keys[0]), "b": BlockLinear.init(6, 6, 3, key=keys[1])}
    xs = jax.random.normal(keys[2], (5, 4, 6))
    return layers, jax.random.normal(keys[3], (4, 6)), xs


def _toy_step(layers, carry, x):
    carry = jnp.tanh(layers["b"](carry) + layers["a"](x + carry))
    return carry, carry * 2


def _toy_loss(scan, layers, carry, xs, **kwargs):
    carry, ys = scan(_toy_step, layers, carry, xs, **kwargs)
    return jnp.sum(jnp.sin(ys)) + jnp.sum(carry**2)


def test_under_vmap_over_runs():
    runs = [_toy(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *runs)
    got = jax.vmap(lambda *x: jax.grad(_toy_loss, (1, 2, 3))(deferred_scan, *x))(*stacked)
    for i, run in enumerate(runs):
        expected = jax.grad(_toy_loss, (1, 2, 3))(plain_scan, *run)
        assert_same(jax.tree.map(lambda x, i=i: x[i], got), expected)


def test_unrolling_changes_nothing():
    got = jax.grad(_toy_loss, 1)(deferred_scan, *_toy(), unroll=3)
    np.testing.assert_allclose(
        got["b"].weight, jax.grad(_toy_loss, 1)(plain_scan, *_toy())["b"].weight, rtol=1e-5
    )


def test_backward_scan_forms_no_weight_gradients():
    layers, carry, xs = _toy()
    program = jax.make_jaxpr(lambda layers: jax.grad(_toy_loss, 1)(deferred_scan, layers, carry, xs))(layers)
    weights = {leaf.shape for leaf in jax.tree.leaves(layers) if leaf.ndim > 1}
    scans = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(scans) == 2
    for scan in scans:
        outputs = {var.aval.shape for var in scan.params["jaxpr"].jaxpr.outvars}
        assert outputs
        assert not weights & outputs


def test_a_layer_may_not_be_applied_twice_in_a_step():
    def step(layer, carry, x):
        return layer(layer(carry)), x

    layer = Linear.init(3, 3, key=jax.random.key(0))
    with pytest.raises(AssertionError, match="once per step"):
        jax.grad(lambda layer: deferred_scan(step, layer, jnp.ones((1, 3)), jnp.ones(2))[0].sum())(layer)
