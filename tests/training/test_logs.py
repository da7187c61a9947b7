import dataclasses
import io
import json
import math
import os
import re
import resource
import struct
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from gpld.config import ConfigError, LogConfig
from gpld.files import DamagedFile
from gpld.training.logs import MARK, METRICS, TIMING, UNDONE, Logs, read, show_pictures

PLAIN = LogConfig(tensorboard=False)
BOARD = LogConfig(tensorboard=True)

LINES = [
    (0, 0, {"train/return": 12.5}),
    (8, 0, {"train/return": -1 / 3}),
    (8, 2, {"eval/return": 1e-30, "eval/episodes": 3}),
    (16, 4, {"loss/total": float("nan"), "norm/gradient": float("inf")}),
    (24, 6, {"loss/total": np.float32(0.1), "train/return": float("-inf")}),
]


def write(folder, lines, config=PLAIN, resume_at=None, hyperparameters=None):
    with Logs(folder, config, hyperparameters or {}, resume_at=resume_at) as logs:
        for line in lines:
            logs.scalars(*line)
    return (folder / METRICS).read_bytes()


def after(env_steps):
    return [line for line in LINES if line[0] > env_steps]


def test_a_line_is_an_object_with_its_counts_first(tmp_path):
    text = write(tmp_path, LINES).decode()
    ends = [match.end() for match in re.finditer('"crc": "', text)]
    crcs = [f"{zlib.crc32(text[:end].encode()):08x}" for end in ends]
    assert text.splitlines()[1:3] == [
        '{"env_steps": 8, "updates": 0, "train/return": -0.3333333333333333, "crc": "' + crcs[1] + '"}',
        '{"env_steps": 8, "updates": 2, "eval/return": 1e-30, "eval/episodes": 3.0, "crc": "'
        + crcs[2]
        + '"}',
    ]
    assert text.endswith("\n")
    assert text.count("\n") == len(LINES)


def test_numbers_that_are_not_finite_are_valid_json_and_read_back(tmp_path):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    text = write(tmp_path, LINES).decode()
    rows = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    own = {name: value for name, value in rows[3].items() if name != "crc"}
    assert own == {"env_steps": 16, "updates": 4, "loss/total": "NaN", "norm/gradient": "Infinity"}
    assert rows[4]["train/return"] == "-Infinity"

    table = read(tmp_path)
    assert math.isnan(table["loss/total"][3])
    assert table["norm/gradient"][3] == math.inf
    assert table["train/return"][4] == -math.inf


def test_reading_gives_a_table_of_numbers(tmp_path):
    write(tmp_path, LINES)
    table = read(tmp_path)
    assert list(table) == [
        "env_steps",
        "updates",
        "train/return",
        "eval/return",
        "eval/episodes",
        "loss/total",
        "norm/gradient",
    ]
    assert table["env_steps"].tolist() == [0, 8, 8, 16, 24]
    assert table["updates"].dtype == np.int64
    assert {str(table[name].dtype) for name in list(table)[2:]} == {"float64"}
    assert table["eval/return"].dropna().tolist() == [1e-30]
    assert table["loss/total"][4] == float(np.float32(0.1))


def test_reading_a_run_without_lines_gives_an_empty_table(tmp_path):
    assert read(tmp_path).empty
    assert list(read(tmp_path)) == ["env_steps", "updates"]


@pytest.mark.parametrize("checkpoint", [None, 0, 8, 16, 24])
def test_a_resumed_run_has_the_bytes_of_an_uninterrupted_one(tmp_path, checkpoint):
    """Whichever byte was the last to be written after the checkpoint, of every fifth."""
    straight = write(tmp_path / "straight", LINES)
    start = -1 if checkpoint is None else checkpoint
    kept = len(straight) - sum(len(line) for line in straight.splitlines(keepends=True)[-len(after(start)) :])
    kept = len(straight) if not after(start) else kept
    folder = tmp_path / "killed"
    folder.mkdir()
    for end in {*range(kept, len(straight), 5), len(straight)}:
        (folder / METRICS).write_bytes(straight[:end])
        assert write(folder, after(start), resume_at=checkpoint) == straight


def test_lines_after_the_checkpoint_are_kept_in_another_file(tmp_path):
    straight = write(tmp_path, LINES).splitlines(keepends=True)
    with Logs(tmp_path, PLAIN, {}, resume_at=8) as logs:
        assert logs.undone == f"{len(after(8))} lines of metrics after the checkpoint are kept in {UNDONE}"
    assert (tmp_path / UNDONE).read_bytes() == b"".join(straight[-len(after(8)) :])
    with Logs(tmp_path, PLAIN, {}, resume_at=8) as logs:
        assert logs.undone == ""


def test_a_torn_line_is_not_read(tmp_path):
    straight = write(tmp_path, LINES)
    (tmp_path / METRICS).write_bytes(straight[:-4])
    assert read(tmp_path)["env_steps"].tolist() == [0, 8, 8, 16]


@pytest.mark.parametrize("damage", [b'{"env_steps": 3\n', b"\0\0\0\n", b'{"loss": 1.0}\n', b"[1]\n"])
def test_a_damaged_line_is_named_and_not_passed_over(tmp_path, damage):
    straight = write(tmp_path, LINES).splitlines(keepends=True)
    (tmp_path / METRICS).write_bytes(b"".join([*straight[:2], damage, *straight[2:]]))
    with pytest.raises(DamagedFile, match=r"metrics\.jsonl, line 3: not a line of metrics"):
        read(tmp_path)
    with pytest.raises(DamagedFile, match=r"metrics\.jsonl, line 3: not a line of metrics"):
        Logs(tmp_path, PLAIN, {}, resume_at=24)


def test_a_line_that_waited_has_the_time_when_it_was_made(tmp_path):
    with Logs(tmp_path, PLAIN, {}) as logs:
        began, clock = time.time(), time.monotonic() + 20
        logs.scalars(8, 1, {"loss": 1.0}, clock=clock)
        logs.scalars(16, 2, {"loss": 2.0}, clock=clock + 5)
    table = read(tmp_path, TIMING)
    assert table["seconds"].diff()[1] == pytest.approx(5, abs=0.01)
    assert table["time"][0] - began == pytest.approx(20, abs=1)
    assert "clock" not in read(tmp_path)


@pytest.mark.parametrize("name", [METRICS, TIMING])
def test_every_bit_that_flips_is_seen(tmp_path, name):
    write(tmp_path, LINES[:3])
    whole, before = (tmp_path / name).read_bytes(), read(tmp_path, name)
    for at in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[at // 8] ^= 1 << at % 8
        (tmp_path / name).write_bytes(changed)
        with pytest.raises(DamagedFile, match=f"{name}, line"):
            read(tmp_path, name)
    (tmp_path / name).write_bytes(whole)
    assert read(tmp_path, name).equals(before)


@pytest.mark.parametrize("sealed", [0, 2, 5])
def test_lines_of_older_versions_are_read_before_those_with_checksums(tmp_path, sealed):
    """And nothing without one after them."""
    straight = write(tmp_path / "new", LINES).splitlines(keepends=True)
    old = [re.sub(rb', "crc": "[0-9a-f]{8}"', b"", line) for line in straight]
    (tmp_path / METRICS).write_bytes(b"".join(old[: len(old) - sealed]))
    write(tmp_path, LINES[len(old) - sealed :], resume_at=24)
    assert read(tmp_path).equals(read(tmp_path / "new"))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(old[-1])
    if sealed:
        with pytest.raises(DamagedFile, match="line 6: it does not match its checksum"):
            read(tmp_path)
    else:
        assert len(read(tmp_path)) == 6


def test_lines_that_are_missing_are_seen_by_the_checkpoint(tmp_path, caplog):
    with Logs(tmp_path, PLAIN, {}) as logs:
        for line in LINES[:3]:
            logs.scalars(*line)
        mark = logs.mark()
        logs.scalars(*LINES[3])
    blobs = tmp_path / "checkpoints" / f"{8:012d}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / MARK).write_bytes(mark)
    whole = (tmp_path / METRICS).read_bytes().splitlines(keepends=True)
    assert len(read(tmp_path)) == 4
    assert caplog.messages == []
    Logs(tmp_path, PLAIN, {}, resume_at=8, mark=mark).close()

    (tmp_path / METRICS).write_bytes(b"".join(whole[:2]))
    assert len(read(tmp_path)) == 2
    (output,) = caplog.messages
    assert re.fullmatch(
        r".*metrics\.jsonl has \d+ bytes, and had \d+ at the checkpoint: lines are missing", output
    )
    with pytest.raises(DamagedFile, match=r"lines are missing\. Restore it, or move it away to continue"):
        Logs(tmp_path, PLAIN, {}, resume_at=8, mark=mark)

    (tmp_path / METRICS).unlink()
    caplog.clear()
    assert read(tmp_path).empty
    Logs(tmp_path, PLAIN, {}, resume_at=8, mark=mark).close()
    assert caplog.messages == [
        f"{tmp_path / METRICS} is missing",
        f"{tmp_path / METRICS} is missing: a new one is written",
    ]


def test_times_that_are_missing_are_told(tmp_path, caplog):
    (tmp_path / "checkpoints").mkdir()
    write(tmp_path, LINES)
    (tmp_path / TIMING).write_bytes(b"")
    write(tmp_path, [], resume_at=24)
    output = f"{tmp_path / TIMING} lacks 5 lines that metrics.jsonl has: times are not known"
    assert caplog.messages == [output]
    read(tmp_path, TIMING)
    assert caplog.messages == [output, output]


def test_times_are_beside_the_metrics_and_remember_work_that_was_undone(tmp_path):
    write(tmp_path, LINES)
    torn = (tmp_path / TIMING).read_bytes() + b'{"env_steps": 3'
    (tmp_path / TIMING).write_bytes(torn)
    write(tmp_path, after(8), resume_at=8)

    table = read(tmp_path, TIMING)
    assert list(table) == ["env_steps", "updates", "seconds", "time"]
    assert table["env_steps"].tolist() == [0, 8, 8, 16, 24, 16, 24]
    assert (table["seconds"] >= 0).all()
    assert table["time"].is_monotonic_increasing
    assert b"time" not in (tmp_path / METRICS).read_bytes()


@contextmanager
def file_limit(size):
    """Files of this process cannot grow beyond `size`, as on a disk that is full."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_is_an_error_that_names_the_file_and_earlier_lines_are_kept(tmp_path):
    straight = write(tmp_path / "straight", LINES)
    logs = Logs(tmp_path, PLAIN, {})
    for line in LINES[:3]:
        logs.scalars(*line)
    with file_limit((tmp_path / METRICS).stat().st_size + 10), pytest.raises(OSError, match=METRICS):
        logs.scalars(*LINES[3])
    logs.close()
    assert read(tmp_path)["env_steps"].tolist() == [0, 8, 8]
    assert write(tmp_path, after(8), resume_at=8) == straight


def test_a_full_disk_stops_tensorboard_with_an_error_too(tmp_path):
    logs = Logs(tmp_path, BOARD, {})
    logs.flush()
    written = next(tmp_path.glob("events*")).stat().st_size
    logs.scalars(8, 1, {"loss/total": 1.0})
    with file_limit(written + 10), pytest.raises(OSError, match=tmp_path.name):
        logs.flush()
    logs.close()


def events(folder):
    """All events of a folder's files in the order TensorBoard reads them, with their checksums checked."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,), (header_sum,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
            body, (body_sum,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
            assert (header_sum, body_sum) == (masked_crc32c(data[:8]), masked_crc32c(body))
            yield Event.FromString(body)
            data = data[16 + length :]


def board(folder):
    """What TensorBoard shows: (tag, step) to values. A session's start purges points from its step on."""
    points = []
    for event in events(folder):
        if event.HasField("session_log"):
            points = [point for point in points if point[1] < event.step]
        points += [
            (v.tag, event.step, v.simple_value) for v in event.summary.value if v.HasField("simple_value")
        ]
    return points


def test_tensorboard_shows_the_values_by_env_steps(tmp_path):
    write(tmp_path, LINES, BOARD)
    points = board(tmp_path)
    assert points[:2] == [("updates", 0, 0.0), ("train/return", 0, 12.5)]
    assert [step for tag, step, _ in points if tag == "updates"] == [0, 8, 8, 16, 24]
    assert ("eval/episodes", 8, 3.0) in points
    assert ("loss/total", 24, float(np.float32(0.1))) in points
    assert ("norm/gradient", 16, math.inf) in points


def test_tensorboard_forgets_what_a_resume_undoes(tmp_path):
    """Also when both starts are within a second, which is all that names of event files tell."""
    write(tmp_path / "straight", LINES[:3] + LINES[4:], BOARD)
    killed = [*LINES[:3], (16, 4, {"loss/total": 5.0}), (20, 5, {"loss/total": 6.0})]
    write(tmp_path / "killed", killed, BOARD)
    write(tmp_path / "killed", LINES[4:], BOARD, resume_at=8)
    assert len(list((tmp_path / "killed").glob("events*"))) == 2
    assert board(tmp_path / "killed") == board(tmp_path / "straight")

    write(tmp_path / "killed", LINES[:1], BOARD)
    assert board(tmp_path / "killed") == [("updates", 0, 0.0), ("train/return", 0, 12.5)]


def test_tensorboard_has_the_hyperparameters(tmp_path):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    options = {"task": "walker-walk", "agent.penalty.rho": 0.5, "replay.online": True, "custom": ((0, 1.0),)}
    write(tmp_path, [], BOARD, hyperparameters=options)
    values = {v.tag: v for event in events(tmp_path) for v in event.summary.value}
    content = values["_hparams_/session_start_info"].metadata.plugin_data.content
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert found["task"].string_value == "walker-walk"
    assert found["agent.penalty.rho"].number_value == 0.5
    assert found["replay.online"].bool_value is True
    assert found["custom"].string_value == "((0, 1.0),)"


def test_tensorboard_shows_pictures_beside_the_values(tmp_path):
    write(tmp_path, LINES[:3], BOARD)
    points, moving, still = board(tmp_path), tmp_path / "film.gif", tmp_path / "film.png"
    frames = [Image.new("RGB", (30, 20), (shade, 0, 0)) for shade in (0, 200)]
    frames[0].save(moving, save_all=True, append_images=frames[1:])
    frames[1].save(still)
    for step in (8, 24, 24):  # again, which replaces the last
        show_pictures(tmp_path, step, {"films/film": moving, "films/frames": still})
    shown = [(e.step, v) for e in events(tmp_path) for v in e.summary.value if v.HasField("image")]
    found = {(step, value.tag): value.image for step, value in shown}
    assert len(shown) == len(found) == 4  # in any order: that of files of one second is no matter
    for (step, name), image in found.items():
        assert step in (8, 24)
        assert (image.width, image.height, image.colorspace) == (30, 20, 3)
        file = {"films/film": moving, "films/frames": still}[name]
        assert image.encoded_image_string == file.read_bytes()
    assert board(tmp_path) == points


def test_tensorboard_plays_films_while_a_run_is_under_way(tmp_path):
    def film(count, shade):
        return [np.full((16, 24, 3), (shade, i % 250, 0), np.uint8) for i in range(count)]

    def shown():
        found = []
        for event in events(tmp_path):
            if event.HasField("session_log"):  # which purges, as with points
                found = [each for each in found if each[0] < event.step]
            found += [(event.step, v.tag, v.image) for v in event.summary.value if v.HasField("image")]
        return found

    with Logs(tmp_path, BOARD, {}) as logs:
        logs.films(8, {"films/image": film(3, 10)})
        logs.films(16, {"films/image": film(3, 20)})
    with Logs(tmp_path, BOARD, {}, resume_at=8) as logs:
        logs.films(16, {"films/image": film(250, 30), "films/other": film(2, 40)})
    found = shown()
    assert [(step, name) for step, name, _ in found] == [
        (8, "films/image"),
        (16, "films/image"),
        (16, "films/other"),
    ]
    for _, _, image in found:
        assert (image.width, image.height, image.colorspace) == (24, 16, 3)
    for (_, _, image), expected in zip(found, [(3, 10), (100, 30), (2, 40)], strict=True):
        with Image.open(io.BytesIO(image.encoded_image_string)) as gif:
            assert (gif.format, gif.n_frames, gif.convert("RGB").getpixel((0, 0))[0]) == ("GIF", *expected)
    assert [row for row in board(tmp_path) if row[0] != "updates"] == []


def test_without_tensorboard_there_are_no_event_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    write(tmp_path, LINES)
    with Logs(tmp_path, PLAIN, {}) as logs:
        logs.films(8, {"films/image": [np.zeros((16, 16, 3), np.uint8)]})
    assert sorted(os.listdir(tmp_path)) == [METRICS, UNDONE, TIMING]


def test_tensorboard_does_not_load_pytorch(tmp_path):
    pytest.importorskip("torch")
    code = f"""
import sys
from pathlib import Path
from gpld.config import LogConfig
from gpld.training.logs import Logs
with Logs(Path({str(tmp_path)!r}), LogConfig(), {{}}) as logs:
    logs.scalars(8, 2, {{"a": 1.0}})
assert "torch" not in sys.modules
import torch
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ("a", 8, 1.0) in board(tmp_path)


@pytest.mark.parametrize(
    ("config", "module", "message"),
    [
        (BOARD, "tensorboardX", r"log\.tensorboard: needs tensorboardX, .* pip install tensorboardX"),
        (LogConfig(tensorboard=False, wandb=True), "wandb", r"log\.wandb: needs wandb, .*'wandb>=0\.18'"),
    ],
)
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, config, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=message):
        Logs(tmp_path, config, {})


def test_weights_and_biases_gets_one_run_for_all_starts(tmp_path, monkeypatch):
    calls = []

    def init(**options):
        calls.append(("init", options))
        return SimpleNamespace(
            log=lambda values, step: calls.append(("log", step, values)),
            finish=lambda: calls.append(("finish",)),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    folder, config = tmp_path / "walker-walk-seed3", LogConfig(tensorboard=False, wandb=True)
    write(folder, LINES[:3], config, hyperparameters={"seed": 3})
    write(folder, LINES[4:], config, resume_at=8, hyperparameters={"seed": 3})

    first, second = (options for name, options in (c for c in calls if c[0] == "init"))
    assert first == second
    assert first["config"] == {"seed": 3}
    assert (first["name"], first["resume"]) == ("walker-walk-seed3", "allow")
    assert (first["project"], first["entity"]) == ("gpld", None)
    assert calls[3] == ("log", 8, {"updates": 2, "eval/return": 1e-30, "eval/episodes": 3.0})
    assert [c[0] for c in calls] == ["init", "log", "log", "log", "finish", "init", "log", "finish"]

    names = {"wandb_project": "smooth", "wandb_entity": "lab", "wandb_name": "third"}
    write(folder, LINES[4:], dataclasses.replace(config, **names), resume_at=8)
    assert {key: calls[-3][1][key] for key in ("project", "entity", "name")} == {
        "project": "smooth",
        "entity": "lab",
        "name": "third",
    }
