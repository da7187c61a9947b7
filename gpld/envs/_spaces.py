"""Gymnasium's spaces as the agent has them: observations are arrays by name, actions a vector or a choice."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatten, flatten_space

from gpld.envs._base import ActionScale

MOST_CHOICES = 1024
"""Combinations of several discrete actions, each of which is one choice of the agent."""

ENCODED = (Discrete, MultiDiscrete, MultiBinary)
"""Observations that are given to the agent one-hot, or as zeros and ones."""


def observation_spaces(space: Space) -> dict[str, Space]:
    """The parts of a space by name: `observation` for a single one, `a.b` and `a.0` for nested ones."""
    return dict(_named_parts(space))


def observation_parts(obs: Any, space: Space, prefix: str = "") -> dict[str, Any]:
    """An observation by the names of `observation_spaces`; what is in no space keeps its own name."""
    parts = _parts(space)
    if parts is None or not isinstance(obs, Mapping | tuple | list):
        return {prefix or "observation": obs}
    flat = {}
    for name, value in (obs if isinstance(obs, Mapping) else dict(enumerate(obs))).items():
        inner = _joined(prefix, name)
        known = str(name) in parts
        flat |= observation_parts(value, parts[str(name)], inner) if known else {inner: value}
    return flat


def observation_boxes(space: Space) -> dict[str, Space]:
    """The parts of a space by name as the agent has them; one that is of no known kind stays as it is."""
    spaces = observation_spaces(space).items()
    return {name: flatten_space(part) if isinstance(part, ENCODED) else part for name, part in spaces}


def flat_observation(obs: Any, space: Space) -> dict[str, Any]:
    """An observation by name as the agent has it: choices are zeros and ones."""
    spaces = observation_spaces(space)
    return {name: _encoded(x, spaces.get(name)) for name, x in observation_parts(obs, space).items()}


def repeated_names(space: Space) -> list[str]:
    """Names that more than one part of a space would have, as `a.b` of "a.b" and of "b" in "a"."""
    names = Counter(name for name, _ in _named_parts(space))
    return [name for name, count in names.items() if count > 1]


def _named_parts(space: Space, prefix: str = "") -> Iterator[tuple[str, Space]]:
    parts = _parts(space)
    if parts is None:
        yield prefix or "observation", space
        return
    for name, part in parts.items():
        yield from _named_parts(part, _joined(prefix, name))


def _parts(space: Space) -> Mapping[str, Space] | None:
    """The spaces in a space of several, by name or number."""
    if isinstance(space, Tuple):
        return {str(i): part for i, part in enumerate(space.spaces)}
    return space.spaces if isinstance(space, Dict) else None


def _joined(prefix: str, name: str | int) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def _encoded(value: Any, space: Space | None) -> Any:
    if not isinstance(space, ENCODED):
        return value
    if not space.contains(value):
        raise ValueError(f"{value!r} is not in {space}")
    return flatten(space, value)


def action_choices(space: Any) -> tuple[int, ...]:
    """How many choices each discrete action of a space has; nothing for actions of other kinds."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    if isinstance(space, MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    return (2,) * math.prod(space.shape) if isinstance(space, MultiBinary) else ()


def action_width(space: Any) -> int:
    """A: the number of choices, or the size of the vector."""
    return math.prod(action_choices(space)) if action_choices(space) else math.prod(space.shape or ())


def action_bounds(space: Any) -> list[tuple[float, float]]:
    """Low and high of each number of an action, or nothing for discrete actions."""
    return [] if action_choices(space) else list(zip(*(x.tolist() for x in _limits(space)), strict=True))


def _limits(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lows and highs `[A]` of a box of Gymnasium's, or of a bounded array of dm_env."""
    given = (space.low, space.high) if isinstance(space, Box) else (space.minimum, space.maximum)
    low, high = (np.broadcast_to(bound, space.shape).ravel() for bound in given)
    return low, high


def action_reader(space: Any) -> Callable[[np.ndarray], Any]:
    """A function from the agent's action `[A]` to the environment's.

    The space is one of Gymnasium's, or a bounded array of dm_env. Several discrete actions are one choice
    among their combinations.
    """
    if isinstance(space, Discrete):
        return lambda action: int(space.start + np.argmax(action))
    if choices := action_choices(space):
        start = space.start if isinstance(space, MultiDiscrete) else 0

        def of_combination(action: np.ndarray) -> np.ndarray:
            each = np.stack(np.unravel_index(np.argmax(action), choices)).reshape(space.shape)
            return (each + start).astype(space.dtype)

        return of_combination
    scale = ActionScale.of(*_limits(space))
    return lambda action: scale(action).astype(space.dtype).reshape(space.shape)


def action_problem(space: Space) -> str:
    """Why the agent cannot act in a space, or nothing."""
    if choices := action_choices(space):
        if (count := math.prod(choices)) <= MOST_CHOICES:
            return ""
        return f"its space is {space} with {count:,} combinations; at most {MOST_CHOICES:,} are supported"
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        allowed = "Discrete, MultiDiscrete, MultiBinary and Box of floats"
        return f"its space is {space}, only {allowed} are supported"
    if not space.low.size:
        return f"its space is {space}, which has nothing to choose"
    return bounds_problem(action_bounds(space))


def bounds_problem(bounds: Iterable[tuple[float, float]]) -> str:
    """Why the agent's actions cannot be scaled to bounds, or nothing."""
    for low, high in bounds:
        if not (math.isfinite(low) and math.isfinite(high)):
            return f"unbounded: [{low:g}, {high:g}]; the agent acts in [-1, 1] and needs bounds to scale to"
        if low >= high:
            return f"lower bound {low:g} is not below upper bound {high:g}"
    return ""
