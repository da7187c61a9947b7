"""Runs that one program can train side by side, and what they have to share.

Runs of one task and size differ in their seeds and in a few scalars, and those are arrays with a leading run
axis (`agent.Hyper`). Everything else decides shapes or compiled code, and is the same for all of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gpld import config as options
from gpld.config import Config, ConfigError

Method = Literal["gpld", "dreamerv3"]

TITLES: dict[Method, str] = {"gpld": "GPLD-DreamerV3", "dreamerv3": "DreamerV3"}
"""How people call the methods."""

PER_RUN = (
    "seed",
    "agent.optimizer.learning_rate",
    "agent.behavior.entropy",
    "agent.penalty.posterior",
    "agent.penalty.prior",
)
"""Options in which runs of one program may differ."""


class Member(NamedTuple):
    """A run: its options, and the folder that keeps it."""

    config: Config
    folder: Path

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.folder.name


def method_of(config: Config) -> Method:
    """DreamerV3 is GPLD with both coefficients at 0."""
    penalty = config.agent.penalty
    return "gpld" if penalty.posterior or penalty.prior else "dreamerv3"


def members(config: Config, seeds: Sequence[int], methods: Sequence[Method], out: Path) -> list[Member]:
    """Runs of every method with every seed, in the folders `out/METHOD-seedSEED`.

    GPLD's coefficients are those of `config`, DreamerV3's are 0.
    """
    if "gpld" in methods and method_of(config) != "gpld":
        raise ConfigError(
            "agent.penalty.posterior: 0.0 is not allowed with method gpld; it or agent.penalty.prior must be "
            "above 0"
        )
    if repeated := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
        raise ConfigError(f"seeds: {repeated[0]} is named twice")
    off = {"agent": {"penalty": {"posterior": 0.0, "prior": 0.0}}}
    by_method = {"gpld": config, "dreamerv3": options.override(config, off)}
    return [
        Member(options.override(by_method[method], {"seed": seed}), out / f"{method}-seed{seed}")
        for method in methods
        for seed in seeds
    ]


def shared(runs: Sequence[Member]) -> Config:
    """The options that the program of all runs is compiled with, or a `ConfigError` if there are none.

    A coefficient of the penalty is the largest of all runs': where it is 0, the penalty is not computed at
    all; where it is not, runs with 0 compute it in vain.
    """
    first, *others = runs
    for other in others:
        for name, (one, two) in options.diff(first.config, other.config).items():
            if name not in PER_RUN:
                raise ConfigError(
                    f"{name}: {one!r} in {first.name} but {two!r} in {other.name}; runs that are trained "
                    f"together may differ only in {', '.join(PER_RUN)}"
                )
    folders = [run.folder.resolve() for run in runs]
    if repeated := [folder for i, folder in enumerate(folders) if folder in folders[:i]]:
        raise ConfigError(f"out: two runs cannot have the same folder, {repeated[0]}")
    penalties = [run.config.agent.penalty for run in runs]
    largest = {name: max(getattr(penalty, name) for penalty in penalties) for name in ("posterior", "prior")}
    return options.override(first.config, {"agent": {"penalty": largest}})
