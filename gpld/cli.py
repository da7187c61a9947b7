"""The `gpld` command: a small function for each subcommand, found in `COMMANDS`."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

import gpld
from gpld.config import PRESETS, Config, ConfigError, suggestion, validate, with_presets


def doctor(arguments: Sequence[str]) -> int:
    """Look at versions, devices, memory and rendering, and say what to do about each problem."""
    argparse.ArgumentParser("gpld doctor", description=doctor.__doc__).parse_args(arguments)
    from gpld.doctor import examine, report

    findings = examine()
    print(report(findings))
    return int(any(finding.stops_training for finding in findings))


def tasks(arguments: Sequence[str]) -> int:
    """List the tasks of the benchmark."""
    argparse.ArgumentParser("gpld tasks", description=tasks.__doc__).parse_args(arguments)
    from rich.console import Console

    from gpld.envs import tasks_table

    Console().print(tasks_table())
    return 0


@dataclasses.dataclass(frozen=True)
class TrainOptions(Config):
    """A configuration, and what decides where it comes from and where its results go."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK", help_behavior_hint="")]
    """domain-task of the DeepMind Control suite (walker-walk), or gym:Name-v0."""
    preset: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Presets, applied from left to right over the defaults; options given beside them win."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: runs/TASK-seedSEED)")
    ] = None
    """Folder of the run; one that holds a run is resumed."""


def train(arguments: Sequence[str]) -> int:
    """Train an agent on a task, or go on with a run that was interrupted."""
    config, out = parse_train(arguments)
    from gpld import training  # pyright: ignore[reportAttributeAccessIssue]

    training.train(config, out)
    return 0


def parse_train(arguments: Sequence[str]) -> tuple[Config, Path]:
    """The validated configuration and the run folder that the arguments of `gpld train` ask for."""
    # Presets are the defaults of the options beside them, so they are read first.
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", nargs="*", default=[])
    presets = early.parse_known_args(arguments)[0].preset
    defaults = with_presets(Config(task=""), presets)

    names = [field.name for field in dataclasses.fields(Config)]
    options = tyro.cli(
        TrainOptions,
        prog="gpld train",
        description="\n".join([str(train.__doc__), "", "Presets:", *map(_preset_line, PRESETS)]),
        args=list(arguments),
        default=TrainOptions(**{name: getattr(defaults, name) for name in names}),
    )
    config = Config(**{name: getattr(options, name) for name in names})
    validate(config)
    folder = f"{config.task.replace(':', '-').replace('/', '-')}-seed{config.seed}"
    return config, options.out or Path("runs") / folder


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"doctor": doctor, "tasks": tasks}
if find_spec("gpld.training"):
    COMMANDS["train"] = train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 2 for a user's mistake, told in one line."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name == "--version":
        print(f"gpld {gpld.__version__}")
        return 0
    if name not in COMMANDS:
        near = suggestion(name, tuple(COMMANDS)) or f"; there are {', '.join(COMMANDS)}"
        print(f"gpld: {name!r} is not a command{near}", file=sys.stderr)
        return 2
    try:
        return COMMANDS[name](rest)
    except ConfigError as error:
        print(f"gpld {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # gpld train --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:{width}}  {str(command.__doc__).splitlines()[0]}" for name, command in COMMANDS.items()
    ]
    return "\n".join(["usage: gpld COMMAND ...", "", *lines, "", "`gpld COMMAND --help` says more."])


def _preset_line(name: str) -> str:
    return f"  {name:10}  {PRESETS[name].description}"
