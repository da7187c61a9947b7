"""dm_control's suite: the reference, one simulation a stream, saved to the bit at any step."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gpld.config import ConfigError
from gpld.envs._base import ActionScale, Observation, RenderingError, Stream
from gpld.envs._catalog import unknown
from gpld.envs._spaces import action_bounds
from gpld.machine import GL_PACKAGES
from gpld.types import Spaces

PIXELS = 64
"""Height and width of observed images."""
CAMERAS = {"quadruped": 2}
"""Cameras of observed images by domain; that of all others is 0."""
SHADOWS = 512
"""Side of the map that shadows are drawn from: a fourth of the suite's is quicker and looks the same."""

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_PROBE = "from dm_control import suite; suite.load('cartpole', 'balance').physics.render(8, 8)"


def choose_renderer(render: bool) -> str | None:
    """Set MUJOCO_GL before the first import of dm_control, which without a display would try a window.

    The user's choice is kept. Without `render` it is off; else the first of EGL and OSMesa that works.
    Returns MUJOCO_GL, or None where a display makes it needless.
    """
    headless = sys.platform == "linux" and not any(os.environ.get(name) for name in _DISPLAYS)
    if headless and "MUJOCO_GL" not in os.environ:
        os.environ["MUJOCO_GL"] = next(renderers(), "off") if render else "off"
    return os.environ.get("MUJOCO_GL")


def rendering_message(error: Exception) -> str:
    """The user's message for a renderer's error, with one that works if there is one."""
    backend = os.environ.get("MUJOCO_GL", "")
    reason = f"{type(error).__name__}: {error}".rstrip(".")
    works = next(renderers(), None)
    if works is None:
        remedy = f"neither EGL nor OSMesa works here. Debian: `apt install {GL_PACKAGES}`"
    elif works == backend.strip().lower():
        remedy = "it works in a process of its own: is there memory left on the device?"
    else:
        remedy = f"unset it, {works.upper()} works"
    return f"MUJOCO_GL={backend} is set but does not work here ({reason}); {remedy}"


def pixel_spaces(actions: int) -> Spaces:
    """The spaces of a task of the suite from images."""
    return Spaces.of({"image": (PIXELS, PIXELS, 3)}, actions, images=["image"])


def renderers() -> Iterator[str]:
    """Values of MUJOCO_GL that render here without a display, the best first."""
    return (name for name in ("egl", "osmesa") if _can_render(name))


def _can_render(renderer: str) -> bool:
    # dm_control sets PYOPENGL_PLATFORM to what it was imported with, which may be another renderer.
    others = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    environment = others | {"MUJOCO_GL": renderer}
    done = subprocess.run([sys.executable, "-c", _PROBE], env=environment, capture_output=True, check=False)
    return done.returncode == 0


def needs_renderer(task: str) -> bool:
    """Whether a task needs a renderer even from states: one does, to upload its terrain."""
    return task == "quadruped-escape"


def suite_tasks() -> tuple[str, ...]:
    """Every `domain-task` of the suite."""
    choose_renderer(render=False)
    from dm_control import suite

    return tuple(f"{domain}-{task}" for domain, task in suite.ALL_TASKS)


class DMControlStream(Stream):
    """A task of the suite from states, seeded."""

    def __init__(self, task: str, seed: int, *, render: bool = False):
        choose_renderer(render=render or needs_renderer(task))
        from dm_control import suite

        if task not in suite_tasks():
            raise unknown(task, suite_tasks())
        domain, _, name = task.partition("-")
        self._env = suite.load(domain, name, task_kwargs={"random": seed})
        actions = self._env.action_spec()
        self._scale = ActionScale.of(actions.minimum, actions.maximum)
        shapes = {key: spec.shape for key, spec in self._env.observation_spec().items()}
        self.spaces = Spaces.of(shapes, actions.shape[0], bounds=action_bounds(actions))
        self._compiled = {name: array.copy() for name, array in self._model_arrays().items()}

    def reset(self) -> Observation:
        """Begin an episode."""
        return self._observation(self._env.reset().observation)

    def frame(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """One environment step; the time limit is a truncation."""
        step = self._env.step(self._scale(action))
        terminated = step.last() and step.discount == 0.0
        ends = (terminated, step.last() and not terminated)
        return self._observation(step.observation), float(step.reward), *ends

    def save(self) -> Any:
        """Physics, what the task changed in the model, and the task's own fields with its random state."""
        mujoco, model, data = self._engine()
        physics = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(model, data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        arrays = self._model_arrays().items()
        changed = {name: a.copy() for name, a in arrays if not np.array_equal(a, self._compiled[name])}
        env = self._env
        return physics, changed, dict(env.task.__dict__), env._step_count, env._reset_next_step

    def restore(self, state: Any) -> bool:
        """Restore a saved state; what follows from positions and velocities is computed again."""
        physics, changed, task, self._env._step_count, self._env._reset_next_step = state
        if any(array.shape != self._compiled[name].shape for name, array in changed.items()):
            return False
        for name, array in self._model_arrays().items():
            array[...] = changed.get(name, self._compiled[name])
        mujoco, model, data = self._engine()
        mujoco.mj_setState(model, data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_step1(model, data)  # the suite steps from here: it ends a step with this call
        own = self._env.task.__dict__
        own.update({name: value for name, value in task.items() if name in own})
        return True

    def render(self, height: int, width: int) -> np.ndarray:
        """Picture from the first camera."""
        try:
            return self._env.physics.render(height, width, camera_id=0)
        except Exception as error:
            raise RenderingError(rendering_message(error)) from error

    def close(self) -> None:
        """Free the physics and its renderer."""
        self._env.physics.free()  # the suite's own `close` does nothing

    def _engine(self) -> tuple[Any, Any, Any]:
        """MuJoCo itself, the compiled model and the simulation's data."""
        import mujoco

        return mujoco, self._env.physics.model.ptr, self._env.physics.data.ptr

    def _model_arrays(self) -> dict[str, np.ndarray]:
        """Every array of the model that a task could change, without large ones: pictures and meshes."""
        _, model, _ = self._engine()
        names = (n for n in dir(model) if not n.startswith(("_", "tex_", "mesh_", "skin_", "names", "bvh_")))
        fields = ((name, getattr(model, name)) for name in names)
        return {name: value for name, value in fields if isinstance(value, np.ndarray)}

    def _observation(self, obs: dict[str, Any]) -> Observation:
        return {key: np.array(value, np.float32) for key, value in obs.items()}


class DMControlPixels(DMControlStream):
    """A task of the suite seen as images: one of each agent step, drawn after the last of its repeats."""

    def __init__(self, task: str, seed: int, *, action_repeat: int):
        if choose_renderer(render=True) == "off":
            raise ConfigError(
                "env.pixels: neither EGL nor OSMesa works here, or MUJOCO_GL is off; "
                f"Debian: `apt install {GL_PACKAGES}`"
            )
        super().__init__(task, seed, render=True)
        self.spaces = replace(pixel_spaces(self.spaces.actions), bounds=self.spaces.bounds)
        self._repeat = action_repeat
        self._camera = CAMERAS.get(task.partition("-")[0], 0)
        self._env.physics.model.vis.quality.shadowsize = SHADOWS  # before there is a drawing context

    def reset(self) -> Observation:
        """Begin an episode."""
        super().reset()
        return self._render_image()

    def frame(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """One agent step, its rewards summed, up to the episode's end."""
        total, terminated, truncated = 0.0, False, False
        for _ in range(self._repeat):
            _, reward, terminated, truncated = super().frame(action)
            total += reward
            if terminated or truncated:
                break
        return self._render_image(), total, terminated, truncated

    def _render_image(self) -> Observation:
        try:
            return {"image": self._env.physics.render(PIXELS, PIXELS, camera_id=self._camera)}
        except Exception as error:  # of whatever kind: EGL, OSMesa and PyOpenGL have many
            raise RenderingError(rendering_message(error)) from error
