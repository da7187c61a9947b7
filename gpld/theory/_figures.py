"""The figures of the theory, each from its own data: seconds on a CPU."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas

from gpld import files
from gpld.config import ConfigError
from gpld.display.curve import COLOURS
from gpld.theory import _experiments as experiments, _limits as limits
from gpld.theory._estimators import error, maximum_likelihood, sample_counts, smoothed
from gpld.theory._experiments import BASE, ESTIMATORS, FEW, LIKELIHOOD, Progress
from gpld.theory._mdps import grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = dict(zip(ESTIMATORS, ("#000000", *COLOURS), strict=False))
TICKS = (0.05, 0.1, 0.2, 0.4, 0.8)


class Drawn(NamedTuple):
    """A figure, and the numbers in it."""

    figure: "Figure"
    data: pandas.DataFrame
    """Tidy: all that was drawn, before any average."""
    summary: pandas.DataFrame
    """What it says, in a table for people."""


def estimate(seeds: int = 1, progress: Progress = iter) -> Drawn:
    """One row of a transition table: the true law, and what two estimators make of little data."""
    mdp, state, action = grid(), 24, 3
    counts = sample_counts(mdp, FEW * mdp.pairs, np.random.default_rng([0, 3]))
    laws = {
        "the truth": mdp.law,
        LIKELIHOOD: maximum_likelihood(counts),
        f"smoothed, lambda {BASE:g}": smoothed(mdp, counts, BASE * FEW).law,
    }
    figure, axes = _panels(1, len(laws), width=2.8, height=3.0)
    top = max(law[action, state].max() for law in laws.values())
    rows = []
    for axis, (name, law) in zip(axes[0], laws.items(), strict=True):
        cells = law[action, state]
        shown = axis.imshow(cells.reshape(7, 7), cmap="Blues", vmin=0, vmax=top)
        axis.set_xticks(np.arange(6) + 0.5, minor=True)
        axis.set_yticks(np.arange(6) + 0.5, minor=True)
        axis.grid(which="minor", color="#CCCCCC", linewidth=0.5)
        axis.tick_params(which="minor", length=0)
        axis.spines[:].set(visible=True, color="#CCCCCC", linewidth=0.5)
        if axis is axes[0, -1]:
            figure.colorbar(shown, ax=axes, shrink=0.8, label="probability").outline.set_visible(False)
        axis.plot(state % 7, state // 7, "o", color=COLOURS[1], markersize=5)
        distance = float(np.abs(cells - mdp.law[action, state]).sum() / 2)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel(f"total variation {distance:.2f}, all states {error(mdp, law):.2f}", fontsize=8)
        axis.set(xticks=[], yticks=[])
        rows += [
            {"law": name, "row": i // 7, "column": i % 7, "probability": p}
            for i, p in enumerate(cells.tolist())
        ]
    figure.suptitle(
        f"Where going right leads from the marked cell, after {FEW} visits on average", fontsize=11
    )
    data = pandas.DataFrame(rows)
    totals = {name: error(mdp, law) for name, law in laws.items()}
    return Drawn(figure, data, pandas.DataFrame(totals.items(), columns=["law", "error"]))


def data(seeds: int = 20, progress: Progress = iter) -> Drawn:
    """Error by the amount of data, with a constant lambda and with decaying ones."""
    errors = experiments.by_data(seeds, progress=progress)
    found = experiments.intervals(errors)
    figure, axes = _panels(1, found["mdp"].nunique(), width=2.9, height=3.4)
    for axis, (name, panel) in zip(axes[0], found.groupby("mdp", sort=False), strict=True):
        for estimator, line in panel.groupby("estimator", sort=False):
            _line(axis, line["visits"], line, COLOUR[estimator], estimator)
        axis.set(xscale="log", yscale="log", title=name, xlabel="visits per state and action")
        axis.set(ylim=(0.05, 0.9), yticks=TICKS, yticklabels=map(str, TICKS))
        axis.minorticks_off()
    axes[0, 0].set_ylabel("error (total variation)")
    _legend(figure, axes[0, 0], f"base lambda {BASE:g}; means over {seeds} seeds and 95% intervals")
    return Drawn(figure, errors, _gains_table(errors, "visits", "estimator"))


def weight(seeds: int = 20, progress: Progress = iter) -> Drawn:
    """Error by lambda, with little data and with much."""
    errors = experiments.by_weight(seeds, progress=progress)
    found = experiments.intervals(errors)
    figure, axes = _panels(1, found["mdp"].nunique(), width=2.9, height=3.4)
    for axis, (name, panel) in zip(axes[0], found.groupby("mdp", sort=False), strict=True):
        for (visits, line), colour in zip(panel.groupby("visits", sort=False), COLOURS, strict=False):
            baseline, line = line[line["lambda"] == 0], line[line["lambda"] > 0]
            _line(axis, line["lambda"], line, colour, f"{visits} visits")
            axis.axhline(baseline["mean"].item(), color=colour, linestyle="--", linewidth=1)
        axis.set(xscale="log", title=name, xlabel="lambda", ylim=(0, None))
    axes[0, 0].set_ylabel("error (total variation)")
    _legend(figure, axes[0, 0], f"dashed: maximum likelihood; means over {seeds} seeds and 95% intervals")
    table = _gains_table(errors, "lambda", "visits")
    return Drawn(figure, errors, table.rename(columns={n: f"{n} visits" for n in found["visits"]}))


def both_limits(seeds: int = 1, progress: Progress = iter) -> Drawn:
    """Finite differences to directional derivatives, and averages over directions to the Frobenius norm."""
    steps, directions = limits.step_limit(), limits.direction_limit()
    figure, axes = _panels(1, 3, width=3.5, height=3.4)
    rates = []
    for (name, line), colour in zip(steps.groupby("average", sort=False), COLOURS, strict=False):
        power = limits.rate(line["h"], line["error"])
        rates.append({"limit": name, "in": "h", "rate": power})
        axes[0, 0].loglog(line["h"], line["error"], "o-", color=colour, label=f"{name}: h^{power:.2f}")
    axes[0, 0].set(title="step to zero", xlabel="h", ylabel="relative error")
    n = directions["directions"]
    look = {"fmt": "o", "color": COLOURS[0], "label": "mean, 2 standard errors"}
    axes[0, 1].errorbar(n, directions["mean"], 2 * directions["bar"], **look)
    axes[0, 1].axhline(1.0, color="#777777", linestyle="--", linewidth=1)
    axes[0, 1].set(xscale="log", title="average of ||Ju||² over directions", xlabel="directions")
    axes[0, 1].set_ylabel("in units of ||J||² / d")
    power = limits.rate(n, directions["error"])
    rates.append({"limit": "random directions", "in": "n", "rate": power})
    label = f"root mean square: n^{power:.2f}"
    axes[0, 2].loglog(n, directions["error"], "o", color=COLOURS[0], label=label)
    axes[0, 2].loglog(n, directions["predicted"], "--", color="#777777", label="predicted")
    axes[0, 2].set(title="its error", xlabel="directions", ylabel="relative error")
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize=8)
    return Drawn(figure, pandas.concat([steps, directions]), pandas.DataFrame(rates))


FIGURES: dict[str, Callable[..., Drawn]] = {
    "estimate": estimate,
    "data": data,
    "lambda": weight,
    "limits": both_limits,
}
"""By name, each from a number of seeds and a way to show progress."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The figures of these names, or all if there is none."""
    for name in names:
        if name not in FIGURES:
            raise ConfigError(f"figure: {name!r} is not one; there are {', '.join(FIGURES)}")
    return tuple(names) or tuple(FIGURES)


def save(name: str, drawn: Drawn, folder: Path) -> list[Path]:
    """Write a figure as PNG and SVG and its numbers as CSV."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}{suffix}" for suffix in (".png", ".svg", ".csv")]
    with matplotlib.rc_context({"svg.hashsalt": name}):  # the same numbers give the same file
        for path, metadata in zip(paths, ({}, {"Date": None}), strict=False):
            with files.in_one_move(path) as unfinished:
                drawn.figure.savefig(unfinished, format=path.suffix[1:], metadata=metadata)
    with files.in_one_move(paths[-1]) as unfinished:
        drawn.data.to_csv(unfinished, index=False, lineterminator="\n")
    return paths


def _gains_table(errors: pandas.DataFrame, row: str, column: str) -> pandas.DataFrame:
    """Error minus that of maximum likelihood, and half the width of its 95% interval: negative is better."""
    found = experiments.gains(errors)
    half = (found["high"] - found["low"]) / 2
    text = [f"{mean:+.3f} ± {width:.3f}" for mean, width in zip(found["mean"], half, strict=True)]
    table = found.assign(text=text).set_index(["mdp", row, column])["text"].unstack(column, sort=False)
    return table.reset_index().rename_axis(columns=None)


def _panels(rows: int, columns: int, *, width: float, height: float) -> "tuple[Figure, np.ndarray]":
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(width * columns, height * rows), dpi=130, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(color="#E5E5E5", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axis: "Axes", x: pandas.Series, found: pandas.DataFrame, colour: str, label: str) -> None:
    axis.plot(x, found["mean"], "o-", color=colour, markersize=3, linewidth=1.5, label=label)
    axis.fill_between(x, found["low"], found["high"], color=colour, alpha=0.2, linewidth=0)


def _legend(figure: "Figure", axis: "Axes", title: str) -> None:
    handles, labels = axis.get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    legend.set_title(title, prop={"size": 8})
