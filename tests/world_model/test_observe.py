"""The posterior along sequences: its gradient against plain automatic differentiation, its kernels."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import Literal

from gpld.config import ModelConfig
from gpld.distributions import sample_classes
from gpld.types import Latent
from gpld.world_model import Dynamics, observe
from gpld.world_model._recurrence import next_h
from gpld.world_model._rssm import Observed, split, split_posterior


def plain_observe(dynamics, start, e, prev_action, is_first, uniform):
    """A scan of the step that acting takes, left to autodiff."""
    cell, action_in = split(dynamics, e.dtype)
    first_layer, head, e_in = split_posterior(dynamics, e.dtype)

    def step(carry, x):
        e, action, keep, uniform = x
        h, z, action = (jnp.where(keep[:, None], y, 0) for y in (*carry, action))
        h = next_h(cell, h, z, action_in(action))
        first = first_layer(h) + e_in(e)
        logits = head.finish(first)
        probs = dynamics.probs(logits)
        index = sample_classes(jax.lax.stop_gradient(probs), uniform)
        z = jax.nn.one_hot(index, probs.shape[-1]) + probs - jax.lax.stop_gradient(probs)
        z = z.reshape(logits.shape).astype(h.dtype)
        return (h, z), Observed(h, z, logits, first, index)

    carry = (start.h.astype(e.dtype), dynamics.one_hot(start.z, e.dtype))
    return jax.lax.scan(step, carry, (e, prev_action, ~is_first, uniform))[1]


def assert_same(actual, expected, tolerance=1e-5):
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = max(float(jnp.abs(want).max()), 1e-6)
        assert float(jnp.abs(got - want).max()) / scale < tolerance


def example(sizes: ModelConfig, time: int, batch: int, seed: int = 0, first: float = 0.3):
    """Dynamics, and what `observe` takes."""
    keys = jax.random.split(jax.random.key(seed), 7)
    return (
        Dynamics.init(sizes, 2, key=keys[0]),
        jax.random.normal(keys[5], (batch, sizes.deter)),
        jax.random.normal(keys[1], (time, batch, sizes.units)),
        jax.random.normal(keys[2], (time, batch, 2)),
        jax.random.randint(keys[6], (batch, sizes.stoch), 0, sizes.classes).astype(jnp.uint8),
        jax.random.uniform(keys[3], (time, batch)) < first,
        jax.random.uniform(keys[4], (time, batch, sizes.stoch)),
    )


def total(function, dynamics, h, e, action, z, is_first, uniform):
    """A number that depends on every output of every step in a way of its own."""
    seen = function(dynamics, Latent(h, z), e, action, is_first, uniform)
    # Random cotangents with a random mask, so that no output is treated alike.
    weights = jax.random.normal(jax.random.key(3), seen.h.shape)
    weights = jnp.where(jax.random.uniform(jax.random.key(4), (*seen.h.shape[:2], 1)) < 0.7, weights, 0)
    ramp = 1 + jnp.arange(seen.z.shape[-1], dtype=seen.z.dtype)
    return (
        jnp.sum(weights * seen.h)
        + jnp.sum(jnp.sin(seen.logits))
        + jnp.sum(jnp.sin(seen.z * ramp[None, None]))
        + jnp.sum(seen.first**2)
    )


gradients = partial(jax.value_and_grad, argnums=(1, 2, 3, 4))


# Every example compiles programs of its own, so there are few.
@settings(max_examples=4, deadline=None)
@given(
    time=st.integers(1, 6),
    batch=st.integers(1, 4),
    blocks=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 5),
    layers=st.integers(1, 3),
    seed=st.integers(0, 2**31 - 1),
    first=st.floats(0, 1),
)
def test_gradients_equal_autodiff(time, batch, blocks, width, layers, seed, first):
    sizes = ModelConfig(
        deter=4 * width,
        blocks=blocks,
        hidden=width + 1,
        stoch=width,
        classes=3,
        units=width,
        posterior_layers=layers,
    )
    arguments = example(sizes, time, batch, seed, first)
    compute = jax.jit(lambda *x: [gradients(total)(f, *x) for f in (observe, plain_observe)])
    # A norm over one or two small numbers can make a gradient of thousands, and its rounding as large.
    assert_same(*compute(*arguments), tolerance=1e-4)


SMALL = ModelConfig(deter=12, blocks=3, hidden=5, stoch=4, classes=3, units=4)


def test_under_vmap_over_runs():
    runs = [example(SMALL, 5, 2, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *runs)
    got = jax.jit(jax.vmap(lambda *x: gradients(total)(observe, *x)))(*stacked)
    alone = jax.jit(lambda *x: gradients(total)(plain_observe, *x))
    for i, run in enumerate(runs):
        assert_same(jax.tree.map(lambda x, i=i: x[i], got), alone(*run))


def test_unrolling_changes_nothing():
    arguments = example(SMALL, 5, 2)
    compute = jax.jit(lambda f, *x: gradients(total)(f, *x), static_argnums=0)
    assert_same(compute(partial(observe, unroll=3), *arguments), compute(observe, *arguments))


def test_scans_form_no_weight_gradients():
    arguments = example(SMALL, 5, 2)
    program = jax.make_jaxpr(lambda *x: gradients(total)(observe, *x))(*arguments)
    weights = {leaf.shape for leaf in jax.tree.leaves(arguments[0]) if leaf.ndim > 1}
    scans = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(scans) == 2
    for scan in scans:
        outputs = {var.aval.shape for var in scan.params["jaxpr"].jaxpr.outvars}
        assert outputs
        assert not weights & outputs


@pytest.mark.parametrize("batch", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_kernels_do_what_the_plain_step_does(batch):
    sizes = ModelConfig(deter=64, blocks=2, hidden=32, stoch=4, classes=16, units=32)
    arguments = example(sizes, 3, batch)
    compute = jax.jit(lambda f, *x: gradients(total)(f, *x), static_argnums=0)
    assert_same(compute(partial(observe, fused=True), *arguments), compute(observe, *arguments))


def test_kernels_do_what_the_plain_step_does_in_every_run():
    sizes = ModelConfig(deter=64, blocks=2, hidden=32, stoch=4, classes=16, units=32)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(example(sizes, 2, 16, seed) for seed in range(2)))
    plain, fused = (
        jax.jit(jax.vmap(lambda *x, f=f: gradients(total)(f, *x)))(*stacked)
        for f in (observe, partial(observe, fused=True))
    )
    assert_same(fused, plain)


def test_records_of_many_runs_begin_with_no_copy():
    sizes = ModelConfig(deter=64, blocks=2, hidden=32, stoch=4, classes=16, units=32)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(example(sizes, 3, 16, seed) for seed in range(2)))
    # Squared, so that the gradient by h differs between runs, as in every agent.
    squared = gradients(lambda *x: jnp.square(total(*x)))
    fused = jax.vmap(partial(squared, partial(observe, fused=True)))
    program = jax.make_jaxpr(fused)(*stacked).jaxpr
    made_by = {var: eqn.primitive.name for eqn in program.eqns for var in eqn.outvars}
    records = [
        var
        for eqn in program.eqns
        if eqn.primitive.name == "scan"
        for var in eqn.invars
        if not isinstance(var, Literal) and made_by.get(var) == "empty"
    ]
    # Of all runs and steps: h and z forwards, both in one backwards.
    assert [var.aval.shape for var in records] == [(2, 3, 16, 64), (2, 3, 16, 64), (2, 3, 16, 128)]
