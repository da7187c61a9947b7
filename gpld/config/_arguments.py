"""Arguments as they are typed, with the names and numbers that options have here."""

import re
from collections.abc import Sequence
from decimal import Decimal

from gpld.config._options import Config
from gpld.config._tree import ConfigError, flat

OTHER_NAMES = {
    "--lr": "--agent.optimizer.learning-rate",
    "--batch-size": "--replay.batch",
    "--steps": "--env-steps",
    "--total-timesteps": "--env-steps",
    "--num-envs": "--env.count",
}
"""Names of options in other programs, and here."""


LISTS = ("halve_at", "sweep_at")
"""Options of commands that take several whole numbers."""


def normalize(arguments: Sequence[str]) -> list[str]:
    """Arguments with integers written out: `--env-steps 1e6`. Other programs' names are refused."""
    integers = {name for name, value in flat(Config("")).items() if type(value) is int}
    normalized: list[str] = []
    option = ""  # whose value comes next
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in OTHER_NAMES:
            raise ConfigError(f"{name}: there is no such option; here it is called {OTHER_NAMES[name]}")
        if not equals:
            name, value = option, argument
        known = name.removeprefix("--").replace("-", "_")
        if known in integers or known in LISTS:
            value = _write_out(value)
        normalized.append(f"{name}={value}" if equals else value)
        if argument.startswith("--"):
            option = "" if equals else argument
        elif known not in LISTS:
            option = ""
    return normalized


def _write_out(text: str) -> str:
    """An integer in scientific notation without it; other texts as they are."""
    number = Decimal(text) if re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", text) else None
    return str(int(number)) if number is not None and number == int(number) else text
