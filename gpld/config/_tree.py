"""Configurations as trees: nested dictionaries to dataclasses and back, addressed by dotted paths."""

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

C = TypeVar("C")


class ConfigError(ValueError):
    """An option that cannot be used: names the option, its value and what is allowed."""


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every option of a dataclass of dataclasses by its dotted path."""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            options |= flat(value, f"{prefix}{field.name}.")
        else:
            options[prefix + field.name] = value
    return options


def override(config: C, changes: Mapping[str, Any], prefix: str = "") -> C:
    """`config` with the options in a nested dictionary changed; unknown names and wrong types are errors."""
    hints = get_type_hints(type(config))
    values = {}
    for name, change in changes.items():
        path = prefix + name
        if name not in hints:
            raise ConfigError(f"{path}: no such option{suggestion(name, hints)}")
        if dataclasses.is_dataclass(hints[name]):
            if not isinstance(change, Mapping):
                raise ConfigError(f"{path}: {change!r} is not a group of options")
            values[name] = override(getattr(config, name), change, f"{path}.")
        else:
            values[name] = _typed(change, hints[name], path)
    return dataclasses.replace(config, **values)  # pyright: ignore[reportArgumentType]


def nested(name: str, value: Any) -> dict[str, Any]:
    """One option, by its dotted path, as a nested dictionary."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def unnested(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options of a nested dictionary by their dotted paths."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        found |= unnested(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


def merged(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested dictionaries as one, in which the second wins."""
    both = {k: merged(one[k], two[k]) for k in one if k in two and isinstance(two[k], Mapping)}
    return {**one, **two, **both}


def suggestion(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The known names nearest to a mistyped one, as the end of a message, or nothing."""
    near = get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _typed(value: Any, kind: Any, path: str) -> Any:
    """`value` as the annotated type `kind`, undoing what JSON does to tuples and to whole floats."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ConfigError(f"{path}: {value!r} is not one of {', '.join(map(str, get_args(kind)))}")
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        items = get_args(kind)
        items = items[:1] * len(value) if items[1:] == (...,) else items
        if len(items) == len(value):
            return tuple(
                _typed(v, k, f"{path}[{i}]") for i, (v, k) in enumerate(zip(value, items, strict=True))
            )
    elif kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{path}: {value!r} is not allowed; it must be at most 3e38 in size") from None
    elif type(value) is kind:
        return value
    expected = kind.__name__ if isinstance(kind, type) else str(kind)
    raise ConfigError(f"{path}: {value!r} is not of type {expected}")
