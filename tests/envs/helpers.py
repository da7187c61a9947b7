"""What the environment tests share: action sequences, traces and their comparison."""

import math

import numpy as np
import pytest

from gpld.envs import Step, VectorEnv


def need(backend: str) -> None:
    """Skip where EnvPool is asked for and is not installed, or lacks the libraries that it does not bring."""
    if backend == "envpool":
        pytest.importorskip(backend, exc_type=ImportError)


def actions(env: VectorEnv, steps: int, seed: int = 0) -> np.ndarray:
    """Random actions `[steps, N, A]`, one-hot where they must be."""
    rng = np.random.default_rng(seed)
    shape = (steps, env.count, env.spaces.actions)
    if env.spaces.discrete:
        return np.eye(shape[2], dtype=np.float32)[rng.integers(shape[2], size=shape[:2])]
    return rng.uniform(-1, 1, shape).astype(np.float32)


def run(env: VectorEnv, sequence: np.ndarray) -> list[Step]:
    return [env.step(action) for action in sequence]


def leaves(step: Step) -> list[np.ndarray]:
    return [*step.obs.values(), *step[1:]]


def same(one: list[Step], two: list[Step]) -> bool:
    """Whether two traces are equal to the bit."""
    pairs = zip(one, two, strict=True)
    return all(np.array_equal(a, b) for s, t in pairs for a, b in zip(leaves(s), leaves(t), strict=True))


class CxxRandom(np.random.RandomState):
    """The numbers that C++'s <random> (libstdc++) draws from std::mt19937, for dm_control's tasks.

    EnvPool draws its initial states with these, in the order in which dm_control's tasks ask for theirs. A
    task that is given this generator therefore begins where EnvPool begins, to the bit.
    """

    def __init__(self, seed: int):
        super().__init__(seed)
        self._words = np.random.MT19937()
        self._words._legacy_seeding(seed)

    def _canonical(self) -> float:
        low, high = (float(self._words.random_raw()) for _ in range(2))
        return (low + high * 2.0**32) / 2.0**64

    def _normal(self) -> float:
        while True:  # Marsaglia's polar method; the second number is thrown away with the distribution
            x, y = (2.0 * self._canonical() - 1.0 for _ in range(2))
            square = x * x + y * y
            if 0.0 < square <= 1.0:
                return y * math.sqrt(-2.0 * math.log(square) / square)

    def uniform(self, low=0.0, high=1.0, size=None):
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        if size is not None:
            low, high = np.broadcast_to(low, size), np.broadcast_to(high, size)
        drawn = [self._canonical() * (b - a) + a for a, b in zip(low.flat, high.flat, strict=True)]
        return np.reshape(drawn, low.shape)[()]

    def rand(self, *shape):
        return self.uniform(size=shape)

    def randn(self, *shape):
        return np.reshape([self._normal() for _ in range(math.prod(shape))], shape)[()]
