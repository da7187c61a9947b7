"""The resolved configuration of a run as a JSON file, and what differs between two of them."""

import dataclasses
from pathlib import Path
from typing import Any

from gpld import files
from gpld.config._options import Config
from gpld.config._tree import ConfigError, flat, override

REMOVED = {("agent", "behavior", "gradient"): "reinforce"}
"""Options of earlier versions, and the value that is now the only one."""


def save(config: Config, path: Path | str) -> None:
    """Write every option to a JSON file, in one move: a reader never sees half of it."""
    files.write_json(Path(path), dataclasses.asdict(config))


def load(path: Path | str) -> Config:
    """Read a file written by `save`, also by an earlier version.

    Options it lacks take their defaults; unknown ones are errors.
    """
    return parse(read(path), path)


def read(path: Path | str) -> Any:
    """The values in a file of options, as they are."""
    try:
        return files.read_json(Path(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a file of options ({error})") from error


def parse(options: Any, path: Path | str, *, needs_task: bool = True) -> Config:
    """The configuration that the values of such a file mean; `path` is for messages."""
    if not isinstance(options, dict) or (needs_task and "task" not in options):
        raise ConfigError(f"{path}: not a configuration (it has no task)")
    try:
        _drop_removed(options)
        return override(Config(task=""), options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _drop_removed(options: dict[str, Any]) -> None:
    """Leave out options that no longer exist; a value that is no longer possible is an error."""
    for path, value in REMOVED.items():
        group = options
        for name in path[:-1]:
            group = group.get(name, {}) if isinstance(group, dict) else {}
        if isinstance(group, dict) and group.pop(path[-1], value) != value:
            raise ConfigError(f"{'.'.join(path)}: this version has only {value!r}")


def diff(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Options that differ: dotted path to the values in `a` and in `b`."""
    other = flat(b)
    return {path: (value, other[path]) for path, value in flat(a).items() if value != other[path]}
