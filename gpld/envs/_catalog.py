"""The tasks of the benchmark: their groups, observations and actions. Data, and the rules for names."""

import difflib
import importlib.util
import math
import re
from typing import Literal, NamedTuple

from rich.table import Table

from gpld.config import ConfigError
from gpld.tasks import DMC, GYM_PREFIX, POOL_PREFIX, PROPRIO, QUADRUPED
from gpld.types import Spaces

Backend = Literal["envpool", "dm_control", "gymnasium"]

EXTRA = ("ball_in_cup-catch",)
"""Not among the paper's tasks; there is a published curve to compare with."""

FRAMES = 1000
"""Environment steps of every episode of these tasks."""

_FINGER = {"position": (4,), "velocity": (3,), "touch": (2,)}
_SPACES = {
    "acrobot": Spaces.of({"orientations": (4,), "velocity": (2,)}, 1),
    "ball_in_cup": Spaces.of({"position": (4,), "velocity": (4,)}, 2),
    "cartpole": Spaces.of({"position": (3,), "velocity": (2,)}, 1),
    "cheetah": Spaces.of({"position": (8,), "velocity": (9,)}, 6),
    "finger-spin": Spaces.of(_FINGER, 2),
    "finger": Spaces.of(_FINGER | {"target_position": (2,), "dist_to_target": ()}, 2),
    "hopper": Spaces.of({"position": (6,), "velocity": (7,), "touch": (2,)}, 4),
    "pendulum": Spaces.of({"orientation": (2,), "velocity": (1,)}, 1),
    "quadruped": Spaces.of(
        {"egocentric_state": (44,), "force_torque": (24,), "imu": (6,)}
        | {"torso_upright": (), "torso_velocity": (3,)},
        12,
    ),
    "reacher": Spaces.of({"position": (2,), "to_target": (2,), "velocity": (2,)}, 2),
    "walker": Spaces.of({"height": (), "orientations": (14,), "velocity": (9,)}, 6),
}


class Task(NamedTuple):
    """A task of the benchmark, as `gpld tasks` lists it."""

    name: str
    group: Literal["proprio", "quadruped", "extra"]
    spaces: Spaces
    backends: tuple[Backend, ...]
    """Backends that run on this machine, the default first."""


def has_envpool() -> bool:
    """Whether EnvPool is installed: there is none for some machines."""
    return importlib.util.find_spec("envpool") is not None


def tasks() -> tuple[Task, ...]:
    """The 20 tasks of the paper and ball_in_cup-catch, by group."""
    backends: tuple[Backend, ...] = ("envpool", "dm_control") if has_envpool() else ("dm_control",)
    groups: tuple = (("proprio", PROPRIO), ("quadruped", QUADRUPED), ("extra", EXTRA))
    return tuple(Task(name, group, spaces(name), backends) for group, names in groups for name in names)


def spaces(name: str) -> Spaces:
    """Observations and actions of a task of the benchmark, without loading an engine."""
    return _SPACES.get(name) or _SPACES[name.partition("-")[0]]


def tasks_table() -> Table:
    """The tasks of the benchmark as a table for the terminal."""
    others = (
        "Any other task of dm_control's suite goes by its name, such as fish-swim; Gymnasium's by gym:ID, "
        "EnvPool's by envpool:ID. `gpld tasks --all` lists more."
    )
    table = Table(title=f"Tasks, on {' or '.join(tasks()[0].backends)}", caption=others)
    for column in ("task", "group", "observations", "actions"):
        table.add_column(column, justify="right" if column in ("observations", "actions") else "left")
    for task in tasks():
        width = sum(math.prod(shape) for _, shape in task.spaces.obs)
        table.add_row(task.name, task.group, str(width), str(task.spaces.actions))
    return table


def in_catalog(name: str) -> bool:
    """Whether a name is one of `tasks()`."""
    return name in DMC or name in EXTRA


def unknown(name: str, known: tuple[str, ...]) -> ConfigError:
    """The error for a task that does not exist, with the nearest that do."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if re.search(r"-v\d+$", name):  # how their names end
        near = [GYM_PREFIX + name, POOL_PREFIX + name]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return ConfigError(
        f"task {name!r} is not known: {hint}"
        "`gpld tasks` lists the names; gym:ID and envpool:ID take those of Gymnasium and EnvPool"
    )
