"""The `gpld` command: a small function for each subcommand, found in `COMMANDS`.

Exit statuses: 0 if all went well; 1 if a run failed; 2 for a mistake in the options; 128 plus the number of a
signal if one ended a run, which was saved: 130 for Ctrl-C, 143 for SIGTERM. So a script that says
`gpld train ... && gpld eval ...` does not evaluate half a run, and a batch system knows what to start again.
"""

import argparse
import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

import gpld
from gpld import population
from gpld.config import (
    PRESETS,
    Config,
    ConfigError,
    Preset,
    check_numbers,
    suggestion,
    validate,
    with_presets,
)
from gpld.population import METHODS, Member, Method, method_of

MOST_RUNS = 4096
"""Runs of one command."""

GONE = (
    "gpld train: the process is gone without a word: an environment or a library ended it, or the system "
    "killed it, as it does when memory is short; the same command goes on from the last checkpoint"
)
"""What is said when nobody else can."""

DEVICES = ("cpu", "gpu")
"""Presets that fit a device; without one of them, that of JAX's device is taken."""


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
class RunOptions(Config):
    """A configuration, and where it comes from."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK", help_behavior_hint="")]
    """domain-task of the DeepMind Control suite (walker-walk), gym:Name-v0, or gym:module:Name-v0."""
    preset: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Presets, applied from left to right over the defaults; options given beside them win."""

    @property
    def config(self) -> Config:
        """The configuration alone."""
        return Config(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Config)})


@dataclasses.dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Options of `gpld train`."""

    seeds: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SEED [SEED ...]")] = ()
    """Train a run of each seed, all in one program: 0..4 for five of them, or a list such as 0 3 7."""
    method: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Train runs of each method, all in one program; both stands for gpld dreamerv3."""
    devices: int = 0
    """Devices to use; 0 for all that several runs can be spread over, and one for one run."""
    distributed: Annotated[
        tuple[str, int, int] | None, tyro.conf.arg(metavar="HOST:PORT INDEX COUNT", help_behavior_hint="")
    ] = None
    """This is process INDEX of COUNT, which share several runs out, or each batch of one (by HOST:PORT)."""
    out: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FOLDER",
            help_behavior_hint="(default: runs/TASK-seedSEED, or runs/TASK with --seeds or --method)",
        ),
    ] = None
    """Folder of the run, or of those METHOD-seedSEED; one that holds a run is resumed."""

    @property
    def members(self) -> list[Member]:
        """The runs, and their folders."""
        config, task = self.config, self.task.replace(":", "-").replace("/", "-")
        if not self.seeds and not self.method:
            return [Member(config, self.out or Path("runs") / f"{task}-seed{config.seed}")]
        named = [population.BOTH if name == "both" else (name,) for name in self.method]
        methods = sum(named, ()) or (method_of(config),)
        return population.members(config, self._seeds(), methods, self.out or Path("runs") / task)

    def _seeds(self) -> list[int]:
        if not self.seeds:
            return [self.seed]
        if self.seed:
            raise ConfigError(f"seed: {self.seed} is not allowed beside seeds; name it among them")
        seeds = []
        for word in self.seeds:
            found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", word)
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if not 0 <= last - first < MOST_RUNS:
                allowed = f"numbers, or ranges such as 0..4 of at most {MOST_RUNS}"
                raise ConfigError(f"seeds: {word!r} is not allowed; it must be {allowed}")
            seeds += range(first, last + 1)
        return seeds


def train(arguments: Sequence[str]) -> int:
    """Train agents on a task, or go on with runs that were interrupted."""
    asked = parse_train(arguments)  # before anything is loaded, which takes its time
    _, index, count = asked.distributed or ("", 0, 1)
    alone = len(asked.members) == 1
    if asked.distributed and alone:
        import jax

        jax.distributed.initialize(asked.distributed[0], count, index)
    options = parse_train(arguments, fitting(arguments))
    from gpld import machine
    from gpld.training import summary, train_all

    members = options.members if alone else options.members[index::count]
    with machine.witnessed(GONE):
        results = train_all(members, devices=options.devices) if members else []
    if unfinished := [result for result in results if not result.finished]:
        print(f"go on with: {summary.program('gpld')} train {shlex.join(arguments)}")
        return 128 + (unfinished[0].signal or 0)
    if alone and index == 0:
        from gpld import films

        summary.show(*members[0], arguments, films=films.film_finished)
    elif members and not alone:
        summary.show_all(members)
    return 0


def parse_train(arguments: Sequence[str], beneath: Sequence[str] = ()) -> TrainOptions:
    """The options that the arguments of `gpld train` ask for, those of all its runs validated.

    `beneath` are presets under those named.
    """
    what = "\n".join([str(train.__doc__), *_listed("Methods", METHODS)])
    options = _parse_run(TrainOptions, "train", what, arguments, beneath, task="")
    check_numbers(options, "devices")
    if options.distributed and not 0 <= options.distributed[1] < options.distributed[2]:
        raise ConfigError(f"distributed: {options.distributed!r} is not allowed; INDEX must be in [0, COUNT)")
    if options.distributed and not re.fullmatch(r".+:\d+", options.distributed[0]):
        allowed = "HOST:PORT, such as localhost:1234"
        raise ConfigError(f"distributed: {options.distributed[0]!r} is not allowed; it must be {allowed}")
    for member in options.members:
        validate(member.config)
    return options


def evaluate(arguments: Sequence[str]) -> int:
    """Play episodes with a trained agent; film them and its predictions if asked to."""
    from gpld.films import command

    return command.evaluate(arguments, str(evaluate.__doc__))


@dataclasses.dataclass(frozen=True)
class ProfileOptions(RunOptions):
    """Options of `gpld profile`."""

    updates: int = 3
    """Updates to trace."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: profiles/TASK)")
    ] = None
    """Folder for the trace."""


def profile(arguments: Sequence[str]) -> int:
    """Trace some updates with JAX's profiler, and say where their time goes."""
    parse_profile(arguments)
    # On GPUs, a trace shows nothing of what runs inside a command buffer. XLA reads this when JAX starts.
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_gpu_enable_command_buffer="]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    options = parse_profile(arguments, fitting(arguments))
    import jax

    from gpld import envs, machine, profiling

    config, out = options.config, options.out or Path("profiles") / options.task.replace("/", "-")
    machine.use_compilation_cache()
    with envs.make(config.task, count=1, seed=0, backend=config.backend, pixels=config.env.pixels) as env:
        spaces = env.spaces
    found = profiling.profile(config, spaces, out, updates=options.updates)
    _print(profiling.tables(found))
    print(f"{1000 * found.seconds:,.3f} ms per update on the clock, without the tracer")
    if jax.default_backend() == "gpu":
        print("measured without command buffers, which hide their kernels from the trace (XLA_FLAGS)")
    print(f"trace: {found.trace}; open it at https://ui.perfetto.dev")
    return 0


def parse_profile(arguments: Sequence[str], beneath: Sequence[str] = ()) -> ProfileOptions:
    """The validated options that the arguments of `gpld profile` ask for."""
    options = _parse_run(
        ProfileOptions, "profile", str(profile.__doc__), arguments, beneath, task="walker-walk"
    )
    check_numbers(options, "updates")
    return options


def sensitivity(arguments: Sequence[str]) -> int:
    """Measure how much a trained agent's latent distributions change when their inputs are moved a little."""
    from gpld.analysis import commands

    return commands.sensitivity(arguments, str(sensitivity.__doc__))


def quality(arguments: Sequence[str]) -> int:
    """Measure how well a trained agent's world model predicts, by how far it looks ahead."""
    from gpld.analysis import commands

    return commands.quality(arguments, str(quality.__doc__))


def cost(arguments: Sequence[str]) -> int:
    """Time updates with and without the penalty on this machine: the paper's table of overheads."""
    from gpld.analysis import commands

    return commands.cost(arguments, str(cost.__doc__))


def theory(arguments: Sequence[str]) -> int:
    """Draw the figures that lead from tables of transitions to the penalty: docs/theory.md explains them."""
    from gpld.theory import command

    return command.run(arguments, str(theory.__doc__))


Options = TypeVar("Options", bound=RunOptions)


def _parse_run(
    kind: type[Options], name: str, what: str, arguments: Sequence[str], beneath: Sequence[str], *, task: str
) -> Options:
    """Options of a command that takes a whole configuration, validated."""
    # Presets are the defaults of the options beside them, so they are read first.
    defaults = with_presets(Config(task), [*beneath, *_named_presets(arguments)])
    options = tyro.cli(
        kind,
        prog=f"gpld {name}",
        description="\n".join([what, *_listed("Presets", PRESETS)]),
        args=list(arguments),
        default=kind(**{field.name: getattr(defaults, field.name) for field in dataclasses.fields(Config)}),
    )
    validate(options.config)
    return options


def fitting(arguments: Sequence[str]) -> tuple[str, ...]:
    """The preset that fits JAX's device, unless one for a device is named. Says which."""
    if set(DEVICES) & set(_named_presets(arguments)):
        return ()
    import jax

    try:
        device = jax.devices()[0]
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # JAX's, and without words if it has no plugin for a device
        asked = os.environ.get("JAX_PLATFORMS", "")
        reason = f"JAX_PLATFORMS={asked}: JAX cannot use this machine's device"
        raise ConfigError(f"{reason}; `gpld doctor` says more. {error}".strip()) from error
    preset = "cpu" if device.platform == "cpu" else "gpu"
    print(f"preset {preset}, which fits this machine's device ({device.device_kind})")
    return (preset,)


def _named_presets(arguments: Sequence[str]) -> list[str]:
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", nargs="*", default=[])
    return early.parse_known_args(arguments)[0].preset


def study(arguments: Sequence[str]) -> int:
    """Run the paper's experiments or your own, here, on Slurm or on Ray, and show what they found."""
    from gpld.studies import study_command

    return study_command(arguments)


def report(arguments: Sequence[str]) -> int:
    """Write one HTML page about a study, or about the runs in a folder."""
    from gpld.studies import report_command

    return report_command(arguments, str(report.__doc__))


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "eval": evaluate,
    "profile": profile,
    "sensitivity": sensitivity,
    "quality": quality,
    "cost": cost,
    "theory": theory,
    "study": study,
    "report": report,
    "tasks": tasks,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status; what a user can mend is told without a traceback."""
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
    except Exception as error:
        if not _is_told(error):
            raise
        print(f"gpld {name}: {error}", file=sys.stderr)
        return 1


def _is_told(error: Exception) -> bool:
    """Whether an error is about the user's machine, files or environment, and says so in its words."""
    if isinstance(error, OSError):
        return error.filename is not None
    from gpld.envs import EnvironmentFailure
    from gpld.files import DamagedFile
    from gpld.training import CheckpointError, TrainingStopped

    return isinstance(error, (EnvironmentFailure, CheckpointError, DamagedFile, TrainingStopped))


def _print(renderable: object) -> None:
    from rich.console import Console

    Console().print(renderable)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:{width}}  {str(command.__doc__).splitlines()[0]}" for name, command in COMMANDS.items()
    ]
    return "\n".join(["usage: gpld COMMAND ...", "", *lines, "", "`gpld COMMAND --help` says more."])


def _listed(what: str, named: Mapping[str, Preset | Method]) -> list[str]:
    width = max(map(len, named))
    return ["", f"{what}:", *(f"  {name:{width}}  {each.description}" for name, each in named.items())]
