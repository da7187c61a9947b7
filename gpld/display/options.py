"""Options of commands: the fields of a dataclass, with their docstrings as help."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from gpld.config import ConfigError, check_numbers

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
    refuse_repeated(kind, arguments)
    options = tyro.cli(kind, prog=f"gpld {name}", description=what, args=list(arguments))
    check_numbers(options, *numbers)
    return options


def refuse_repeated(kind: type, arguments: Sequence[str]) -> None:
    """Refuse an option of several values that is given twice: the second would drop those of the first."""
    given = [word.partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")]
    for name in _lists(kind):
        if given.count(f"__{name}") > 1:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{name}: it is given twice; name all after one {option}")


def _lists(kind: type, prefix: str = "") -> Iterator[str]:
    """Options of any number of values, by their dotted names."""
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _lists(hint, f"{prefix}{name}.")
        elif get_origin(hint) is tuple and ... in get_args(hint):
            yield prefix + name
