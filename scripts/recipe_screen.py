"""Screen options for what makes an agent learn sooner: eight options at two values each, in sixteen runs.

    python scripts/recipe_screen.py walker-walk                  # on a GPU: one program of sixteen runs
    python scripts/recipe_screen.py walker-walk --small          # nano, on a CPU
    python scripts/recipe_screen.py walker-walk --options losses # eight others
    python scripts/recipe_screen.py walker-walk --with agent.behavior.horizon=15 --out runs/screen-h15
    python scripts/recipe_screen.py walker-walk --show           # what the runs hold so far

The runs are a fractional factorial design (2^(8-4), resolution IV): an option's effect is the mean of eight
runs less that of the eight others, and in both every other option has each value equally often. So sixteen
runs say as much of every option as if all were about it. Effects of single options are free of those of
pairs, which are mixed with each other. Every run has a seed of its own; the standard error is that of the
residuals, with seven degrees of freedom. The same command resumes what was interrupted. Effects are printed
and written to OUT/screen.json, of the evaluations that all runs have.
"""

import argparse
import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gpld import results
from gpld.analysis import statistics
from gpld.config import Config, ConfigError, nested, override, validate, with_presets
from gpld.population import Member
from gpld.sweeps import settings
from gpld.training import logs, train_all

FACTORS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "behavior": {
        "agent.optimizer.learning_rate": (1e-4, 4e-4),
        "agent.optimizer.behavior_rate": (0.3, 1.0),
        "agent.behavior.entropy": (3e-4, 3e-3),
        "agent.behavior.discount_horizon": (100, 333),
        "agent.loss.reward": (1.0, 10.0),
        "agent.penalty.posterior": (0.0, 0.5),
        "agent.loss.free_nats": (0.3, 1.0),
        "agent.behavior.return_limit": (0.01, 1.0),
    },
    "losses": {
        "agent.loss.reconstruction": (1.0, 10.0),
        "agent.loss.reward": (1.0, 10.0),
        "agent.loss.dyn": (0.3, 1.0),
        "agent.loss.rep": (0.03, 0.3),
        "agent.behavior.replay_value": (0.3, 1.0),
        "agent.behavior.trace": (0.8, 0.95),
        "agent.behavior.slow_rate": (0.02, 0.1),
        "agent.penalty.posterior": (0.0, 0.5),
    },
}
"""Eight options of each screen, with their lower and their higher value."""
SMALL = {"agent.optimizer.learning_rate": (5e-4, 2e-3)}
"""Other values for nano."""
PRESETS = {False: ("12m", "gpu"), True: ("nano", "cpu")}


def design() -> list[tuple[int, ...]]:
    """Rows of -1 for the lower and 1 for the higher value of each option."""
    return [
        (a, b, c, d, b * c * d, a * c * d, a * b * c, a * b * d)
        for a, b, c, d in itertools.product((-1, 1), repeat=4)
    ]


def factors(screen: str, small: bool) -> dict[str, tuple[float, float]]:
    """The values of each option."""
    return {name: SMALL.get(name, pair) if small else pair for name, pair in FACTORS[screen].items()}


def members(config: Config, values: Mapping[str, tuple[float, float]], out: Path) -> list[Member]:
    """The sixteen runs."""
    found = []
    for seed, signs in enumerate(design()):
        own = override(config, {"seed": seed})
        for (name, (low, high)), sign in zip(values.items(), signs, strict=True):
            own = override(own, nested(name, high if sign > 0 else low))
        validate(own)
        found.append(Member(own, out / f"run{seed:02}"))
    return found


def effects(responses: Sequence[float]) -> tuple[np.ndarray, float]:
    """What the higher value of each option adds to the mean response, and the standard error of it."""
    signs = np.column_stack([np.ones(16), np.array(design())])
    coefficients = signs.T @ np.asarray(responses, np.float64) / 16  # columns are orthogonal
    residuals = responses - signs @ coefficients
    error = np.sqrt(np.sum(residuals**2) / (16 - signs.shape[1]))
    return 2 * coefficients[1:], float(2 * error / 4)


def found(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, list[float]]:
    """The area under the curve and the last evaluation of each run."""
    return {
        "mean return while training": [statistics.area_under_curve(x.astype(float), y) for x, y in curves],
        "last evaluation": [float(y[-1]) for _, y in curves],
    }


def summary(
    values: Mapping[str, tuple[float, float]], curves: Sequence[tuple[np.ndarray, np.ndarray]]
) -> dict[str, dict[str, Any]]:
    """By response: the mean of all runs, the effect of each option, and the standard error of these."""
    summaries = {}
    for name, own in found(curves).items():
        each, error = effects(own)
        by_option = dict(zip(values, each.tolist(), strict=True))
        summaries[name] = {"mean": float(np.mean(own)), "effects": by_option, "error": error}
    return summaries


def show(values: Mapping[str, tuple[float, float]], summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """Effects beside their standard error; larger than about twice that is a lead."""
    table = Table("option", "from", "to", *summaries)
    for name, (low, high) in values.items():
        cells = (f"{own['effects'][name]:+.1f} ± {own['error']:.1f}" for own in summaries.values())
        table.add_row(name.removeprefix("agent."), f"{low:g}", f"{high:g}", *cells)
    table.add_row("mean of all runs", "", "", *(f"{own['mean']:.1f}" for own in summaries.values()))
    return table


def _command(asked: argparse.Namespace) -> str:
    """What trains these runs, wherever they are."""
    words = [asked.task, *(["--small"] if asked.small else [])]
    words += ["--options", asked.options, "--env-steps", str(asked.env_steps)]
    words += ["--eval-every", str(asked.eval_every), *(["--with", *asked.fixed] if asked.fixed else [])]
    return shlex.join(["python", "scripts/recipe_screen.py", *words])


def main(arguments: Sequence[str]) -> int:
    """Train the runs, show the effects and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--small", action="store_true", help="nano, on a CPU")
    parser.add_argument("--options", choices=list(FACTORS), default="behavior")
    parser.add_argument("--env-steps", type=int, default=60_000)
    parser.add_argument("--eval-every", type=int, default=2500, help="agent steps between evaluations")
    parser.add_argument("--with", dest="fixed", nargs="*", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--out", type=Path, help="folder of the runs, runs/screen-OPTIONS-TASK by default")
    parser.add_argument("--show", action="store_true", help="train nothing, show what the runs hold")
    asked = parser.parse_args(arguments)
    config = with_presets(Config(task=asked.task, env_steps=asked.env_steps), PRESETS[asked.small])
    fixed: dict[str, Any] = {"eval.every": asked.eval_every}
    for name, own in settings.parse(asked.fixed).items():
        (fixed[name],) = settings.checked(name, own)
    for name, value in fixed.items():
        config = override(config, nested(name, value))
    out = asked.out or Path("runs") / f"screen-{asked.options}-{asked.task}"
    values = factors(asked.options, asked.small)
    runs = members(config, values, out)
    finished = asked.show or all(result.finished for result in train_all(runs))
    curves = [logs.evaluations(run.folder) for run in runs]
    count = min(len(steps) for steps, _ in curves)
    if count:
        curves = [(steps[:count], returns[:count]) for steps, returns in curves]
        summaries = summary(values, curves)
        record = {
            "provenance": results.last_start(runs[0].folder) | {"command": _command(asked)},
            "task": asked.task,
            "presets": PRESETS[asked.small],
            "factors": values,
            "fixed": fixed,
            "design": design(),
            "env_steps": curves[0][0].tolist(),
            "returns": [returns.tolist() for _, returns in curves],
            "summary": summaries,
        }
        (out / "screen.json").write_text(json.dumps(record) + "\n")
        Console().print(show(values, summaries))
    print(f"after {curves[0][0][-1]:,} env steps" if count else "no evaluation of all runs yet")
    if not finished:
        print("interrupted; the same command resumes")
    return 0 if finished else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigError as error:
        raise SystemExit(f"recipe_screen.py: {error}") from None
