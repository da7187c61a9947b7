"""The tasks by name: the benchmark's with observations and actions, and the others that there are."""

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Literal, NamedTuple

from rich.markup import escape
from rich.table import Table

from gpld.config import ConfigError
from gpld.envs._base import EnvironmentFailure
from gpld.machine import install, simulator_remedy
from gpld.tasks import DMC, POOL_PREFIX, PROPRIO, QUADRUPED, SUITE, near, registered_tasks
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

_SIZES = {
    "cartpole-three_poles": (11, 1),
    "cartpole-two_poles": (8, 1),
    "dog": (223, 38),
    "dog-fetch": (232, 38),
    "fish-swim": (24, 5),
    "fish-upright": (21, 5),
    "humanoid": (67, 21),
    "humanoid-run_pure_state": (55, 21),
    "humanoid_CMU": (137, 56),
    "lqr-lqr_2_1": (4, 1),
    "lqr-lqr_6_2": (12, 2),
    "manipulator": (44, 5),
    "point_mass": (4, 2),
    "quadruped-escape": (101, 12),
    "quadruped-fetch": (90, 12),
    "stacker-stack_2": (49, 5),
    "stacker-stack_4": (63, 5),
    "swimmer-swimmer15": (61, 14),
    "swimmer-swimmer6": (25, 5),
}
"""Numbers observed and actions in the suite's other tasks: dm_control takes seconds to say."""

ABSENT = "not installed"
"""In the place of an engine."""

_UNEVEN = {"quadruped": 4 * ((-1.0, 1.0), (-1.0, 1.1), (-0.8, 0.8))}
"""Bounds of actions, where they are not -1 and 1."""


class Task(NamedTuple):
    """A task of the benchmark, as `gpld tasks` lists it."""

    name: str
    group: Literal["proprio", "quadruped", "extra"]
    spaces: Spaces
    backends: tuple[Backend, ...]
    """Backends that are installed, the default first."""


def has_envpool() -> bool:
    """Whether EnvPool is installed: there is none for some machines."""
    return importlib.util.find_spec("envpool") is not None


def has_dm_control() -> bool:
    """Whether dm_control is installed."""
    return importlib.util.find_spec("dm_control") is not None


def load_envpool() -> ModuleType:
    """EnvPool; or in one line why it cannot be imported."""
    try:
        import envpool
    except Exception as error:  # also of a missing file: it looks for some of its assets
        problem = in_line(error)
        raise ConfigError(
            f"task: EnvPool cannot be imported ({problem}): {simulator_remedy(problem)}"
        ) from error
    return envpool


def in_line(error: Exception) -> str:
    """What an error says, without its line breaks."""
    return " ".join(f"{error}".split()).rstrip(".") or type(error).__name__


def tasks() -> tuple[Task, ...]:
    """The 20 tasks of the paper and ball_in_cup-catch, by group."""
    installed: dict[Backend, bool] = {"envpool": has_envpool(), "dm_control": has_dm_control()}
    backends = tuple(name for name, there in installed.items() if there)
    groups: tuple = (("proprio", PROPRIO), ("quadruped", QUADRUPED), ("extra", EXTRA))
    return tuple(Task(name, group, spaces(name), backends) for group, names in groups for name in names)


def spaces(name: str) -> Spaces:
    """Observations and actions of a task of the benchmark, without loading an engine."""
    domain = name.partition("-")[0]
    found = _SPACES.get(name) or _SPACES[domain]
    return replace(found, bounds=_UNEVEN.get(domain, found.actions * ((-1.0, 1.0),)))


def _size(name: str) -> tuple[int, int]:
    """Numbers observed and actions of one of the suite's other tasks."""
    return _SIZES.get(name) or _SIZES[name.partition("-")[0]]


def tasks_table() -> Table:
    """The tasks of the benchmark as a table for the terminal."""
    others = (
        "Any other task of dm_control's suite goes by its name, such as fish-swim; Gymnasium's by gym:ID, "
        "EnvPool's by envpool:ID. `gpld tasks --all` lists more."
    )
    engines = " or ".join(tasks()[0].backends) or f"engines that are not installed: {install('suite')}"
    table = Table("task", "group", title=escape(f"Tasks, on {engines}"), caption=others)
    for column in ("observations", "actions"):
        table.add_column(column, justify="right")
    for task in tasks():
        table.add_row(*Listed.of(task.name, task.group, task.spaces))
    return table


def in_catalog(name: str) -> bool:
    """Whether a name is one of `tasks()`."""
    return name in DMC or name in EXTRA


def unknown(name: str, known: tuple[str, ...]) -> ConfigError:
    """The error for a task that does not exist, with the nearest that do."""
    names = near(name, (*known, *registered_tasks()))
    hint = f"did you mean {' or '.join(names)}? " if names else ""
    return ConfigError(
        f"task {name!r} is not known: {hint}"
        "`gpld tasks` lists the names; gym:ID and envpool:ID take those of Gymnasium and EnvPool"
    )


class Listed(NamedTuple):
    """A task, and what is known of it without making its environment."""

    name: str
    engine: str
    observations: str
    """Images, and the number of numbers beside them."""
    actions: str

    @classmethod
    def of(cls, name: str, engine: str, spaces: Spaces) -> "Listed":
        """A task with known spaces."""
        images = ["x".join(map(str, shape)) for _, shape in spaces.image_obs]
        width = sum(math.prod(shape) for _, shape in spaces.vector_obs)
        seen = [*images, str(width)] if width else images
        return cls(name, engine, " + ".join(seen), f"{spaces.actions}{' choices' if spaces.discrete else ''}")


def all_tasks() -> tuple[list[Listed], list[str]]:
    """Every task of the suite and of the installed EnvPool that an agent can be trained on.

    And lines about those that it cannot be trained on here.
    """
    why = []
    listed = [Listed.of(task.name, " or ".join(task.backends) or ABSENT, task.spaces) for task in tasks()]
    if not has_dm_control():
        why += [f"dm_control, which all tasks of its suite run on, is not installed: {install('suite')}"]
    engine = "dm_control" if has_dm_control() else ABSENT
    listed += [Listed(name, engine, *map(str, _size(name))) for name in SUITE if not in_catalog(name)]
    if not has_envpool():
        remedy = f"is not installed: {install('suite')}"
        return listed, [*why, f"more than 1,000 other tasks are EnvPool's, envpool:NAME, which {remedy}"]
    left_out: dict[str, list[str]] = {}
    try:
        listed += _pool(left_out)
    except ConfigError as error:  # it cannot be imported
        return listed, [*why, str(error).removeprefix("task: ")]
    lines = (f"left out: {len(own)} of {family}, such as {own[0]}" for family, own in left_out.items())
    return listed, [*why, *lines]


def _pool(left_out: dict[str, list[str]]) -> Iterator[Listed]:
    from gpld.envs._families import PoolTask, family_of, pool_tasks

    alike: dict[str, Spaces] = {}
    for name, module in pool_tasks().items():
        task, family = f"{POOL_PREFIX}{name}", family_of(module)
        try:
            spaces = alike.get(module) or PoolTask(task).spaces
        except (ConfigError, EnvironmentFailure) as error:
            left_out.setdefault(family.name, []).append(str(error).removeprefix("task: "))
            continue
        if family.alike:
            alike[module] = spaces
        yield Listed.of(task, f"envpool ({family.name})", spaces)


def all_tasks_text() -> str:
    """The same as text for the terminal, or to search in."""
    listed, why = all_tasks()
    rows = [Listed("task", "engine", "observations", "actions"), *listed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join([*("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), *why])
