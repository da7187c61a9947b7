"""Poses out of observations: what a world model that predicts numbers expects to see, as pictures.

A task's observations are functions of MuJoCo's positions q and velocities v. For given observations, q and v
are found that give them, by damped least squares from where the last pose was heading. So what observations
leave open, such as how far a cheetah has run, is integrated from its velocity.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, UInt8

from gpld.envs._dm_control import choose_renderer

DAMPING = 1e-3
"""Weight of staying where the last pose was heading, for each coordinate."""
ITERATIONS = 4
_STEP = 1e-6
"""Step of finite differences."""

State = tuple[np.ndarray, np.ndarray]
"""Positions `[q]` and velocities `[v]`."""


class Poses:
    """Poses of a task of the suite, from one observation to the next."""

    def __init__(self, task: str, *, action_repeat: int, render: bool = True):
        """`action_repeat` env steps pass between two observations. Only with `render` can it draw."""
        choose_renderer(render=render)
        from dm_control import suite

        domain, _, name = task.partition("-")
        self._env = suite.load(domain, name, task_kwargs={"random": 0})
        self._env.reset()
        self._physics = self._env.physics
        self._seconds = action_repeat * self._env.control_timestep()
        self._state: State = (self._physics.data.qpos.copy(), self._physics.data.qvel.copy())

    def follow(self, obs: Mapping[str, np.ndarray]) -> Float[np.ndarray, " q"]:
        """Take the pose that an observation describes; its positions."""
        q, v = self._state
        heading = (self._moved(q, self._seconds * v), v)
        target, change = _flat(obs), np.zeros(2 * len(v))
        for _ in range(ITERATIONS):
            now = self._observe(self._changed(heading, change))
            units = _STEP * np.eye(len(change))
            moved = [self._observe(self._changed(heading, change + unit)) for unit in units]
            jacobian = np.stack([(after - now) / _STEP for after in moved], axis=1)
            normal = jacobian.T @ jacobian + DAMPING * np.eye(len(change))
            change += np.linalg.solve(normal, jacobian.T @ (target - now) - DAMPING * change)
        self._state = self._changed(heading, change)
        self._observe(self._state)
        return self._state[0]

    def render(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """The pose from the first camera."""
        return self._physics.render(height, width, camera_id=0)

    def close(self) -> None:
        """Free the physics and its renderer."""
        self._physics.free()

    def _changed(self, state: State, change: np.ndarray) -> State:
        q, v = state
        return self._moved(q, change[: len(v)]), v + change[len(v) :]

    def _moved(self, q: Float[np.ndarray, " q"], by: Float[np.ndarray, " v"]) -> Float[np.ndarray, " q"]:
        """Positions after a small motion; rotations are turned, and stay rotations."""
        import mujoco

        moved = q.copy()
        mujoco.mj_integratePos(self._physics.model.ptr, moved, by, 1.0)  # pyright: ignore[reportAttributeAccessIssue]
        return moved

    def _observe(self, state: State) -> Float[np.ndarray, " o"]:
        """The task's observation of a state; the physics stay in it."""
        with self._physics.reset_context():
            self._physics.data.qpos[:], self._physics.data.qvel[:] = state
        return _flat(self._env.task.get_observation(self._physics))


def _flat(obs: Mapping[str, np.ndarray]) -> Float[np.ndarray, " o"]:
    return np.concatenate([np.ravel(np.asarray(obs[name], np.float64)) for name in sorted(obs)])
