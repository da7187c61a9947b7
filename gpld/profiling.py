"""Where the time of an update goes: a JAX profiler trace of some updates, read into a table."""

import gzip
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Operation(NamedTuple):
    """One kind of operation of the compiled program."""

    name: str
    count: int
    """How often it ran."""
    seconds: float
    """How long it ran, all together."""


def read_trace(folder: Path | str) -> list[Operation]:
    """Operations in the newest trace below a folder, the longest first; numbered copies are added up."""
    traces = sorted(Path(folder).rglob("*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise FileNotFoundError(f"no profiler trace (*.trace.json.gz) below {folder}")
    with gzip.open(traces[-1], "rt") as file:
        events = json.load(file)["traceEvents"]
    count: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        operation = event.get("args", {}).get("hlo_op")
        # Loops and calls contain the operations inside them, which have events of their own.
        if operation is None or re.match(r"(while|call|conditional)\b", operation):
            continue
        name = re.sub(r"[.\d]+$", "", operation)
        count[name] += 1
        seconds[name] += event.get("dur", 0) / 1e6
    operations = [Operation(name, count[name], seconds[name]) for name in seconds]
    return sorted(operations, key=lambda operation: -operation.seconds)
