"""Learning curves: returns over env steps, as text for the terminal and as a picture."""

import itertools
import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, SupportsFloat

import numpy as np

from gpld import files
from gpld.config import Config
from gpld.population import TITLES, method_of

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Numbers = Iterable[SupportsFloat]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which people with any colour vision can tell apart."""

_FIXED = dict(zip((TITLES["gpld"], TITLES["dreamerv3"]), COLOURS, strict=False))

# Dots of a braille character, by row and column.
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each method: always the same for GPLD and DreamerV3, the next in turn for others."""
    rest = itertools.cycle(COLOURS[len(_FIXED) :])
    return {name: _FIXED.get(name) or next(rest) for name in dict.fromkeys(names)}


class MeanCurve(NamedTuple):
    """Mean and (population) standard deviation of some runs' returns, by env steps."""

    env_steps: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def title_of(configs: Sequence[Config]) -> str:
    """Task, methods and seeds of runs of one task."""
    seeds: dict[str, list[int]] = {}
    for config in configs:
        seeds.setdefault(method_of(config), []).append(config.seed)
    parts = [
        f"{TITLES[method]}, seed{'s' * (len(own) > 1)} {', '.join(map(str, own))}"
        for method, own in seeds.items()
    ]
    return f"{configs[0].task}, {'; '.join(parts)}"


def mean_curve(runs: Sequence[tuple[Numbers, Numbers]]) -> MeanCurve:
    """Mean and standard deviation over runs, each given by its env steps and returns.

    At all env steps at which any run has a return and every run has begun and not ended; straight lines lie
    between a run's own returns. Returns that are not finite are left out.
    """
    points = [_points(*run) for run in runs]
    if any(len(x) == 0 for x, _ in points):
        raise ValueError("a run has no finite return: there is nothing to draw")
    first, last = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    every = np.unique(np.concatenate([x for x, _ in points]))
    if first > last:
        raise ValueError(f"one run begins at {first:,.0f} env steps and another ends at {last:,.0f}")
    env_steps = every[(every >= first) & (every <= last)]
    returns = np.stack([np.interp(env_steps, x, y) for x, y in points])
    return MeanCurve(env_steps, returns.mean(0), returns.std(0))


def text_curve(
    env_steps: Numbers,
    returns: Numbers,
    *,
    title: str = "",
    random_return: float | None = None,
    width: int | None = None,
    height: int = 11,
) -> str:
    """A learning curve in braille characters, `height` rows high and at most `width` columns wide.

    The vertical axis reaches from the smallest to the largest value, or from zero if nothing is negative.
    `random_return` draws the return of a random policy as a dashed line. `width` defaults to the terminal's.
    """
    x, y = _points(env_steps, returns)
    if not len(x):
        return f"{title}\nno returns yet".strip()
    shown = np.append(y, [] if random_return is None else random_return)
    low, high = min(0.0, float(shown.min())), float(shown.max())
    labels = {height - 1: _number(low)}
    if high > low:
        labels |= {0: _number(high), height // 2: _number((low + high) / 2)}
    margin = max(map(len, labels.values())) + 1
    width = min(shutil.get_terminal_size().columns, 100) if width is None else width
    columns = max(width - margin - 1, 20)

    def dot(value: float, low: float, high: float, count: int) -> float:
        return (value - low) / (high - low) * (count - 1) if high > low else 0.0

    dots = [
        (dot(a, 0.0, x[-1], 2 * columns), dot(b, low, high, 4 * height)) for a, b in zip(x, y, strict=True)
    ]
    cells = _draw(dots, columns, height)
    if random_return is not None:
        row = height - 1 - round(dot(random_return, low, high, 4 * height)) // 4
        cells[row] = [c if c != " " else "╌" for c in cells[row]]
    lines = [
        f"{labels.get(i, ''):>{margin}}{'┤' if i in labels else '│'}{''.join(row)}"
        for i, row in enumerate(cells)
    ]
    end = f"{x[-1]:,.0f} env steps"
    axis = [" " * margin + "└" + "─" * columns, " " * (margin + 1) + "0" + end.rjust(columns - 1)]
    return "\n".join([*([title] if title else []), *lines, *axis, _summary(x, y, random_return)])


def save_curve(
    path: Path,
    runs: Sequence[tuple[str, Numbers, Numbers]],
    *,
    title: str = "",
    random_return: float | None = None,
) -> None:
    """Save learning curves as a picture, in one move and in the format that the path ends with (.png).

    Each run is a label, env steps and returns. Runs of one label are drawn as their mean and one standard
    deviation, `random_return` as a dashed line.
    """
    figure = draw_curve(runs, title=title, random_return=random_return)
    with files.in_one_move(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix.removeprefix("."))


def draw_curve(
    runs: Sequence[tuple[str, Numbers, Numbers]], *, title: str, random_return: float | None
) -> "matplotlib.figure.Figure":
    """The figure that `save_curve` saves."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(6.4, 4.0), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    groups: dict[str, list[tuple[Numbers, Numbers]]] = {}
    for label, env_steps, returns in runs:
        groups.setdefault(label, []).append((env_steps, returns))
    lowest, colour_of = 0.0, colours(groups)
    for label, members in groups.items():
        curve, colour, count = mean_curve(members), colour_of[label], len(members)
        lowest = min(lowest, float(curve.mean.min()))
        few = {"marker": "o", "markersize": 4} if len(curve.env_steps) <= 30 else {}
        name = f"{label} (mean and std of {count} runs)" if count > 1 else label
        axes.plot(curve.env_steps, curve.mean, color=colour, linewidth=2, label=name, **few)
        if count > 1:
            low, high = curve.mean - curve.std, curve.mean + curve.std
            axes.fill_between(curve.env_steps, low, high, color=colour, alpha=0.2, linewidth=0)
    if random_return is not None:
        lowest = min(lowest, random_return)
        axes.axhline(random_return, color="#777777", linestyle="--", linewidth=1.2, label="random policy")
    quiet(axes)
    axes.set(xlabel="env steps", ylabel="return")
    axes.set_xlim(left=0)
    if lowest >= 0:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if len(groups) > 1 or random_return is not None:
        # Above the axes: inside, it would hide some of the lines.
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def quiet(axes: "matplotlib.axes.Axes") -> None:
    """Quiet axes: a light grid, and no frame."""
    axes.margins(x=0.02)
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#999999")
    axes.tick_params(color="#999999", labelcolor="#333333", left=False)


def _points(env_steps: Numbers, returns: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Env steps in order and their returns, without returns that are not finite."""
    x, y = (np.array([float(v) for v in values], np.float64) for values in (env_steps, returns))
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _draw(points: list[tuple[float, float]], columns: int, rows: int) -> list[list[str]]:
    """Braille cells of a line through points given in dots, from the lower left corner."""
    cells = [[0] * columns for _ in range(rows)]
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for k in range(steps + 1):
            x = round(x0 + (x1 - x0) * k / steps)
            y = 4 * rows - 1 - round(y0 + (y1 - y0) * k / steps)
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return [[chr(_BRAILLE + cell) if cell else " " for cell in row] for row in cells]


def _summary(x: np.ndarray, y: np.ndarray, random_return: float | None) -> str:
    best = f"best {_number(y.max())} at {x[np.argmax(y)]:,.0f} env steps"
    random = "" if random_return is None else f", random policy (╌) {_number(random_return)}"
    return f"return: first {_number(y[0])}, {best}, last {_number(y[-1])}{random}"


def _number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"
