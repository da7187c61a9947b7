"""Every file of a run folder, damaged in every way: said by name, or without any effect; never a traceback.

What is checked by checksums, the files of checkpoints, is damaged to the bit. Others (options, spaces,
metrics, records) have none: they are emptied, halved, removed, and replaced by folders and unreadable links.
"""

import json
import os
import random
import shutil

import jax
import numpy as np
import pytest

from gpld import config as options
from gpld.config import ConfigError
from gpld.envs import EnvironmentFailure
from gpld.files import DamagedFile
from gpld.studies import write_report
from gpld.training import CheckpointError, TrainingStopped, saved, train
from tests.training.helpers import newest_checkpoint, opened, tiny

TOLD = (ConfigError, CheckpointError, DamagedFile, EnvironmentFailure, TrainingStopped, OSError)
"""What the command prints as one message."""

WAYS = ("empty", "half", "zeros", "bit", "missing", "folder", "unreadable")

QUICK = {"replay": {"train_ratio": 0.001}, "eval": {"every": 100, "episodes": 2}, "seed": 3}
"""Acting alone: there is no update to compile."""


def damage(path, way, chance):
    """Damage a file; whether that changed it."""
    data = path.read_bytes()
    if way == "empty":
        path.write_bytes(b"")
    elif way == "half":
        path.write_bytes(data[: len(data) // 2])
    elif way == "zeros":  # as a file system leaves a file whose data it had not written
        path.write_bytes(bytes(len(data)))
    elif way == "bit":
        at = chance.randrange(len(data)) if data else 0
        path.write_bytes(
            data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :] if data else b""
        )
    else:
        path.unlink()
    if way == "folder":
        path.mkdir()
    if way == "unreadable":  # for root, too: a link that leads to itself
        path.symlink_to(path.name)
    return not path.is_file() or path.read_bytes() != data


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with two checkpoints, and the models that are in them."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    for env_steps in (200, 400):
        train(tiny(env_steps=env_steps, **QUICK), folder)
    return folder, {step: bits(saved.load(folder, step).model) for step in saved.steps(folder)}


def outcome(act, caplog):
    """ "named" if it failed in words or said that something was damaged, else what it gave."""
    caplog.clear()
    try:
        found = act()
    except TOLD:
        return "named", None
    return ("named" if caplog.messages else "silent"), found


def after(folder, path, caplog, models):
    """What resuming, evaluating and reporting make of a damaged folder."""
    found = {}
    config = (
        options.load(folder / "config.json") if path.name != "config.json" else tiny(env_steps=400, **QUICK)
    )

    def evaluate():
        trained = saved.load(folder)
        assert bits(trained.model) == models[trained.env_steps]
        return trained.env_steps

    def resume():
        with opened(options.override(config, {"env_steps": 600}), folder) as training:
            model = jax.tree.map(lambda x: x[0], training.live.agent.model)
            assert bits(model) == models[training.env_steps]
            return training.env_steps

    found["report"] = outcome(lambda: write_report(folder, folder.parent / "report.html"), caplog)
    found["eval"] = outcome(evaluate, caplog)
    before = newest_checkpoint(folder)
    found["resume"] = outcome(resume, caplog)
    assert newest_checkpoint(folder) == before  # opening a run changes no checkpoint
    return found


def cases(folder):
    """Every file with every way to damage it that a reader could notice."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for path in files:
        sealed = path.parts[0] == "checkpoints"
        yield from ((path, way) for way in WAYS if sealed or way != "bit")


def run_cases(chosen, whole, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("gpld.training._training.Progress", _Quiet)
    folder, models = whole
    counts, chance = {"named": 0, "silent": 0}, random.Random(0)
    for number, (path, way) in enumerate(chosen):
        copy = tmp_path / str(number) / "run"
        shutil.copytree(folder, copy)
        changed = damage(copy / path, way, chance)
        for command, (how, value) in after(copy, path, caplog, models).items():
            # Without a word, the newest checkpoint was taken as it is: its bits were compared above.
            if how == "silent" and command != "report":
                assert value == 400, (path, way, command)
            if changed and command == "resume" and path.parts[:2] == ("checkpoints", f"{400:012d}"):
                assert how == "named", (path, way, command)
            counts[how] += 1
        shutil.rmtree(tmp_path / str(number))
    return counts


class _Quiet:
    """In the place of a display."""

    def __init__(self, *_, **__):
        self.update = self.message = lambda *_, **__: None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_sample_of_corruptions(whole, tmp_path, caplog, monkeypatch):
    every = list(cases(whole[0]))
    counts = run_cases(random.Random(1).sample(every, 10), whole, tmp_path, caplog, monkeypatch)
    assert sum(counts.values()) == 30
    assert counts["named"] > 5


@pytest.mark.slow
def test_all_corruptions(whole, tmp_path, caplog, monkeypatch):
    every = list(cases(whole[0]))
    assert len(every) >= 300
    counts = run_cases(every, whole, tmp_path, caplog, monkeypatch)
    print(json.dumps(counts))
    assert sum(counts.values()) == 3 * len(every)


@pytest.mark.slow
def test_descriptors_stay_flat_over_starts(whole, tmp_path):
    """Opening and closing runs, and reading them, leaves nothing open."""
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    counts = []
    for _ in range(12):
        with opened(tiny(env_steps=600, **QUICK), folder):
            pass
        saved.load(folder)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert max(counts[4:]) <= counts[3] + 2
