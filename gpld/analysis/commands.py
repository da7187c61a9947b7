"""`gpld sensitivity`, `gpld quality` and `gpld cost`: measurements in files, figures and tables."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gpld import files
from gpld.analysis.tables import cell, rich_table
from gpld.config import Config, ConfigError, with_presets
from gpld.display.options import Imports, parse, shown

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class MeasureOptions:
    """Options of `gpld sensitivity` and `gpld quality`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, shown("RUN [RUN ...]")]
    """Folders of runs, or that hold runs: their newest good checkpoints are measured. Also NAME@demo."""
    all_checkpoints: bool = False
    """Measure every checkpoint and milestone that the runs have kept (see checkpoint.milestones)."""
    episodes: int = 4
    """Episodes to play with each agent, side by side."""
    steps: int = 0
    """Agent steps to take of each episode; 0 for all."""
    seed: int = 0
    """Seed of the episodes, and of what is random in actions, latents and directions."""
    imports: Imports = True
    """Import the module that a run's task names (gym:MODULE:NAME), which runs its code."""
    out: Annotated[Path | None, shown("FOLDER", "(default: sensitivity or quality)")] = None
    """Folder for the figure (PNG, SVG), all rows (CSV) and the table (Markdown)."""


def measure(name: str, arguments: Sequence[str], description: str) -> int:
    """`gpld sensitivity` or `gpld quality`: measure runs one after the other, and show what was found."""
    options = parse(MeasureOptions, name, description, arguments, "episodes", "steps", "seed")
    import pandas
    from rich.console import Console
    from rich.progress import track

    from gpld import machine
    from gpld.analysis import quality, rollouts, sensitivity
    from gpld.envs import opening

    machine.use_compilation_cache()
    kind = {module.NAME: module for module in (sensitivity, quality)}[name]
    chosen = {key: getattr(options, key) for key in ("all_checkpoints", "episodes", "steps", "seed")}
    console, found = Console(), []
    for folder in track(rollouts.runs_in(options.runs), name, console=console, transient=True):
        with opening(folder, imports=options.imports):
            found.append(rollouts.measure_all(folder, {name: kind.measure}, **chosen)[name])
    rows = pandas.concat(found, ignore_index=True)
    table = kind.table(rows)
    for _, of_task in table.groupby("task", sort=False):
        console.print(rich_table(of_task))
    console.print(*_save(name, rows, table, options.out or Path(name), kind.draw(rows)), soft_wrap=True)
    return 0


@dataclasses.dataclass(frozen=True)
class CostOptions:
    """Options of `gpld cost`."""

    preset: Annotated[tuple[str, ...], shown("NAME [NAME ...]")] = ()
    """Presets of the agent; by default 12m gpu on a GPU, nano cpu elsewhere."""
    settings: Annotated[tuple[str, ...], shown("RHO,POST,PRIOR [...]")] = ()
    """Penalties to time: rho, lambda_post and lambda_prior of each; by default the twelve of the paper."""
    estimators: Annotated[
        tuple[Literal["vjp", "probes", "exact"], ...], tyro.conf.arg(metavar="NAME [...]")
    ] = ("vjp", "probes")
    """How each is estimated: by products, in closed form, or exactly."""
    runs: int = 1
    """Runs in one program."""
    updates: int = 16
    """Updates in one timed call."""
    repeats: int = 10
    """Timed calls of every setting."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("cost")
    """Folder for the rows (CSV) and the table (Markdown)."""


def cost(arguments: Sequence[str], description: str) -> int:
    """`gpld cost`."""
    options = parse(CostOptions, "cost", description, arguments, "runs", "updates", "repeats")
    # Mistakes are errors before JAX is loaded.
    with_presets(Config("walker-walk"), options.preset)
    chosen = [_weights(text) for text in options.settings]
    import jax
    from rich.console import Console
    from rich.progress import track

    from gpld import machine
    from gpld.analysis.cost import Setting, measure as overheads, paper_settings, print_progress, table
    from gpld.analysis.tables import render

    machine.use_compilation_cache()
    fitting = ("nano", "cpu") if jax.default_backend() == "cpu" else ("12m", "gpu")
    presets, console = options.preset or fitting, Console()
    weights = chosen or list(dict.fromkeys(setting[:3] for setting in paper_settings()))
    settings = [Setting(*own, estimator) for own in weights for estimator in options.estimators]
    count = f"{len(settings)} setting{'s' if len(settings) > 1 else ''}"
    about = f"the baseline and {count} (--settings and --estimators choose)"
    console.print(f"presets {' '.join(presets)}, on {jax.devices()[0].device_kind}: {about}", soft_wrap=True)
    rows = overheads(
        with_presets(Config("walker-walk"), presets),
        settings,
        runs=options.runs,
        updates=options.updates,
        repeats=options.repeats,
        progress=partial(track, console=console, transient=True) if console.is_terminal else print_progress,
    )
    print(render(table(rows, title="time of updates with and without the penalty"), "terminal"))
    console.print(*_save("cost", rows, rows, options.out), soft_wrap=True)
    return 0


def _weights(text: str) -> tuple[float, float, float]:
    """rho, lambda_post and lambda_prior of a setting."""
    allowed = "RHO,POST,PRIOR, such as 0.5,0.5,0: rho in (0, 1] and weights that are not both 0"
    try:
        rho, posterior, prior = map(float, text.split(","))
        if not 0 < rho <= 1 or min(posterior, prior) < 0 or not 0 < posterior + prior < math.inf:
            raise ValueError
    except ValueError:
        raise ConfigError(f"settings: {text!r} is not allowed; it must be {allowed}") from None
    return rho, posterior, prior


def _save(
    name: str,
    rows: "pandas.DataFrame",
    table: "pandas.DataFrame",
    folder: Path,
    figure: "Figure | None" = None,
) -> list[Path]:
    """Rows as CSV, the table as Markdown, and the figure, if there is one, as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    csv, markdown, *pictures = (folder / f"{name}{suffix}" for suffix in (".csv", ".md", ".png", ".svg"))
    with files.in_one_move(csv) as unfinished:
        rows.to_csv(unfinished, index=False, lineterminator="\n")
    heads = list(map(str, table.columns))
    lines = [heads, ["---"] * len(heads), *(list(map(cell, row)) for row in table.itertuples(index=False))]
    files.write_text(markdown, "".join(f"| {' | '.join(line)} |\n" for line in lines))
    if figure is None:
        return [csv, markdown]
    for path in pictures:
        with files.in_one_move(path) as unfinished:
            figure.savefig(unfinished, format=path.suffix[1:])
    return [csv, markdown, *pictures]
