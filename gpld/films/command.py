"""`gpld eval`: episodes of a trained agent as numbers, films, and predictions beside the truth."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from gpld.config import ConfigError, check_numbers, override
from gpld.envs import Step
from gpld.tasks import GYM_PREFIX


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `gpld eval`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
    """Folder of a run, finished or not: its newest good checkpoint is evaluated."""
    episodes: int = 20
    """Episodes to play, side by side."""
    limit: int = 0
    """Agent steps after which an episode that does not end is ended; 0 for the run's eval.limit."""
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
    imports: Annotated[bool, tyro.conf.arg(name="import")] = True
    """Import the module that a task of the run's (gym:MODULE:NAME) names, which runs its code."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: that of the run)")
    ] = None
    """Folder for evaluation.json, films and figure."""


def evaluate(arguments: Sequence[str], description: str) -> int:
    """Do what the arguments ask for."""
    options = tyro.cli(Options, prog="gpld eval", description=description, args=list(arguments))
    check_numbers(options, "episodes", "limit", "seed", "films", "frames")
    from rich.console import Console

    from gpld import machine, memory
    from gpld.training import interruptible, saved, score

    machine.use_compilation_cache()
    out, console = options.out or options.run, Console()
    trained = saved.load(options.run)
    config = trained.config
    _tell_of_module(config.task, options)
    memory.check_evaluation(options.episodes, machine.host_memory().free)
    if options.limit:
        config = override(config, {"eval": {"limit": options.limit}})
    with interruptible() as interrupted, console.status("playing") as status:
        watch = _Watch(options.episodes, interrupted, status.update)
        try:
            found = score.score(
                trained._replace(config=config), episodes=options.episodes, seed=options.seed, watch=watch
            )
        except _Interrupted as reason:
            print(f"gpld eval: {reason}", file=sys.stderr)
            return 128 + (interrupted() or 0)
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


class _Interrupted(Exception):  # noqa: N818
    """Ctrl-C or SIGTERM, in the middle of an episode."""


class _Watch:
    """Says how far episodes are, and ends them when a signal came."""

    def __init__(self, episodes: int, interrupted: Callable[[], int | None], tell: Callable[[str], None]):
        self._ended, self._steps = np.zeros(episodes, bool), 0
        self._interrupted, self._tell = interrupted, tell

    def __call__(self, step: Step) -> None:
        """After a step, `[1, episodes, ...]`."""
        self._ended |= step.is_last[0]
        self._steps += 1
        count = f"{self._ended.sum()} of {len(self._ended)} episodes ended in {self._steps:,} agent steps"
        if self._interrupted() is not None:
            raise _Interrupted(f"interrupted when {count}; nothing was written")
        if self._steps % 100 == 0:
            self._tell(f"playing: {count}")


def _tell_of_module(task: str, options: Options) -> None:
    """Say that a module will be imported because the run's folder names it, or refuse to."""
    module = task.removeprefix(GYM_PREFIX).rpartition(":")[0] if task.startswith(GYM_PREFIX) else ""
    if not module:
        return
    if not options.imports:
        named = f"the task of {options.run} is {task}, which imports the module {module}"
        raise ConfigError(f"import: {named}; --no-import refuses to")
    print(f"importing the module {module}, which {options.run} names: its code runs (--no-import refuses)")


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
