"""The progress of runs while they train: a live display in a terminal, a line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LOSSES = ("loss/total", "loss/dyn", "loss/reward", "loss/policy", "loss/value", "loss/penalty_posterior")
"""Losses that are shown, where a run has them."""

PLAIN_SECONDS = 30.0
"""Time between two lines where there is no terminal."""


def print_line(text: str, console: Console | None = None) -> None:
    """Print a line as it is."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


class Progress:
    """Shows the progress of runs while it is entered: `with Progress(...) as progress`.

    A terminal is redrawn four times a second by a thread of its own, also while the loop compiles or waits:
    `update` only stores values.
    """

    def __init__(
        self,
        total: int,
        title: str,
        *,
        labels: Sequence[str] = ("",),
        start: int = 0,
        updates: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`total` env steps of each run. `labels` name each run's method."""
        self._total, self._title, self._clock = total, title, clock
        self._console = console or Console()
        self._labels = labels
        self._speed = Speed()
        self._count = Count(clock(), start, updates)
        self._values: list[Mapping[str, float]] = [{} for _ in labels]
        self._started = self._printed = clock()
        plain = not self._console.is_terminal or self._console.is_dumb_terminal
        self._live = (
            None if plain else Live(console=self._console, get_renderable=self._picture, refresh_per_second=4)
        )

    def update(
        self, *, env_steps: int, updates: int, values: Sequence[Mapping[str, float]] | None = None
    ) -> None:
        """Store how far each run is, and the latest values of its metrics. Cheap: for every iteration."""
        self._count = Count(self._clock(), env_steps, updates)
        self._speed.add(self._count)
        if values:
            self._values = [{**old, **new} for old, new in zip(self._values, values, strict=True)]
        if self._live is None and self._count.time - self._printed >= PLAIN_SECONDS:
            self._print_line()

    def message(self, text: str) -> None:
        """Print a line that stays, above the display."""
        print_line(text, self._console)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Say that the update is compiled, which looks like standstill; its time is not part of the speed."""
        self.message("compiling the update")
        yield
        self._speed = Speed()

    def facts(self) -> dict[str, str]:
        """The texts to show, by name."""
        count, speed, runs = self._count, self._speed.per_second(), len(self._labels)
        share = count.env_steps / self._total if self._total else 1.0
        each = f" in each of {runs} runs" if runs > 1 else ""
        facts = {"env steps": f"{count.env_steps:,} of {self._total:,} ({share:.0%}){each}"}
        facts["updates"] = f"{count.updates:,}{each}"
        facts["time"] = f"{_duration(self._clock() - self._started)} passed"
        if speed:
            rates = (
                f"{_number(runs * speed.env_steps)} env steps/s, {_number(runs * speed.updates)} updates/s"
            )
            facts["speed"] = rates + (" of all runs" if runs > 1 else "")
            if speed.env_steps > 0 and count.updates:  # steps before the first update are much faster
                left = max(0, self._total - count.env_steps) / speed.env_steps
                facts["time"] += f", {_duration(left)} left"
        if shown := self._by_label("train/return"):
            facts["training return"] = shown
        if shown := self._by_label("eval/return"):
            episodes = int(self._values[0].get("eval/episodes", 1))
            facts["evaluation return"] = shown + (f" (mean of {episodes} episodes)" if episodes > 1 else "")
        if losses := self._losses():
            facts["losses"] = losses
        if skipped := sum(values.get("updates/skipped", 0.0) for values in self._values):
            facts["skipped updates"] = f"{skipped:.0f} (not finite)"
        return facts

    def _by_label(self, name: str) -> str:
        """The mean of a metric over the runs of each label, with the smallest and largest."""
        groups: dict[str, list[float]] = {}
        for label, values in zip(self._labels, self._values, strict=True):
            if name in values:
                groups.setdefault(label, []).append(values[name])
        return ", ".join(f"{label} {_spread(found)}".strip() for label, found in groups.items())

    def _losses(self) -> str:
        """Losses of a single run: means over runs say little."""
        values = self._values[0] if len(self._values) == 1 else {}
        shown = [f"{name.removeprefix('loss/')} {_number(values[name])}" for name in LOSSES if name in values]
        return ", ".join(shown)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        else:
            self.message(self._title)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()
        else:
            self._print_line()

    def _print_line(self) -> None:
        self._printed = self._clock()
        self.message("; ".join(f"{name} {fact}" for name, fact in self.facts().items()))

    def _picture(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, fact in self.facts().items():
            style = "bold yellow" if name == "skipped updates" else "bold" if "return" in name else ""
            table.add_row(Text(name, style="dim"), Text(fact, style=style))
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(ProgressBar(total=self._total, completed=self._count.env_steps, width=60))
        return Group(Text(self._title, style="bold cyan"), bar, table)


class Count(NamedTuple):
    """Env steps and updates of a run at a time in seconds, or within so many seconds."""

    time: float
    env_steps: float
    updates: float


class Speed:
    """Speed over a moving window, from the first count on: a resumed run's past is not in it."""

    def __init__(self, window: float = 60.0):
        self._window = window
        self._counts: deque[Count] = deque()

    def add(self, count: Count) -> None:
        """Add a count. Those that come quickly replace each other, so that few are stored."""
        counts = self._counts
        if len(counts) > 1 and count.time - counts[-2].time < self._window / 120:
            counts[-1] = count
        else:
            counts.append(count)
        while len(counts) > 2 and count.time - counts[1].time >= self._window:
            counts.popleft()

    def per_second(self) -> Count | None:
        """Env steps and updates per second, or None at first."""
        if len(self._counts) < 2:
            return None
        first, last = self._counts[0], self._counts[-1]
        seconds = last.time - first.time
        if seconds <= 0:
            return None
        return Count(
            1.0, (last.env_steps - first.env_steps) / seconds, (last.updates - first.updates) / seconds
        )


def _spread(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.1f}"
    return f"{mean} ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else mean


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _number(x: float) -> str:
    return f"{x:,.0f}" if 1000 <= abs(x) < 1e6 else f"{x:.3g}"
