"""Options of commands: the fields of a dataclass, with their docstrings as help."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import tyro

from gpld.config import check_numbers

Options = TypeVar("Options")


def shown(metavar: str, default: str = "", **more: Any) -> Any:
    """How help shows an option: a word for its value, and its default in words where that says more."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=default, **more)


RunArgument = Annotated[str, tyro.conf.Positional, shown("RUN")]
"""A run's folder, or what stands for one."""

Imports = Annotated[bool, tyro.conf.arg(name="import")]
"""Whether a module is imported that a folder names."""


def parse(
    kind: type[Options], name: str, what: str | None, arguments: Sequence[str], *numbers: str
) -> Options:
    """The options of `gpld NAME` in its arguments, `numbers` of them in their ranges; `what` describes it."""
    options = tyro.cli(kind, prog=f"gpld {name}", description=what, args=list(arguments))
    check_numbers(options, *numbers)
    return options
