"""The `gpld` command: a small function for each subcommand, found in `COMMANDS`.

Exit statuses: 0 if all went well; 1 if a run failed; 2 for a mistake in the options; 128 plus the number of a
signal if one ended it, after runs were saved: 130 for Ctrl-C, 143 for SIGTERM. So `gpld train ... && gpld
eval ...` in a script does not evaluate half a run, and a batch system knows what to start again.
"""

import argparse
import dataclasses
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

import gpld
from gpld import machine, population
from gpld.config import (
    PRESETS,
    Config,
    ConfigError,
    Preset,
    check_numbers,
    evaluated_once,
    learns_nothing,
    normalize,
    override,
    parse as parse_options,
    read,
    suggestion,
    unnested,
    validate,
    with_presets,
)
from gpld.display.options import RunArgument, parse as parse_command, refuse_repeated, shown
from gpld.population import METHODS, Member, Method, method_of
from gpld.sweeps.definition import Sweep, members as sweep_members
from gpld.sweeps.settings import MAX_RUNS, checked, parse

DEATH = (
    "the process died without an error: an environment or a library ended it, or the system killed it, "
    "perhaps for lack of memory"
)
"""Printed by another process when this one dies."""

DEVICES = ("cpu", "gpu")
"""Presets for a device; without one of them, that of JAX's device is used."""


def doctor(arguments: Sequence[str]) -> int:
    """Check versions, devices, memory and rendering, and say what to do about each problem."""
    argparse.ArgumentParser("gpld doctor", description=doctor.__doc__).parse_args(arguments)
    from gpld.doctor import examine, report

    findings = examine()
    print(report(findings))
    return int(any(finding.stops_training for finding in findings))


def tasks(arguments: Sequence[str]) -> int:
    """List the tasks of the benchmark, and the trained agents that come with this package."""
    parser = argparse.ArgumentParser("gpld tasks", description=tasks.__doc__)
    parser.add_argument("--all", action="store_true", help="every task, one per line, EnvPool's own included")
    every = parser.parse_args(arguments).all
    from gpld.envs import all_tasks_text, tasks_table
    from gpld.training import score

    if every:
        print(all_tasks_text())
        return 0
    _print(tasks_table())
    _print(score.agents_table())
    return 0


@dataclasses.dataclass(frozen=True)
class ConfigOptions(Config):
    """A configuration, and its presets."""

    task: Annotated[str, tyro.conf.Positional, shown("TASK")]
    """domain-task of the suite (walker-walk), gym:[module:]Name-v0, envpool:Name-v0, or jax:module:name."""
    preset: Annotated[tuple[str, ...], shown("NAME [NAME ...]")] = ()
    """Presets, applied from left to right; options given beside them win."""
    file: Annotated[Path | None, shown("FILE", name="config")] = None
    """JSON file of options to start from, such as the config.json of a run."""

    @property
    def config(self) -> Config:
        """The configuration alone."""
        return Config(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Config)})


@dataclasses.dataclass(frozen=True)
class TrainOptions(ConfigOptions):
    """Options of `gpld train`."""

    seeds: Annotated[tuple[str, ...], shown("SEED [SEED ...]")] = ()
    """Train a run of each seed, in one program: 0..4, or a list like 0 3 7."""
    method: Annotated[tuple[str, ...], shown("NAME [NAME ...]")] = ()
    """Train runs of each method, in one program; both is gpld dreamerv3."""
    sweep: Annotated[tuple[str, ...], shown("OPTION=VALUE,VALUE [...]")] = ()
    """Train every combination of values with every seed, and compare them; also preset, method or task."""
    halve_at: Annotated[tuple[int, ...], shown("ENV-STEPS [...]")] = ()
    """Stop the worse half of a sweep's settings at these env steps."""
    sweep_at: Annotated[tuple[int, ...], shown("ENV-STEPS [...]")] = ()
    """Compare a sweep's settings at these env steps."""
    yes: bool = False
    """Do not ask before a run of more than a day on a CPU."""
    devices: int = 0
    """Devices to use; 0 for all that several runs can be spread over, and one for one run."""
    distributed: Annotated[tuple[str, int, int] | None, shown("HOST:PORT INDEX COUNT")] = None
    """Process INDEX of COUNT, which split several runs, or each batch of one, over HOST:PORT."""
    out: Annotated[
        Path | None,
        shown(
            "FOLDER",
            "(default: runs/TASK-seedSEED, runs/TASK with --seeds or --method, or runs/TASK-sweep)",
        ),
    ] = None
    """Folder of the run, or of those METHOD-seedSEED or SETTING-seedSEED; one that holds runs is resumed."""

    @property
    def members(self) -> list[Member]:
        """The runs, and their folders."""
        config = self.config
        if not self.seeds and not self.method:
            return [Member(config, self.out or Path("runs") / f"{self._task_name}-seed{config.seed}")]
        methods = self.methods or (method_of(config),)
        return population.members(config, self.all_seeds, methods, self.out or Path("runs") / self._task_name)

    @property
    def _task_name(self) -> str:
        return population.task_folder(self.task)

    @property
    def settings(self) -> dict[str, list[Member]]:
        """The runs of each setting of a sweep."""
        return sweep_members(self.config, self.definition, self.sweep_folder)

    @property
    def definition(self) -> Sweep:
        """The sweep."""
        values = ({"method": list(self.methods)} if self.methods else {}) | parse(self.sweep)
        return Sweep(values, tuple(self.all_seeds), self.halve_at, self.sweep_at)

    @property
    def sweep_folder(self) -> Path:
        """The folder of a sweep."""
        return self.out or Path("runs") / f"{self._task_name}-sweep"

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are named."""
        return sum((population.BOTH if name == "both" else (name,) for name in self.method), ())

    @property
    def all_seeds(self) -> list[int]:
        """The seeds that are named, or the one; a file's one gives way to those that are named."""
        if not self.seeds:
            return [self.seed]
        seeds = []
        for word in self.seeds:
            found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", word)
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if not 0 <= last - first < MAX_RUNS:
                allowed = f"numbers, or ranges such as 0..4 of at most {MAX_RUNS}"
                raise ConfigError(f"seeds: {word!r} is not allowed; it must be {allowed}")
            seeds += range(first, last + 1)
        return seeds


def train(arguments: Sequence[str]) -> int:
    """Train agents on a task, or resume runs that were interrupted."""
    options = parse_train(arguments)  # before JAX is loaded, which takes its time
    if options.sweep:
        return _train_sweep(fit_device(options, arguments), arguments)
    address, index, count = options.distributed or ("", 0, 1)
    alone = len(options.members) == 1
    if options.distributed and alone:
        import jax

        jax.distributed.initialize(address, count, index)
    options = fit_device(options, arguments)
    from gpld.training import train_all

    for reason in filter(None, (learns_nothing(options.config), evaluated_once(options.config))):
        print(f"warning: {reason}", file=sys.stderr)
    members = options.members if alone else options.members[index::count]
    if members and not _accepts_duration(members, options.yes):
        return 1
    with _resumable(arguments):
        results = train_all(members, devices=options.devices) if members else []
    if unfinished := [result for result in results if not result.finished]:
        _print_resume(arguments)
        return 128 + (unfinished[0].signal or 0)
    if members and not (alone and index):
        _summarize(members, alone, arguments)
    return 0


def _train_sweep(options: TrainOptions, arguments: Sequence[str]) -> int:
    from gpld.analysis import tables
    from gpld.display import summary
    from gpld.sweeps import show, training

    out, settings = options.sweep_folder, options.settings
    members = [member for own in settings.values() for member in own]
    print(f"{len(settings)} settings, {len(members)} runs, {len(population.programs(members))} programs")
    if not _accepts_duration(members, options.yes):
        return 1
    with _resumable(arguments):
        results = training.run(options.config, options.definition, out, devices=options.devices)
    if signals := [result.signal for result in results if result.signal]:
        _print_resume(arguments)
        return 128 + signals[0]
    for table in show.tables(out):
        print(f"\n{tables.render(table, 'terminal')}")
    print("\n".join(map(str, show.save(out))))
    print(f"on one page: {summary.program('gpld')} report {shlex.quote(str(out))}")
    return 0


@contextmanager
def _resumable(arguments: Sequence[str]) -> Iterator[None]:
    """Say how to resume `gpld train` if the process dies in training, or a signal ends it between runs."""
    death = f"gpld train: {DEATH}; the same command resumes from the last checkpoint"
    try:
        with machine.report_death(death), machine.sigterm_raises(SystemExit(128 + signal.SIGTERM)):
            yield
    except (KeyboardInterrupt, SystemExit):
        _print_resume(arguments)
        raise


def _print_resume(arguments: Sequence[str]) -> None:
    from gpld.display import summary

    print(f"resume with: {summary.program('gpld')} train {shlex.join(arguments)}")


def _refuse_nothing(arguments: Sequence[str]) -> None:
    """Refuse an option that says which runs there are, and has no values."""
    takes = {"seeds": "SEED", "method": "NAME", "sweep": "OPTION=VALUE,VALUE"}
    for name, value in (takes | dict.fromkeys(("halve_at", "sweep_at"), "ENV-STEPS")).items():
        if any(_given(arguments, form) == [] for form in (name, name.replace("_", "-"))):
            raise ConfigError(f"{name}: nothing is named; it takes {value}, one or more")


def _check_sweep(options: TrainOptions, arguments: Sequence[str]) -> None:
    """Refuse mistakes in a sweep, and options of one where there is none."""
    if not options.sweep:
        for name in ("halve_at", "sweep_at"):
            if getattr(options, name):
                raise ConfigError(f"{name}: {getattr(options, name)} is not allowed without sweep")
        return
    if options.distributed:
        raise ConfigError("distributed: not allowed with --sweep; a study spreads settings over machines")
    values = options.definition.values
    if values.keys() == {"task"}:
        raise ConfigError("sweep: only task is named; an option, preset or method must be swept beside it")
    presets = checked("preset", values["preset"]) if "preset" in values else []
    swept = {*values, *(x for name in presets for x in unnested(PRESETS[name].options))}
    for name in sorted(swept - {"task", "preset", "method"}):
        if any(_given(arguments, form) is not None for form in _forms(name)):
            raise ConfigError(f"sweep: {name} is swept, and --{name.replace('_', '-')} sets it too")
    if "task" in values and options.task not in values["task"]:
        raise ConfigError(f"sweep: task: {options.task} is named first, and must be among the values")
    if "method" in parse(options.sweep) and options.method:
        raise ConfigError("sweep: method is swept, and --method names some too")
    _ = options.settings  # validates all of them


def _forms(name: str) -> list[str]:
    """How an option may be typed: with dashes, and `no-` before what is switched off."""
    group, _, option = name.rpartition(".")
    prefix = f"{group}." if group else ""
    forms = [f"{prefix}{start}{option}" for start in ("", "no_")]
    return [*forms, *(form.replace("_", "-") for form in forms)]


def _accepts_duration(members: Sequence[Member], yes: bool) -> bool:
    """Print the expected time of runs on a CPU; ask, where somebody can answer, if it is hopeless."""
    import jax

    if jax.default_backend() != "cpu":
        return True
    from gpld.training import duration, evaluation

    seconds, config = duration.expected_seconds(members), members[0].config
    if seconds >= duration.SHORT:
        evaluation.make_env(config, 1).close()  # tells first of a task that cannot be made here
    for line in duration.duration_lines(seconds, config):
        print(line, flush=True)
    if seconds <= duration.LONG or yes or not sys.stdin.isatty():
        return True
    return input("Train anyway? [y/N] ").strip().lower() in ("y", "yes")


def _summarize(members: Sequence[Member], alone: bool, arguments: Sequence[str]) -> None:
    from gpld import films
    from gpld.display import summary
    from gpld.training import evaluation, logs

    evaluations = [logs.evaluations(member.folder) for member in members]
    learned = any(len(returns) for _, returns in evaluations)
    random_return = evaluation.random_return(members[0].config) if learned else None
    if alone:
        summary.show(members[0], evaluations[0], random_return, arguments, films=films.film_finished)
    else:
        summary.show_all(members, evaluations, random_return)


def parse_train(arguments: Sequence[str]) -> TrainOptions:
    """The options in the arguments of `gpld train`, those of all its runs validated."""
    what = "\n".join([str(train.__doc__), *_listed("Methods", METHODS)])
    options = _parse_run(TrainOptions, "train", what, arguments)
    if not options.sweep:  # whose settings are validated: what they share may need what is swept
        validate(options.config)
    check_numbers(options, "devices")
    _refuse_nothing(arguments)
    if options.seeds and _given(arguments, "seed") is not None:
        raise ConfigError(f"seed: {options.seed} is not allowed with --seeds; add it to them")
    if options.distributed and not 0 <= options.distributed[1] < options.distributed[2]:
        raise ConfigError(f"distributed: {options.distributed!r} is not allowed; INDEX must be in [0, COUNT)")
    if options.distributed and not re.fullmatch(r".+:\d+", options.distributed[0]):
        allowed = "HOST:PORT, such as localhost:1234"
        raise ConfigError(f"distributed: {options.distributed[0]!r} is not allowed; it must be {allowed}")
    _check_sweep(options, arguments)
    for member in () if options.sweep else options.members:
        validate(member.config)
    return options


def evaluate(arguments: Sequence[str]) -> int:
    """Play episodes with a trained agent; film them and its predictions if asked to."""
    from gpld.films import command

    with machine.report_death(f"gpld eval: {DEATH}"):
        return command.evaluate(arguments, str(evaluate.__doc__))


def export(arguments: Sequence[str]) -> int:
    """Write one step of a trained agent as a file for programs without JAX: ONNX, or StableHLO."""
    from gpld.deploy import export_command

    return export_command(arguments, str(export.__doc__))


@dataclasses.dataclass(frozen=True)
class PackOptions:
    """Options of `gpld pack`."""

    run: RunArgument
    """Folder of a run: its newest good checkpoint is packed."""
    episodes: int = 20
    """Episodes to play for the score that goes with it."""
    seed: int = 0
    """Seed of the episodes, and of what is random in actions."""
    out: Annotated[Path | None, shown("FILE", "(default: RUN.zip)")] = None
    """The file, which takes the place of RUN in other commands, also as URL#sha256=CHECKSUM."""


def pack(arguments: Sequence[str]) -> int:
    """Pack a trained agent, its options and its score into one small file."""
    options = parse_command(PackOptions, "pack", pack.__doc__, arguments, "episodes", "seed")
    from gpld.training import saved, score

    machine.use_compilation_cache()
    trained = saved.load(options.run)
    out = options.out or Path(f"{trained.folder.absolute().name}.zip")
    found = score.score(trained, episodes=options.episodes, seed=options.seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    sha256 = saved.pack(trained, found.values, out)
    print(f"{found.task}: mean return {found.mean:.1f}, std {found.std:.1f} over {options.episodes} episodes")
    print(f"written to {out}, {out.stat().st_size:,} bytes\nsha256={sha256}")
    return 0


@dataclasses.dataclass(frozen=True)
class ProfileOptions(ConfigOptions):
    """Options of `gpld profile`."""

    runs: int = 1
    """Runs in one program."""
    updates: int = 3
    """Updates to trace."""
    out: Annotated[Path | None, shown("FOLDER", "(default: profiles/TASK)")] = None
    """Folder for the trace."""


def profile(arguments: Sequence[str]) -> int:
    """Trace some updates with JAX's profiler, and say where their time goes."""
    options = parse_profile(arguments)
    # On GPUs, a trace shows nothing of what runs inside a command buffer. XLA reads this when JAX starts.
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_gpu_enable_command_buffer="]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    options = fit_device(options, arguments)
    import jax

    from gpld import profiling
    from gpld.training import evaluation

    config, out = options.config, options.out or Path("profiles") / options.task.replace("/", "-")
    machine.use_compilation_cache()
    with evaluation.make_env(config, 1) as env:
        spaces = env.spaces
    found = profiling.profile(config, spaces, out, runs=options.runs, updates=options.updates)
    _print(profiling.tables(found))
    of = f" of {options.runs} runs" if options.runs > 1 else ""
    print(f"{1000 * found.seconds:,.3f} ms per update{of}, timed without the tracer")
    if jax.default_backend() == "gpu":
        print("measured without command buffers, which hide their kernels from the trace (XLA_FLAGS)")
    print(f"trace: {found.trace}; open it at https://ui.perfetto.dev")
    return 0


def parse_profile(arguments: Sequence[str]) -> ProfileOptions:
    """The validated options in the arguments of `gpld profile`."""
    options = _parse_run(ProfileOptions, "profile", str(profile.__doc__), arguments)
    validate(options.config)
    check_numbers(options, "updates", "runs")
    return options


def sensitivity(arguments: Sequence[str]) -> int:
    """Measure how much a trained agent's latent distributions change with small changes of their inputs."""
    from gpld.analysis import commands

    return commands.measure("sensitivity", arguments, str(sensitivity.__doc__))


def quality(arguments: Sequence[str]) -> int:
    """Measure how well a trained agent's world model predicts, by how far it looks ahead."""
    from gpld.analysis import commands

    return commands.measure("quality", arguments, str(quality.__doc__))


def cost(arguments: Sequence[str]) -> int:
    """Time updates with and without the penalty on this machine: the paper's table of overheads."""
    from gpld.analysis import commands

    return commands.cost(arguments, str(cost.__doc__))


def theory(arguments: Sequence[str]) -> int:
    """Draw the figures that lead from tables of transitions to the penalty: docs/theory.md explains them."""
    from gpld.theory import command

    return command.run(arguments, str(theory.__doc__))


Options = TypeVar("Options", bound=ConfigOptions)


def _parse_run(kind: type[Options], name: str, what: str, arguments: Sequence[str]) -> Options:
    """Options of a command that takes a whole configuration, which is still to be validated."""
    arguments = normalize(arguments)
    refuse_repeated(kind, arguments)
    # The file and the presets are the defaults of the options beside them, so they are read first.
    stored = _stored((_given(arguments, "config") or [""])[-1])
    defaults = with_presets(stored, _given(arguments, "preset") or ())
    options = tyro.cli(
        kind,
        prog=f"gpld {name}",
        description="\n".join([what, *_listed("Presets", PRESETS)]),
        args=list(arguments),
        default=kind(**{field.name: getattr(defaults, field.name) for field in dataclasses.fields(Config)}),
    )
    if not options.task:
        raise ConfigError(f"task: name one, such as `gpld {name} walker-walk`; `gpld tasks` lists them")
    return options


def _stored(path: str) -> Config:
    """The options in a file, which need not name a task, or the defaults without one."""
    try:
        return parse_options(read(path), path, needs_task=False) if path else Config("")
    except ConfigError as error:
        raise ConfigError(f"config: {error}") from error


def fit_device(options: Options, arguments: Sequence[str]) -> Options:
    """Options over the preset that fits JAX's device, which is printed, unless one for a device is named."""
    if set(DEVICES) & set(options.preset):
        return options
    import jax

    try:
        device = jax.devices()[0]
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # JAX's, and without words if it has no plugin for a device
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = f"JAX_PLATFORMS={platforms}: JAX cannot use this machine's device"
        raise ConfigError(f"{reason}; `gpld doctor` says more. {error}".strip()) from error
    preset = "cpu" if device.platform == "cpu" else "gpu"
    fitted = with_presets(Config(options.task), [preset, *options.preset]).agent
    stored = read(options.file).get("agent", {}) if options.file else {}
    names = [
        name
        for name in PRESETS[preset].options["agent"]
        if name not in stored and _given(arguments, f"agent.{name}") is None
    ]
    if names:
        print(f"preset {preset}, which fits this machine's device ({device.device_kind})")
    return override(options, {"agent": {name: getattr(fitted, name) for name in names}})


def _given(arguments: Sequence[str], option: str) -> list[str] | None:
    """The values of an option in arguments, or None if it is not there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{option}", nargs="*", dest="values")
    return parser.parse_known_args(arguments)[0].values


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
    "export": export,
    "pack": pack,
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
    """Run a subcommand and return its exit status; a user's mistakes are shown without a traceback."""
    if arguments is None:
        machine.log_plainly()
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
        if not _is_explained(error):
            raise
        print(f"gpld {name}: {error}", file=sys.stderr)
        return 1


def _is_explained(error: Exception) -> bool:
    """Whether an error is about the user's machine, files or environment, and its message says so."""
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
