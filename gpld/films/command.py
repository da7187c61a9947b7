"""`gpld eval`: episodes of a trained agent as numbers, films, and predictions beside the truth."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gpld.config import ConfigError


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `gpld eval`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
    """Folder of a run, finished or not: its newest good checkpoint is evaluated."""
    episodes: int = 20
    """Episodes to play, side by side."""
    seed: int = 0
    """Decides where the episodes begin, and what is random in actions and predictions."""
    video: bool = False
    """Film episodes: film.mp4 and film.gif, and some of the frames in film.png."""
    films: int = 1
    """Episodes to film, played one after the other for it; 0 for as many as --episodes."""
    frames: int = 100
    """Most pictures of an MP4, evenly spaced over its episode; of a dream the first so many agent steps."""
    open_loop: bool = False
    """Predict episodes from their first five steps and the actions taken: films of images, else a figure."""
    dream: bool = False
    """Film an episode beside what the world model expects of it, as poses; the suite's tasks from states."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: that of the run)")
    ] = None
    """Folder for evaluation.json, films and figure."""


def evaluate(arguments: Sequence[str], description: str) -> int:
    """Do what the arguments ask for."""
    options = tyro.cli(Options, prog="gpld eval", description=description, args=list(arguments))
    for name, least in {"episodes": 1, "seed": 0, "films": 0, "frames": 1}.items():
        value = getattr(options, name)
        if value < least:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least {least}")
    from rich.console import Console

    from gpld import machine
    from gpld.training import saved, score

    machine.use_compilation_cache()
    out, console = options.out or options.run, Console()
    trained = saved.load(options.run)
    found = score.score(trained, episodes=options.episodes, seed=options.seed)
    path = found.write(out)
    print(f"{found.task}, after {found.env_steps:,} env steps and {found.updates:,} updates")
    console.print(score.table(found))
    print(f"written to {path}")
    if options.video:
        with console.status("filming"):
            _film(options, out)
    if options.open_loop:
        with console.status("predicting"):
            _predict(trained, out, options.seed)
    if options.dream:
        with console.status("filming a dream"):
            _dream(options, out)
    return 0


def _dream(options: Options, out: Path) -> None:
    from gpld import films

    try:
        made = films.film_dream(options.run, out, seed=options.seed, steps=options.frames)
    except (films.NoFilm, films.NoPredictions) as reason:
        print(f"gpld eval: no dream: {reason}", file=sys.stderr)
    else:
        print(f"dream: {', '.join(map(str, made))}")


def _film(options: Options, out: Path) -> None:
    from gpld import films

    count = options.films or options.episodes
    try:
        made = films.film(options.run, out, films=count, frames=options.frames, seed=options.seed)
    except films.NoFilm as reason:
        print(f"gpld eval: no film: {reason}", file=sys.stderr)
    else:
        print(*made, sep="\n")


def _predict(trained, out: Path, seed: int) -> None:
    from gpld import films

    try:
        made = films.film_predictions(trained, out, seed=seed)
    except films.NoPredictions as reason:
        print(f"gpld eval: no predictions: {reason}", file=sys.stderr)
    else:
        print(f"predictions: {', '.join(map(str, made))}")
