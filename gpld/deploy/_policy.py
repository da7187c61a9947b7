from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float32

from gpld import agent, machine
from gpld.agent import Carry, Model
from gpld.config import Config
from gpld.training import saved
from gpld.types import Spaces

acted = jax.jit(agent.act, static_argnums=0, static_argnames="deterministic")
"""`agent.act`, compiled."""


def load(run: str | Path, *, seed: int = 0, env: Any = None) -> "Policy":
    """The agent of a run folder's newest good checkpoint. `seed` decides what is random in its actions.

    With `env`, an environment of Gymnasium or dm_control, it takes that environment's observations as they
    are, and its actions are the environment's own: within its bounds, of its shape and type.
    """
    machine.use_compilation_cache()
    trained = saved.load(run)
    return Policy(trained.config, trained.spaces, trained.model, seed=seed, env=env)


class Policy:
    """Acts in one environment, or in N of them, and keeps the latent states of their episodes.

    Actions are drawn at random from the policy, as in training and evaluation, unless they are asked to be
    deterministic. The same seed and the same calls give the same ones.
    """

    def __init__(self, config: Config, spaces: Spaces, model: Model, *, seed: int = 0, env: Any = None):
        self.config = config
        """Options of the run."""
        self.spaces = spaces
        """Names and shapes of the observations, and the width of the actions."""
        self._model = model
        self._flatten, self._own_action = (None, None) if env is None else _adapters(env, spaces)
        self._key, self._calls = jax.random.key(seed), 0
        self._carry: Carry | None = None
        self._count: int | None = None
        """Environments acted for since the last reset; None for one without an axis."""

    def reset(self) -> None:
        """Start new episodes: the next observations are their first. Random numbers continue."""
        self._carry = None

    def act(self, obs: Any, is_first: Any = None, *, deterministic: bool = False) -> Any:
        """The next action.

        `obs` has the arrays of one environment by name, shaped as `spaces` says, or of N environments, each
        with a leading axis of N; or it is what the policy's `env` returned. `is_first`, a bool or N of them,
        says where an episode begins; without it, that is where `reset` was called, and at the very first
        call. `deterministic` takes the likeliest latent state and action.

        Returns floats in [-1, 1], `[A]` or `[N, A]`; or, for discrete actions, an int in [0, A), or N of
        them; or, with `env`, an action that it takes, or an array of N. Each is meant to be held for
        `config.env.action_repeat` env steps, as it was in training.
        """
        arrays, count = self._observations(self._flatten(obs) if self._flatten else obs)
        rows = 1 if count is None else count
        carry = self._carry
        if carry is not None and count != self._count:
            was, now = ("one environment" if n is None else f"a batch of {n}" for n in (self._count, count))
            raise ValueError(f"obs is of {now}, but this policy acts for {was}; call reset() in between")
        fresh = np.full(rows, carry is None)
        if is_first is not None:
            fresh |= _flags(is_first, count)
        if carry is None:
            carry = agent.init_carry(self.config.agent, self.spaces, rows)
        key = jax.random.fold_in(self._key, self._calls)
        carry = acted(self.config.agent, self._model, carry, arrays, fresh, key, deterministic=deterministic)
        self._carry, self._count, self._calls = carry, count, self._calls + 1
        actions = np.asarray(carry.action)
        if self._own_action is not None:
            own = [self._own_action(action) for action in actions]
            return own[0] if count is None else np.stack(own)
        if self.spaces.discrete:
            choices = actions.argmax(-1)
            return int(choices[0]) if count is None else choices
        actions = np.clip(actions, -1.0, 1.0)
        return actions[0] if count is None else actions

    def _observations(self, obs: Any) -> tuple[dict[str, Float32[np.ndarray, "N ..."]], int | None]:
        """Checked arrays with a leading axis, and its length if the caller gave it."""
        expected = dict(self.spaces.obs)
        if not isinstance(obs, Mapping):
            raise ValueError(
                f"obs must be a dictionary with {_described(expected)}, not {type(obs).__name__}"
            )
        if obs.keys() != expected.keys():
            given = ", ".join(map(str, obs)) or "nothing"
            raise ValueError(f"obs must have {_described(expected)}, and nothing else; it has {given}")
        arrays = {name: _numbers(name, obs[name]) for name in expected}
        counts = {name: _count(name, arrays[name].shape, shape) for name, shape in expected.items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name}: {'one' if n is None else n}" for name, n in counts.items())
            raise ValueError(f"obs has different numbers of environments ({found})")
        count = next(iter(counts.values()))
        return ({name: x[None] for name, x in arrays.items()} if count is None else arrays), count


def _adapters(env: Any, spaces: Spaces) -> tuple[Callable[[Any], Any] | None, Callable[[np.ndarray], Any]]:
    """From an environment's observations to the agent's, if they differ, and from its actions to them."""
    from gpld.envs import action_choices, action_reader, action_width, flat_observation

    suite = hasattr(env, "action_spec")
    space = env.action_spec() if suite else getattr(env, "single_action_space", env.action_space)
    if (action_width(space), bool(action_choices(space))) != (spaces.actions, spaces.discrete):
        own = f"{spaces.actions} {'choices' if spaces.discrete else 'numbers'}"
        raise ValueError(f"env: its actions, {space}, do not fit the agent's, which are {own}")
    if suite:
        return None, action_reader(space)
    observed = getattr(env, "single_observation_space", env.observation_space)
    return partial(flat_observation, space=observed), action_reader(space)


def _numbers(name: str, value: Any) -> Float32[np.ndarray, "..."]:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
            array = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"obs[{name!r}] is not an array of numbers: {value!r:.80}") from error
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        place = f" at {bad[0].tolist()}" if array.ndim else ""
        raise ValueError(f"obs[{name!r}] must be finite, but is {array[tuple(bad[0])]}{place}")
    return array


def _count(name: str, given: tuple[int, ...], expected: tuple[int, ...]) -> int | None:
    """The number of environments of an array, or None without such an axis."""
    if given == expected:
        return None
    if given[1:] == expected and given and given[0] > 0:
        return given[0]
    batched = f"[N{''.join(f', {n}' for n in expected)}]"
    raise ValueError(f"obs[{name!r}] must have shape {list(expected)} or {batched}, not {list(given)}")


def _flags(is_first: Any, count: int | None) -> Bool[np.ndarray, "N"]:
    flags = np.asarray(is_first)
    if flags.dtype != bool or flags.shape != (() if count is None else (count,)):
        expected = "a bool" if count is None else f"{count} bools, one for each environment"
        raise ValueError(f"is_first must be {expected}, not {is_first!r}")
    return flags.reshape(-1)


def _described(expected: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in expected.items())
