"""Measurements of trained agents as sections of a page."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from gpld.analysis import quality, rollouts, sensitivity
from gpld.analysis.report._page import Chart, Section
from gpld.analysis.tables import NOTHING, Table

TITLES = {sensitivity.NAME: "Sensitivity", quality.NAME: "Predictions of the world model"}
MEASURES = tuple(TITLES)
"""Measurements with a section, by the names of their commands."""


def section_of(name: str, rows: pd.DataFrame, notes: Sequence[str] = ()) -> Section:
    """The section about one of `MEASURES`. `rows` are those of `rollouts.measure_all`, of any runs."""
    make = {sensitivity.NAME: _sensitivity, quality.NAME: _quality}[name]
    return Section(name, TITLES[name], *make(rows, tuple(notes)))


def _sensitivity(rows: pd.DataFrame, notes: tuple[str, ...]) -> tuple[str, list[Chart], list[Table]]:
    means = sensitivity.averages(rows)
    charts = [
        _chart(own, f"{task}: {name}", "env_steps", "kl", x="env steps", y="KL / step")
        for task, measured in means.groupby("task", sort=False)
        for name, own in measured.groupby("map", sort=False)
        if name != "observation"
    ]
    header = ("task", "map", "method", "KL / step", "total variation / step", "squared Jacobian norm")
    cells = [
        (
            row["task"],
            row["map"],
            row["method"],
            f"{row['kl']:.4g}" + (f" \u00b1 {row['kl_std']:.2g}" if row["runs"] > 1 else ""),
            f"{row['total_variation']:.4g}",
            NOTHING if np.isnan(row["jacobian"]) else f"{row['jacobian']:.4g}",
            f"{row['ratio']:.3f}",
        )
        for row in sensitivity.table(rows).to_dict("records")
    ]
    about = "mean \u00b1 standard deviation over runs; the ratio is to the first method's"
    table = Table(
        "local sensitivity of the last checkpoints", (*header, "KL ratio"), tuple(cells), (about, *notes)
    )
    words = (
        "How much the latent distributions change when their inputs move a little (the posterior's "
        "embedding, the prior's recurrent state): their KL divergence divided by the length of the step. "
        "Less is smoother."
    )
    return words, charts, [table]


def _quality(rows: pd.DataFrame, notes: tuple[str, ...]) -> tuple[str, list[Chart], list[Table]]:
    last = rollouts.last_checkpoints(rows)
    charts = [
        _chart(own, f"{task}: {measure}", "ahead", measure, x="steps ahead", y="error")
        for task, own in last.groupby("task", sort=False)
        for measure in quality.MEASURES
    ]
    cells = [
        (
            row["task"],
            str(row["ahead"]),
            row["method"],
            *(f"{row[measure]:.4g}" for measure in quality.MEASURES),
            str(row["runs"]),
        )
        for row in quality.table(rows).to_dict("records")
    ]
    header = ("task", "steps ahead", "method", *quality.MEASURES, "runs")
    about = "means over runs; latent is a KL divergence, reward absolute, observation squared in symlog space"
    table = Table("errors of the last checkpoints' predictions", header, tuple(cells), (about, *notes))
    words = (
        "Errors of the world model's open-loop predictions, given the actions alone, by steps ahead: of "
        "latents, rewards and decoded observations. Less is better."
    )
    return words, charts, [table]


def _chart(rows: pd.DataFrame, title: str, across: str, up: str, *, x: str, y: str) -> Chart:
    curves: list[dict[str, Any]] = []
    for _, run in rows.groupby("run", sort=False):
        run, first = run.sort_values(across), run.iloc[0]
        values = [None if not np.isfinite(value) else float(f"{value:.6g}") for value in run[up]]
        about = {"task": str(first["task"]), "method": str(first["method"]), "seed": int(first["seed"])}
        curves.append(about | {"xs": run[across].tolist(), "ys": values})
    return Chart(title, str(rows["task"].iloc[0]), x, y, curves)
