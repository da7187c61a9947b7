"""The score of a trained agent: episodes played with it, and the file with their returns."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Column, Table

from gpld import files
from gpld.envs import Step
from gpld.training import agent_files, saved
from gpld.training._program import stack
from gpld.training.evaluation import evaluate_all
from gpld.training.provenance import provenance
from gpld.training.saved import EVALUATION, Trained


class Score(NamedTuple):
    """Episodes that were played."""

    task: str
    env_steps: int
    """Env steps that the agent was trained for."""
    updates: int
    seed: int
    returns: list[float]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """(Population) standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def values(self) -> dict[str, Any]:
        """All of it, with mean, standard deviation and provenance, for a file."""
        return {**self._asdict(), "mean": self.mean, "std": self.std, "provenance": provenance()}

    def write(self, folder: Path) -> Path:
        """Write it to `evaluation.json` in a folder, in one move; the file's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / EVALUATION
        files.write_json(path, self.values)
        return path


def score(
    trained: Trained, *, episodes: int, seed: int = 0, watch: Callable[[Step], None] = lambda step: None
) -> Score:
    """Play episodes with an agent. `seed` decides their initial states and the sampling of actions."""
    return score_all([trained], episodes=episodes, seed=seed, watch=watch)[0]


def score_all(
    trained: Sequence[Trained],
    *,
    episodes: int,
    seed: int = 0,
    watch: Callable[[Step], None] = lambda step: None,
) -> list[Score]:
    """`score` of R agents that differ in `config.PER_RUN` alone, in one program."""
    configs, model = [one.config for one in trained], stack([one.model for one in trained])
    keys = jnp.stack([jax.random.key(seed)] * len(trained))
    returns = evaluate_all(configs, model, episodes=episodes, number=seed, keys=keys, watch=watch)
    return [
        Score(one.config.task, one.env_steps, one.updates, seed, own)
        for one, own in zip(trained, returns, strict=True)
    ]


def table(found: Score) -> Table:
    """The returns for the terminal."""
    right = partial(Column, justify="right")
    shown = Table(right("episode", "mean\nstd"), right("return", f"{found.mean:.1f}\n{found.std:.1f}"))
    shown.show_footer = True
    for number, episode_return in enumerate(found.returns):
        shown.add_row(str(number), f"{episode_return:.1f}")
    return shown


def agents_table() -> Table:
    """The trained agents that come with this package, for the terminal."""
    right = partial(Column, justify="right")
    columns = ("agent", right("env steps"), right("mean return"), right("episodes"))
    shown = Table(*columns, title="Trained agents", caption="`gpld eval NAME --video` films one.")
    for name in agent_files.names():
        path = agent_files.BOX / f"{name}{agent_files.SUFFIX}"
        if not path.exists():
            shown.add_row(name, "", "", "downloaded when used")
            continue
        about = saved.evaluation_of(path)
        shown.add_row(name, f"{about['env_steps']:,}", f"{about['mean']:.1f}", str(len(about["returns"])))
    return shown
