"""`gpld sensitivity` and `gpld quality`: trained world models measured, in files, figures and tables."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from gpld.config import ConfigError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of both commands."""

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="")
    ]
    """Folders of runs, or folders that hold runs: their newest good checkpoints are measured."""
    all_checkpoints: bool = False
    """Measure every checkpoint that the runs have kept (see checkpoint.keep)."""
    episodes: int = 4
    """Episodes to play with each agent, side by side."""
    steps: int = 0
    """Agent steps to take of each episode; 0 for all."""
    seed: int = 0
    """Decides where the episodes begin, and what is random in actions, latents and directions."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: sensitivity or quality)")
    ] = None
    """Folder for the figure (PNG, SVG), all rows (CSV) and the table (Markdown)."""


class Measurement(NamedTuple):
    """A kind of measurement of trained agents, as its module does it."""

    name: str
    measure_run: Callable[..., "pandas.DataFrame"]
    table: Callable[["pandas.DataFrame"], "pandas.DataFrame"]
    draw: Callable[["pandas.DataFrame"], "Figure"]


def sensitivity(arguments: Sequence[str], description: str) -> int:
    """`gpld sensitivity`."""
    from gpld.analysis.sensitivity import NAME, draw, measure_run, table

    return _run(Measurement(NAME, measure_run, table, draw), arguments, description)


def quality(arguments: Sequence[str], description: str) -> int:
    """`gpld quality`."""
    from gpld.analysis.quality import NAME, draw, measure_run, table

    return _run(Measurement(NAME, measure_run, table, draw), arguments, description)


def _run(kind: Measurement, arguments: Sequence[str], description: str) -> int:
    """Measure the runs that the arguments name, one after the other, and show what was found."""
    options = tyro.cli(Options, prog=f"gpld {kind.name}", description=description, args=list(arguments))
    for option, value, least in (
        ("episodes", options.episodes, 1),
        ("steps", options.steps, 0),
        ("seed", options.seed, 0),
    ):
        if value < least:
            raise ConfigError(f"{option}: {value} is not allowed; it must be at least {least}")
    import pandas
    from rich.console import Console
    from rich.progress import track

    from gpld import machine
    from gpld.analysis import rollouts

    machine.use_compilation_cache()
    console, found = Console(), []
    for folder in track(rollouts.runs_in(options.runs), kind.name, console=console, transient=True):
        rows = kind.measure_run(
            folder,
            all_checkpoints=options.all_checkpoints,
            episodes=options.episodes,
            steps=options.steps,
            seed=options.seed,
        )
        found.append(rows)
    rows = pandas.concat(found, ignore_index=True)
    console.print(_shown(kind.table(rows)))
    out = options.out or Path(kind.name)
    console.print(*_save(kind.name, rows, kind.table(rows), kind.draw(rows), out), soft_wrap=True)
    return 0


def _save(
    name: str, rows: "pandas.DataFrame", table: "pandas.DataFrame", figure: "Figure", folder: Path
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}{suffix}" for suffix in (".png", ".svg", ".csv", ".md")]
    for path in paths[:2]:
        figure.savefig(path)
    rows.to_csv(paths[2], index=False, lineterminator="\n")
    heads = list(map(str, table.columns))
    lines = [heads, ["---"] * len(heads), *(list(map(_cell, row)) for row in table.itertuples(index=False))]
    paths[3].write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return paths


def _shown(table: "pandas.DataFrame"):
    from rich.table import Table

    shown = Table(*map(str, table.columns))
    for row in table.itertuples(index=False):
        shown.add_row(*map(_cell, row))
    return shown


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
