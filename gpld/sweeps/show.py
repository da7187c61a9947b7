"""What a sweep found: returns and areas under the curve of each setting, as tables and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gpld import config as options, files, results
from gpld.analysis import curves, figures, statistics
from gpld.analysis.comparisons import Comparison
from gpld.analysis.tables import NOTHING, Table
from gpld.config import Config, ConfigError
from gpld.sweeps.definition import Sweep, read
from gpld.sweeps.settings import text_of
from gpld.training import logs, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = 12
"""The most settings whose curves are drawn: the best."""


def opened(folder: Path) -> Sweep:
    """The sweep of a folder, or a `ConfigError`."""
    sweep = read(folder)
    if sweep is None:
        raise ConfigError(f"sweep: {str(folder)!r} is not the folder of a sweep")
    return sweep


def load(folder: Path) -> pd.DataFrame:
    """Results of a sweep's runs so far, with the names of settings as their `method`."""
    sweep, found = opened(folder), []
    for setting in sweep.settings:
        for path in sweep.folders(folder, setting).values():
            if (path / saved.CONFIG).exists():
                found.append(results.collect(path, method=setting.name))
    found = [rows for rows in found if len(rows)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(results.COLUMNS))


def scores(folder: Path, steps: Sequence[int] = ()) -> pd.DataFrame:
    """For each run and each of some env steps: `setting`, `task`, `seed`, `env_steps`, `return` and `area`.

    `return` is the last evaluation until then. `area` is the area under the curve of all of them: the mean
    return over env steps, or the return if there is only one. Both are NaN of a run that has not come so
    far. Without `steps`, they are those at which the sweep is compared.
    """
    sweep = opened(folder)
    runs = [
        (setting, seed, options.load(path / saved.CONFIG), path)
        for setting in sweep.settings
        for (_, seed), path in sweep.folders(folder, setting).items()
        if (path / saved.CONFIG).exists()
    ]
    # A sweep that is made longer has runs that are not, or not yet: those of settings that were stopped.
    end = max((config.env_steps for _, _, config, _ in runs), default=0)
    found = []
    for setting, seed, config, path in runs:
        x, y = logs.evaluations(path)
        for step in steps or sweep.sweep_at or (*sweep.halve_at, end):
            last, due = _evaluated(config, step)
            known = x <= last
            reached = step <= config.env_steps and known.any() and x[-1] >= due
            own_x, own = (x[known].astype(float), y[known]) if reached else (x[:1], np.array([np.nan]))
            area = statistics.area_under_curve(own_x, own) if len(own) > 1 else own[0]
            at = {"setting": setting.name, "task": config.task, "seed": seed, "env_steps": step}
            found.append(at | {"return": float(own[-1]), "area": float(area)})
    return pd.DataFrame(found, columns=["setting", "task", "seed", "env_steps", "return", "area"])


def _evaluated(config: Config, step: int) -> tuple[int, int]:
    """Env steps at which a run comes to `step`, or ends, and of its last regular evaluation until then."""
    env = config.env
    together = env.count * env.action_repeat  # environments step together
    last = min(-(-step // together), -(-config.agent_steps // env.count)) * together
    evaluations = last // env.action_repeat // config.eval.every
    return last, -(-evaluations * config.eval.every // env.count) * together


def summarise(found: pd.DataFrame, env_steps: int, by: pd.Series | None = None) -> pd.DataFrame:
    """Mean `return` and `area` over seeds and tasks by setting, with the `low` and `high` ends of intervals.

    They are NaN where a run has not come to `env_steps`. `runs` is their number, and `of_a_task` the most of
    them on one task. `by` groups runs otherwise.
    """
    at = found.loc[found["env_steps"] == env_steps]
    rows = {}
    for name, own in at.groupby(at["setting"] if by is None else by.loc[at.index], sort=False):
        rows[name] = {"runs": len(own), "of_a_task": own.groupby("task")["seed"].size().max()}
        for measure in ("return", "area"):
            by_task = [each[measure].to_numpy(np.float64) for _, each in own.groupby("task", sort=False)]
            low = high = np.nan
            if not own[measure].isna().any():
                low, high = statistics.interval(statistics.mean, statistics.side_by_side(by_task))
            mean = np.mean([values.mean() for values in by_task])
            rows[name] |= {measure: mean, f"{measure}_low": low, f"{measure}_high": high}
    return pd.DataFrame.from_dict(rows, orient="index")


def best(found: pd.DataFrame) -> str:
    """The setting with the largest area under the curve at the last env steps; empty if none came so far."""
    if not len(found):
        return ""
    last = summarise(found, int(found["env_steps"].max()))["area"].dropna()
    return str(last.idxmax()) if len(last) else ""


def tables(folder: Path, source: str = "") -> list[Table]:
    """Returns and areas by setting, and, if several options are swept, by each value of each."""
    sweep, found = opened(folder), scores(folder)
    steps, tasks = sorted({*found["env_steps"].tolist()}), list(dict.fromkeys(found["task"]))
    winner = best(found)
    notes = [
        "mean [95% bootstrap interval] over seeds" + (f" and {len(tasks)} tasks" if len(tasks) > 1 else ""),
        "return: of the last evaluation until then; area: under the curve until then, the mean return",
        *([f"best, by the last area: {winner}"] if winner else []),
        *([source] if source else []),
    ]
    header = [f"{measure} at {step:,}" for step in steps for measure in ("return", "area")]
    summaries = [summarise(found, step) for step in steps]
    rows = []
    for setting in sweep.settings:
        if setting.name in set(found["setting"]):
            cells = _cells(summaries, setting.name)
            note = "best" if setting.name == winner else sweep.stopped.get(setting.name, "")
            rows.append((setting.name, *cells, str(summaries[0].loc[setting.name, "runs"]), note))
    shown = [Table("settings", ("setting", *header, "runs", ""), tuple(rows), tuple(notes))]
    step = _common_step(found)
    if len(sweep.values) > 1 and step:
        about = f"at {step:,} env steps, which all reached; means over all settings with a value"
        cells = [
            (f"{name}={value}", *_cells([own], value), str(own.loc[value, "runs"]))
            for name, own in _by_value(sweep, found, step).items()
            for value in own.index
        ]
        header = ("value", f"return at {step:,}", f"area at {step:,}", "runs")
        shown.append(Table("by value", header, tuple(cells), (about, *notes[:2])))
    return shown


def _cells(summaries: Sequence[pd.DataFrame], name: str) -> list[str]:
    return [_cell(own.to_dict("index")[name], measure) for own in summaries for measure in ("return", "area")]


def _cell(row: Mapping[str, Any], measure: str) -> str:
    mean, low, high = (row[f"{measure}{end}"] for end in ("", "_low", "_high"))
    if np.isnan(mean):
        return NOTHING
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]" if row["of_a_task"] > 1 else f"{mean:.1f}"


def _common_step(found: pd.DataFrame) -> int:
    """The last of the env steps to which all runs came; 0 if there is none."""
    missed = set(found.loc[found["area"].isna(), "env_steps"])
    return int(max({*found["env_steps"]} - missed, default=0))


def _by_value(sweep: Sweep, found: pd.DataFrame, step: int) -> dict[str, pd.DataFrame]:
    """`summarise` by the values of each swept option."""
    values = {setting.name: setting.values for setting in sweep.settings}
    named = {
        option: found["setting"].map(lambda name, option=option: text_of(values[name][option]))
        for option in sweep.values
        if option != "task"
    }
    if sweep.tasks:
        named["task"] = found["task"]
    return {option: summarise(found, step, by) for option, by in named.items()}


def draw(folder: Path) -> "dict[str, Figure]":
    """Figures by name: `sweep`, areas by the values of each option, and `sweep-curves`, learning curves."""
    sweep, found, drawn = opened(folder), scores(folder), {}
    if step := _common_step(found):
        summaries = _by_value(sweep, found, step)
        figure, axes = figures.panels(len(summaries), sharey=True)
        for panel, (option, own) in zip(axes, summaries.items(), strict=True):
            ends = own["area"] - own["area_low"], own["area_high"] - own["area"]
            panel.errorbar(range(len(own)), own["area"], ends, marker="o", markersize=4, capsize=3)
            panel.set_xticks(range(len(own)), list(own.index))
            figures.style(panel)
            panel.set_title(option, loc="left", fontsize=9, fontweight="bold")
            panel.margins(x=0.15)
        axes[0].set_ylabel(f"area under the curve\nto {step:,} env steps", fontsize=8)
        drawn["sweep"] = figure
    aligned = curves.align(load(folder))
    if aligned:
        last = summarise(found, int(found["env_steps"].min()))["area"].sort_values(ascending=False)
        chosen = {*last.index[:DRAWN], best(found)}
        shown = [setting.name for setting in sweep.settings if setting.name in chosen]
        tasks = list(dict.fromkeys(found["task"]))
        drawn["sweep-curves"] = figures.tasks(aligned, Comparison(tasks, shown, shown[0]), band="interval")
    return drawn


def save(folder: Path) -> list[Path]:
    """Write `sweep.csv`, the numbers of every run, and the figures as PNG; their paths."""
    files.write_text(folder / "sweep.csv", scores(folder).to_csv(index=False))
    paths = [folder / "sweep.csv"]
    for name, figure in draw(folder).items():
        paths += figures.save(figure, folder, name, source=f"data: {folder}", kinds=(".png",))
    return paths
