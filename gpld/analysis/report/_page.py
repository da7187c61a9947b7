import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import gpld
from gpld.analysis.curves import Curve, Curves, task_curve
from gpld.analysis.tables import Table
from gpld.display.curve import colours
from gpld.files import read_bytes, write_text

MAX_RUNS = 500
"""With more runs than this, the page has their means alone."""
MAX_POINTS = 200
"""Points of a curve; longer ones are thinned."""


@dataclass(frozen=True)
class FilmEntry:
    """Some frames of a film, and the film; or a picture of a run without one."""

    title: str
    still: Path
    """PNG."""
    playing: Path | None = None
    """MP4 or GIF."""


@dataclass(frozen=True)
class Chart:
    """A panel of curves, one for each run, with the mean and spread of each method."""

    title: str
    task: str
    x: str
    """Label of the horizontal axis."""
    y: str
    """Label of the vertical axis."""
    curves: Sequence[Mapping[str, Any]]
    """For each run `task`, `method`, `seed`, and its points `xs` and `ys`."""


@dataclass(frozen=True)
class Section:
    """One kind of measurement of trained agents."""

    name: str
    """A unique word."""
    title: str
    words: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """The contents of a page. Empty parts are left out."""

    title: str
    summary: Sequence[str]
    """The findings in sentences."""
    methods: Sequence[str]
    rows: pd.DataFrame
    """Results; their evaluations are the learning curves."""
    others: Mapping[tuple[str, str], Curve] = field(default_factory=dict)
    """Learning curves of others by task and name, of which the means and bounds alone are known."""
    tables: Sequence[Table] = ()
    sections: Sequence[Section] = ()
    films: Sequence[FilmEntry] = ()
    no_films: str = ""
    """Why there are none, if some should have been made."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by the names of runs."""
    environment: Sequence[tuple[str, str]] = ()
    """Versions and devices of the runs: name and value."""
    source: str = ""
    """The data and the command that the page came from."""


def write(page: Page, path: Path) -> Path:
    """Write a page, in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(page))
    return path


def render(page: Page) -> str:
    """The page as HTML."""
    curves = _curves(page.rows)
    charts = {section.name: [asdict(chart) for chart in section.charts] for section in page.sections}
    others = [_other(*key, curve) for key, curve in page.others.items()]
    drawn = [*curves, *(curve for own in charts.values() for chart in own for curve in chart["curves"])]
    data = {
        "colours": colours([*page.methods, *(curve["method"] for curve in [*drawn, *others])]),
        "curves": curves,
        "others": others,
        "charts": charts,
        "configs": page.configs,
    }
    parts = {
        "TITLE": html.escape(page.title),
        "STYLE": _asset("page.css"),
        "SUMMARY": "\n".join(map(_paragraph, page.summary)),
        "SCORES": _part("scores", "Scores", "\n".join(map(_table, page.tables))),
        "SECTIONS": "\n".join(map(_section, page.sections)),
        "FILMS": _part("films", "Films", "\n".join(map(_film, page.films)) or _paragraph(page.no_films)),
        "ENVIRONMENT": _part("environment", "Made with", _environment(page.environment)),
        "SOURCE": html.escape(f"{page.source}; gpld {gpld.__version__}"),
        # A closing tag inside a string would end the script.
        "DATA": json.dumps(data, allow_nan=False).replace("</", "<\\/"),
        "SCRIPT": _asset("page.js"),
    }
    text = _asset("page.html")
    for name, value in parts.items():
        text = text.replace(f"<!--{name}-->", value)
    return text


def _curves(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Learning curves of all runs, or of their means if there are too many."""
    evaluations = rows.loc[(rows["kind"] == "evaluation") & np.isfinite(rows["return"])]
    if evaluations["run"].nunique() > MAX_RUNS:
        from gpld.analysis.curves import align

        return _means(align(evaluations))
    curves = []
    for name, run in evaluations.groupby("run", observed=True, sort=False):
        run = _thinned(run.sort_values("env_steps"))
        first = run.iloc[0]
        seconds = [None if np.isnan(x) else round(x, 1) for x in run["seconds"]]
        curves.append(
            {
                "run": str(name),
                "task": str(first["task"]),
                "method": str(first["method"]),
                "seed": int(first["seed"]),
                "steps": run["env_steps"].tolist(),
                "seconds": seconds,
                "returns": [round(x, 3) for x in run["return"]],
            }
        )
    return curves


def _means(curves: Curves) -> list[dict[str, Any]]:
    found = []
    for (task, method), runs in curves.items():
        curve = task_curve(runs)
        shown = np.unique(np.linspace(0, len(curve.mean) - 1, MAX_POINTS).round().astype(int))
        found.append(
            {
                "run": f"mean of {curve.runs} runs",
                "task": task,
                "method": method,
                "seed": 0,
                "steps": curve.env_steps[shown].tolist(),
                "seconds": [None] * len(shown),
                "returns": curve.mean[shown].round(3).tolist(),
            }
        )
    return found


def _other(task: str, name: str, curve: Curve) -> dict[str, Any]:
    numbers = {key: getattr(curve, key).round(3).tolist() for key in ("mean", "low", "high")}
    return {"task": task, "method": name, "steps": curve.env_steps.tolist(), **numbers}


def _thinned(run: pd.DataFrame) -> pd.DataFrame:
    if len(run) <= MAX_POINTS:
        return run
    return run.iloc[np.linspace(0, len(run) - 1, MAX_POINTS).round().astype(int)]


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"><button>{html.escape(name)}</button></th>' for name in table.header)
    body = []
    for i, row in enumerate(table.rows):
        kind = ' class="total"' if i >= len(table.rows) - table.totals else ""
        first, *others = map(html.escape, row)
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        body.append(f'<tr{kind}><th scope="row">{first}</th>{cells}</tr>')
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f'<figure class="panel"><figcaption>{html.escape(table.title)}</figcaption><div class="wide">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        f'<ul class="notes">{notes}</ul></figure>'
    )


def _part(name: str, title: str, content: str) -> str:
    """A part of the page under its heading; nothing if it would be empty."""
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>' if content else ""


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>" if text else ""


def _section(section: Section) -> str:
    title, words = html.escape(section.title), html.escape(section.words)
    return (
        f'<section id="{section.name}"><h2>{title}</h2><p>{words}</p>'
        f'<div id="{section.name}-charts" class="charts"></div>'
        f"{''.join(map(_table, section.tables))}</section>"
    )


def _film(film: FilmEntry) -> str:
    title = html.escape(film.title)
    parts = [
        f"<figcaption>{title}</figcaption>",
        f'<img alt="frames of {title}" src="{_inlined(film.still)}"',
    ]
    if film.playing is None:
        parts.append(">")
    elif film.playing.suffix == ".mp4":
        source = _inlined(film.playing)
        parts.append(f'><video hidden controls loop muted playsinline preload="none" src="{source}"></video>')
    else:
        parts.append(f' data-film="{_inlined(film.playing)}">')
    if film.playing is not None:
        parts.append('<button class="play">play</button>')
    return f'<figure class="panel film">{"".join(parts)}</figure>'


def _inlined(path: Path) -> str:
    kind = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}[path.suffix]
    return f"data:{kind};base64,{base64.b64encode(read_bytes(path)).decode()}"


def _environment(values: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in values
    )
    return f'<div class="wide"><table><tbody>{rows}</tbody></table></div>' if rows else ""


def _asset(name: str) -> str:
    return (files("gpld.analysis.report") / name).read_text(encoding="utf-8")
