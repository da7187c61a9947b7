"""Whatever is done to a folder of runs, in whatever order, no run's newest checkpoint ever goes back.

Training is a stand-in that counts; folders, locks, plans, checkpoints, milestones and logs are the real ones.
A kill is a copy of all folders at the moment of a rename, with which the history goes on.
"""

import os
import shutil
import tempfile
import threading
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpld import population, replay as rp
from gpld.memory import Fit
from gpld.training import _groups, loop, train_all
from gpld.training.checkpoints import (
    Checkpoints,
    _trees,
    milestones,
    newest_good,
    restore_all,
    save_all,
    saved_steps,
)
from gpld.training.logs import Logs
from gpld.training.saved import CHECKPOINTS
from gpld.types import Spaces
from tests.training.helpers import lines, tiny

SPACES = Spaces.of({"arm": (3,)}, actions=2)
STEP = 8
"""Env steps of one iteration of the tiny run."""
RUNS = [("gpld", 0), ("gpld", 1), ("dreamerv3", 0)]


class Killed(BaseException):
    """The process is no more."""


def state(seed, k):
    """What a run has learned after k iterations."""
    return {"x": np.full(3, 1000 * seed + k, np.float32), "key": np.uint32([seed, k])}


def memory(k):
    """A replay that was given k steps in each of four streams."""
    empty = rp.init(SPACES, 4, 16, 4, 2, "bfloat16", "host")
    if not k:
        return empty
    held = range(max(k - 16, 0), k)
    rows = np.broadcast_to(np.arange(held.start, k, dtype=np.float32)[None, :, None], (4, len(held), ROW))
    latents = {"h": np.zeros((4, len(held), 4), np.uint16), "z": np.zeros((4, len(held), 2), np.uint8)}
    return rp.restore(empty, held.start, np.ascontiguousarray(rows), latents, k)


ROW = rp.init(SPACES, 4, 16, 4, 2, "bfloat16", "host").steps.shape[-1]


class Counting:
    """In the place of `Training`."""

    stop_after, killed = 10**6, threading.Event()

    def __init__(self, group, shared, *, task=None, devices=0):
        self.members, self.shared = group.members, shared
        self.iterations = 0
        self.progress = SimpleNamespace(message=lambda text: None)
        self.stack = ExitStack()
        folders = [member.folder for member in self.members]
        self.checkpoints = [
            self.stack.enter_context(Checkpoints(folder / CHECKPOINTS, keep=shared.checkpoint.keep))
            for folder in folders
        ]
        if not group.fresh:
            likes = [state(0, 0) for _ in folders]
            found = restore_all(self.checkpoints, likes, [memory(0) for _ in folders])
            self.iterations = found[0].info["k"]
            for member, run in zip(self.members, found, strict=True):
                expected = state(member.config.seed, self.iterations)
                assert all((run.arrays[name] == value).all() for name, value in expected.items())
                np.testing.assert_array_equal(run.replay.steps, memory(self.iterations).steps)
        self.logs = []
        for member in self.members:
            milestones.set_aside(member.folder, after=self.env_steps)
            log = Logs(member.folder, member.config.log, {}, resume_at=self.env_steps or None)
            self.logs.append(self.stack.enter_context(log))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stack.close()

    @property
    def env_steps(self):
        return STEP * self.iterations

    @property
    def finished(self):
        return self.reached()

    evaluating = False

    def reached(self, until=None):
        return self.env_steps >= self.shared.env_steps

    def end_evaluation(self):
        pass

    def advance(self):
        if self.killed.is_set():
            raise Killed
        self.iterations += 1
        for log in self.logs:
            log.scalars(self.env_steps, self.iterations, {"x": self.iterations})
        if self.iterations % 4 == 0:
            models = [state(member.config.seed, self.iterations) for member in self.members]
            stacked = jax.tree.map(lambda *x: np.stack(x), *models)
            folders = [member.folder for member in self.members]
            milestones.save(folders, self.env_steps, stacked, updates=self.iterations)
        if self.iterations % 3 == 0:
            self.save()

    def save(self):
        for log in self.logs:
            log.flush()
        models = [state(member.config.seed, self.iterations) for member in self.members]
        replays = [memory(self.iterations) for _ in self.members]
        save_all(
            self.checkpoints,
            self.env_steps,
            jax.tree.map(lambda *x: np.stack(x), *models),
            jax.tree.map(lambda *x: np.stack(x), *replays),
            own=[{} for _ in self.members],
            blobs=[{"env": b"state"} for _ in self.members],
            info={"k": self.iterations},
        )


def write_arrays(folder, values):
    """In the place of Orbax, which takes longer."""
    folder.mkdir()
    np.savez(folder / "arrays.npz", **values)


def read_arrays(folder, like, keys):
    with np.load(folder / "arrays.npz") as arrays:
        return {name: arrays[name] for name in like}


class Histories(RuleBasedStateMachine):
    """Commands on one folder of runs."""

    @initialize()
    def begin(self):
        self.stack = ExitStack()
        self.parent = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.number, self.root = 0, self.parent / "0"
        self.root.mkdir()
        self.newest, self.goal = {}, {}
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(loop, "Training", Counting)
        patch.setattr(loop, "make_env", lambda *_, **__: nullcontext(SimpleNamespace(spaces=SPACES)))
        patch.setattr(_groups, "memory_estimate", lambda *_: None)
        patch.setattr(
            _groups, "fit", lambda config, estimate, runs, *_: Fit([runs], "host", "memory: enough")
        )
        patch.setattr(_trees, "write", write_arrays)
        patch.setattr(_trees, "read", read_arrays)
        patch.setattr(os, "fsync", lambda descriptor: None)
        self.replaced = os.replace
        patch.setattr(os, "replace", self.replace)
        self.countdown, self.turn = None, threading.RLock()

    def replace(self, old, new):
        """`os.replace`, and at the chosen one of them the kill."""
        with self.turn:
            if self.countdown is not None and str(old).startswith(str(self.root)):
                self.countdown -= 1
                if self.countdown == 0:
                    # Others may be writing: what vanishes meanwhile was not there when the kill came.
                    with suppress(shutil.Error):
                        shutil.copytree(self.root, self.parent / str(self.number + 1))
                    Counting.killed.set()
            self.replaced(old, new)

    @rule(
        runs=st.lists(st.sampled_from(RUNS), min_size=1, unique=True),
        more=st.integers(0, 8),
        kill=st.none() | st.integers(1, 60),
    )
    def command(self, runs, more, kill):
        """`gpld train` with some seeds and methods, to its end or killed."""
        goal = max([80, *(self.goal.get(run, 0) for run in runs)]) + STEP * more
        config = tiny(env_steps=goal, agent={"penalty": {"posterior": 0.5}})
        members = [population.members(config, [seed], [method], self.root)[0] for method, seed in runs]
        self.goal |= dict.fromkeys(runs, goal)
        self.countdown = kill
        try:
            results = train_all(members)
        except Killed:
            pass
        else:
            if not Counting.killed.is_set():
                assert all(result.finished for result in results)
                for member in members:
                    found = [line["env_steps"] for line in lines(member.folder)]
                    assert found == list(range(STEP, goal + 1, STEP))
        self.countdown = None
        if Counting.killed.is_set():
            Counting.killed.clear()
            self.number += 1
            shutil.rmtree(self.root)
            self.root = self.parent / str(self.number)

    @rule(run=st.sampled_from(RUNS), which=st.integers(0, 20))
    def damage(self, run, which):
        """One file of a newest checkpoint loses its bytes: that run alone goes back, to the one before."""
        folder = self.root / f"{run[0]}-seed{run[1]}" / CHECKPOINTS
        steps = saved_steps(folder)
        if len(steps) < 2:
            return
        files = sorted(path for path in (folder / f"{steps[-1]:012d}").rglob("*") if path.is_file())
        files[which % len(files)].write_bytes(b"")
        self.newest[folder.parent.name] = newest_good(folder)

    @invariant()
    def nothing_went_back(self):
        """No run's newest good checkpoint is below what it ever was, but for damage to it."""
        if not hasattr(self, "root"):
            return
        for folder in self.root.iterdir():
            newest = newest_good(folder / CHECKPOINTS)
            assert newest >= self.newest.get(folder.name, 0), folder.name
            self.newest[folder.name] = newest

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()


@pytest.mark.parametrize(
    ("histories", "steps"), [(4, 6), pytest.param(200, 8, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_history_loses_a_step(histories, steps, caplog, capsys):
    checks = list(HealthCheck)
    Histories.TestCase.settings = settings(
        max_examples=histories, stateful_step_count=steps, deadline=None, suppress_health_check=checks
    )
    Histories.TestCase("runTest").runTest()
