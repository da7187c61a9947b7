"""Environments written in JAX, each with something to be seen by its tests."""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class State(NamedTuple):
    obs: dict
    reward: jax.Array
    done: jax.Array
    time: jax.Array
    rng: jax.Array
    info: dict


class Clock:
    """Brax's interface. Counts its steps; ends after `end`, by its rules or by `truncation`."""

    action_size = 2
    observation_size = 1

    def __init__(self, end=5, truncation=False, broken=-1):
        self.end, self.truncation, self.broken = end, truncation, broken

    def reset(self, rng):
        return self._state(
            jnp.int32(0), jax.random.key(jax.random.bits(rng, dtype=np.uint32)), jnp.float32(0)
        )

    def step(self, state, action):
        return self._state(state.time + 1, state.rng, action.sum())

    def _state(self, time, rng, reward):
        seen = jnp.where(time == self.broken, jnp.nan, time.astype(np.float32))
        over = (time >= self.end).astype(np.float32)
        obs = {"time": seen, "luck": {"drawn": jax.random.normal(rng, (2,))}}
        return State(obs, reward, over, time, rng, {"truncation": over * float(self.truncation)})


def truncated():
    return Clock(truncation=True)


def endless():
    return Clock(end=10**6)


def at_once():
    return Clock(end=1)


def breaking():
    return Clock(broken=3)


class Fields(NamedTuple):
    value: jax.Array
    time: jax.Array


class Walk:
    """gymnax's interface, with a random step in it."""

    default_params = SimpleNamespace(max_steps_in_episode=6, size=1.0)

    def action_space(self, params):
        return SimpleNamespace(low=-2.0, high=4.0, shape=(3,))

    def reset_env(self, key, params):
        state = Fields(jax.random.normal(key, (3,)), jnp.int32(0))
        return state.value, state

    def step_env(self, key, state, action, params):
        value = action * params.size + jax.random.normal(key, (3,))
        state = Fields(value, state.time + 1)
        over = (state.time >= params.max_steps_in_episode) | (action[0] > 3.5)
        return value, state, action.sum(), over, {}

    def reset(self, key, params):
        raise AssertionError("step() begins a new episode by itself: reset_env and step_env are used")

    step = reset


class NewWalk(Walk):
    """As from gymnax 1.0 on: a step does not know of the time limit."""

    def step_env(self, key, state, action, params):
        obs, state, reward, _, info = super().step_env(key, state, action, params)
        return obs, state, reward, action[0] > 3.5, info

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


class Choose(Walk):
    """Discrete actions."""

    def action_space(self, params):
        return SimpleNamespace(n=4)

    def step_env(self, key, state, action, params):
        return state.value, Fields(state.value, state.time + 1), action.astype(np.float32), action == 3, {}


class Unbounded(Walk):
    def action_space(self, params):
        return SimpleNamespace(low=-2.0, high=np.array([4.0, np.inf, 4.0]), shape=(3,))


def with_params():
    """As gymnax.make returns them."""
    return Walk(), SimpleNamespace(max_steps_in_episode=2, size=0.0)


class Seer:
    """Sees an image."""

    action_size = 1
    size = 16

    def reset(self, rng):
        shade = jax.random.bits(rng, (self.size, 16, 3), np.uint8)
        return SimpleState(shade, jnp.float32(0), jnp.bool_(False))

    def step(self, state, action):
        return state._replace(obs=state.obs + np.uint8(1), reward=action[0])


class SimpleState(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class Alike(Seer):
    def reset(self, rng):
        return super().reset(jax.random.PRNGKey(0))


class OddImage(Seer):
    size = 15


class Calls(Seer):
    """Asks the host for its reward."""

    def step(self, state, action):
        like = jax.ShapeDtypeStruct((), np.float32)
        reward = jax.pure_callback(lambda x: x, like, action[0], vmap_method="expand_dims")
        return state._replace(reward=reward)


class Changes(Seer):
    def step(self, state, action):
        return state._replace(obs=state.obs[:3])


class OnTheHost(Seer):
    def step(self, state, action):
        return state._replace(reward=float(action[0]))


class TwoRewards(Seer):
    def step(self, state, action):
        return state._replace(reward=jnp.zeros(2))


class NeedsMore:
    def __init__(self, name):
        pass


class Nothing:
    pass


registry = SimpleNamespace(load=lambda name: {"ant": Clock}[name]())


instance = Clock(end=2)
