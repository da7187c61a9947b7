"""Lines of methods side by side, means over runs with one standard deviation shaded; panels for each task."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas

from gpld.analysis import figures
from gpld.training.curve import colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(
    rows: pandas.DataFrame,
    *,
    x: str,
    y: str,
    panel: str,
    panels: Sequence[str],
    xlabel: str,
    ylabel: str,
) -> "Figure":
    """A grid of panels: a row for each `task`, a column for each of `panels`, a line for each `method`.

    `rows` has a row for every run and value of `x`. A point that only some runs have is left out: the mean
    of other runs is not comparable.
    """
    from matplotlib.ticker import EngFormatter

    tasks, methods = list(dict.fromkeys(rows["task"])), sorted(set(rows["method"]))
    figure, flat = figures.panels(len(tasks) * len(panels), columns=len(panels))
    axes = [flat[i : i + len(panels)] for i in range(0, len(flat), len(panels))]
    for task, line in zip(tasks, axes, strict=True):
        for name, axis in zip(panels, line, strict=True):
            shown = rows.loc[(rows["task"] == task) & (rows[panel] == name)]
            for method, colour in colours(methods).items():
                _line(axis, shown.loc[shown["method"] == method], x, y, method, colour)
            figures.style(axis)
            axis.set_title(f"{task}: {name}", loc="left", fontsize=9, fontweight="bold")
            axis.set_ylim(0, None)
            axis.set_xlabel(xlabel, fontsize=8)
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        line[0].set_ylabel(ylabel, fontsize=8)
    figures.legend(figure)
    return figure


def _line(axis: "Axes", rows: pandas.DataFrame, x: str, y: str, label: str, colour: str) -> None:
    groups = rows.groupby(x)[y]
    points = pandas.DataFrame({"mean": groups.mean(), "std": groups.std(ddof=0), "count": groups.count()})
    points = points.loc[points["count"] == rows["run"].nunique()]
    marker = "o" if len(points) < 30 else ""
    axis.plot(points.index, points["mean"], color=colour, marker=marker, markersize=3, label=label)
    low, high = points["mean"] - points["std"], points["mean"] + points["std"]
    axis.fill_between(points.index, low, high, color=colour, alpha=0.2, linewidth=0)
