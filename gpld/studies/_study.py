"""The definition of a study, read from a TOML file of this package or a user's."""

import itertools
import math
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from gpld import tasks as groups
from gpld.agent import Model
from gpld.config import Config, ConfigError, merged, override, suggestion, unnested, validate, with_presets
from gpld.population import with_method
from gpld.sweeps.settings import settings
from gpld.world_model import WorldModel

TASK_GROUPS = {
    "proprio": groups.PROPRIO,
    "locomotion": groups.LOCOMOTION,
    "quadruped": groups.QUADRUPED,
    "dmc": groups.DMC,
}
"""Names that stand for several tasks in a study's file."""

DEFINITIONS = files("gpld.studies") / "definitions"

Work = Literal["train", "time"]
Figure = Literal["aggregate", "tasks", "singly", "ablation", "profile", "sensitivity", "quality", "cost"]
Measure = Literal["sensitivity", "quality"]
Comparison = Literal["paper", "published", "peers"]


@dataclass(frozen=True)
class Start:
    """A run of each task that is trained first, and that all others begin with parts of."""

    env_steps: int = 0
    """Env steps that it is trained for; 0 for runs that begin with nothing."""
    method: str = "DreamerV3"
    """Its method, one of the study's."""
    seed: int = 0
    """Its seed."""
    init: str = "encoder,decoder"
    """The parts that the others take, as `gpld train --init` names them."""


@dataclass(frozen=True)
class Study:
    """An experiment: every task with every method and every seed. A file may leave out what has a default."""

    name: str = ""
    """The file's name."""
    title: str = ""
    """A few words for headings."""
    purpose: str = ""
    """Its purpose, for readers."""
    work: Work = "train"
    """Train and score each run, or time its updates beside those of the baseline."""
    tasks: tuple[str, ...] = ()
    """Tasks, or the groups proprio, locomotion, quadruped and dmc."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the runs."""
    env_steps: tuple[int, ...] = (1_000_000,)
    """Env steps at which the runs are scored, in rising order; they are trained for the last.

    In a file they are rounded up to where all environments of every run have made their steps.
    """
    start: Start = field(default_factory=Start)
    """The warm start of the runs."""
    presets: tuple[str, ...] = ("12m", "gpu")
    """Presets of all runs, applied from left to right."""
    baseline: str = "DreamerV3"
    """The method whose scores the others' are divided by."""
    score_episodes: int = 20
    """Episodes of each score."""
    keep_replay: bool = False
    """Keep the replay of finished runs, gigabytes each, so that they can be trained for longer."""
    measures: tuple[Measure, ...] = ()
    """Measurements of every checkpoint that is scored."""
    figures: tuple[Figure, ...] = ("aggregate", "tasks")
    """Figures that show it."""
    singly: tuple[str, ...] = ()
    """Tasks of the figure `singly`."""
    films: tuple[str, ...] = ()
    """Tasks of which the first seed of each method is filmed."""
    compare: tuple[Comparison, ...] = ()
    """Numbers of others to show beside the study's: the paper's scores, DreamerV3's published curves, or
    learning curves of DreamerV3 and TD-MPC2 as others ran them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of all runs, over the presets, as in a run's configuration."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Methods by name, in the order in which they are shown, and the options that make them.

    The entry `method` of one takes a method of `population.METHODS`; other options are applied over it.
    """

    def config(self, task: str, method: str, seed: int) -> Config:
        """The validated configuration of a run."""
        config = override(with_presets(Config(task), self.presets), self.options)
        own = dict(self.methods[method])
        base = own.pop("method", None)
        config = with_method(config, base, own) if base else override(config, own)
        config = override(config, {"seed": seed, "env_steps": self.env_steps[-1]})
        validate(config)
        return config

    def start_config(self, task: str) -> Config:
        """The configuration of the run that all others of a task begin with parts of."""
        config = self.config(task, self.start.method, self.start.seed)
        config = replace(config, env_steps=self.start.env_steps)
        validate(config)
        return config

    def check(self) -> None:
        """Refuse every mistake in the options of any run."""
        for task in self.tasks:
            for method in self.methods:
                try:
                    self.config(task, method, self.seeds[0])
                except ConfigError as error:
                    raise ConfigError(f"study: {self.name}, {task}, {method}: {error}") from error
            try:
                if self.start.env_steps:
                    self.start_config(task)
            except ConfigError as error:
                raise ConfigError(f"study: {self.name}, {task}, start: {error}") from error


def names() -> list[str]:
    """Studies that come with this package."""
    return sorted(entry.name[:-5] for entry in DEFINITIONS.iterdir() if entry.name.endswith(".toml"))


def get(name: str | Path) -> Study:
    """A study by its name, or a user's own by the path of its file."""
    if str(name) in names():
        return parse((DEFINITIONS / f"{name}.toml").read_text(), str(name))
    path = Path(name)
    if path.suffix != ".toml":
        known = suggestion(str(name), tuple(names())) or f"; there are {', '.join(names())}"
        raise ConfigError(f"study: {str(name)!r} is not a study, nor a file that ends with .toml{known}")
    try:
        return parse(path.read_text(), path.stem)
    except OSError as error:
        raise ConfigError(f"study: {path} cannot be read ({error.strerror})") from error


def parse(text: str, name: str) -> Study:
    """A study from the text of its file."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"study: {name} is not a TOML file ({error})") from error
    return from_dict(values, name)


def from_dict(values: Mapping[str, Any], name: str) -> Study:
    """A study from what its file holds; every mistake names the entry.

    The table `sweep`, lists of values by options, becomes a method for each combination of values, with the
    options of each of `methods` if there are any.
    """
    mappings = _groups_of_options(values, name)
    if "sweep" in values:
        try:
            values = _with_settings(values)
        except ConfigError as error:
            raise ConfigError(f"study: {name}: {error}") from error
        mappings["methods"] = values["methods"]
    plain = {key: value for key, value in values.items() if key not in (*mappings, "name")}
    try:
        study = override(Study(), plain)
    except ConfigError as error:
        raise ConfigError(f"study: {name}: {error}") from error
    expanded = [task for entry in study.tasks for task in TASK_GROUPS.get(entry, (entry,))]
    changes = {"name": name, "tasks": tuple(dict.fromkeys(expanded)), "purpose": study.purpose.strip()}
    study = replace(study, **changes, **mappings)
    _validate(study)
    return _at_whole_steps(study)


def _groups_of_options(values: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """The tables `options` and `methods`. What a study has of its own is refused among them."""
    found = {key: values.get(key, {}) for key in ("options", "methods")}
    methods = found["methods"]
    named = list(methods.items()) if isinstance(methods, Mapping) else []
    for where, group in [*found.items(), *named]:
        if not isinstance(group, Mapping):
            raise ConfigError(f"study: {name}: {where}: {group!r} is not a group of options")
    for where, group in [("options", found["options"]), *named]:
        if own := [key for key in _OWN if key in group]:
            raise ConfigError(f"study: {name}: {where}: {own[0]} is not set here, but by {_OWN[own[0]]}")
    return found


_OWN = {
    "task": "the study's tasks",
    "seed": "the study's seeds",
    "env_steps": "the study's env_steps, above all tables",
}
"""Options of a run that a study gives to it, and how."""


def _at_whole_steps(study: Study) -> Study:
    """The study with env steps at which its runs can end: environments step together, so up to the next."""
    together = 1
    for task, method in itertools.product(study.tasks, study.methods):
        with suppress(ConfigError):  # `check` tells
            env = study.config(task, method, study.seeds[0]).env
            together = math.lcm(together, env.count * env.action_repeat)

    def up(step: int) -> int:
        return -(-step // together) * together

    start = replace(study.start, env_steps=up(study.start.env_steps))
    return replace(study, env_steps=tuple(dict.fromkeys(map(up, study.env_steps))), start=start)


def _with_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file holds, with methods in place of its sweep. The first setting is that of the baseline."""
    if not isinstance(values["sweep"], Mapping):
        raise ConfigError(f"sweep: {values['sweep']!r} is not a group of options")
    swept = unnested(values["sweep"])
    if "task" in swept:
        raise ConfigError("sweep: task cannot be swept here; tasks names them")
    methods = values.get("methods") or {"": {}}
    for where, changes in {"options": values.get("options", {}), **methods}.items():
        if both := swept.keys() & unnested(changes).keys():
            raise ConfigError(f"sweep: {min(both)} is swept, and {where or 'the method'} sets it too")
    found, own = {}, settings(swept)
    for method, changes in methods.items():
        for setting in own:
            named = {"method": setting.values["method"]} if "method" in setting.values else {}
            name = f"{method}, {setting.name}" if method else setting.name
            found[name] = {**merged(changes, setting.changes), **named}
    baseline = values.get("baseline", next(iter(methods)))
    first = f"{baseline}, {own[0].name}" if baseline in methods and baseline else own[0].name
    rest = {key: value for key, value in values.items() if key != "sweep"}
    return {**rest, "methods": found, "baseline": baseline if baseline in found else first}


_PARTS = tuple(f.name for kind in (WorldModel, Model) for f in fields(kind) if f.name != "world")
"""Parts of an agent that a run can begin with."""


def _is_part(pattern: str) -> bool:
    """Whether it may name one of an agent's parts, or some within one."""
    first = pattern.strip().partition(".")[0]
    return any(fnmatchcase(part, first) for part in _PARTS)


def _validate(study: Study) -> None:
    steps = study.env_steps
    rules = {
        "name": (re.fullmatch(r"[\w.-]+", study.name), "letters, digits, dots and dashes"),
        "tasks": (study.tasks, "at least one task"),
        "methods": (study.methods, "at least one method"),
        "seeds": (study.seeds and len(set(study.seeds)) == len(study.seeds), "different seeds, at least one"),
        "env_steps": (
            steps and steps[0] > 0 and list(steps) == sorted({*steps}),
            "increasing, and at least one",
        ),
        "score_episodes": (study.score_episodes > 0, "at least 1"),
        "baseline": (study.baseline in study.methods, f"one of its methods, {', '.join(study.methods)}"),
        "singly": (set(study.singly) <= {*study.tasks}, "some of its tasks"),
        "films": (set(study.films) <= {*study.tasks}, "some of its tasks"),
        "start.env_steps": (study.start.env_steps >= 0, "at least 0"),
        "start.method": (
            not study.start.env_steps or study.start.method in study.methods,
            f"one of its methods, {', '.join(study.methods)}",
        ),
        "start.init": (
            all(map(_is_part, study.start.init.split(","))),
            f"some of {', '.join(_PARTS)}, parts of them or patterns, with commas between them",
        ),
    }
    for entry, (holds, allowed) in rules.items():
        if not holds:
            value = attrgetter(entry)(study)
            raise ConfigError(f"study: {study.name}: {entry}: {value!r} is not allowed; it must be {allowed}")
