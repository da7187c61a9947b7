"""The table that shows how far a study is."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from gpld.studies._plan import Plan
from gpld.studies._state import RunState
from gpld.training.duration import in_words

KINDS = {"done": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "waiting": ""}
"""Kinds of states in the order in which they are shown, and their colours."""


def eta(states: Sequence[RunState]) -> float | None:
    """Seconds until all is done at the present rate; None if nothing is running, or not for long enough."""
    left = sum(state.run.config.env_steps - state.env_steps for state in states if state.kind != "failed")
    rate = sum(state.rate for state in states)
    if left == 0:
        return 0.0
    return left / rate if rate > 0 else None


def status_table(plan: Plan, states: Sequence[RunState]) -> Table:
    """A row for each task, and the total with the time that is left."""
    right = [Column(kind, justify="right", style=style) for kind, style in KINDS.items()]
    progress = Column("env steps", justify="right")
    title = {"title": f"study {plan.study.name}", "title_justify": "left"}
    table = Table(Column("task", no_wrap=True), *right, progress, **title)
    for task in dict.fromkeys(state.run.task for state in states):
        table.add_row(task, *_cells([state for state in states if state.run.task == task]))
    table.add_section()
    remaining = eta(states)
    words = "" if remaining is None or not remaining else f", {in_words(remaining)} left"
    table.add_row(Text(f"all{words}", style="bold"), *_cells(states))
    return table


def failures(states: Sequence[RunState]) -> list[str]:
    """A line for each run that failed: which, why, and where its log is."""
    return [
        f"{state.run.name}: {state.reason}; log: {state.log}" for state in states if state.kind == "failed"
    ]


def taken(states: Sequence[RunState]) -> list[str]:
    """A line about how many runs were taken from each other study."""
    counts = Counter(state.taken for state in states if state.taken)
    return [f"{count} taken from {study}" for study, count in counts.items()]


def line(states: Sequence[RunState]) -> str:
    """The same in one line, for logs."""
    found = Counter(state.kind for state in states)
    counts = [f"{found[kind]} {kind}" for kind in KINDS if kind in found]
    if others := taken(states):
        counts[0] += f" ({', '.join(others)})"
    remaining = eta(states)
    return ", ".join(counts) + (f"; {in_words(remaining)} left" if remaining else "")


def _cells(states: Sequence[RunState]) -> list[str]:
    found = Counter(state.kind for state in states)
    total = sum(state.run.config.env_steps for state in states)
    share = sum(state.env_steps for state in states) / total if total else 0.0
    return [*(str(found[kind] or "") for kind in KINDS), f"{share:.0%}"]
