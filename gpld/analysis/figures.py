"""Figures of results in one style: a line is a mean over seeds, the area around it its spread.

Colours can be told apart with any colour vision. `save` writes a vector file and a PNG that name their data
and the command they came from.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gpld import files
from gpld.analysis import statistics
from gpld.analysis.comparisons import Comparison
from gpld.analysis.curves import Band, Curve, Curves, aggregate_curve, final_scales, mean_over_tasks
from gpld.display.curve import colours, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":")
"""Line styles, for when colours repeat."""

_WIDTH = 1.6
_THIN = 0.9
"""Widths of methods' lines and of others' curves, in points."""
_PANEL = (2.9, 2.2)
_ONE_PANEL = (4.4, 3.2)
_STRIP_WIDTH = 8.0
"""Inches."""


def aggregate(curves: Curves, compared: Comparison, band: Band = "std") -> "Figure":
    """Raw and normalised mean over tasks, side by side."""
    figure, axes = panels(2, columns=2, panel=(3.4, 2.7))
    shared, scales = _shared_tasks(curves, compared), final_scales(curves, compared.baseline)
    scaled = [task for task in shared if task in scales]
    for panel, title, tasks, divisors in (
        (axes[0], "raw", shared, None),
        (axes[1], "normalised", scaled, scales),
    ):
        about = f"{title} mean of {len(tasks)} task{'s' * (len(tasks) != 1)}"
        _aggregate(panel, curves, compared._replace(tasks=tasks), divisors, band, about)
    legend(figure)
    return figure


def _shared_tasks(curves: Curves, compared: Comparison) -> list[str]:
    """The tasks that all methods with any curves have: means over others would not be of the same."""
    known = {method for task, method in curves if task in compared.tasks}
    methods = [method for method in compared.methods if method in known]
    return [task for task in compared.tasks if all((task, method) in curves for method in methods)]


def _aggregate(
    panel: "Axes",
    curves: Curves,
    compared: Comparison,
    scales: Mapping[str, float] | None,
    band: Band,
    title: str,
) -> None:
    """Draw the mean over tasks of every method."""
    lines = {
        method: aggregate_curve(curves, method, compared.tasks, scales=scales, band=band)
        for method in compared.methods
    }
    known = {method: line for method, line in lines.items() if line is not None}
    _draw(panel, known, _line_styles(compared.methods))
    _label(panel, title, "return" if scales is None else "normalised return")


def tasks(
    curves: Curves,
    compared: Comparison,
    *,
    only: Sequence[str] = (),
    band: Band = "std",
    others: Mapping[tuple[str, str], Curve] | None = None,
    marks: pd.DataFrame | None = None,
) -> "Figure":
    """A panel for each task. `others` are curves of others, drawn thin, `marks` the paper's scores."""
    chosen, others = list(only or compared.tasks), others or {}
    figure, axes = panels(len(chosen), panel=_ONE_PANEL if len(chosen) == 1 else _PANEL)
    styles = _line_styles([*compared.methods, *(name for _, name in others)])
    for panel, task in zip(axes, chosen, strict=False):
        own = {m: mean_over_tasks([curves[task, m]], band) for m in compared.methods if (task, m) in curves}
        _draw(panel, own, styles)
        _draw(panel, {name: curve for (where, name), curve in others.items() if where == task}, styles, _THIN)
        if marks is not None:
            _mark(panel, marks.loc[marks["task"] == task], styles)
        _label(panel, task, "return")
    legend(figure)
    return figure


def ablation(curves: Curves, compared: Comparison, *, title: str, band: Band = "std") -> "Figure":
    """Normalised mean over tasks of every method in one panel."""
    figure, (panel, *_) = panels(1, panel=_ONE_PANEL)
    shared = _shared_tasks(curves, compared)
    if len(shared) < len(compared.tasks):
        title += f", {len(shared)} of {len(compared.tasks)} tasks"
    scales = final_scales(curves, compared.baseline)
    _aggregate(panel, curves, compared._replace(tasks=shared), scales, band, title)
    legend(figure)
    return figure


def profile(scores: pd.DataFrame, compared: Comparison) -> "Figure":
    """Performance profiles: the share of runs that score more than a multiple of the baseline's mean."""
    figure, (panel, *_) = panels(1, panel=(4.0, 2.8))
    scale = statistics.baseline_means(scores, compared.baseline, compared.tasks)
    levels = np.linspace(0.0, 2.0, 201)
    for method, look in _line_styles(compared.methods).items():
        matrix = statistics.score_matrix(scores, method, list(scale), scale)
        if np.isfinite(matrix).any():
            shares = statistics.performance_profile(matrix, levels)
            panel.plot(levels, shares, **look, linewidth=_WIDTH, label=method)
    style(panel)
    panel.set_xlabel(f"score / mean score of {compared.baseline}")
    panel.set_ylabel("share of runs above")
    panel.set_ylim(0, 1.02)
    legend(figure)
    return figure


def strips(films: Mapping[str, Mapping[str, Path]]) -> "Figure":
    """Frames of rollouts: for each task its name, and below it a row of frames for each method."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    rows = [(task, method, imread(path)) for task, own in films.items() for method, path in own.items()]
    heights = [_STRIP_WIDTH * picture.shape[0] / picture.shape[1] for _, _, picture in rows]
    size = (_STRIP_WIDTH + 1.0, sum(heights) + 0.1 * len(rows) + 0.3 * len(films) + 0.2)
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    named = set()
    for panel, (task, method, picture) in zip(axes, rows, strict=True):
        panel.imshow(picture, aspect="equal")
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
        panel.set_ylabel(method, fontsize=8, rotation=0, ha="right", va="center")
        if task not in named:
            panel.set_title(task, loc="left", fontsize=9, fontweight="bold")
        named.add(task)
    return figure


def save(
    figure: "Figure", folder: Path, name: str, *, source: str, kinds: Sequence[str] = (".pdf", ".png")
) -> list[Path]:
    """Save a figure as PDF and PNG, each in one move; `source` says which data and command it came from."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.supxlabel(source, fontsize=5, color="#888888", x=0.01, ha="left")
    paths = []
    for suffix in kinds:
        metadata = {"Subject" if suffix == ".pdf" else "Description": source}
        path = folder / f"{name}{suffix}"
        with files.in_one_move(path) as unfinished:
            figure.savefig(unfinished, format=suffix[1:], metadata=metadata, dpi=200)
        paths.append(path)
    return paths


def panels(
    count: int, columns: int = 0, panel: tuple[float, float] = _PANEL, *, sharey: bool = False
) -> tuple["Figure", list["Axes"]]:
    """A figure with `count` panels in a grid."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    columns = columns or min(count, 6 if count > 12 else 3)
    rows = -(-count // columns)
    size = (panel[0] * columns, panel[1] * rows + 0.5)
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel().tolist()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


LineStyle = Mapping[str, str]
"""Colour and dashes of a line."""


def _line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """The line style of each method: where a colour repeats, its dashes differ."""
    seen: Counter[str] = Counter()
    found = {}
    for name, colour in colours(names).items():
        found[name] = {"color": colour, "linestyle": LINES[seen[colour] % len(LINES)]}
        seen[colour] += 1
    return found


def _draw(
    axes: "Axes", lines: Mapping[str, Curve], styles: Mapping[str, LineStyle], width: float = _WIDTH
) -> None:
    """Draw curves, each with a band where it has one."""
    for method, curve in lines.items():
        look = styles[method]
        few = {"marker": "o", "markersize": 2 * width} if len(curve.env_steps) <= 15 else {}
        axes.plot(curve.env_steps, curve.mean, **look, **few, linewidth=width, label=method)
        if (curve.high > curve.low).any():
            alpha = 0.2 if width == _WIDTH else 0.1
            axes.fill_between(
                curve.env_steps, curve.low, curve.high, color=look["color"], alpha=alpha, linewidth=0
            )
    style(axes)


def _mark(axes: "Axes", scores: pd.DataFrame, styles: Mapping[str, LineStyle]) -> None:
    for row in scores.to_dict("records"):
        if row["method"] in styles:
            look = {"color": styles[row["method"]]["color"], "marker": "D", "markersize": 3.5}
            point = (row["env_steps"], row["mean"], row["std"])
            axes.errorbar(*point, **look, label=f"{row['method']} (paper)")


def style(axes: "Axes") -> None:
    """Quiet axes with small labels."""
    quiet(axes)
    axes.tick_params(labelsize=8)


def _label(axes: "Axes", title: str, ylabel: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
    axes.set_xlabel("env steps", fontsize=8)
    axes.set_ylabel(ylabel, fontsize=8)
    axes.set_xlim(left=0)
    if axes.get_ylim()[1] > 0 <= axes.dataLim.y0:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if not axes.lines:
        axes.text(0.5, 0.5, "no results yet", transform=axes.transAxes, ha="center", color="#888888")


def legend(figure: "Figure") -> None:
    """One legend for all panels, of whatever any of them shows."""
    found = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        widths = [0.7 + 0.06 * len(label) for label in found]  # inches of a label and its line
        columns = len(found) if len(found) <= 4 and sum(widths) < figure.get_figwidth() else 0
        columns = columns or max(1, min(4, len(found), int(figure.get_figwidth() / max(widths))))
        rows = -(-len(found) // columns)
        figure.set_figheight(figure.get_figheight() + 0.17 * max(0, rows - 2))  # panels keep their height
        figure.legend(
            found.values(),
            found.keys(),
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            fontsize=8,
        )


def lines(
    rows: pd.DataFrame, *, x: str, y: str, panel: str, columns: Sequence[str], xlabel: str, ylabel: str
) -> "Figure":
    """A grid of panels: a row for each `task`, a column for each of `columns`, a line for each `method`.

    `rows` has a row for every run and value of `x`. A point that only some runs have is left out: the mean
    of other runs is not comparable. Where there is one value of `x` alone, a method is a bar.
    """
    tasks, methods = list(dict.fromkeys(rows["task"])), sorted(set(rows["method"]))
    figure, axes = panels(len(tasks) * len(columns), columns=len(columns))
    for axis, (task, name) in zip(axes, product(tasks, columns), strict=True):
        shown = rows.loc[(rows["task"] == task) & (rows[panel] == name)]
        draw = _bars if shown[x].nunique() == 1 else _lines
        draw(axis, {method: shown.loc[shown["method"] == method] for method in methods}, x, y, xlabel)
        axis.set_title(f"{task}: {name}", loc="left", fontsize=9, fontweight="bold")
        axis.set_ylim(0, None)
        axis.set_ylabel(ylabel if name == columns[0] else "", fontsize=8)
    legend(figure)
    return figure


def _bars(axis: "Axes", rows: Mapping[str, pd.DataFrame], x: str, y: str, xlabel: str) -> None:
    """A bar for each method, with the standard deviation over its runs."""
    style(axis)
    for place, (method, colour) in enumerate(colours(rows).items()):
        values, look = rows[method][y], {"color": colour, "label": method}
        spread = values.std(ddof=0) if len(values) > 1 else None
        axis.bar(place, values.mean(), width=0.6, yerr=spread, error_kw={"linewidth": 1}, **look)
    step = next(iter(own[x].iloc[0] for own in rows.values() if len(own)))
    axis.set_xlim(-1, len(rows))
    axis.set_xticks([])
    axis.set_xlabel(f"{step:,} {xlabel}", fontsize=8)


def _lines(axis: "Axes", rows: Mapping[str, pd.DataFrame], x: str, y: str, xlabel: str) -> None:
    """A line for each method, with one standard deviation around it."""
    from matplotlib.ticker import EngFormatter

    for method, colour in colours(rows).items():
        groups = rows[method].groupby(x)[y]
        points = pd.DataFrame({"mean": groups.mean(), "std": groups.std(ddof=0), "count": groups.count()})
        points = points.loc[points["count"] == rows[method]["run"].nunique()]
        marker, (mean, std) = "o" if len(points) < 30 else "", (points["mean"], points["std"])
        axis.plot(points.index, mean, color=colour, marker=marker, markersize=3, label=method)
        axis.fill_between(points.index, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    style(axis)
    axis.set_xlabel(xlabel, fontsize=8)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
