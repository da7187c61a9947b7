"""Tables as text: for the terminal, Markdown, LaTeX and CSV. Each names its data and command in its notes."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas
    import rich.console

Format = Literal["terminal", "markdown", "latex", "csv"]

NOTHING = "-"
"""The cell of a missing number."""

_TEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "\u00b1": r"$\pm$"}


@dataclass(frozen=True)
class Table:
    """A table with a title and notes."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Notes for readers, with the data and the command."""
    totals: int = 0
    """How many of the last rows are totals."""
    labels: int = 1
    """How many of the first columns name a row."""


def render(table: Table, form: Format) -> str:
    """A table in a format."""
    return {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "csv": _csv}[form](table)


def rich_table(frame: "pandas.DataFrame") -> "rich.console.Group":
    """A table of numbers for the terminal, narrow enough for 80 columns.

    Names and counts that all rows share stand above it. Heads of two words may break, cells may not.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table

    shared = [
        name for name in frame if frame[name].dtype.kind != "f" and len(frame) > 1 == frame[name].nunique()
    ]
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in frame.columns.drop(shared):
        width = max((len(cell(value)) for value in frame[name]), default=0)
        shown.add_column(str(name).replace("_", " "), min_width=width, vertical="bottom")
    for row in frame.drop(columns=shared).itertuples(index=False):
        shown.add_row(*map(cell, row))
    above = ", ".join(f"{str(name).replace('_', ' ')} {cell(frame[name].iloc[0])}" for name in shared)
    return Group("", *([above] if above else []), shown, "")


def cell(value: object) -> str:
    """A number with three digits, or a text."""
    if isinstance(value, float):
        return NOTHING if math.isnan(value) else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, Integral) else str(value)


def _terminal(table: Table) -> str:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    stream = io.StringIO()
    here = Console()
    width = here.width if here.is_terminal else 40 + 22 * len(table.header)
    widths = _widths(table)
    for block in _blocks(table, widths, width):
        shown = RichTable(title=None if stream.tell() else Text(table.title), title_justify="left")
        fits = sum(max(widths[i], len(table.header[i])) + 3 for i in block) < width
        for i in block:
            justify = "right" if i else "left"
            shown.add_column(Text(table.header[i]), justify=justify, width=None if fits else widths[i])
        for i, row in enumerate(table.rows):
            cells = [Text(row[column]) for column in block]  # brackets are no markup
            shown.add_row(*cells, end_section=i == len(table.rows) - table.totals - 1)
        Console(file=stream, width=width).print(shown)
    return stream.getvalue() + "\n".join(table.notes)


def _widths(table: Table) -> list[int]:
    """Of each column, the least at which no cell and no word of its head breaks."""
    columns = zip(table.header, *table.rows, strict=True)
    return [max(map(len, [*head.split(), *cells])) for head, *cells in columns]


def _blocks(table: Table, widths: Sequence[int], width: int) -> list[list[int]]:
    """Columns that fit beside each other, each time with those that name a row; all of them, if they fit."""
    labels = list(range(table.labels))
    blocks = [[*labels]]
    for i in range(table.labels, len(widths)):
        if sum(widths[j] + 3 for j in (*blocks[-1], i)) + 1 > width and blocks[-1] != labels:
            blocks.append([*labels])
        blocks[-1].append(i)
    return blocks


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = ["---", *["---:"] * (len(table.header) - 1)]
    lines = [f"**{table.title}**", "", line(table.header), line(rule), *map(line, table.rows), ""]
    return "\n".join([*lines, *(f"{note}  " for note in table.notes)]).rstrip()


def _latex(table: Table) -> str:
    body = [f"    {' & '.join(map(_tex, row))} \\\\" for row in table.rows]
    if table.totals:
        body.insert(len(body) - table.totals, r"    \midrule")
    return "\n".join(
        [
            *(f"% {note}" for note in table.notes),
            r"\begin{table}",
            rf"  \caption{{{_tex(table.title)}}}",
            r"  \centering",
            rf"  \begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"    \toprule",
            f"    {' & '.join(map(_tex, table.header))} \\\\",
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _csv(table: Table) -> str:
    stream = io.StringIO()
    for note in (table.title, *table.notes):
        stream.write(f"# {note}\n")
    csv.writer(stream, lineterminator="\n").writerows([table.header, *table.rows])
    return stream.getvalue().rstrip("\n")


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
