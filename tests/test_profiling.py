import gzip
import io
import json
import os

import jax
import numpy as np
import pytest
from rich.console import Console

from gpld import profiling, replay
from gpld.profiling import ELSEWHERE, Operation, Profile
from gpld.types import Spaces
from tests.training.helpers import tiny

SPACES = Spaces.of({"position": (3,), "velocity": (2,)}, 1)
CONFIG = tiny(replay={"train_ratio": 6.0})

# A trace


def read_trace(folder):
    """Operations in the newest trace below a folder, the longest first; numbered copies are added up."""
    return profiling._grouped(profiling.read_events(folder), profiling._kind)


def write_trace(folder, events, name="host"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def event(operation, microseconds):
    return {"name": operation, "dur": microseconds, "args": {"hlo_op": operation}}


def test_operations_are_added_up_and_sorted(tmp_path):
    events = [
        event("dot.1", 3),
        event("dot.12", 4),
        event("loop_fusion", 10),
        event("while.3", 1000),  # contains the others
        event("call", 1000),
        {"name": "thread", "dur": 50},
        {"name": "python", "dur": 50, "args": {"file": "x.py"}},
    ]
    write_trace(tmp_path / "plugins" / "profile" / "now", events)
    assert read_trace(tmp_path) == [
        Operation("loop_fusion", 1, pytest.approx(10e-6)),
        Operation("dot", 2, pytest.approx(7e-6)),
    ]


def test_the_newest_trace_is_read(tmp_path):
    old = write_trace(tmp_path / "a", [event("old", 1)])
    write_trace(tmp_path / "b", [event("new", 1)])
    os.utime(old, (1, 1))
    assert [operation.name for operation in read_trace(str(tmp_path))] == ["new"]


def test_a_folder_without_a_trace_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no profiler trace .* below {tmp_path}"):
        read_trace(tmp_path)


# The parts of a program


def program(shift):
    """A program's text. The frame above a frame is named by its number plus `shift`."""
    stacks = {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 2, 7: 6, 8: 0}
    names = ["main", "update", "loss", "BoundMethod.__call__", "imagine", "chain.<locals>.f", "rms", "main"]
    files = [
        "run.py",
        "gpld/agent.py",
        "gpld/agent.py",
        "equinox/_module.py",
        "gpld/behavior/_imagination.py",
    ]
    files += ["optax/_src/x.py", "optax/_src/x.py", "run.py"]
    return "\n".join(
        [
            "HloModule jit_update",
            "",
            "FileNames",
            *(f'{i} "/home/gpld/{file}"' for i, file in enumerate(files, 1)),
            "",
            "FunctionNames",
            *(f'{i} "{name}"' for i, name in enumerate(names, 1)),
            "",
            "FileLocations",
            *(f"{i} {{file_name_id={i} function_name_id={i} line=3 column=1}}" for i in stacks),
            "",
            "StackFrames",
            *(f"{i} {{file_location_id={i} parent_frame_id={up + shift}}}" for i, up in stacks.items()),
            "",
            "ENTRY %main {",
            '  %dot.1 = f32[8] dot(%a, %b), metadata={op_name="x" stack_frame_id=5}',
            '  %fusion.2 = f32[8] fusion(%a), kind=kLoop, metadata={op_name="y" stack_frame_id=7}, x=1',
            "  %copy.3 = f32[8] copy(%a)",
            "  ROOT %tuple-of.4 = f32[8] add(%a), metadata={stack_frame_id=8}",
            "  %in_loss.5 = f32[8] add(%a), metadata={stack_frame_id=3}",
            "}",
            "",
        ]
    )


@pytest.mark.parametrize("shift", [0, 1])
def test_operations_belong_to_what_the_agent_called(shift):
    assert profiling.source_parts(program(shift)) == {
        "dot.1": "imagine",
        "fusion.2": "update",
        "tuple-of.4": ELSEWHERE,
        "in_loss.5": "loss",
    }


def test_a_program_that_does_not_say_has_no_parts():
    assert profiling.source_parts("ENTRY %main {\n  %dot.1 = f32[8] dot(%a, %b)\n}\n") == {}


def test_backwards_and_step_by_step_are_told_apart():
    names = ["jvp()/dot", "transpose(jvp())/dot", "jvp()/while/body/dot", "transpose(jvp())/while/body/dot"]
    lines = [f'  %dot.{i} = f32[8] dot(%a), metadata={{op_name="{name}"}}' for i, name in enumerate(names)]
    assert list(profiling.source_phases("\n".join(lines)).values()) == [
        "",
        ", backwards",
        ", step by step",
        ", backwards, step by step",
    ]


# Some updates


@pytest.mark.parametrize(
    "spaces", [SPACES, Spaces.of({"height": (), "arm": (2, 3)}, 4, discrete=True)], ids=["vector", "choices"]
)
def test_random_data_has_the_shapes_of_replayed_data(spaces):
    sizes, options, key = CONFIG.agent.model, CONFIG.replay, jax.random.key(0)
    memory = replay.init(spaces, 1, options.length + 1, sizes.deter, sizes.stoch, CONFIG.agent.compute)
    replayed = jax.eval_shape(lambda m: replay.sample(m, key, options.batch, options.length)[1], memory)
    batch = profiling.random_batch(CONFIG, spaces, key)
    assert specs(batch) == specs(replayed)
    if spaces.discrete:
        assert set(np.asarray(batch.prev_action.sum(-1)).ravel()) == {1.0}


def specs(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return profiling.profile(CONFIG, SPACES, tmp_path_factory.mktemp("trace"), runs=2, updates=2)


@pytest.mark.slow
def test_some_updates_are_profiled(found):
    assert found.trace.name.endswith(".trace.json.gz")
    assert found.updates == 2
    assert 1e-4 < found.seconds < 10
    total = sum(operation.seconds for operation in found.kinds)
    assert 1e-4 < total / found.updates < 10
    assert total == pytest.approx(sum(part.seconds for part in found.parts))
    assert sum(kind.count for kind in found.kinds) == sum(part.count for part in found.parts) > 200
    assert [kind.seconds for kind in found.kinds] == sorted((k.seconds for k in found.kinds), reverse=True)
    # Both updates did the same.
    assert [part.name for part in found.parts if part.count % 2] == []


@pytest.mark.slow
def test_the_time_goes_to_the_parts_of_the_agent(found):
    parts = {part.name: part.count for part in found.parts}
    assert {
        "predict, step by step",
        "predict, backwards, step by step",
        "penalties",
        "RSSM.imagine, step by step",
        "score, backwards",
        "dream_losses",
        "replay_value_loss",
    } <= parts.keys()
    assert parts["RSSM.imagine, step by step"] > 20
    assert parts.get(ELSEWHERE, 0) < 0.3 * sum(parts.values())


def test_the_tables(tmp_path):
    kinds = [Operation(f"kind {i}", 4, 0.002 * (4 - i)) for i in range(4)]
    found = Profile(2, 0.01, [Operation("imagine", 16, 0.02)], kinds, tmp_path)
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(profiling.tables(found, rows=2))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    assert [cells for cells in lines if cells] == [
        ["imagine", "8", "10.000", "100.0%"],
        ["all", "8", "10.000", ""],
        ["kind 0", "2", "4.000", "40.0%"],
        ["kind 1", "2", "3.000", "30.0%"],
        ["2 more", "4", "3.000", "30.0%"],
        ["all", "8", "10.000", ""],
    ]
