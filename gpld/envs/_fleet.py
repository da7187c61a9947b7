"""The environments of several runs, stepped all at once and kept apart."""

from collections.abc import Sequence
from contextlib import ExitStack

import jax
import numpy as np

from gpld.envs._base import EnvironmentFailure, Step, VectorEnv


class Fleet:
    """One vector environment for each of R runs, each as if it were alone. Arrays are `[R, N, ...]`."""

    def __init__(self, runs: Sequence[VectorEnv]):
        self.runs = list(runs)
        self.spaces = runs[0].spaces
        self.count = runs[0].count
        """N: streams of each run."""

    def send(self, action: np.ndarray) -> None:
        """Begin a step of all runs with actions `[R, N, A]`."""
        for env, own in zip(self.runs, action, strict=True):
            env.send(own)

    def recv(self) -> Step:
        """The result of the step begun by `send`."""
        steps = []
        for index, env in enumerate(self.runs):
            try:
                steps.append(env.recv())
            except EnvironmentFailure as error:
                if len(self.runs) == 1:
                    raise
                raise EnvironmentFailure(f"run {index} of {len(self.runs)}: {error}") from error
        return jax.tree.map(lambda *x: np.stack(x), *steps)

    def step(self, action: np.ndarray) -> Step:
        """One agent step of every stream with actions `[R, N, A]`."""
        self.send(action)
        return self.recv()

    @property
    def faults(self) -> np.ndarray:
        """Number of faults seen in each run, `[R]`."""
        return np.array([len(env.faults) for env in self.runs], np.int64)

    def save(self) -> list[bytes]:
        """The state of each run's environment, for `restore`."""
        return [env.save() for env in self.runs]

    def restore(self, states: Sequence[bytes]) -> list[list[int]]:
        """Go on from saved states; each run's streams that begin a new episode because they could not."""
        return [env.restore(state) for env, state in zip(self.runs, states, strict=True)]

    def close(self) -> None:
        """Let go of all engines."""
        with ExitStack() as stack:
            for env in self.runs:
                stack.callback(env.close)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
