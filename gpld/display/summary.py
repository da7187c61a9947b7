"""The summary of finished runs: how well they learned, and what to do next."""

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
from gpld.display.curve import mean_curve, save_curve, text_curve, title_of
from gpld.display.progress import print_line
from gpld.population import TITLES, Member, method_of

LAST = 3
"""Evaluations whose mean is a run's result: one alone is noisy."""

Evaluations = tuple[np.ndarray, np.ndarray]
"""Env steps and mean returns of a run's evaluations."""


class Command(NamedTuple):
    """Something to try next."""

    purpose: str
    line: str


def show(
    member: Member,
    evaluations: Evaluations,
    random_return: float | None,
    arguments: Sequence[str],
    console: Console | None = None,
    *,
    films: Callable[[Path], Iterable[str]] = lambda folder: (),
) -> None:
    """Print a finished run's learning curve, result, films and next commands; draw the curve into its folder.

    `arguments` are those of `gpld train`; `films(folder)` makes films, and returns lines about them.
    """
    console = console or Console()
    show_line = partial(print_line, console=console)
    (config, folder), (env_steps, returns) = member, evaluations
    if len(returns):
        title, width = title_of([config]), min(console.width, 100)
        show_line("")
        show_line(text_curve(env_steps, returns, title=title, random_return=random_return, width=width))
        show_line("")
        show_line(result(returns, config.eval.episodes, random_return))
        curve = (TITLES[method_of(config)], env_steps, returns)
        show_line(_picture(folder, [curve], title, random_return))
    for line in films(folder):
        show_line(line)
    filmed = (folder / "film.gif").exists()
    _suggest(next_commands(config, folder, arguments, film=filmed), show_line)


def show_all(
    members: Sequence[Member],
    evaluations: Sequence[Evaluations],
    random_return: float | None,
    console: Console | None = None,
) -> None:
    """Print the mean curve and result of each method; draw them in one picture, in the folder of the runs."""
    console = console or Console()
    show_line, width = partial(print_line, console=console), min(console.width, 100)
    configs, folder = [member.config for member in members], members[0].folder.parent
    runs = [
        (method_of(config), *own) for config, own in zip(configs, evaluations, strict=True) if len(own[1])
    ]
    for method in dict.fromkeys(label for label, _, _ in runs):
        own = [(env_steps, returns) for label, env_steps, returns in runs if label == method]
        curve = mean_curve(own)
        title = title_of([config for config in configs if method_of(config) == method])
        show_line("")
        show_line(
            text_curve(curve.env_steps, curve.mean, title=title, random_return=random_return, width=width)
        )
        show_line(result_of_all([returns for _, returns in own], configs[0].eval.episodes))
    if runs:
        labelled = [(TITLES[method], env_steps, returns) for method, env_steps, returns in runs]
        show_line(_picture(folder, labelled, configs[0].task, random_return))
    _suggest(
        [_evaluate(members[0].folder, "one of the agents"), _report(folder, "see all on one page")], show_line
    )


def _picture(
    folder: Path,
    curves: Sequence[tuple[str, np.ndarray, np.ndarray]],
    title: str,
    random_return: float | None,
) -> str:
    """Draw curves into a folder; a line about it."""
    path, what = folder / "curve.png", "curve" if len(curves) == 1 else "curves"
    try:
        save_curve(path, curves, title=title, random_return=random_return)
    except OSError as error:
        return f"no picture of the {what}: {error}"
    return f"{what}: {path}"


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


def result(returns: np.ndarray, episodes: int, random_return: float | None) -> str:
    """A run's result in a line."""
    last = returns[-LAST:]
    mean, many = float(np.mean(last)), len(last) > 1
    which = f"the last {len(last)} evaluations" if many else "the last evaluation"
    line = f"mean return of {which} ({len(last) * episodes} episodes): {mean:.1f}"
    if random_return is None:
        return line
    times = f", {mean / random_return:.1f} times as much" if 0 < random_return <= mean else ""
    return f"{line}{times} (a random policy: {random_return:.1f})"


def next_commands(
    config: Config, folder: Path, arguments: Sequence[str], *, film: bool = True
) -> list[Command]:
    """What to try after a run with these arguments: compare, evaluate (and film, if it can be), report."""
    line, runs = _compare(config, folder, arguments)
    return [
        Command(
            f"compare {TITLES[_penalised(config)]} with DreamerV3 over three seeds, in one program", line
        ),
        _evaluate(folder, "the agent", film=film),
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
    replaced, rest = varied.parse_known_args(list(arguments))
    line = f"{program('gpld')} train {shlex.join([*rest, '--seeds', '0..2', '--method', *methods])}"
    if replaced.method or replaced.seeds:  # it is in a folder of such runs already
        runs = folder.parent
    else:
        stem = re.sub(r"-seed\d+$", "", folder.name)
        runs = folder.with_name(f"{stem}-seeds" if stem == folder.name else stem)
    return line if replaced.out is None else f"{line} --out {shlex.quote(str(runs))}", runs


def _penalised(config: Config) -> str:
    """The method with a penalty in the comparison."""
    return "gpld" if method_of(config) == "dreamerv3" else method_of(config)


def _evaluate(folder: Path, which: str, *, film: bool = True) -> Command:
    line = f"{program('gpld')} eval {shlex.quote(str(folder))} --episodes 20{' --video' * film}"
    return Command(f"evaluate {which} with more episodes{', and film it' * film}", line)


def _report(folder: Path, purpose: str) -> Command:
    return Command(purpose, f"{program('gpld')} report {shlex.quote(str(folder))}")


def program(name: str) -> str:
    """The command that runs a program of this Python's environment from the current folder."""
    path = Path(sys.executable).parent / name
    if shutil.which(name) == str(path):
        return name
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
