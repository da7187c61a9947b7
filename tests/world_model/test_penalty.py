"""The world model's penalty: by vector-Jacobian products as in closed form, over sampled states or all."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import agent
from gpld.config import AgentConfig, PenaltyConfig, with_numbers
from gpld.world_model import (
    RSSM,
    Observed,
    Prediction,
    draw_penalty_noise,
    penalties,
    penalty_weight,
)
from tests.golden_files import assert_close
from tests.test_agent import SPACES, TINY, make_batch

TIME, BATCH = 6, 4
BOTH = {"posterior": 0.5, "prior": 0.25}
CASES = {
    "posterior": {},
    "prior": {"posterior": 0.0, "prior": 0.5},
    "joint": BOTH,
    "joint, two probes of two rows": BOTH | {"probes": 2, "rows": 2},
    "joint, random rows": BOTH | {"rows": 2, "random_rows": True, "noise": "gaussian"},
}


def configured(**changes):
    return replace(TINY, penalty=replace(PenaltyConfig(rho=0.75), **changes))


def noise_for(config):
    return draw_penalty_noise(config, TIME * BATCH, key=jax.random.key(2))


@pytest.fixture(scope="module")
def given():
    """Dynamics, and h and e of a batch."""
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = TINY.model
    dynamics = RSSM.init(sizes, 2, key=keys[0])
    return dynamics, *(
        jax.random.normal(key, (TIME, BATCH, width))
        for key, width in zip(keys[1:], (sizes.deter, sizes.units), strict=True)
    )


def values_of(config, dynamics, h, e, noise, **options):
    """The penalties at h and e, in the type that the agent computes in."""
    h, e = h.astype(config.compute), e.astype(config.compute)
    z = jnp.zeros((TIME, BATCH, 1), h.dtype)
    seen = Observed(h, z, z, dynamics.posterior.first(jnp.concatenate([h, e], -1)))
    return penalties(config, dynamics, Prediction(seen, e, {}, {}), noise, **options)


def total(config, given, noise):
    """Sum of the penalties, and each."""
    values = values_of(config, *given, noise)
    return sum(values.values()), values


evaluate = jax.jit(jax.value_and_grad(total, argnums=1, has_aux=True), static_argnums=0)


@pytest.mark.parametrize("case", CASES)
def test_products_give_value_and_gradients_of_the_closed_form(given, case):
    products, closed = (configured(estimator=name, **CASES[case]) for name in ("vjp", "probes"))
    drawn = [jax.tree.leaves(noise_for(config)) for config in (products, closed)]
    for one, two in zip(*drawn, strict=True):
        np.testing.assert_array_equal(one, two)
    (_, ours), gradient = evaluate(products, given, noise_for(products))
    (_, expected), expected_gradient = evaluate(closed, given, noise_for(closed))
    assert ours.keys() == expected.keys()
    assert len(ours) == 1 + ("joint" in case)
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5)
        assert value > 1e-4
    for got, want in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        assert_close(got, want, 1e-5)
    _, by_h, by_e = expected_gradient
    assert jnp.abs(by_h).max() > 1e-4
    assert (jnp.abs(by_e).max() > 1e-4) == (case != "prior")


def test_in_bfloat16_products_are_near_the_closed_form(given):
    found = []
    for estimator in ("vjp", "probes"):
        config = replace(configured(estimator=estimator), compute="bfloat16")
        found.append(jax.jit(total, static_argnums=0)(config, given, noise_for(config))[0])
    assert {value.dtype for value in found} == {jnp.dtype("float32")}
    np.testing.assert_allclose(*found, rtol=0.03)


def test_averaged_over_all_states_the_penalty_is_rho_times_that_of_the_sampled(given):
    config = configured(**BOTH)
    noise = noise_for(config)
    assert noise.states.size == 18
    runs = jax.jit(jax.vmap(lambda over_all: values_of(config, *given, noise, over_all=over_all)))
    alone = jax.jit(total, static_argnums=0)(config, given, noise)[1]
    for name, value in runs(jnp.array([0.0, 1.0])).items():
        np.testing.assert_allclose(value, [alone[name], 0.75 * alone[name]], rtol=1e-6)


def test_weights_fall_to_the_floor_of_each_run():
    floors = jnp.array([0.001, 0.01, 0.1])

    def weight(floor):
        config = with_numbers(AgentConfig(), {"penalty.floor": floor}).penalty
        return penalty_weight(config, jnp.float32(0.5), jnp.int32(10**7))

    np.testing.assert_allclose(jax.vmap(weight)(floors), [0.005, 0.01, 0.1], rtol=1e-4)


def test_the_loss_reads_scaling_and_floor_of_the_run():
    """Whatever the program was compiled with."""
    late = {"schedule": "step", "step_interval": 1, "step_factor": 1e-6}
    config = configured(**late)
    state = agent.init(configured(scaling="all", floor=0.25, **late), SPACES, jax.random.key(0))
    state = state._replace(updates=jnp.int32(3))
    printed = state._replace(hyper=agent.Hyper.of(config))
    batch = make_batch()
    noise = agent.draw_noise(config, state.model, batch, jax.random.key(1))
    loss = jax.jit(lambda state: agent.loss(config, state.model, state, batch, noise)[1].metrics)
    ours, theirs = loss(state), loss(printed)
    np.testing.assert_allclose(ours["weight/penalty_posterior"], 0.25, rtol=1e-6)
    np.testing.assert_allclose(theirs["weight/penalty_posterior"], 0.001, rtol=1e-6)
    penalty = "loss/penalty_posterior"
    np.testing.assert_allclose(ours[penalty], 0.75 * theirs[penalty], rtol=1e-6)
    more = 0.25 * ours[penalty] - 0.001 * theirs[penalty]
    np.testing.assert_allclose(ours["loss/total"] - theirs["loss/total"], more, atol=1e-4)
