import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import gpld
from gpld.analysis.curves import Curve, align
from gpld.analysis.tables import NOTHING, Table
from gpld.display.curve import colours
from gpld.files import read_bytes, write_text
from gpld.pictures import spaced

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


class Tile(NamedTuple):
    """A number that answers the page's question."""

    value: str
    label: str
    detail: str = ""
    method: str = ""
    """Whose colour it has."""


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
    """The data and the command that the page came from. Tables do not repeat it."""
    lead: str = ""
    """What the page is about."""
    tiles: Sequence[Tile] = ()
    """The answer, in a few numbers."""
    notes: Sequence[str] = ()
    """What is said above of all tables. They do not repeat it."""


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
        "LEAD": _paragraph(page.lead),
        "SUMMARY": _tiles(page.tiles) + "\n".join(map(_paragraph, page.summary)),
        "SCORES": _part("scores", "Scores", _tables(page, page.tables, opened=1)),
        "SECTIONS": "\n".join(_section(page, section) for section in page.sections),
        "FILMS": _part("films", "Films", _films(page)),
        "ENVIRONMENT": _part("environment", "Software and hardware", _environment(page.environment)),
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
        evaluations = _means(evaluations)
    curves = []
    for _, run in evaluations.groupby(["run", "task", "method"], observed=True, sort=False):
        run, first = run.sort_values("env_steps").iloc[spaced(len(run), MAX_POINTS)], run.iloc[0]
        curves.append(
            {
                "run": str(first["run"]),
                "task": str(first["task"]),
                "method": str(first["method"]),
                "seed": int(first["seed"]),
                "steps": run["env_steps"].tolist(),
                "seconds": [None if np.isnan(x) else round(x, 1) for x in run["seconds"]],
                "returns": [round(x, 3) for x in run["return"]],
            }
        )
    return curves


def _means(evaluations: pd.DataFrame) -> pd.DataFrame:
    """The means over the runs of each task and method, as if each were one run."""
    found = []
    for (task, method), runs in align(evaluations).items():
        about = {"run": f"mean of {len(runs.returns)} runs", "task": task, "method": method, "seed": 0}
        points = {"env_steps": runs.env_steps, "seconds": np.nan, "return": runs.returns.mean(0)}
        found.append(pd.DataFrame(about | points))
    return pd.concat(found)


def _other(task: str, name: str, curve: Curve) -> dict[str, Any]:
    numbers = {key: getattr(curve, key).round(3).tolist() for key in ("mean", "low", "high")}
    return {"task": task, "method": name, "steps": curve.env_steps.tolist(), **numbers}


def _tables(page: Page, tables: Sequence[Table], opened: int = 0) -> str:
    """Tables, the first `opened` of them open. Empty rows and tables are left out."""
    shown = []
    for table in tables:
        rows = [row for row in table.rows if any(cell != NOTHING for cell in row[1:])]
        if rows:
            shown.append(_table(page, table, rows, is_open=len(shown) < opened))
    return "\n".join(shown)


def _table(page: Page, table: Table, rows: Sequence[tuple[str, ...]], *, is_open: bool) -> str:
    columns = list(zip(*rows, strict=True))[1:]
    kinds = ["word", *("" if any(map(_is_number, cells)) else "word" for cells in columns)]
    heads = zip(kinds, map(html.escape, table.header), strict=True)
    head = "".join(f'<th scope="col" class="{kind}"><button>{name}</button></th>' for kind, name in heads)
    totals = set(table.rows[len(table.rows) - table.totals :])
    body = []
    for row in rows:
        first, *others = map(html.escape, row)
        cells = "".join(f'<td class="{kind}">{x}</td>' for kind, x in zip(kinds[1:], others, strict=True))
        total = ' class="total"' if row in totals else ""
        body.append(f'<tr{total}><th scope="row" class="{kinds[0]}">{first}</th>{cells}</tr>')
    repeated = {page.source, *page.notes}
    notes = [html.escape(_sentence(note)) for note in table.notes if note not in repeated]
    title = html.escape(_sentence(table.title.removeprefix(f"{page.title}: "))[:-1])
    listed = "".join(f"<li>{note}</li>" for note in notes)
    return (
        f'<details class="panel"{" open" * is_open}><summary>{title}</summary><div class="wide">'
        f'<table class="sortable" data-name="{title}"><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(body)}</tbody></table></div><ul class="notes">{listed}</ul></details>'
    )


def _is_number(cell: str) -> bool:
    return cell != NOTHING and cell[:1] in "+-0123456789"


def _tiles(tiles: Sequence[Tile]) -> str:
    found = []
    for tile in tiles:
        value, label, detail, method = map(html.escape, tile)
        found.append(
            f'<div class="tile" data-method="{method}"><b>{value}</b><span>{label}</span>'
            f"<small>{detail}</small></div>"
        )
    return f'<div class="tiles">{"".join(found)}</div>' if found else ""


def _part(name: str, title: str, content: str) -> str:
    """A part of the page under its heading; nothing if it would be empty."""
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>' if content else ""


def _paragraph(text: str) -> str:
    """A sentence with its `code`; nothing of nothing."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(_sentence(text)))
    return f"<p>{marked}</p>" if text else ""


def _sentence(text: str) -> str:
    """Text that begins with a capital and ends with a full stop; a command at its beginning stays one."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _section(page: Page, section: Section) -> str:
    charts = f'<div id="{section.name}-charts" class="charts"></div>'
    content = f"{_paragraph(section.words)}{charts}{_tables(page, section.tables)}"
    return _part(section.name, html.escape(section.title), content)


def _films(page: Page) -> str:
    films = "".join(map(_film, page.films))
    return f'<div class="films">{films}</div>' if films else _paragraph(page.no_films)


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
