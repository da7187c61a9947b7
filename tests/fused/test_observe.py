"""The posterior along sequences with a deferred gradient, in XLA and in kernels, against the plain scan."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st
from jax.extend.core import Literal

from gpld import fused
from gpld.config import ModelConfig
from gpld.types import Latent
from gpld.world_model import RSSM
from tests.fused.helpers import SIZES, assert_same


def deferred(rssm):
    return fused.replaced(rssm, fused.FOR_GPUS)


def in_kernels(rssm):
    return fused.replaced(rssm, fused.IN_KERNELS)


def plain(rssm):
    return rssm


def example(sizes: ModelConfig, time: int, batch: int, seed: int = 0, first: float = 0.3):
    """A model, and what `observe` takes."""
    keys = jax.random.split(jax.random.key(seed), 7)
    return (
        RSSM.init(sizes, 2, key=keys[0]),
        jax.random.normal(keys[5], (batch, sizes.deter)),
        jax.random.normal(keys[1], (time, batch, sizes.units)),
        jax.random.normal(keys[2], (time, batch, 2)),
        jax.random.randint(keys[6], (batch, sizes.stoch), 0, sizes.classes).astype(jnp.uint8),
        jax.random.uniform(keys[3], (time, batch)) < first,
        jax.random.uniform(keys[4], (time, batch, sizes.stoch)),
    )


def total(twin, rssm, h, e, action, z, is_first, uniform, unroll=1):
    """A number that depends on every output of every step in a way of its own."""
    seen = twin(rssm).observe(Latent(h, z), e, action, is_first, uniform, unroll=unroll)
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
@settings(max_examples=2, deadline=None)
@given(
    time=st.integers(1, 6),
    batch=st.integers(1, 4),
    blocks=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 5),
    layers=st.integers(1, 3),
    seed=st.integers(0, 2**31 - 1),
    first=st.floats(0, 1),
)
def test_deferred_gradients_equal_autodiff(time, batch, blocks, width, layers, seed, first):
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
    compute = jax.jit(lambda *x: [gradients(total)(twin, *x) for twin in (deferred, plain)])
    # A norm over one or two small numbers can make a gradient of thousands, and its rounding as large.
    assert_same(*compute(*arguments), tolerance=1e-4)


SMALL = ModelConfig(deter=12, blocks=3, hidden=5, stoch=4, classes=3, units=4)


@pytest.mark.slow
def test_under_vmap_over_runs():
    runs = [example(SMALL, 5, 2, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *runs)
    got = jax.jit(jax.vmap(lambda *x: gradients(total)(deferred, *x)))(*stacked)
    alone = jax.jit(lambda *x: gradients(total)(plain, *x))
    for i, run in enumerate(runs):
        assert_same(jax.tree.map(lambda x, i=i: x[i], got), alone(*run))


@pytest.mark.slow
@pytest.mark.parametrize("twin", [plain, deferred])
def test_unrolling_changes_nothing(twin):
    arguments = example(SMALL, 5, 2)
    rolled, unrolled = (
        jax.jit(gradients(partial(total, unroll=unroll)), static_argnums=0)(twin, *arguments)
        for unroll in (1, 3)
    )
    assert_same(unrolled, rolled)


def test_scans_form_no_weight_gradients():
    arguments = example(SMALL, 5, 2)
    program = jax.make_jaxpr(lambda *x: gradients(total)(deferred, *x))(*arguments)
    weights = {leaf.shape for leaf in jax.tree.leaves(arguments[0]) if leaf.ndim > 1}
    scans = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(scans) == 2
    for scan in scans:
        outputs = {var.aval.shape for var in scan.params["jaxpr"].jaxpr.outvars}
        assert outputs
        assert not weights & outputs


@pytest.mark.parametrize(
    "batch", [pytest.param(8, marks=pytest.mark.slow), 16, pytest.param(32, marks=pytest.mark.slow)]
)
def test_kernels_do_what_the_plain_step_does(batch):
    arguments = example(SIZES, 3, batch)
    compute = jax.jit(lambda twin, *x: gradients(total)(twin, *x), static_argnums=0)
    program = jax.make_jaxpr(partial(total, in_kernels))(*arguments)
    *_, scan = (eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "custom_vjp_call")
    # Fewer rows than a matrix unit takes are left to XLA.
    assert ("pallas_call" in str(scan.params["call_jaxpr"])) == (batch % 16 == 0)
    assert_same(compute(in_kernels, *arguments), compute(plain, *arguments))


def test_kernels_do_what_the_plain_step_does_in_every_run():
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(example(SIZES, 2, 16, seed) for seed in range(2)))
    expected, found = (
        jax.jit(jax.vmap(lambda *x, twin=twin: gradients(total)(twin, *x)))(*stacked)
        for twin in (plain, in_kernels)
    )
    assert_same(found, expected)


def test_records_of_many_runs_begin_with_no_copy():
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(example(SIZES, 3, 16, seed) for seed in range(2)))
    # Squared, so that the gradient by h differs between runs, as in every agent.
    squared = gradients(lambda *x: jnp.square(total(*x)))
    program = jax.make_jaxpr(jax.vmap(partial(squared, in_kernels)))(*stacked).jaxpr
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


@pytest.mark.slow
def test_bfloat16_over_a_whole_sequence_is_as_near_to_float32_as_the_plain_scan():
    rssm, h, e, action, z, is_first, uniform = example(SIZES, 64, 16, first=0.02)
    weights = jax.random.normal(jax.random.key(5), (64, 16, SIZES.deter))
    seen = rssm.observe(Latent(h, z), e, action, is_first, uniform)
    # In the middle of each class's interval, so that rounding samples no other class.
    probs, chosen = rssm.probs(seen.logits), seen.z.reshape(*uniform.shape, -1)
    uniform = jnp.sum((jnp.cumsum(probs, -1) - probs / 2) * chosen, -1)

    def loss(rssm, twin, dtype):
        seen = twin(rssm).observe(Latent(h, z), e.astype(dtype), action, is_first, uniform)
        # Of the last steps alone, so that all of the gradient goes through many steps.
        return jnp.sum((weights * seen.h.astype(jnp.float32))[48:])

    gradient = jax.jit(jax.grad(loss), static_argnums=(1, 2))
    exact = gradient(rssm, plain, jnp.dtype("float32"))

    def error(twin):
        found = gradient(rssm, twin, jnp.dtype("bfloat16"))
        pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True))
        difference = sum(jnp.sum((a - b) ** 2) for a, b in pairs)
        return float(jnp.sqrt(difference / sum(jnp.sum(b**2) for _, b in pairs)))

    reference = error(plain)
    assert 0 < error(deferred) < 1.25 * reference
    assert 0 < error(in_kernels) < 1.25 * reference
    assert reference < 0.5, "the comparison says something only while the plain gradient does"
