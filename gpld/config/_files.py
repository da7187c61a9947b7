"""The resolved configuration of a run as a JSON file, and what differs between two of them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from gpld import files
from gpld.config._options import Config
from gpld.config._tree import ConfigError, flat, override


def save(config: Config, path: Path | str) -> None:
    """Write every option to a JSON file, in one move: a reader never sees half of it."""
    files.write_text(Path(path), json.dumps(dataclasses.asdict(config), indent=2) + "\n")


def load(path: Path | str) -> Config:
    """Read a file written by `save`. Options it lacks take their defaults; unknown ones are errors."""
    try:
        options = json.loads(files.read_text(Path(path)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(options, dict) or "task" not in options:
        raise ConfigError(f"{path}: not a configuration (it has no task)")
    try:
        return override(Config(task=""), options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def diff(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Options that differ: dotted path to the values in `a` and in `b`."""
    other = flat(b)
    return {path: (value, other[path]) for path, value in flat(a).items() if value != other[path]}
