"""One environment written in Python."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from gpld.types import Spaces

Observation = dict[str, np.ndarray]


class Stream(ABC):
    """One environment. It may raise anything at any time."""

    spaces: Spaces

    @abstractmethod
    def reset(self) -> Observation:
        """Begin an episode."""

    @abstractmethod
    def frame(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """One environment step with `[A]`: observation, reward, terminated, truncated."""

    @abstractmethod
    def save(self) -> Any:
        """The state: arrays and what JSON knows, or, where `env.pickle` is on, anything that pickles."""

    @abstractmethod
    def restore(self, state: Any) -> bool:
        """Take up a saved state; whether that gave the same bits."""

    @abstractmethod
    def render(self, height: int, width: int) -> np.ndarray:
        """Picture `[height, width, 3]`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the engine."""


MakeStream = Callable[[int, int], Stream]
"""Makes a stream from its index and the number of its restarts."""
