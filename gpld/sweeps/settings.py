"""Settings: every combination of the values of some options, as a sweep trains and a study compares them."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpld.config import PRESETS, Config, ConfigError, flat, merged, nested, override, suggestion, unnested
from gpld.population import METHODS, with_method

MAX_RUNS = 4096
"""The most runs of one command."""

GROUPS = ("preset", "method")
"""What stands for several options, and can be swept too."""

FIXED = {
    "seed": "the seeds of all settings are named by seeds",
    "env_steps": "settings are compared after the same env steps",
}
"""Options that cannot be swept, and why."""

_LONGEST = 160
"""Characters of a name; most file systems have room for 255 bytes."""

Values = Mapping[str, Any]
"""Lists of values of options by their dotted names, or of `GROUPS`."""


@dataclass(frozen=True)
class Combination:
    """One combination of values."""

    name: str
    """Tells it from the others, and can be the name of a folder: `learning_rate=4e-5,posterior=0`."""
    values: Mapping[str, Any]

    @property
    def changes(self) -> dict[str, Any]:
        """Its options as a nested dictionary, those of its preset included. Its method is left out."""
        preset = PRESETS[self.values["preset"]].options if "preset" in self.values else {}
        own = [nested(name, value) for name, value in self.values.items() if name not in GROUPS]
        both: dict[str, Any] = {}
        for part in (preset, *own):
            both = merged(both, part)
        return both

    def apply(self, config: Config) -> Config:
        """`config` with this setting."""
        if "method" in self.values:
            return with_method(config, self.values["method"], self.changes)
        return override(config, self.changes)


def parse(words: Iterable[str]) -> dict[str, list[Any]]:
    """Values from arguments such as `agent.penalty.posterior=0,0.5`.

    Commas inside brackets belong to a value: `agent.penalty.custom=[[0,1.0]],[[0,0.5],[500,0.1]]`.
    """
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, texts = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals:
            raise ConfigError(f"sweep: {word!r} is not allowed; it must be OPTION=VALUE,VALUE")
        if name in found:
            raise ConfigError(f"sweep: {name} is named twice")
        kind = type(flat(Config("")).get(name, ""))
        found[name] = [_value(text, kind) for text in _split(texts)]
    return found


def _split(text: str) -> list[str]:
    """Parts between commas that are outside of brackets."""
    parts, depth = [""] if text else [], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _value(text: str, kind: type) -> Any:
    """A text as JSON, if the option is not a text itself; whole numbers may be written as 1e6."""
    if kind is str:
        return text
    try:
        value = float(text) if kind is float else json.loads(text)
    except (ValueError, RecursionError):
        return text
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def settings(values: Values, *, runs: int = 1) -> list[Combination]:
    """Every combination of the values, those of the last option changing first; or a `ConfigError`.

    With so many `runs` of each, they are at most `MAX_RUNS` in all. Whether values are in their ranges is
    seen once they are applied to a configuration.
    """
    typed = {name: checked(name, own) for name, own in values.items()}
    if not typed:
        raise ConfigError("sweep: no option is named")
    if (count := runs * math.prod(map(len, typed.values()))) > MAX_RUNS:
        raise ConfigError(f"sweep: {count:,} runs are too many; at most {MAX_RUNS:,} are allowed")
    _refuse_conflicts(typed)
    short = _short_names(list(typed))
    found = []
    for combination in itertools.product(*typed.values()):
        own = dict(zip(typed, combination, strict=True))
        found.append(Combination(_name({short[name]: value for name, value in own.items()}), own))
    names = [setting.name.lower() for setting in found]  # some file systems do not tell cases apart
    if alike := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(f"sweep: two settings would have the same name, {alike[0]}")
    return found


def checked(name: str, values: Any) -> list[Any]:
    """Values with the option's type, each once."""
    known = {"preset": PRESETS, "method": METHODS}
    if name in FIXED:
        raise ConfigError(f"sweep: {name} cannot be swept; {FIXED[name]}")
    every = (*GROUPS, *flat(Config("")))
    if name not in every:
        ends = tuple(option for option in every if option.endswith(f".{name}"))
        near = f"; did you mean {' or '.join(ends)}?" if ends else suggestion(name, every)
        raise ConfigError(f"sweep: {name}: no such option{near}")
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"sweep: {name}: {values!r} is not a list of values")
    if not values:
        raise ConfigError(f"sweep: {name} has no values")
    typed = []
    for value in values:
        if name in GROUPS:
            if not isinstance(value, str) or value not in known[name]:
                near = suggestion(str(value), tuple(known[name])) or f"; allowed are {', '.join(known[name])}"
                raise ConfigError(f"sweep: {name}: {value!r} is not a {name}{near}")
        else:
            value = flat(override(Config(""), nested(name, value)))[name]
        if value in typed:
            raise ConfigError(f"sweep: {name}: {text_of(value)} is named twice")
        typed.append(value)
    return typed


def _refuse_conflicts(values: Values) -> None:
    """Refuse an option that a swept method sets too, and a preset of an option that cannot be swept."""
    for name in values.get("method", ()):
        if both := values.keys() & unnested(METHODS[name].options(Config(""))).keys():
            raise ConfigError(f"sweep: {min(both)} is swept, and the method {name} sets it")
    for name in values.get("preset", ()):
        if fixed := FIXED.keys() & PRESETS[name].options.keys():
            raise ConfigError(f"sweep: preset: {name} is not allowed; it sets {min(fixed)}")


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted names that tell them apart."""

    def end(name: str, parts: int) -> str:
        return ".".join(name.split(".")[-parts:])

    return {
        name: next(
            end(name, parts)
            for parts in range(1, 9)
            if [end(other, parts) for other in names].count(end(name, parts)) == 1
        )
        for name in names
    }


def _name(values: Mapping[str, Any]) -> str:
    joined = ",".join(f"{name}={text_of(value)}" for name, value in values.items())
    plain = re.sub(r"[^\w.=,+-]+", "-", joined, flags=re.ASCII).strip("-.")
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[: _LONGEST - 9]}-{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def text_of(value: Any) -> str:
    """A value as it would be typed: 4e-5, 0, true."""
    if isinstance(value, float):
        return re.sub(r"e([+-]?)0*(\d)", r"e\1\2", repr(value)).removesuffix(".0").replace("e+", "e")
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
