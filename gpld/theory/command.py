"""`gpld theory`: the figures of the theory, in files and as tables."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gpld.analysis.tables import rich_table
from gpld.display.options import parse, shown
from gpld.theory._figures import FIGURES, chosen, save


@dataclasses.dataclass(frozen=True)
class TheoryOptions:
    """Options of `gpld theory`."""

    figures: Annotated[tuple[str, ...], tyro.conf.Positional, shown("[FIGURE ...]")] = ()
    """estimate, data, lambda or limits; all of them by default."""
    seeds: int = 20
    """Data sets, and random MDPs, to average over in `data` and `lambda`."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("theory")
    """Folder for the figures (PNG, SVG) and their numbers (CSV)."""


def run(arguments: Sequence[str], description: str) -> int:
    """Draw what the arguments ask for."""
    options = parse(TheoryOptions, "theory", description, arguments, "seeds")
    from rich.console import Console
    from rich.progress import track

    console = Console()
    for name in chosen(options.figures):

        def progress(seeds: Iterable[int], name: str = name) -> Iterable[int]:
            return track(seeds, name, total=options.seeds, console=console, transient=True)

        drawn = FIGURES[name](options.seeds, progress)
        console.print(f"{name}: {str(FIGURES[name].__doc__).splitlines()[0]}")
        console.print(rich_table(drawn.summary))
        console.print(*save(name, drawn, options.out), soft_wrap=True, highlight=False)
    return 0
