"""Gymnasium environments, from its registry or from a factory."""

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space

from gpld.config import ConfigError
from gpld.envs._base import Observation, RenderingError, Stream
from gpld.envs._catalog import in_line
from gpld.envs._imports import PACKAGES, import_for, import_remedy
from gpld.envs._spaces import (
    action_bounds,
    action_choices,
    action_problem,
    action_reader,
    action_width,
    flat_observation,
    observation_boxes,
    repeated_names,
)
from gpld.tasks import GYM_PREFIX, POOL_PREFIX, near, registered_tasks
from gpld.types import Spaces

Factory = Callable[[], gymnasium.Env]

IMAGE_SIDES = 16
"""Images are halved four times."""
SET_HERE = ("id", "disable_env_checker")
"""Arguments of `gymnasium.make` that are not an environment's own, and not left to its user."""
_OWN = re.compile(r"gymnasium\.envs\.(mujoco|box2d|classic_control|toy_text)\.")
"""Where Gymnasium's own environments are; the packages that they need are extras of the same names."""
NOT_RENDERED = "this environment does not render"


class Issue(NamedTuple):
    """A problem of an environment."""

    level: Literal["error", "warning"]
    """An error prevents training; a warning may be intended."""
    key: str
    """Where: an observation's key, "action", "reward", "reset", "step", "seed" or "episode"."""
    problem: str
    """The problem, with the offending value."""

    def __str__(self) -> str:
        return f"{self.level} in {self.key}: {self.problem}"


def registered(name: str, render: bool = False, kwargs: Mapping[str, Any] | None = None) -> Factory:
    """Factory of an environment in Gymnasium's registry; of `module:Name-v0` once the module is imported.

    `kwargs` are arguments of the environment's own.
    """
    if taken := [argument for argument in SET_HERE if argument in (kwargs or {})]:
        raise ConfigError(
            f"env.kwargs: {taken[0]!r} is not allowed; it must be an argument of gym:{name} itself"
        )
    module, _, own_name = name.rpartition(":")
    try:
        import_for(f"{GYM_PREFIX}{name}")
        gymnasium.spec(own_name)
    except ImportError as error:
        remedy = import_remedy(error, module)
        raise ConfigError(f"task 'gym:{name}' is not known: {error}{remedy}") from None
    except gymnasium.error.Error as error:
        raise _unknown(name, error) from None

    def make(**how: str) -> gymnasium.Env:
        try:
            # Of an older version than the newest.
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                return gymnasium.make(own_name, disable_env_checker=True, **(kwargs or {}), **how)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise _lacking(own_name, name, error) from error

    def make_own() -> gymnasium.Env:
        try:
            return make()
        except TypeError as error:
            if not kwargs:
                raise
            named = ", ".join(kwargs)
            raise ConfigError(f"env.kwargs: gym:{name} cannot be made with {named}: {error}") from error

    def make_rendering() -> gymnasium.Env:
        try:
            return make(render_mode="rgb_array")
        except TypeError as error:  # it has no such argument
            raise RenderingError(f"{NOT_RENDERED} (it takes no render_mode)") from error

    return make_rendering if render else make_own


def _unknown(name: str, error: Exception) -> ConfigError:
    """The error for a name that is not registered, with the nearest that are."""
    hint = ""
    if name.startswith("ALE/"):
        install = f"pip install {PACKAGES['ale_py']}"
        hint = f"; Gymnasium's own, whose images must be resized, is gym:ale_py:{name}, with {install}"
    if names := near(f"{GYM_PREFIX}{name}", registered_tasks(name.rpartition(":")[0])):
        hint += f"; did you mean {' or '.join(names)}?"
    reason = in_line(error).partition(". ")[0]  # and not Gymnasium's own guesses
    return ConfigError(f"task 'gym:{name}' is not known: {reason}{hint}")


def _lacking(own_name: str, name: str, error: Exception) -> ConfigError:
    """The error for an environment that needs a package, with what to install, or what needs none."""
    problem = in_line(error)
    if (own := _OWN.match(str(gymnasium.spec(own_name).entry_point))) and "pip install" not in problem:
        problem += f"; pip install 'gymnasium[{own[1].replace('_', '-')}]'"
    if (instead := POOL_PREFIX + own_name) in registered_tasks():
        problem += f", or use {instead}"
    return ConfigError(f"task: gym:{name} cannot be made here: {problem}")


def is_image(box: Space) -> bool:
    """Whether a part of a space is an image: uint8 of three axes, the last one of channels."""
    return box.dtype == np.uint8 and len(box.shape or ()) == 3


def space_issues(env: gymnasium.Env) -> list[Issue]:
    """Problems of the spaces that an environment declares."""
    lacking = [name for name in ("observation", "action") if not hasattr(env, f"{name}_space")]
    if lacking:
        return [Issue("error", name, f"the environment has no {name}_space") for name in lacking]
    boxes = observation_boxes(env.observation_space)
    issues = [
        Issue("error", key, "two parts of the observation space have this name")
        for key in repeated_names(env.observation_space)
    ]
    if not boxes:
        issues.append(Issue("error", "observation", f"its space is {env.observation_space}, which is empty"))
    for key, box in boxes.items():
        if isinstance(box, Box) and not box.low.size:
            issues.append(Issue("error", key, f"its space is {box}, which is empty"))
        elif not isinstance(box, Box):
            allowed = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
            issues.append(Issue("error", key, f"its space is {box}; supported are {allowed}"))
        elif is_image(box) and (box.shape[0] % IMAGE_SIDES or box.shape[1] % IMAGE_SIDES):
            problem = f"it is an image ({box}); height and width must be multiples of {IMAGE_SIDES}"
            issues.append(Issue("error", key, f"{problem}: gymnasium.wrappers.ResizeObservation"))
    problem = action_problem(env.action_space)
    return [*issues, Issue("error", "action", problem)] if problem else issues


class GymnasiumStream(Stream):
    """One Gymnasium environment. Every episode is seeded by its number.

    A saved state is the episode's number and its actions so far: restoring repeats them, and compares the
    last observation to find out whether the environment is deterministic.
    """

    def __init__(self, factory: Factory, seed_of_episode: Callable[[int], int]):
        self._env = factory()
        if errors := space_issues(self._env):
            raise ValueError("this environment cannot be used:\n" + "\n".join(map(str, errors)))
        self._seed_of_episode = seed_of_episode
        space = self._env.action_space
        self._read = action_reader(space)
        boxes = observation_boxes(self._env.observation_space)
        shapes = {key: box.shape or () for key, box in boxes.items()}
        images = [key for key, box in boxes.items() if is_image(box)]
        discrete, bounds = bool(action_choices(space)), action_bounds(space)
        self.spaces = Spaces.of(shapes, action_width(space), discrete, images, bounds)
        self._episode = -1
        self._actions: list[np.ndarray] = []
        self._last: Observation | None = None

    def reset(self) -> Observation:
        """Begin the next episode with its own seed."""
        self._episode += 1
        self._actions = []
        obs, _ = self._env.reset(seed=self._seed_of_episode(self._episode))
        return self._observation(obs)

    def frame(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """One environment step."""
        self._actions.append(action)
        obs, reward, terminated, truncated, _ = self._env.step(self._read(action))
        return self._observation(obs), float(reward), bool(terminated), bool(truncated)

    def save(self) -> Any:
        """The episode's number, its actions, and the last observation to recognise it by."""
        return self._episode, self._actions, self._last

    def restore(self, state: Any) -> bool:
        """Repeat an episode up to where it was saved."""
        self._episode, actions, last = state
        if last is None:
            return True
        self._episode -= 1
        try:
            self.reset()
            for action in actions:
                self.frame(action)
        except Exception:  # it is not deterministic, and the episode is lost
            return False
        return all(np.array_equal(value, last[key]) for key, value in (self._last or {}).items())

    def render(self, height: int, width: int) -> np.ndarray:
        """Picture in the environment's own size."""
        picture = self._env.render()
        if picture is None:
            raise RenderingError(NOT_RENDERED)
        return np.asarray(picture)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _observation(self, obs: Any) -> Observation:
        parts = flat_observation(obs, self._env.observation_space).items()
        self._last = {key: np.array(value, self.spaces.dtype(key)) for key, value in parts}
        return self._last
