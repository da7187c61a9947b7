"""Where the time of an update goes: a JAX profiler trace of some updates, read into a table."""

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray
from rich.console import Group
from rich.table import Table

from gpld import agent
from gpld.config import Config
from gpld.types import Batch, Latent, Spaces

ELSEWHERE = "elsewhere"
"""Where the program's text does not say."""

Events = list[tuple[str, float]]
"""Name and seconds of each operation, in the order of the trace."""


class Operation(NamedTuple):
    """One kind of operation of the compiled program, or all that one part of the agent does."""

    name: str
    count: int
    """How often it ran."""
    seconds: float
    """How long it ran, all together."""


class Profile(NamedTuple):
    """Some updates, looked at closely."""

    updates: int
    seconds: float
    """Time of one update of all runs on the clock, without the tracer."""
    parts: list[Operation]
    """By the function that `agent.loss` or `agent.update` called, its direction, and whether step by step."""
    kinds: list[Operation]
    """By kind of operation, as the compiler names them."""
    trace: Path


def profile(config: Config, spaces: Spaces, folder: Path, *, runs: int = 1, updates: int = 3) -> Profile:
    """Trace updates of `runs` runs in one program on random data, warmed up before, into `folder`.

    On GPUs, a trace shows nothing of what runs inside a command buffer: before JAX starts, add
    `--xla_gpu_enable_command_buffer=` to XLA_FLAGS.
    """
    keys = jax.random.split(jax.random.key(config.seed), runs)
    state = jax.jit(jax.vmap(partial(agent.init, config.agent, spaces)))(keys)
    batch = jax.jit(jax.vmap(partial(random_batch, config, spaces)))(keys)
    update = jax.jit(jax.vmap(partial(agent.update, config.agent)), donate_argnums=0)
    with _own_source():
        program = update.lower(state, batch).compile()

    def run(state: agent.AgentState) -> agent.AgentState:
        for _ in range(updates):
            state, _, _ = program(state, batch)
        return jax.block_until_ready(state)

    state = run(state)
    begin = time.perf_counter()
    state = run(state)
    seconds = (time.perf_counter() - begin) / updates
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        run(state)
    return read_profile(folder, program.as_text() or "", updates, seconds)


def read_profile(folder: Path | str, program: str, updates: int, seconds: float) -> Profile:
    """The newest trace below a folder, of a program with this text."""
    events, parts, phases = read_events(folder), source_parts(program), source_phases(program)
    return Profile(
        updates,
        seconds,
        _grouped(events, lambda name: parts.get(name, ELSEWHERE) + phases.get(name, "")),
        _grouped(events, _kind),
        _newest_trace(folder),
    )


@contextmanager
def _own_source() -> Iterator[None]:
    """Take no program from the cache that was compiled from other source code: it would name other parts."""
    name = "jax_compilation_cache_include_metadata_in_key"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, before)


def random_batch(config: Config, spaces: Spaces, key: PRNGKeyArray) -> Batch:
    """A batch that looks like replayed steps."""
    shape, sizes = (config.replay.length, config.replay.batch), config.agent.model
    keys = iter(jax.random.split(key, 8 + len(spaces.obs)))
    draw = {"float32": jax.random.normal, "uint8": partial(jax.random.bits, dtype=jnp.uint8)}
    obs = {name: draw[spaces.dtype(name)](next(keys), (*shape, *dims)) for name, dims in spaces.obs}
    first = jax.random.uniform(next(keys), shape) < 0.01
    start = Latent(
        jax.random.normal(next(keys), (shape[1], sizes.deter)).astype(config.agent.compute),
        jax.random.randint(next(keys), (shape[1], sizes.stoch), 0, sizes.classes).astype(jnp.uint8),
    )
    action = jax.random.normal(next(keys), (*shape, spaces.actions))
    if spaces.discrete:
        action = jax.nn.one_hot(action.argmax(-1), spaces.actions)
    reward = jax.random.uniform(next(keys), shape)
    return Batch(obs, action, reward, first, jnp.zeros_like(first), jnp.zeros_like(first), start)


def read_events(folder: Path | str) -> Events:
    """Every operation of the compiled program in the newest trace below a folder."""
    with gzip.open(_newest_trace(folder), "rt") as file:
        events = json.load(file)["traceEvents"]
    named = ((event.get("args", {}).get("hlo_op"), event.get("dur", 0) / 1e6) for event in events)
    # Loops and calls contain the operations inside them, which have events of their own.
    return [
        (name, seconds)
        for name, seconds in named
        if name is not None and not re.match(r"(while|call|conditional)\b", name)
    ]


def source_parts(program: str) -> dict[str, str]:
    """The part of the agent that each operation of a compiled program's text comes from.

    Read from the stack frames that the text ends its operations with; empty if it has none.
    """
    files, functions, locations, frames = (
        _section(program, name) for name in ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
    )
    if not frames:
        return {}
    # Depending on the version, the frame above is named by its number or by the number after it: the first
    # has none above it.
    shift = _number(frames[1], "parent_frame_id")

    def stack(frame: int) -> list[tuple[str, str]]:
        """File and function of a frame and of those above it, the outermost first."""
        found = []
        while frame > 0:
            location = locations[_number(frames[frame], "file_location_id")]
            file, function = (_number(location, key) for key in ("file_name_id", "function_name_id"))
            found.append((files[file].strip('"'), functions[function].strip('"')))
            frame = _number(frames[frame], "parent_frame_id") - shift
        return found[::-1]

    operations = re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*stack_frame_id=(\d+)", program, re.M)
    named = {frame: _part(stack(frame)) for frame in {int(frame) for _, frame in operations}}
    return {name: named[int(frame)] for name, frame in operations}


def source_phases(program: str) -> dict[str, str]:
    """Which operations of a compiled program's text are backwards, step by step, or both."""
    operations = re.findall(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*op_name="([^"]*)"', program, re.M)
    return {
        name: ", backwards" * ("transpose(" in path) + ", step by step" * ("/while/" in path)
        for name, path in operations
    }


def _part(stack: list[tuple[str, str]]) -> str:
    """The agent's callee: the first function of this package outside `agent.loss`, or the agent's own."""
    agent_file = next((file for file, _ in stack if file.endswith("gpld/agent.py")), None)
    if agent_file is None:
        return ELSEWHERE
    own = [
        (file == agent_file, name) for file, name in stack if file.startswith(agent_file[: -len("agent.py")])
    ]
    begin = next(i for i, (in_agent, _) in enumerate(own) if in_agent)
    end = next((i for i, (in_agent, _) in enumerate(own) if i > begin and not in_agent), len(own))
    chosen = end if own[end - 1][1] == "loss" and end < len(own) else end - 1
    return own[chosen][1].split(".<locals>")[0]


def _section(program: str, name: str) -> dict[int, str]:
    """A table in a program's text: lines that begin with their number."""
    lines = re.search(rf"^{name}\n((?:\d+ .*\n)*)", program, re.M)
    pairs = (line.split(" ", 1) for line in lines[1].splitlines()) if lines else ()
    return {int(number): text for number, text in pairs}


def _number(text: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", text)
    return int(found[1]) if found else 0


def _newest_trace(folder: Path | str) -> Path:
    traces = sorted(Path(folder).rglob("*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise FileNotFoundError(f"no profiler trace (*.trace.json.gz) below {folder}")
    return traces[-1]


def _kind(name: str) -> str:
    return re.sub(r"[.\d]+$", "", name)


def _grouped(events: Events, group: Callable[[str], str]) -> list[Operation]:
    """Counts and times by group, the longest first."""
    totals: dict[str, tuple[int, float]] = {}
    for name, seconds in events:
        count, total = totals.get(group(name), (0, 0.0))
        totals[group(name)] = (count + 1, total + seconds)
    return sorted((Operation(k, *x) for k, x in totals.items()), key=lambda operation: -operation.seconds)


def tables(found: Profile, rows: int = 15) -> Group:
    """A profile for the terminal."""
    return Group(
        _table("Where the time of an update goes: what the agent calls", found.parts, found.updates, rows),
        _table("Kinds of operations, as the compiler names them", found.kinds, found.updates, rows),
    )


def _table(title: str, operations: list[Operation], updates: int, rows: int) -> Table:
    total = sum(operation.seconds for operation in operations)
    shown, rest = operations[:rows], operations[rows:]
    if rest:
        several = f"{len(rest)} more"
        shown = [*shown, Operation(several, sum(o.count for o in rest), sum(o.seconds for o in rest))]
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("", "all")
    for name, footer in (
        ("operations per update", f"{sum(o.count for o in operations) / updates:,.0f}"),
        ("ms per update", f"{1000 * total / updates:,.3f}"),
        ("share", ""),
    ):
        table.add_column(name, footer, justify="right")
    for name, count, seconds in shown:
        share = seconds / total if total else 0.0
        table.add_row(name, f"{count / updates:,.0f}", f"{1000 * seconds / updates:,.3f}", f"{share:.1%}")
    return table
