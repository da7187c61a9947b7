"""One stream of an environment written in JAX, whichever of two interfaces it has."""

import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt32

from gpld.config import ConfigError, suggestion
from gpld.envs._base import EnvironmentFailure
from gpld.envs._gymnasium import IMAGE_SIDES
from gpld.envs._imports import import_for, import_remedy
from gpld.envs._spaces import bounds_problem
from gpld.tasks import JAX_PREFIX
from gpld.types import Spaces

RawKey = UInt32[Array, "2"]
"""Random keys as Brax and gymnax are used to them."""

REGISTRIES = {"brax.envs": "get_environment", "mujoco_playground": "registry.load", "gymnax": "make"}
"""Modules that make environments by name, and the function that does."""


class Frame(NamedTuple):
    """One env step of one stream, or the beginning of an episode."""

    own: PyTree
    """The environment's own state, with random keys as plain arrays."""
    obs: dict[str, Array]
    reward: Float[Array, ""]
    terminated: Array
    truncated: Array


class Interface(NamedTuple):
    """One stream as pure functions."""

    spaces: Spaces
    reset: Callable[[RawKey], Frame]
    step: Callable[[PyTree, Float[Array, "A"], RawKey], Frame]
    """From the environment's own state, the agent's action and a key."""
    own: PyTree
    """Shapes and types of the environment's own state."""


def find(task: str) -> Any:
    """The environment that `jax:module:name` names, or a pair of it and its parameters."""
    path, _, name = task.removeprefix(JAX_PREFIX).partition(":")
    try:
        import_for(task)
    except ImportError as error:
        raise ConfigError(f"task {task!r} is not known: {error}{import_remedy(error, path)}") from None
    module = sys.modules[path]
    found = getattr(module, name, None)
    if path in REGISTRIES and (found is None or isinstance(found, ModuleType)):  # brax.envs.ant is a module
        found = partial(attrgetter(REGISTRIES[path])(module), name)
    if found is None:
        near = suggestion(name, tuple(own for own in vars(module) if not own.startswith("_")))
        raise ConfigError(f"task {task!r} is not known: the module {path} has no {name}{near}")
    if not callable(found) or (hasattr(found, "reset") and not isinstance(found, type)):
        return found
    try:
        return found()
    except Exception as error:  # of whatever kind: it is somebody else's
        raise EnvironmentFailure(f"{task} cannot be made here: {_first_line(error)}") from error


def interface(task: str, made: Any) -> Interface:
    """An environment of either kind as pure functions of one stream."""
    pair = isinstance(made, tuple) and not hasattr(made, "reset")
    env: Any = made[0] if pair else made
    if all(hasattr(env, name) for name in ("reset", "step", "action_size")):
        functions, width, discrete = _like_brax(env), int(env.action_size), False
        bounds = width * [(-1.0, 1.0)]
    elif all(hasattr(env, name) for name in ("reset", "step", "action_space", "default_params")):
        found = _like_gymnax(task, env, made[1] if pair else env.default_params)
        functions, width, discrete, bounds = found
    else:
        raise ConfigError(
            f"task: {task!r} is {type(env).__name__!r}, which has neither Brax's interface (reset, step, "
            "action_size) nor gymnax's (reset, step, action_space, default_params)"
        )
    return _examined(task, *functions, width, discrete, bounds)


Functions = tuple[Callable[..., Frame], Callable[..., Frame]]
Bounds = list[tuple[float, float]]


def _like_brax(env: Any) -> Functions:
    """reset(key) and step(state, action) give states with obs, reward, done and perhaps info."""

    def frame(state: Any) -> Frame:
        info = getattr(state, "info", None)
        cut = info.get("truncation", 0) if isinstance(info, dict) else 0
        done, truncated = (jnp.asarray(flag).astype(bool) for flag in (state.done, cut))
        return Frame(state, _named(state.obs), state.reward, done & ~truncated, truncated)

    def step(state: Any, action: Float[Array, "A"], key: RawKey) -> Frame:
        return frame(env.step(state, jnp.clip(action, -1.0, 1.0)))

    return lambda key: frame(env.reset(key)), step


def _like_gymnax(task: str, env: Any, params: Any) -> tuple[Functions, int, bool, Bounds]:
    """reset(key, params) and step(key, state, action, params), without the resets that step adds."""
    space = env.action_space(params)
    discrete = hasattr(space, "n")
    if not discrete and not all(hasattr(space, name) for name in ("low", "high", "shape")):
        raise ConfigError(f"task: {task!r} has actions of {type(space).__name__}, only Discrete and Box fit")
    sides = [] if discrete else [np.broadcast_to(bound, space.shape) for bound in (space.low, space.high)]
    bounds = list(zip(*(side.ravel().tolist() for side in sides), strict=True))
    if problem := bounds_problem(bounds):
        raise ConfigError(f"task: {task!r} has actions that the agent cannot take: {problem}")
    reset_env, step_env = getattr(env, "reset_env", env.reset), getattr(env, "step_env", env.step)

    def read(action: Float[Array, "A"]) -> Array:
        if discrete:
            return jnp.argmax(action).astype(np.int32)
        low, high = sides
        middle, half = (np.asarray(x, np.float32) for x in ((low + high) / 2, (high - low) / 2))
        scaled = middle + half * jnp.clip(action, -1.0, 1.0).reshape(space.shape)
        return jnp.clip(scaled, *(np.asarray(x, np.float32) for x in (low, high)))  # it may round beyond

    def reset(key: RawKey) -> Frame:
        obs, state = reset_env(key, params)
        return Frame(state, _named(obs), jnp.float32(0), jnp.bool_(False), jnp.bool_(False))

    def step(state: Any, action: Float[Array, "A"], key: RawKey) -> Frame:
        obs, state, reward, done, *_ = step_env(key, state, read(action), params)
        done, truncated = jnp.asarray(done).astype(bool), jnp.bool_(False)
        if hasattr(env, "is_truncated"):
            truncated = jnp.asarray(env.is_truncated(state, params)).astype(bool) & ~done
        elif hasattr(state, "time") and hasattr(params, "max_steps_in_episode"):  # gymnax before 1.0
            truncated = done & (state.time >= params.max_steps_in_episode)
        return Frame(state, _named(obs), reward, done & ~truncated, truncated)

    width = int(space.n) if discrete else int(np.prod(space.shape))
    return (reset, step), width, discrete, bounds


def _named(obs: Any) -> dict[str, Array]:
    """An observation by flat keys: `observation` for a single one, `a.b` for nested ones."""
    leaves = jax.tree_util.tree_leaves_with_path(obs)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or "observation": x for path, x in leaves}


def _examined(
    task: str, reset: Callable, step: Callable, width: int, discrete: bool, bounds: Bounds
) -> Interface:
    """The functions with the types that the agent reads, once their shapes are known to fit."""
    key, action = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((width,), np.float32)
    kinds: list[PyTree] = []

    def reset_and_note(key: RawKey) -> Frame:
        frame = reset(key)
        kinds.append(jax.tree.map(_kind, frame.own))
        return frame

    first = _traced(task, "reset", reset_and_note, key)
    after = _traced(task, "step", step, first.own, action, key)
    for part in ("own", "obs"):
        one, two = getattr(first, part), getattr(after, part)
        if _shapes(one) != _shapes(two):
            what = "state" if part == "own" else "observation"
            raise EnvironmentFailure(f"{task} cannot be used: step returns another kind of {what} than reset")
    for what, value in (("reward", after.reward), ("done", after.terminated)):
        if value.shape != ():
            raise EnvironmentFailure(f"{task} cannot be used: its {what} has shape {value.shape}, not ()")
    shapes = {name: value.shape for name, value in first.obs.items()}
    images = [name for name, x in first.obs.items() if x.dtype == np.uint8 and len(x.shape) == 3]
    for name in images:
        if shapes[name][0] % IMAGE_SIDES or shapes[name][1] % IMAGE_SIDES:
            sides = f"height and width must be multiples of {IMAGE_SIDES}"
            raise EnvironmentFailure(f"{task} cannot be used: image {name!r} is {shapes[name]}; {sides}")
    spaces = Spaces.of(shapes, width, discrete, images, bounds)

    def plain(frame: Frame) -> Frame:
        own = jax.tree.map(_to_plain, frame.own, kinds[0])
        obs = {name: jnp.asarray(frame.obs[name]).astype(spaces.dtype(name)) for name, _ in spaces.obs}
        return frame._replace(own=own, obs=obs, reward=jnp.asarray(frame.reward).astype(np.float32))

    def plain_step(own: PyTree, action: Float[Array, "A"], key: RawKey) -> Frame:
        return plain(step(jax.tree.map(_from_plain, own, kinds[0]), action, key))

    def plain_reset(key: RawKey) -> Frame:
        return plain(reset(key))

    return Interface(spaces, plain_reset, plain_step, jax.eval_shape(plain_reset, key).own)


def _traced(task: str, what: str, function: Callable[..., Frame], *arguments: Any) -> Frame:
    """The shapes of what a function returns."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # of whatever kind: it is somebody else's
        raise EnvironmentFailure(f"{task} cannot be used: {what} raised {_first_line(error)}") from error


def _shapes(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _kind(leaf: Any) -> Any:
    """The type of a part of the environment's state, or what random keys there are made by."""
    leaf = jnp.asarray(leaf)
    return jax.random.key_impl(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.dtype


def _to_plain(leaf: Any, kind: Any) -> Array:
    """A part of the state as a plain array: programs choose between them, files hold them."""
    return jnp.asarray(leaf, kind) if isinstance(kind, np.dtype) else jax.random.key_data(leaf)


def _from_plain(leaf: Array, kind: Any) -> Array:
    return leaf if isinstance(kind, np.dtype) else jax.random.wrap_key_data(leaf, impl=kind)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
