"""What happened in the environments of every run since its last line of metrics."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gpld.envs import Step


class Recent(NamedTuple):
    """Counts and sums of R runs with N streams each."""

    running: Float[np.ndarray, "R N"]
    """Return so far of every stream's episode."""
    total: Float[np.ndarray, "R"]
    """Sum of the returns of the episodes that ended."""
    episodes: Int[np.ndarray, "R"]
    faults: Int[np.ndarray, "R"]
    """Environments that broke and were restarted."""
    since: Int[np.ndarray, "R"]
    """Updates made before the last line."""

    @classmethod
    def zeros(cls, runs: int, streams: int) -> "Recent":
        """Nothing has happened."""
        counts = [np.zeros(runs, np.int64) for _ in range(3)]
        return cls(np.zeros((runs, streams)), np.zeros(runs), *counts)

    def count_faults(self, new: Int[np.ndarray, "R"]) -> "Recent":
        """Note faults."""
        return self._replace(faults=self.faults + new)

    def follow(self, step: Step) -> "Recent":
        """Note a step of all environments."""
        running = self.running + step.reward
        return self._replace(
            running=np.where(step.is_last, 0.0, running),
            total=self.total + np.where(step.is_last, running, 0.0).sum(-1),
            episodes=self.episodes + step.is_last.sum(-1),
        )

    def metrics(self, run: int) -> dict[str, float]:
        """What a run's next line says."""
        values = {"train/faults": float(self.faults[run])} if self.faults[run] else {}
        if self.episodes[run]:
            values["train/return"] = float(self.total[run] / self.episodes[run])
            values["train/episodes"] = float(self.episodes[run])
        return values

    def restart(self, updates: int) -> "Recent":
        """After a line was written."""
        fresh = Recent.zeros(*self.running.shape)
        return fresh._replace(running=self.running, since=np.full_like(self.since, updates))
