"""EnvPool's own tasks, `envpool:NAME`: their families, and what an agent sees and does in them."""

import ctypes
import importlib.metadata
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from gpld.config import PRESETS, ConfigError, suggestion
from gpld.envs._base import EnvironmentFailure, RenderingError
from gpld.envs._catalog import in_line, load_envpool
from gpld.envs._gymnasium import IMAGE_SIDES, is_image
from gpld.envs._spaces import (
    action_bounds,
    action_choices,
    action_problem,
    action_reader,
    action_width,
    observation_parts,
    observation_spaces,
)
from gpld.machine import GL_PACKAGES
from gpld.tasks import POOL_PREFIX, near
from gpld.types import Spaces

_PICTURE = {"img_height": 64, "img_width": 64, "stack_num": 1}
_ATARI = {
    "gray_scale": False,
    "full_action_space": True,
    "repeat_action_probability": 0.25,
    "use_fire_reset": False,
}

CLASSES = 1000
"""A discrete observation of at most so many values is one-hot; one of more is a number, such as a count."""

_KINDS = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}
"""By the type of a setting's default, the types of values that it takes."""

OWN_SETTINGS = (
    *("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset"),
    *("seed", "env_seed", "base_path", "gym_reset_return_info"),
)
"""Settings of EnvPool's that are not the user's."""


class Family(NamedTuple):
    """Tasks of one kind. Other settings than EnvPool's are those that DreamerV3 has for them."""

    name: str
    settings: Mapping[str, Any] = {}
    """What EnvPool is told when it makes one."""
    skips: bool = False
    """Whether EnvPool repeats actions itself, and shows the brighter of the last two frames."""
    channels_first: bool = False
    """Whether its images have their channels first."""
    unit_images: bool = False
    """Whether its images are numbers from 0 to 1."""
    hidden: tuple[str, ...] = ()
    """Observations that are not for the agent."""
    shared: tuple[str, ...] = ()
    """Tasks that wait for other players."""
    alike: bool = False
    """Whether all its tasks have the same observations and actions."""
    has_files: bool = False
    """Whether its files are in EnvPool's own folder; 1.2.5 looks for Sudoku's in that of its assets."""
    fixed: bool = False
    """Whether some of its tasks begin every episode in one state though they are not meant to."""


FAMILIES = {
    "atari": Family("Atari", _PICTURE | _ATARI, skips=True, channels_first=True, alike=True),
    "box2d": Family("Box2D"),
    "classic_control": Family("classic control"),
    "craftax": Family("Craftax", unit_images=True),
    "gfootball": Family("Google Research Football"),
    "highway": Family("highway-env", fixed=True),
    "jumanji": Family("Jumanji", has_files=True, fixed=True),
    "marlgrid": Family("MarlGrid"),
    "minigrid": Family("MiniGrid and BabyAI"),
    "mujoco.dmc": Family("DeepMind Control"),
    "mujoco.gym": Family("Gym MuJoCo"),
    "mujoco.metaworld": Family("MetaWorld", fixed=True),
    "mujoco.myosuite": Family("MyoSuite", fixed=True),
    "mujoco.playground": Family("MuJoCo Playground", hidden=("privileged_state",)),
    "mujoco.robotics": Family("Gymnasium Robotics"),
    "pgx": Family("Pgx"),
    "procgen": Family("Procgen", {"channel_first": False}, alike=True),
    "toy_text": Family("toy text"),
    "vizdoom": Family(
        "ViZDoom",
        _PICTURE | {"use_combined_action": True},
        skips=True,
        channels_first=True,
        shared=("Cig-v1", "MultiDuel-v1"),
    ),
}
"""By module of EnvPool's; some are in 1.2.6 only."""


def family_of(module: str) -> Family:
    """The family of a module of EnvPool's; a plain one where a later EnvPool has more."""
    return FAMILIES.get(module, Family(module))


def pool_tasks() -> dict[str, str]:
    """The module of every task that the installed EnvPool has, without second names such as `Suite/Name`."""
    known = {name: module.removeprefix("envpool.") for name, (module, _, _) in _registry().items()}

    def is_second(name: str) -> bool:
        others = (name.partition("/")[2], name.replace("/", "-"))
        return "/" in name and known[name] in map(known.get, others)

    return {name: module for name, module in known.items() if not is_second(name)}


def _registry() -> dict[str, tuple[str, str, dict[str, Any]]]:
    load_envpool()  # which fills the registry
    from envpool.registration import registry

    return registry.specs


class PoolTask:
    """A task of EnvPool's: how its environments are made, and what the agent sees and does in them."""

    def __init__(
        self,
        task: str,
        action_repeat: int = 1,
        *,
        render: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ):
        self.task, self.name = task, task.removeprefix(POOL_PREFIX)
        undrawable = _gl_problem() if render else ""
        known = _registry()
        if self.name not in known:
            raise _unknown(task, known)
        module = known[self.name][0].removeprefix("envpool.")
        self.family = family_of(module)
        self.action_repeat = 1 if self.family.skips else action_repeat
        """How often an action must be repeated that EnvPool does not repeat itself."""
        self._settings = dict(self.family.settings)
        if self.family.has_files:
            self._settings["base_path"] = str(Path(str(load_envpool().__file__)).parent)
        self._given = kwargs or {}
        self._take(self._spec().config)
        spec = self._spec()
        if self.family.skips:
            frames = spec.config.max_episode_steps * spec.config.frame_skip
            self._settings |= {"frame_skip": action_repeat, "max_episode_steps": frames // action_repeat}
        if spec.config.max_num_players > 1 or self.name in self.family.shared:
            raise ConfigError(f"task: {task} is for several players, but there is one agent")
        with _quiet():
            space, self._space = self._try(lambda: (_discrete(spec.action_space), spec.observation_space))
        if problem := action_problem(space):
            raise ConfigError(f"task: {task} has actions that the agent cannot take: {problem}")
        boxes = observation_spaces(self._space).items()
        self._parts = {key: _part(box, self.family) for key, box in boxes if key not in self.family.hidden}
        shapes = {key: part.shape for key, part in self._parts.items()}
        images = [key for key, part in self._parts.items() if part.image]
        discrete, bounds = bool(action_choices(space)), action_bounds(space)
        self.spaces = Spaces.of(shapes, action_width(space), discrete, images, bounds)
        self._act = action_reader(space)
        self._settings |= {"render_mode": "rgb_array"} if render else {}
        if undrawable and module.startswith("mujoco"):
            raise RenderingError(f"EnvPool cannot draw {task} here: {undrawable}")

    def make(self, seed: int) -> Any:
        """A pool of one environment."""
        envpool = load_envpool()
        own = {"num_envs": 1, "num_threads": 1, "seed": [seed]}
        pool = self._try(partial(envpool.make_gymnasium, self.name, **own, **self._settings))
        with _quiet():
            assert pool.observation_space is not None  # which it keeps
        return pool

    def starts_alike(self) -> bool:
        """Whether two seeds begin with the same observation, in a family where they should not."""
        if not self.family.fixed:
            return False
        one, two = (self.observation(self.make(seed).reset()[0]) for seed in (0, 1))
        return all(np.array_equal(value, two[key]) for key, value in one.items())

    def observation(self, obs: Any) -> dict[str, np.ndarray]:
        """What a pool of one environment gave, as the agent sees it."""
        given = observation_parts(obs, self._space)
        return {key: part.read(np.asarray(given[key])[0]) for key, part in self._parts.items()}

    def action(self, action: np.ndarray) -> np.ndarray:
        """The agent's action `[A]` for a pool of one environment."""
        return np.asarray(self._act(action))[None]

    def _take(self, config: Any) -> None:
        """Settings of EnvPool's that the user has for the task, if its configuration has them."""
        own = (*OWN_SETTINGS, *(["frame_skip"] if self.family.skips else []))
        allowed = tuple(name for name in config._fields if name not in own)
        for name, value in self._given.items():
            if name not in allowed:
                hint = _preset_hint(name) or suggestion(name, allowed) or f"; it has {', '.join(allowed)}"
                raise ConfigError(f"env.kwargs: {name!r} is no setting of {self.task}{hint}")
            if needed := _needed(name, value, getattr(config, name)):
                raise ConfigError(f"env.kwargs: {name}={value!r} is not allowed; it must be {needed}")
        self._settings |= self._given

    def _spec(self) -> Any:
        return self._try(partial(load_envpool().make_spec, self.name, **self._settings))

    def _try(self, make: Any) -> Any:
        try:
            return make()
        except ImportError as error:  # which says what to install
            raise ConfigError(f"task: {self.task} cannot be made here: {in_line(error)}") from error
        except Exception as error:  # of whatever kind: an engine that does not start, a missing file
            hint = f"; pip install {' '.join(names)}" if (names := _missing_assets()) else ""
            if self._given and not hint:
                named = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
                reason = in_line(error).partition(" The following argument types")[0]
                raise ConfigError(f"env.kwargs: {self.task} cannot be made with {named}: {reason}") from error
            raise EnvironmentFailure(f"{self.task} cannot be made here: {in_line(error)}{hint}") from error


class _Part(NamedTuple):
    """An observation: its shape for the agent, and the function from EnvPool's to the agent's."""

    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]
    image: bool = False


def _discrete(space: Space) -> Space:
    """Several whole numbers as the choices that they are."""
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.integer):
        return MultiDiscrete(space.high - space.low + 1, dtype=space.dtype, start=space.low)
    return space


def _part(box: Space, family: Family) -> _Part:
    if isinstance(box, Discrete) and box.n <= CLASSES:
        classes = np.eye(int(box.n), dtype=np.float32)
        return _Part((int(box.n),), lambda value: classes[int(value) - int(box.start)])
    shape = tuple(box.shape or ())
    axes = (1, 2, 0) if family.channels_first else (0, 1, 2)
    image = len(shape) == 3 if family.unit_images else is_image(box)
    if not image or min(shape[axis] for axis in axes[:2]) < IMAGE_SIDES:  # a grid of classes
        return _Part(shape, lambda value: np.array(value, np.float32))
    height, width, channels = (shape[axis] for axis in axes)
    padding = [(0, -height % IMAGE_SIDES), (0, -width % IMAGE_SIDES), (0, 0)]
    padded = (height + padding[0][1], width + padding[1][1], channels)

    def picture(value: np.ndarray) -> np.ndarray:
        if family.unit_images:
            value = np.round(255 * value).astype(np.uint8)
        return np.pad(value.transpose(axes), padding)

    return _Part(padded, picture, image=True)


def _quiet() -> warnings.catch_warnings:
    """Without Gymnasium's warnings about bounds that EnvPool has in double precision."""
    return warnings.catch_warnings(action="ignore")


@cache
def _gl_problem() -> str:
    """Load what MuJoCo draws with, which must be there before EnvPool is; or why that cannot be."""
    if "envpool" in sys.modules:
        return "EnvPool was imported before drawing was asked for"
    try:
        for library in ("libOpenGL.so.0", "libEGL.so.1"):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return f"{error}; Debian: `apt install {GL_PACKAGES}`"
    return ""


def _missing_assets() -> list[str]:
    """Packages with files of EnvPool's tasks that are not installed, though it requires them."""
    required = [re.split(r"[^\w-]", line)[0] for line in importlib.metadata.requires("envpool") or []]
    assets = [name for name in required if name.startswith("envpool-assets")]
    return [name for name in assets if importlib.util.find_spec(name.replace("-", "_")) is None]


def _needed(name: str, value: Any, default: Any) -> str:
    """What a setting must be, where it cannot be this value; else nothing."""
    kinds, named = _KINDS.get(type(default), (None, ""))
    if kinds and type(value) not in kinds:
        return named
    return "at least 1" if name in _PICTURE and value < 1 else ""  # where images of no size end the process


def _preset_hint(name: str) -> str:
    """Which presets have a setting, as the end of a message, or nothing."""
    words = {preset: found.options.get("env", {}).get("kwargs", ()) for preset, found in PRESETS.items()}
    having = [preset for preset, own in words.items() if name in (word.partition("=")[0] for word in own)]
    return f"; it comes with the preset {having[0]}, which is for other tasks" if having else ""


def _unknown(task: str, known: Iterable[str]) -> ConfigError:
    names = near(task, (POOL_PREFIX + name for name in known))
    hint = f"did you mean {' or '.join(names)}? " if names else ""
    version = importlib.metadata.version("envpool")
    return ConfigError(
        f"task {task!r} is not known: {hint}`gpld tasks --all` lists those of EnvPool {version}"
    )
