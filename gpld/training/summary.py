"""What a run shows when it is finished: how well it learned, and what to do next."""

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from gpld.config import Config
from gpld.envs import EnvironmentFailure, VectorEnv
from gpld.population import TITLES, Member, method_of
from gpld.training import evaluation, logs
from gpld.training.curve import mean_curve, save_curve, text_curve, title_of
from gpld.training.progress import tell

LAST = 3
"""Evaluations whose mean is a run's result: one alone is noisy."""
RANDOM_EPISODES = 30


class Command(NamedTuple):
    """Something to try next."""

    purpose: str
    line: str


def show(
    config: Config,
    folder: Path,
    arguments: Sequence[str],
    console: Console | None = None,
    *,
    films: Callable[[Path], Iterable[str]] = lambda folder: (),
) -> None:
    """Print a finished run's learning curve, result, films and next commands; draw the curve into the folder.

    `arguments` are those that `gpld train` was given; `films(folder)` makes films, and says so in lines.
    """
    console = console or Console()

    show_line = partial(tell, console=console)
    env_steps, returns = evaluations(folder)
    if len(returns):
        chance = random_return(config)
        title, width = title_of([config]), min(console.width, 100)
        show_line("")
        show_line(text_curve(env_steps, returns, title=title, random_return=chance, width=width))
        show_line("")
        show_line(result(returns, config.eval.episodes, chance))
        try:
            picture = folder / "curve.png"
            label = TITLES[method_of(config)]
            save_curve(picture, [(label, env_steps, returns)], title=title, random_return=chance)
            show_line(f"curve: {picture}")
        except OSError as error:
            show_line(f"no picture of the curve: {error}")
    for line in films(folder):
        show_line(line)
    _suggest(next_commands(config, folder, arguments), show_line)


def show_all(members: Sequence[Member], console: Console | None = None) -> None:
    """Print the mean learning curve and the result of each method; draw them side by side.

    The runs are of one task, and their folders are in one, where the picture goes.
    """
    console = console or Console()
    show_line = partial(tell, console=console)
    configs, folder = [member.config for member in members], members[0].folder.parent
    runs = [(method_of(member.config), *evaluations(member.folder)) for member in members]
    runs = [run for run in runs if len(run[2])]
    chance = random_return(configs[0]) if runs else None
    for method in dict.fromkeys(label for label, _, _ in runs):
        own = [(env_steps, returns) for label, env_steps, returns in runs if label == method]
        curve = mean_curve(own)
        title = title_of([config for config in configs if method_of(config) == method])
        width = min(console.width, 100)
        show_line("")
        show_line(text_curve(curve.env_steps, curve.mean, title=title, random_return=chance, width=width))
        show_line(result_of_all([returns for _, returns in own], configs[0].eval.episodes))
    if runs:
        try:
            picture = folder / "curve.png"
            labelled = [(TITLES[method], env_steps, returns) for method, env_steps, returns in runs]
            save_curve(picture, labelled, title=configs[0].task, random_return=chance)
            show_line(f"curves: {picture}")
        except OSError as error:
            show_line(f"no picture of the curves: {error}")
    _suggest(
        [_evaluate(members[0].folder, "one of the agents"), _report(folder, "see all on one page")], show_line
    )


def _suggest(commands: Iterable[Command], show_line: Callable[[str], None]) -> None:
    show_line("\nWhat to try next:")
    for command in commands:
        show_line(f"\n  # {command.purpose}\n  {command.line}")


def result_of_all(returns: Sequence[np.ndarray], episodes: int) -> str:
    """The result of some runs that differ in their seeds, in a line."""
    results = [float(np.mean(own[-LAST:])) for own in returns]
    last = min(LAST, *map(len, returns))
    line = f"mean return of the last {last} evaluations ({last * episodes} episodes each)"
    if len(results) == 1:
        return f"{line}: {results[0]:.1f}"
    spread = f"{np.mean(results):.1f}, std {np.std(results):.1f} over {len(results)} seeds"
    return f"{line}: {spread} ({', '.join(f'{x:.1f}' for x in results)})"


def evaluations(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Env steps and mean returns of a run's evaluations."""
    metrics = logs.read(folder)
    if "eval/return" not in metrics:
        return np.zeros(0), np.zeros(0)
    found = metrics.dropna(subset=["eval/return"])
    return np.asarray(found["env_steps"]), np.asarray(found["eval/return"])


def result(returns: np.ndarray, episodes: int, chance: float | None) -> str:
    """A run's result in a line."""
    last = returns[-LAST:]
    mean, many = float(np.mean(last)), len(last) > 1
    which = f"the last {len(last)} evaluations" if many else "the last evaluation"
    line = f"mean return of {which} ({len(last) * episodes} episodes): {mean:.1f}"
    if chance is None:
        return line
    times = f", {mean / chance:.1f} times as much" if 0 < chance <= mean else ""
    return f"{line}{times} (a random policy: {chance:.1f})"


def random_return(config: Config, episodes: int = RANDOM_EPISODES) -> float | None:
    """Mean return of uniformly random actions, or None if the environment fails."""
    rng = np.random.default_rng(config.seed)
    try:
        with evaluation.make(config, episodes, number=0) as env:
            returns, done = np.zeros(episodes), np.zeros(episodes, bool)
            while not done.all():
                step = env.step(_random_actions(env, rng))
                returns += np.where(done, 0.0, step.reward)
                done |= step.is_last
    except EnvironmentFailure:
        return None
    return float(returns.mean())


def _random_actions(env: VectorEnv, rng: np.random.Generator) -> np.ndarray:
    if env.spaces.discrete:
        return np.eye(env.spaces.actions, dtype=np.float32)[rng.integers(env.spaces.actions, size=env.count)]
    return rng.uniform(-1.0, 1.0, (env.count, env.spaces.actions)).astype(np.float32)


def next_commands(config: Config, folder: Path, arguments: Sequence[str]) -> list[Command]:
    """What to try after a run that `gpld train` was given these arguments for: compare, evaluate, report."""
    line, runs = _compare(config, folder, arguments)
    return [
        Command(
            f"compare {TITLES[_penalised(config)]} with DreamerV3 over three seeds, in one program", line
        ),
        _evaluate(folder, "the agent"),
        _report(runs, "see that comparison on one page"),
    ]


def _compare(config: Config, folder: Path, arguments: Sequence[str]) -> tuple[str, Path]:
    """The same run with and without the penalty, over seeds; and the folder of those runs."""
    varied = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--seed", "--out"):
        varied.add_argument(option)
    for option in ("--seeds", "--method"):
        varied.add_argument(option, nargs="*")
    varied.add_argument("--distributed", nargs=3)
    method = _penalised(config)
    methods = ["both"] if method == "gpld" else [method, "dreamerv3"]
    if method_of(config) == "dreamerv3":  # GPLD then has its default coefficients
        for option in ("--agent.penalty.posterior", "--agent.penalty.prior"):
            varied.add_argument(option)
    given, kept = varied.parse_known_args(list(arguments))
    line = f"{program('gpld')} train {shlex.join([*kept, '--seeds', '0..2', '--method', *methods])}"
    if given.method or given.seeds:  # it is in a folder of such runs already
        runs = folder.parent
    else:
        stem = re.sub(r"-seed\d+$", "", folder.name)
        runs = folder.with_name(f"{stem}-seeds" if stem == folder.name else stem)
    return line if given.out is None else f"{line} --out {shlex.quote(str(runs))}", runs


def _penalised(config: Config) -> str:
    """The method with a penalty that a run is compared by."""
    return "gpld" if method_of(config) == "dreamerv3" else method_of(config)


def _evaluate(folder: Path, which: str) -> Command:
    line = f"{program('gpld')} eval {shlex.quote(str(folder))} --episodes 20 --video"
    return Command(f"evaluate {which} with more episodes, and film it", line)


def _report(folder: Path, purpose: str) -> Command:
    return Command(purpose, f"{program('gpld')} report {shlex.quote(str(folder))}")


def program(name: str) -> str:
    """How to call a program of this Python's environment from where the user is."""
    path = Path(sys.executable).parent / name
    if shutil.which(name) == str(path):
        return name
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
