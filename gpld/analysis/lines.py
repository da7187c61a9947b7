"""Lines of methods side by side, means over runs with one standard deviation shaded; panels for each task."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas

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
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    tasks, methods = list(dict.fromkeys(rows["task"])), sorted(set(rows["method"]))
    figure = Figure(figsize=(3.4 * len(panels), 2.8 * len(tasks) + 0.4), dpi=130, layout="constrained")
    axes = figure.subplots(len(tasks), len(panels), squeeze=False)
    for task, line in zip(tasks, axes, strict=True):
        for name, axis in zip(panels, line, strict=True):
            shown = rows.loc[(rows["task"] == task) & (rows[panel] == name)]
            for method, colour in colours(methods).items():
                _line(axis, shown.loc[shown["method"] == method], x, y, method, colour)
            axis.set(title=f"{task}: {name}", xlabel=xlabel, ylim=(0, None))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            axis.grid(axis="y", color="#E5E5E5", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(ylabel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _line(axis: "Axes", rows: pandas.DataFrame, x: str, y: str, label: str, colour: str) -> None:
    groups = rows.groupby(x)[y]
    points = pandas.DataFrame({"mean": groups.mean(), "std": groups.std(ddof=0), "count": groups.count()})
    points = points.loc[points["count"] == rows["run"].nunique()]
    marker = "o" if len(points) < 30 else ""
    axis.plot(points.index, points["mean"], color=colour, marker=marker, markersize=3, label=label)
    low, high = points["mean"] - points["std"], points["mean"] + points["std"]
    axis.fill_between(points.index, low, high, color=colour, alpha=0.2, linewidth=0)
