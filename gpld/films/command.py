"""`gpld eval`: episodes of a trained agent as numbers, films, and predictions beside the truth."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from gpld.config import ConfigError, override
from gpld.display.options import Imports, RunArgument, parse, shown
from gpld.envs import Step, announce, opening

if TYPE_CHECKING:
    from rich.console import Console

    from gpld.training.saved import Trained


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Options of `gpld eval`."""

    run: RunArgument
    """Folder of a run (its newest good checkpoint is evaluated), agent file, NAME@demo or URL#sha256=SUM."""
    episodes: int = 20
    """Episodes to play, side by side."""
    limit: int = 0
    """Agent steps after which an episode is cut off; 0 for the run's eval.limit."""
    seed: int = 0
    """Seed of the episodes, and of what is random in actions and predictions."""
    video: bool = False
    """Film episodes: film.mp4 and film.gif, and some of the frames in film.png."""
    films: int = 1
    """Episodes to film, one after the other; 0 for as many as --episodes."""
    frames: int = 100
    """Most frames of an MP4, evenly spaced over its episode; for a dream, its first agent steps."""
    open_loop: bool = False
    """Predict episodes from their first five steps and the actions taken: films of images, else a figure."""
    dream: bool = False
    """Film an episode beside what the world model expects of it, as poses; the suite's tasks from states."""
    imports: Imports = True
    """Import the module that the run's task names (gym:MODULE:NAME), which runs its code."""
    out: Annotated[Path | None, shown("FOLDER", "(default: the run's own, or runs/NAME)")] = None
    """Folder for evaluation.json, films and figure."""


def evaluate(arguments: Sequence[str], description: str) -> int:
    """Do what the arguments ask for."""
    numbers = ("episodes", "limit", "seed", "films", "frames")
    options = parse(EvalOptions, "eval", description, arguments, *numbers)
    for name, needed, asked in (
        ("films", "--video", options.video),
        ("frames", "--video or --dream", options.video or options.dream),
    ):
        if not asked and getattr(options, name) != getattr(EvalOptions, name):
            raise ConfigError(f"{name}: nothing is filmed without {needed}")
    with opening(options.run, imports=options.imports):
        return _evaluate(options)


def _evaluate(options: EvalOptions) -> int:
    from rich.console import Console

    from gpld import machine, memory
    from gpld.training import saved, score

    machine.use_compilation_cache()
    run, console = saved.locate(options.run), Console()
    trained = saved.load(run)
    config, out = trained.config, options.out or trained.folder
    announce(config.task)  # before anything else is done
    memory.check_evaluation(options.episodes, machine.host_memory().free)
    if options.limit:
        config = override(config, {"eval": {"limit": options.limit}})
    with machine.interruptible() as interrupted, console.status("playing") as status:
        watch = _Watch(options.episodes, interrupted, status.update)
        try:
            found = score.score(
                trained._replace(config=config), episodes=options.episodes, seed=options.seed, watch=watch
            )
        except _EvaluationInterrupted as reason:
            print(f"gpld eval: {reason}", file=sys.stderr)
            return 128 + (interrupted() or 0)
    path = found.write(out)
    print(f"{found.task}, after {found.env_steps:,} env steps and {found.updates:,} updates")
    console.print(score.table(found))
    print(f"written to {path}")
    return _film(options, trained, run, out, console)


def _film(options: EvalOptions, trained: "Trained", run: Path, out: Path, console: "Console") -> int:
    """Make the films that are wanted, and print what was made, or why nothing was; the exit status."""
    from gpld import films

    where, frames = {"out": out, "seed": options.seed}, options.frames
    episodes = {"films": options.films or options.episodes, "frames": frames, "limit": options.limit}
    wanted = [
        ("film", "filming", options.video, partial(films.film, run, **episodes, **where)),
        ("predictions", "predicting", options.open_loop, partial(films.film_predictions, trained, **where)),
        ("dream", "filming a dream", options.dream, partial(films.film_dream, run, steps=frames, **where)),
    ]
    failed = False
    for what, status, is_wanted, make in wanted:
        if not is_wanted:
            continue
        try:
            with console.status(status):
                made = make()
            print(*made, sep="\n") if what == "film" else print(f"{what}: {', '.join(map(str, made))}")
        except (films.NoFilm, films.NoPredictions) as reason:
            print(f"gpld eval: no {what}: {reason}", file=sys.stderr)
            failed = True
    return int(failed)


class _EvaluationInterrupted(Exception):  # noqa: N818
    """Ctrl-C or SIGTERM, in the middle of an episode."""


class _Watch:
    """Says how far episodes are, and ends them when a signal came."""

    def __init__(self, episodes: int, interrupted: Callable[[], int | None], announce: Callable[[str], None]):
        self._ended, self._steps = np.zeros(episodes, bool), 0
        self._interrupted, self._announce = interrupted, announce

    def __call__(self, step: Step) -> None:
        """After a step, `[1, episodes, ...]`."""
        self._ended |= step.is_last[0]
        self._steps += 1
        count = f"{self._ended.sum()} of {len(self._ended)} episodes ended in {self._steps:,} agent steps"
        if self._interrupted() is not None:
            raise _EvaluationInterrupted(f"interrupted when {count}; nothing was written")
        if self._steps % 100 == 0:
            self._announce(f"playing: {count}")
