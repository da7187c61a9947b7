"""Statistics of the episodes of every run since its last line of metrics."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gpld.envs import Step
from gpld.training._program import Seen


class EpisodeStatistics(NamedTuple):
    """Counts and sums of R runs with N streams each."""

    running: Float[np.ndarray, "R N"]
    """Return so far of every stream's episode."""
    total: Float[np.ndarray, "R"]
    """Sum of the returns of the episodes that ended."""
    episodes: Int[np.ndarray, "R"]
    faults: Int[np.ndarray, "R"]
    """Environments that failed and were restarted."""
    since: Int[np.ndarray, "R"]
    """Updates made before the last line."""

    @classmethod
    def zeros(cls, runs: int, streams: int) -> "EpisodeStatistics":
        """The statistics of no steps."""
        counts = [np.zeros(runs, np.int64) for _ in range(3)]
        return cls(np.zeros((runs, streams)), np.zeros(runs), *counts)

    def add_faults(self, new: Int[np.ndarray, "R"]) -> "EpisodeStatistics":
        """Add faults."""
        return self._replace(faults=self.faults + new)

    def add_step(self, step: Step | Seen) -> "EpisodeStatistics":
        """Add a step of all environments."""
        running = self.running + step.reward
        return self._replace(
            running=np.where(step.is_last, 0.0, running),
            total=self.total + np.where(step.is_last, running, 0.0).sum(-1),
            episodes=self.episodes + step.is_last.sum(-1),
        )

    def metrics(self, run: int) -> dict[str, float]:
        """Metrics of a run."""
        values = {"train/faults": float(self.faults[run])} if self.faults[run] else {}
        if self.episodes[run]:
            values["train/return"] = float(self.total[run] / self.episodes[run])
            values["train/episodes"] = float(self.episodes[run])
        return values

    def reset(self, updates: int) -> "EpisodeStatistics":
        """The statistics after a line was written: episodes that have not ended continue."""
        zeros = EpisodeStatistics.zeros(*self.running.shape)
        return zeros._replace(running=self.running, since=np.full_like(self.since, updates))
