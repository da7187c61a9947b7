"""Methods by name, and runs that one program can train together.

Runs of one task and size differ in their seeds and in a few scalars, and those are arrays with a leading run
axis (`agent.Hyper`). Everything else decides shapes or compiled code, and is the same for all of them:
`config.PER_RUN` lists in what they may differ.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpld import config as options
from gpld.config import PER_RUN, Config, ConfigError, suggestion


class Method(NamedTuple):
    """A method: its title, a description, and the options that make a configuration one."""

    title: str
    description: str
    options: Callable[[Config], Mapping[str, Any]]


def _penalty(**changes: Any) -> Mapping[str, Any]:
    return {"agent": {"penalty": changes}}


METHODS: dict[str, Method] = {
    "gpld": Method(
        "GPLD-DreamerV3", "the penalty as agent.penalty has it: by default the paper's", lambda _: {}
    ),
    "dreamerv3": Method("DreamerV3", "no penalty", lambda _: _penalty(posterior=0.0, prior=0.0)),
    "gpld-launched": Method(
        "GPLD-DreamerV3 (as launched)",
        "as the authors' launchers: mean over all states, floor 0.1 (pixels 0.01)",
        lambda config: _penalty(scaling="all", floor=0.01 if config.env.pixels else 0.1),
    ),
}
"""Methods by their names in `gpld train --method`, `members` and a study's file."""

BOTH = ("gpld", "dreamerv3")
"""The paper's two."""

TITLES = {name: method.title for name, method in METHODS.items()}
"""Titles of the methods."""


class Member(NamedTuple):
    """A run: its options, and the folder that keeps it."""

    config: Config
    folder: Path

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.folder.name

    @property
    def label(self) -> str:
        """What it shares with runs that differ in their seeds: its setting, or else its method."""
        setting, _, seed = self.name.rpartition("-seed")
        return setting if setting and seed.isdigit() else method_of(self.config)


def task_folder(task: str) -> str:
    """A task's name as that of a folder."""
    return task.replace(":", "-").replace("/", "-")


def with_method(config: Config, name: Any, changes: Mapping[str, Any] | None = None) -> Config:
    """`config` as a run of the method called `name`, with `changes` over what the method sets."""
    if not isinstance(name, str) or name not in METHODS:
        near = suggestion(str(name), tuple(METHODS)) or f"; allowed are {', '.join(METHODS)}"
        raise ConfigError(f"method: {name!r} is not a method{near}")
    config = options.override(config, METHODS[name].options(config))
    config = options.override(config, changes or {})
    if name != "dreamerv3" and method_of(config) == "dreamerv3":
        raise ConfigError(
            f"agent.penalty.posterior: 0.0 is not allowed with method {name}; it or agent.penalty.prior must "
            "be above 0"
        )
    return config


def method_of(config: Config) -> str:
    """The name of a run's method. DreamerV3 is GPLD with both coefficients at 0."""
    penalty = config.agent.penalty
    if not (penalty.posterior or penalty.prior):
        return "dreamerv3"
    launched = options.override(config, METHODS["gpld-launched"].options(config))
    return "gpld-launched" if config == launched else "gpld"


def members(config: Config, seeds: Sequence[int], methods: Sequence[str], out: Path) -> list[Member]:
    """Runs of every method of `METHODS` named with every seed, in the folders `out/METHOD-seedSEED`.

    The penalty's coefficients are those of `config`, DreamerV3's are 0.
    """
    for what, named in (("seeds", seeds), ("method", methods)):
        if repeated := [name for i, name in enumerate(named) if name in named[:i]]:
            raise ConfigError(f"{what}: {repeated[0]} is named twice")
    return [
        Member(options.override(with_method(config, method), {"seed": seed}), out / f"{method}-seed{seed}")
        for method in methods
        for seed in seeds
    ]


def shared_options(config: Config) -> dict[str, Any]:
    """The options, by their dotted names, that all runs of a program have in common."""
    return {name: value for name, value in options.flat(config).items() if name not in PER_RUN}


def programs(runs: Sequence[Member]) -> list[list[Member]]:
    """Runs that can be trained together, in the order of the first of each."""
    found: dict[tuple, list[Member]] = {}
    for run in runs:
        found.setdefault(tuple(shared_options(run.config).values()), []).append(run)
    return list(found.values())


def shared(runs: Sequence[Member]) -> Config:
    """The options that the program of all runs is compiled with, or a `ConfigError` if there are none.

    A coefficient of the penalty is the largest of all runs': where it is 0, the penalty is not computed at
    all; where it is not, runs with 0 compute it and weight it by 0.
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
