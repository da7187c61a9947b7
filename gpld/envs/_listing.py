"""Every task by name, for `gpld tasks --all`: a line each, with what an agent sees and does."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from gpld.config import ConfigError
from gpld.envs._base import EnvironmentFailure
from gpld.envs._catalog import has_envpool, tasks as catalog
from gpld.tasks import POOL_PREFIX, SUITE
from gpld.types import Spaces


class Listed(NamedTuple):
    """A task, and what is known of it without making its environment."""

    name: str
    engine: str
    observations: str = "-"
    """Images, and the number of numbers beside them."""
    actions: str = "-"

    @classmethod
    def of(cls, name: str, engine: str, spaces: Spaces) -> "Listed":
        """A task with known spaces."""
        images = ["x".join(map(str, shape)) for _, shape in spaces.image_obs]
        width = sum(math.prod(shape) for _, shape in spaces.vector_obs)
        seen = [*images, str(width)] if width else images
        return cls(name, engine, " + ".join(seen), f"{spaces.actions}{' choices' if spaces.discrete else ''}")


def all_tasks() -> tuple[list[Listed], list[str]]:
    """Every task of the suite and of the installed EnvPool that an agent can be trained on; and why not."""
    listed = [Listed.of(task.name, " or ".join(task.backends), task.spaces) for task in catalog()]
    known = {task.name for task in listed}
    listed += [Listed(name, "dm_control") for name in SUITE if name not in known]
    left_out: dict[str, list[str]] = {}
    if has_envpool():
        listed += _pool(left_out)
    why = [f"left out: {len(errors)} of {family}, such as {errors[0]}" for family, errors in left_out.items()]
    return listed, why


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
