"""Ctrl-C and SIGTERM as a question that a loop can ask when it suits it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], int | None]]:
    """Turn Ctrl-C and SIGTERM into a question that is asked between iterations: which of them came?"""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)
        if number == signal.SIGINT:  # batch systems send SIGTERM to every process they find, some twice
            signal.signal(number, signal.SIG_DFL)

    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody handle signals
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
