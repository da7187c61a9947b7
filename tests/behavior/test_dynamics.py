"""Policies that learn by gradients through their dreams."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import agent, world_model
from gpld.behavior import Normalizer
from gpld.config import AgentConfig, BehaviorConfig, ConfigError
from gpld.distributions import TwoHot, sample_classes
from gpld.types import Spaces
from gpld.world_model._recurrence import next_h
from gpld.world_model._rssm import split
from tests.test_agent import SPACES, TINY, make_batch


def configured(**options) -> AgentConfig:
    return dataclasses.replace(TINY, behavior=BehaviorConfig(horizon=4, gradient="dynamics", **options))


def shaken(config: AgentConfig) -> agent.AgentState:
    """An agent whose heads no longer start at zero."""
    state = agent.init(config, SPACES, jax.random.key(0))
    model, value = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape),
        (state.model, state.slow_value),
    )
    return state._replace(model=model, slow_value=jax.tree.map(lambda x: 0.9 * x, value))


def plain_policy_loss(config, policy, state, h, z, noise):
    """A dream step by step, as the equations have it, all of it left to automatic differentiation."""
    world, value, slow_value = state.model.world, state.model.value, state.slow_value
    dynamics = world.dynamics
    cell, action_in = split(dynamics, h.dtype)
    states, entropies = [jnp.concatenate([h, z], -1)], []
    for uniform, normal in zip(noise.classes, noise.actions, strict=True):
        choice = policy(jax.lax.stop_gradient(states[-1]))
        entropies.append(choice.entropy())
        h = next_h(cell, h, z, action_in(choice.sample(normal)))
        probs = dynamics.probs(dynamics.prior(h))
        drawn = jax.nn.one_hot(sample_classes(probs, uniform), probs.shape[-1])
        z = (drawn + probs - jax.lax.stop_gradient(probs)).reshape(len(h), -1)
        states.append(jnp.concatenate([h, z], -1))

    options, states = config.behavior, jnp.stack(states)
    baseline = slow_value if options.slow_target else value
    reward, base = (TwoHot(head(states)).mean() for head in (world.reward, baseline))
    factor = 1.0 if options.learned_discount else 1 - 1 / options.discount_horizon
    live = factor * jax.nn.sigmoid(world.cont(states)[..., 0])
    later, returns = base[-1], []
    for t in reversed(range(len(states) - 1)):
        mixed = (1 - options.trace) * base[t + 1] + options.trace * later
        later = reward[t + 1] + live[t + 1] * mixed
        returns.insert(0, later)
    returns = jnp.stack(returns)
    scale = Normalizer.init().follow(options, jax.lax.stop_gradient(returns)).scale(options)
    weight = jax.lax.stop_gradient(jnp.cumprod(live, 0) / factor)[:-1]
    gain = (returns - base[:-1]) / scale + state.hyper.entropy * jnp.stack(entropies)
    return -jnp.mean(weight * gain)


@pytest.mark.parametrize("options", [{}, {"learned_discount": False, "slow_target": True}], ids=str)
def test_it_is_the_gradient_of_the_whole_dream(options):
    config = configured(**options)
    state, batch = shaken(config), make_batch()
    noise = agent.draw_noise(config, state.model, batch, jax.random.key(3))
    predict = jax.jit(world_model.predict, static_argnums=0)
    seen = predict(config, state.model.world, batch, noise.classes).observed
    h, z = (x.reshape(-1, x.shape[-1]) for x in (seen.h, seen.z))

    def ours(policy):
        model = dataclasses.replace(state.model, policy=policy)
        _, out = agent.loss(config, model, state, batch, noise)
        return out.metrics["loss/policy"]

    def plain(policy):
        return plain_policy_loss(config, policy, state, h, z, noise.dream)

    (got, by_ours), (want, by_plain) = (
        jax.jit(jax.value_and_grad(function))(state.model.policy) for function in (ours, plain)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(by_ours), jax.tree.leaves(by_plain), strict=True):
        assert jnp.abs(b).max() > 1e-2
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_nothing_but_the_policy_learns_by_it():
    state, batch = shaken(TINY), make_batch()
    noise = agent.draw_noise(configured(), state.model, batch, jax.random.key(3))

    def gradient(config):
        def total(model):
            return agent.loss(config, model, state, batch, noise)[0]

        return jax.jit(jax.grad(total))(state.model)

    reinforce = dataclasses.replace(configured(), behavior=BehaviorConfig(horizon=4))
    through, without = gradient(configured()), gradient(reinforce)
    for name in ("world", "value"):
        pairs = zip(*(jax.tree.leaves(getattr(x, name)) for x in (through, without)), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), name
    pairs = zip(jax.tree.leaves(through.policy), jax.tree.leaves(without.policy), strict=True)
    assert not any(np.array_equal(a, b) for a, b in pairs)


def test_discrete_actions_are_refused():
    with pytest.raises(ConfigError, match=r"agent\.behavior\.gradient: 'dynamics' needs continuous actions"):
        agent.init(configured(), Spaces.of({"position": (2,)}, 3, discrete=True), jax.random.key(0))
