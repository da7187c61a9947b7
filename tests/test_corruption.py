"""Every file of a run folder, damaged in every way: said by name, or without any effect; never a traceback.

Without any effect means: the model has the same bits, options and spaces are the same, and the page about the
folder has the same text, or lacks what was in a file that is there no more.
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from gpld import results
from gpld.analysis import quality, rollouts, sensitivity
from gpld.config import Config, ConfigError
from gpld.display.progress import Progress
from gpld.envs import EnvironmentFailure
from gpld.files import DamagedFile
from gpld.studies import write_report
from gpld.training import CheckpointError, TrainingStopped, logs, saved, train
from gpld.training.score import Score
from gpld.types import Spaces
from tests.training.helpers import newest_checkpoint, opened, tiny

EXPLAINED = (ConfigError, CheckpointError, DamagedFile, EnvironmentFailure, TrainingStopped, OSError)
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
    """A run with two checkpoints and all that commands add to it; what it gives while it is undamaged."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    for env_steps in (200, 400):
        train(tiny(env_steps=env_steps, **QUICK), folder)
    trained = saved.load(folder)
    found = Score(trained.config.task, 400, 0, 0, [1.5, 2.5])
    found.write(folder)
    results.add_score(folder, found)
    kinds = {kind.NAME: kind.measure for kind in (sensitivity, quality)}
    rollouts.measure_all(folder, kinds, episodes=1, steps=80)
    models = {step: bits(saved.load(folder, step).model) for step in saved.steps(folder)}
    return Whole(folder, models, trained.config, trained.spaces, shown(folder), numbers(folder))


class Whole(NamedTuple):
    folder: Path
    models: dict
    config: Config
    spaces: Spaces
    page: str
    numbers: dict


def shown(folder):
    """The text of the page about a folder, wherever that is."""
    page = write_report(folder, folder.parent / "report.html").read_text()
    return page.replace(str(folder), "RUN")


def numbers(folder):
    """All numbers that are read from a run's folder, as texts."""
    tables = {name: rollouts.read_run(folder, name) for name in ("sensitivity", "quality")}
    tables |= {"results": results.load(folder).drop(columns="run"), "metrics": logs.read(folder)}
    return {name: set(map(str, table.to_dict("records"))) for name, table in tables.items()}


def outcome(act, caplog):
    """ "named" if it failed in words or said that something was damaged, else what it gave."""
    caplog.clear()
    try:
        found = act()
    except EXPLAINED:
        return "named", None
    return ("named" if caplog.messages else "silent"), found


def after(folder, path, caplog, whole):
    """What resuming, evaluating and reporting make of a damaged folder."""
    found, config = {}, tiny(env_steps=600, **QUICK)  # as the same command says it

    def evaluate():
        trained = saved.load(folder)
        assert bits(trained.model) == whole.models[trained.env_steps]
        assert (trained.config, trained.spaces) == (whole.config, whole.spaces)
        return trained.env_steps

    def resume():
        with opened(config, folder) as training:
            model = jax.tree.map(lambda x: x[0], training.state.agent.model)
            assert bits(model) == whole.models[training.env_steps]
            assert training.env.spaces == whole.spaces
            return training.env_steps

    found["report"] = outcome(lambda: (shown(folder), numbers(folder)), caplog)
    found["eval"] = outcome(evaluate, caplog)
    before = newest_checkpoint(folder)
    found["resume"] = outcome(resume, caplog)
    assert newest_checkpoint(folder) == before  # opening a run changes no checkpoint
    return found


OPTIONAL = ("scores.json", "evaluation.json", "sensitivity.csv", "quality.csv", "run.json")
"""Without one of these, a page has less in it: there might never have been one."""


def cases(folder):
    """Every file with every way to damage it; small ones with three bits."""
    for path in sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()):
        bits_of = 1 if path.parts[0] == "checkpoints" else 3
        yield from ((path, way, number) for way in WAYS for number in range(bits_of if way == "bit" else 1))


def run_cases(chosen, whole, tmp_path, caplog, monkeypatch):
    """Counts of outcomes. Those without a message have changed nothing."""
    monkeypatch.setattr("gpld.training.loop.Progress", _Quiet)
    counts, wrong, chance = {"named": 0, "silent": 0}, [], random.Random(0)
    for number, (path, way, _) in enumerate(chosen):
        copy = tmp_path / str(number) / "run"
        shutil.copytree(whole.folder, copy)
        changed = damage(copy / path, way, chance)
        for command, (how, value) in after(copy, path, caplog, whole).items():
            counts[how] += 1
            newest = path.parts[:2] == ("checkpoints", f"{400:012d}")
            if how == "silent" and not (
                (command == "report" and harmless(value, path, way, whole))
                or (command == "eval" and value == 400)
                or (command == "resume" and value == 400 and not (changed and newest))
            ):
                wrong.append((str(path), way, command))
        shutil.rmtree(tmp_path / str(number))
    assert wrong == []
    return counts


def harmless(value, path, way, whole):
    """Whether a page is that of the undamaged folder, or lacks something that is there no more."""
    if value == (whole.page, whole.numbers):
        return True
    less = {name for name, rows in value[1].items() if not rows <= whole.numbers[name]}
    # Without run.json, no result names the version that it is of.
    return way == "missing" and path.name in OPTIONAL and (not less or path.name == "run.json")


class _Quiet(Progress):
    """Shows nothing."""

    def __init__(self, *_, **__):
        self.update = self.message = lambda *_, **__: None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.slow
def test_a_sample_of_corruptions(whole, tmp_path, caplog, monkeypatch):
    chosen = random.Random(1).sample(list(cases(whole.folder)), 4)
    chosen += [(Path(saved.CONFIG), way, 0) for way in ("half", "zeros")]  # no run goes on without it
    counts = run_cases(chosen, whole, tmp_path, caplog, monkeypatch)
    assert sum(counts.values()) == 18
    assert counts["named"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_corruptions(whole, tmp_path, caplog, monkeypatch):
    every = list(cases(whole.folder))
    assert len(every) >= 300
    counts = run_cases(every, whole, tmp_path, caplog, monkeypatch)
    print(json.dumps(counts))
    assert sum(counts.values()) == 3 * len(every)


@pytest.mark.slow
def test_descriptors_stay_flat_over_starts(whole, tmp_path):
    """Opening and closing runs, and reading them, leaves nothing open."""
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    counts = []
    for _ in range(12):
        with opened(tiny(env_steps=600, **QUICK), folder):
            pass
        saved.load(folder)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert max(counts[4:]) <= counts[3] + 2
