"""The checkers of environments, Gymnasium's and JAX's: they explain to authors what is wrong."""

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from gpld.config import ConfigError
from gpld.envs._base import EnvironmentFailure
from gpld.envs._gymnasium import Factory, Issue, registered, space_issues
from gpld.envs._jax import FRAMES, JaxEnv, jax_task
from gpld.envs._spaces import action_reader, action_width, flat_observation, observation_boxes
from gpld.tasks import JAX_PREFIX


def check(env: str | gymnasium.Env | Factory, *, steps: int = 300, seed: int = 0) -> list[Issue]:
    """Try an environment and list what is wrong with it.

    Steps it twice from the same seed with the same random actions, extreme ones among them. Takes a name
    (`gym:Pendulum-v1`, `jax:module:name`), a Gymnasium environment or a factory of one. An empty list means
    that nothing was found.
    """
    if isinstance(env, str) and env.startswith(JAX_PREFIX):
        return _check_jax(env, steps, seed)
    if isinstance(env, gymnasium.Env):
        return _Check(env, steps, seed).run()
    factory = registered(env.removeprefix("gym:")) if isinstance(env, str) else env
    try:
        made = factory()
    except ConfigError:  # of its name or arguments
        raise
    except Exception as error:
        return [Issue("error", "reset", f"the environment cannot be made: {_message(error)}")]
    if not isinstance(made, gymnasium.Env):
        return [Issue("error", "reset", f"the factory returned {made!r}, which is not a gymnasium.Env")]
    try:
        return _Check(made, steps, seed).run()
    finally:
        made.close()


def _check_jax(task: str, steps: int, seed: int) -> list[Issue]:
    """What is wrong with an environment, tried with two seeds and random actions, extreme ones among them."""
    try:
        streams = jax_task(task, action_repeat=1, limit=FRAMES)
    except (ConfigError, EnvironmentFailure) as error:
        return [Issue("error", "reset", str(error))]
    issues, rng, lengths, length = [], np.random.default_rng(seed), [], 0
    with JaxEnv(streams, [seed, seed + 1], restart_limit=2 * steps) as env:
        for t in range(steps):
            action = rng.uniform(-1, 1, (2, env.spaces.actions)).astype(np.float32)
            step = env.step(np.sign(action) if t % 4 == 0 else action)
            alike = all(np.array_equal(value[0], value[1]) for value in step.obs.values())
            if t == 0 and alike:
                problem = f"seeds {seed} and {seed + 1} start alike: does reset use its key?"
                issues.append(Issue("warning", "seed", problem))
            length = 0 if step.is_first[0] else length + 1
            if step.is_last[0]:
                lengths.append(length)
    if env.faults:
        issues.append(Issue("error", "step", str(env.faults[0])))
    if len(lengths) > 2 and max(lengths) <= 1:
        issues.append(Issue("error", "episode", "all end at their first step: does reset clear the end?"))
    return issues


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Stop(Exception):  # noqa: N818
    """Nothing more can be tried."""


class _Check:
    def __init__(self, env: gymnasium.Env, steps: int, seed: int):
        self.env, self.steps, self.seed = env, steps, seed
        self.issues: dict[tuple[str, str], Issue] = {}  # by key and kind: the first value says enough

    def run(self) -> list[Issue]:
        if found := space_issues(self.env):
            return found
        with contextlib.suppress(_Stop):
            self.compare(self.rollout(watch=True), self.rollout(watch=False))
            self.starts()
        return list(self.issues.values())

    def error(self, key: str, kind: str, problem: str) -> None:
        self.issues.setdefault((key, kind), Issue("error", key, problem))

    def warning(self, key: str, kind: str, problem: str) -> None:
        self.issues.setdefault((key, kind), Issue("warning", key, problem))

    def stop(self, key: str, problem: str) -> _Stop:
        self.error(key, "stop", problem)
        return _Stop()

    def reset(self, seed: int) -> dict[str, Any]:
        try:
            result = self.env.reset(seed=seed)
        except Exception as error:
            raise self.stop("reset", f"reset(seed={seed}) raised {_message(error)}") from error
        if not (isinstance(result, tuple) and len(result) == 2):
            raise self.stop("reset", f"reset() must return (observation, info), not {_kind(result)}")
        return self.named(result[0], "reset")

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any]:
        try:
            result = self.env.step(action)
        except Exception as error:
            given = np.asarray(action).tolist()
            raise self.stop("step", f"step({given}) raised {_message(error)}") from error
        if not (isinstance(result, tuple) and len(result) == 5):
            expected = "(observation, reward, terminated, truncated, info)"
            raise self.stop("step", f"step() must return {expected}, not {_kind(result)}")
        return self.named(result[0], "step"), *result[1:4]

    def named(self, obs: Any, source: str) -> dict[str, Any]:
        """An observation by its keys."""
        try:
            return flat_observation(obs, self.env.observation_space)
        except ValueError as error:
            raise self.stop(
                "observation", f"{source}() returned an observation outside its space: {error}"
            ) from error

    def rollout(self, *, watch: bool) -> list[tuple[dict[str, np.ndarray], Any]]:
        """Observations and rewards under random actions; `watch` is called with each of them."""
        rng = np.random.default_rng(self.seed)
        space = self.env.action_space
        read, width = action_reader(space), action_width(space)
        trace, lengths, length = [], [], 0
        obs, reward, over = self.reset(self.seed), 0.0, False
        for t in range(self.steps):
            if watch:
                self.observation(obs, f"at step {length} of an episode")
                self.reward(reward)
            before = {key: np.array(value) for key, value in obs.items()}
            trace.append((before, reward))
            if over:
                lengths.append(length)
                obs, reward, over, length = self.reset(self.seed + len(lengths)), 0.0, False, 0
                continue
            action = rng.uniform(-1, 1, width).astype(np.float32)
            action = np.sign(action) if t % 4 == 0 else action
            following, reward, terminated, truncated = self.step(read(action))
            if watch:
                self.in_place(obs, before)
                self.ends(terminated, truncated)
            obs, over, length = following, terminated or truncated, length + 1
        if watch:
            self.episodes(lengths)
        return trace

    def observation(self, obs: dict[str, Any], when: str) -> None:
        boxes = observation_boxes(self.env.observation_space)
        if obs.keys() != boxes.keys():
            keys = f"has keys {sorted(obs)}, its space {sorted(boxes)}"
            raise self.stop(next(iter(obs.keys() ^ boxes.keys())), f"the observation {when} {keys}")
        for key, value in obs.items():
            box, array = boxes[key], np.asarray(value)
            assert isinstance(box, Box)  # else the spaces would have been an error
            if array.shape != box.shape:
                raise self.stop(key, f"shape {array.shape} {when}, its space says {box.shape}")
            if not np.issubdtype(array.dtype, np.number) and array.dtype != bool:
                raise self.stop(key, f"{_kind(value)} {when} is not an array of numbers")
            if array.dtype != box.dtype:
                self.warning(key, "type", f"type {array.dtype} {when}, its space says {box.dtype}")
            if problem := _not_finite(array):
                self.error(key, "finite", f"{problem} {when}: {_values(array)}")
            elif (out := (array < box.low) | (array > box.high)).any():
                where = tuple(np.argwhere(out)[0].tolist())
                bounds = f"[{box.low[where]:g}, {box.high[where]:g}]"
                at = f" at index {list(where)}" if where else ""
                self.warning(key, "bounds", f"{array[where]:g}{at} {when}, outside its bounds {bounds}")

    def reward(self, reward: Any) -> None:
        array = np.asarray(reward)
        kinds = np.integer, np.floating, np.bool_
        if array.shape != () or not any(np.issubdtype(array.dtype, kind) for kind in kinds):
            raise self.stop("reward", f"{_kind(reward)} is not a number")
        if problem := _not_finite(array):
            self.error("reward", "finite", f"{problem}: {reward}")

    def ends(self, terminated: Any, truncated: Any) -> None:
        for key, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                self.error(key, "type", f"{_kind(value)} is not True or False")

    def in_place(self, obs: dict[str, Any], before: dict[str, np.ndarray]) -> None:
        for key, value in obs.items():
            if not np.array_equal(np.asarray(value), before[key], equal_nan=True):
                problem = "step() overwrote the array it had returned before: return a copy"
                self.warning(key, "in place", problem)

    def episodes(self, lengths: list[int]) -> None:
        if not lengths and not _has_time_limit(self.env):
            seen = f"none ended in the {self.steps} steps tried, and no time limit is known"
            advice = "one that never ends has no return; gymnasium.wrappers.TimeLimit cuts it"
            self.warning("episode", "endless", f"{seen}: {advice}")
        elif len(lengths) > 2 and max(lengths[1:]) <= 1 < lengths[0]:
            problem = f"after the first, all end at once (lengths {lengths[:5]}): does reset() clear the end?"
            self.error("episode", "short", problem)

    def compare(self, one: list, two: list) -> None:
        """The same seed and actions must give the same bits: runs are resumed by repeating an episode."""
        for t, ((obs, reward), (obs2, reward2)) in enumerate(zip(one, two, strict=True)):
            again = obs2 | {"reward": reward2}
            for key, value in (obs | {"reward": reward}).items():
                if not np.array_equal(np.asarray(value), np.asarray(again.get(key)), equal_nan=True):
                    values = f"{_values(value)} and {_values(again.get(key))}"
                    problem = f"the same seed {self.seed} and actions gave {values} at step {t}"
                    self.warning(key, "repeat", f"{problem}: runs cannot be repeated or resumed exactly")
                    return

    def starts(self) -> None:
        """Different seeds should start differently."""
        one = {key: np.array(value) for key, value in self.reset(self.seed).items()}
        two = self.reset(self.seed + 1)
        if all(np.array_equal(value, np.asarray(two.get(key))) for key, value in one.items()):
            problem = f"seeds {self.seed} and {self.seed + 1} start alike: does reset(seed=...) use its seed?"
            self.warning("seed", "ignored", problem)


def _has_time_limit(env: gymnasium.Env) -> bool:
    if isinstance(env, TimeLimit) or (env.spec and env.spec.max_episode_steps):
        return True
    return isinstance(env, gymnasium.Wrapper) and _has_time_limit(env.env)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {_short(repr(value))}"


def _not_finite(array: np.ndarray) -> str:
    """What to say of numbers that the agent could not hold; nothing if it can."""
    if not np.isfinite(array).all():
        return "not finite"
    with np.errstate(over="ignore"):
        return "" if np.isfinite(array.astype(np.float32)).all() else "too large for float32"


def _values(value: Any) -> str:
    return _short(str(np.asarray(value).tolist()))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
