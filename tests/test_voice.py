"""What libraries and environments do wrong is said in words, with what to do about it."""

import ast
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import gpld
from gpld import cli, config as options, envs, memory
from gpld.config import ConfigError
from gpld.doctor import _examine
from gpld.envs import EnvironmentFailure, _dm_control, _make
from gpld.envs._base import RenderingError
from gpld.films import _films, command
from gpld.training import evaluation, saved
from gpld.types import Spaces
from tests.training.helpers import Pole, tiny

ZERO = np.zeros((1, 1), np.float32)


@pytest.mark.parametrize("pixels", [True, False])
def test_an_engine_that_cannot_be_made(monkeypatch, pixels):
    """PyOpenGL without its library raises an AttributeError when dm_control is imported."""

    def broken(*_, **__):
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    for stream in ("DMControlStream", "DMControlPixels"):
        monkeypatch.setattr(_make, stream, broken)
    monkeypatch.setattr(_dm_control, "renderers", lambda: iter(["egl"]))
    with pytest.raises(EnvironmentFailure, match=r"^cartpole-balance cannot be made here: ") as message:
        envs.make("cartpole-balance", count=1, seed=0, backend="dm_control", pixels=pixels)
    assert "glGetError" in str(message.value)
    assert ("MUJOCO_GL=osmesa is set but does not work here" in str(message.value)) == pixels
    assert str(message.value).endswith("; unset it, EGL works") == pixels


def test_what_cannot_be_drawn_is_not_tried_again(caplog):
    def fail(env):
        raise RenderingError("MUJOCO_GL=egl does not work here")

    with envs.make(lambda: Pole(fail), count=1, seed=0, check=False) as env:
        env.step(ZERO)
        with pytest.raises(RenderingError, match=r"^MUJOCO_GL=egl does not work here$"):
            env.step(ZERO)
    assert caplog.messages == []


def leave(env):
    sys.exit(3)


def test_an_environment_that_calls_exit_is_a_fault():
    with envs.make(lambda: Pole(leave), count=1, seed=0, check=False) as env:
        env.step(ZERO)
        assert env.step(ZERO).is_last.all()
    assert [fault.reason for fault in env.faults] == ["SystemExit: 3"]


class Rich(Pole):
    """Gives a reward."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def step(self, action):
        return super().step(action)[0], self.reward, False, False, {}


@pytest.mark.parametrize(("reward", "fine"), [(1e30, True), (3e38, False), (1e39, False), (1e300, False)])
@pytest.mark.filterwarnings("error")
def test_rewards_beyond_what_is_kept_are_faults(reward, fine):
    with envs.make(lambda: Rich(reward), count=1, seed=0, check=False) as env:
        env.step(ZERO)
        step = env.step(ZERO)
    assert np.isfinite(step.reward).all()
    assert [fault.reason for fault in env.faults] == ([] if fine else [f"ValueError: reward is {reward}"])


@pytest.mark.filterwarnings("error")
def test_large_rewards_are_summed_without_a_warning():
    from gpld.training._episodes import EpisodeStatistics

    with envs.make(lambda: Rich(1e30), count=1, seed=0, check=False) as env:
        statistics = EpisodeStatistics.zeros(1, 1)
        for _ in range(5):
            step = env.step(ZERO)
            statistics = statistics.add_step(
                type(step)(*[x[None] if not isinstance(x, dict) else x for x in step])
            )
    assert statistics.running.item() == pytest.approx(8e30)


class Endless(gymnasium.Wrapper):
    """Never ends an episode."""

    def step(self, action):
        obs, reward, _, _, info = self.env.step(action)
        return obs, reward, False, False, info


def test_an_episode_that_never_ends_is_ended_by_the_limit(small_run, caplog):
    trained, seen = saved.load(small_run), []
    config = options.override(trained.config, {"eval": {"limit": 7}})
    given = {"episodes": 2, "number": 0, "key": jax.random.key(0), "task": lambda: Endless(Pole())}
    played = evaluation.evaluate(config, trained.model, **given, watch=seen.append)
    assert (len(seen), len(played)) == (7, 2)
    assert caplog.messages == [
        "2 of 2 episodes did not end in 7 agent steps (eval.limit): their returns so far are used"
    ]


def test_an_evaluation_heeds_signals_and_says_how_far_it_is():
    message, received = [], []
    watch = command._Watch(2, lambda: received[0] if received else None, message.append)
    step = envs.Step({}, np.zeros((1, 2)), *np.zeros((2, 1, 2), bool), np.zeros((1, 2), bool))
    for _ in range(100):
        watch(step._replace(is_last=np.array([[True, False]])))
    assert message == ["playing: 1 of 2 episodes ended in 100 agent steps"]
    received.append(signal.SIGTERM)
    with pytest.raises(
        command._EvaluationInterrupted, match="1 of 2 episodes ended in 101 agent steps; nothing was"
    ):
        watch(step)


@pytest.mark.parametrize(
    "command",
    [["eval", "--episodes", "1"], ["sensitivity", "--out", "x"], ["quality", "--out", "x"]],
    ids=lambda command: command[0],
)
def test_a_module_that_a_folder_names_is_told_and_can_be_refused(
    small_run, tmp_path, capsys, monkeypatch, command
):
    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)
    config = dataclasses.replace(options.load(folder / "config.json"), task="gym:planted:Name-v0")
    options.save(config, folder / "config.json")
    (tmp_path / "planted.py").write_text("raise SystemError('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    name, *options_of = command
    assert cli.main([name, str(folder), *options_of, "--no-import"]) == 2
    assert "planted, which --no-import forbids" in capsys.readouterr().err
    assert "planted" not in sys.modules
    with pytest.raises(SystemError, match="it ran"):
        cli.main([name, str(folder), *options_of])
    out = capsys.readouterr().out
    assert f"importing the module planted, which {folder} names; this runs its code" in out


def test_a_report_tells_of_modules_that_its_films_need(tmp_path, monkeypatch, capsys):
    """The process that draws would import it: it is announced, or not even started."""
    monkeypatch.setattr(_films.subprocess, "run", lambda *_, **__: pytest.fail("it was started"))
    with envs.opening("there", imports=False), pytest.raises(ConfigError, match="--no-import forbids"):
        _films.in_own_process("film", (), "gym:planted:Name-v0", 1.0)
    started = []
    monkeypatch.setattr(
        _films.subprocess, "run", lambda *_, **__: started.append(capsys.readouterr().out) or 1 / 0
    )
    with envs.opening("there"), pytest.raises(ZeroDivisionError):
        _films.in_own_process("film", (), "gym:planted:Name-v0", 1.0)
    assert started == [
        "importing the module planted, which there names; this runs its code (--no-import forbids it)\n"
    ]


def test_reports_take_the_option(small_run, tmp_path, monkeypatch):
    seen = []

    def write(*_):
        with pytest.raises(ConfigError, match="no-import"):
            envs.announce("gym:planted:Name-v0")
        seen.append(True)
        return tmp_path

    monkeypatch.setattr("gpld.studies._show.write_report", write)
    assert cli.main(["report", str(small_run), "--no-import"]) == 0
    assert seen == [True]


def test_modules_that_are_not_named_in_the_code_are_imported_in_one_place_only():
    package = Path(gpld.__file__).parent
    places = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if imports(path)}
    # Training imports what writes its logs, by names that are in the code, too.
    assert {place for place in places if not place.startswith("training/")} == {"envs/_imports.py"}


def imports(path):
    """Whether a file imports or runs something whose name is not written there."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {"import_module", "__import__", "exec", "eval", "run_module", "run_path"}
    return any(
        getattr(call.func, "attr", getattr(call.func, "id", "")) in names
        and not (call.args and isinstance(call.args[0], ast.Constant))
        for call in calls
    )


def test_more_episodes_than_memory_are_refused_with_how_many_fit():
    with pytest.raises(ConfigError, match=r"^episodes: 1000 is not allowed here; .* at most 146$"):
        memory.check_evaluation(1000, 2**31)
    memory.check_evaluation(146, 2**31)


def refused():
    """Values of MUJOCO_GL that do not draw on this machine, and what does."""
    works = list(_dm_control.renderers())
    return [name for name in ("osmesa", "egl", "crayons") if name not in works], works


@pytest.fixture(scope="module")
def real():
    return refused()


def told_of(name, works):
    return rf"MUJOCO_GL={name} is set but does not work here \(.+\); " + (
        f"unset it, {works[0].upper()} works" if works else "neither EGL nor OSMesa works here"
    )


@pytest.mark.slow
def test_training_from_pixels_where_the_real_renderer_fails(real, tmp_path):
    """In processes of their own: dm_control asks for its renderer once, when it is imported."""
    for name in real[0]:
        out = tmp_path / "runs" / name
        command = [sys.executable, "-m", "gpld", "train", "cartpole-balance", "--preset", "nano", "cpu"]
        command += ["--env.pixels", "--env-steps", "6000", "--eval.every", "300", "--out", str(out)]
        done = subprocess.run(command, env=os.environ | {"MUJOCO_GL": name}, capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert re.match(rf"gpld train: cartpole-balance cannot be made here: {told_of(name, real[1])}", line)
        assert not (tmp_path / "runs").exists()  # nothing was begun, so nothing is left


@pytest.mark.slow
def test_filming_where_the_real_renderer_fails(real, small_run, tmp_path, monkeypatch, capsys):
    for name in real[0]:
        monkeypatch.setenv("MUJOCO_GL", name)
        out = tmp_path / name
        assert cli.main(["eval", str(small_run), "--episodes", "1", "--video", "--out", str(out)]) == 1
        shown = capsys.readouterr()
        assert f"written to {out / 'evaluation.json'}" in shown.out
        (line,) = shown.err.strip().splitlines()
        assert re.match(rf"gpld eval: no film: .*{told_of(name, real[1])}", line)


@pytest.mark.slow
def test_the_doctor_where_the_real_renderer_fails(real, monkeypatch):
    for name in [*real[0], "off"]:
        monkeypatch.setenv("MUJOCO_GL", name)
        names = dict.fromkeys([*_examine.GL_BACKENDS, _examine._chosen_backend()])
        results = {each: _examine._probe(f"gl {each}", {"MUJOCO_GL": each}) for each in names}
        first = next(iter(_examine._rendering(results)))
        assert first.detail.startswith(f"MUJOCO_GL={name} is set but does not work: ")
        assert first.remedy.startswith("unset MUJOCO_GL")


@pytest.mark.parametrize("every", [100, 0])
def test_the_memory_of_evaluations_is_part_of_what_training_needs(every):
    config = tiny(eval={"every": every, "episodes": 1000})
    estimate = memory.memory_estimate(config, Spaces.of({"arm": (3,)}, actions=2))
    assert estimate.evaluation == (1000 * memory.ENVIRONMENT if every else 0)
    given = (config, estimate, 1, 1, 2**31, 2**31)
    if every:
        with pytest.raises(ConfigError, match=r"^eval\.episodes: 1000 is not allowed here; .* at most 146$"):
            memory.fit(*given)
    else:
        assert memory.fit(*given).groups == [1]


@pytest.mark.parametrize("works", [["egl"], []])
def test_the_doctor_sees_what_the_variable_asks_for(monkeypatch, works):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    results = {name: _examine._ProbeResult(name in works, "said") for name in ("egl", "osmesa", "glfw")}
    first = next(iter(_examine._rendering(results)))
    assert first.detail == "MUJOCO_GL=osmesa is set but does not work: said"
    assert first.remedy == "unset MUJOCO_GL" + (", or set it to egl" if works else "")


MODULE = """
import os
import gymnasium
from gpld.types import Spaces
from tests.training.helpers import Pole, tiny

class Endless(Pole):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}

class Leaves(Pole):
    left = 60

    def step(self, action):
        Leaves.left -= 1
        if not Leaves.left:
            os._exit(7)
        return super().step(action)

gymnasium.register("Endless-v0", Endless)
gymnasium.register("Leaves-v0", Leaves)
"""


@pytest.fixture
def module(tmp_path, small_run):
    """What processes see that use the module, and copies of a run, as if it had been trained on it."""
    (tmp_path / "worst.py").write_text(MODULE)
    for name in ("Endless", "Leaves"):
        shutil.copytree(small_run, tmp_path / name)
        config = dataclasses.replace(
            options.load(small_run / "config.json"), task=f"gym:worst:{name}-v0", backend="auto"
        )
        options.save(config, tmp_path / name / "config.json")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(gpld.__file__).parent.parent)])
    }


@pytest.mark.slow
def test_an_evaluation_that_never_ends_is_ended_by_sigterm(module, tmp_path):
    command = [sys.executable, "-m", "gpld", "eval", str(tmp_path / "Endless"), "--episodes", "1"]
    with subprocess.Popen(
        command, env=module, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        time.sleep(15.0)  # it has begun, or hears the signal as soon as it begins
        assert run.poll() is None
        began = time.monotonic()
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=60)
        assert time.monotonic() - began < 5
    assert run.returncode == 143
    assert re.fullmatch(r"gpld eval: interrupted when 0 of 1 episodes .*; nothing was written\n", errors)
    assert not (tmp_path / "Endless" / "evaluation.json").exists()


@pytest.mark.slow
def test_a_process_that_an_environment_ends_is_told_of(module, tmp_path):
    folder = str(tmp_path / "Leaves")
    train = ["train", "gym:worst:Leaves-v0", "--preset", "nano", "cpu", "--out", str(tmp_path / "new")]
    for arguments, more in (
        (["eval", folder], ""),
        (train, "; the same command resumes from the last checkpoint"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gpld", *arguments], env=module, capture_output=True, text=True
        )
        assert done.returncode == 7
        assert done.stderr.splitlines()[-1] == f"gpld {arguments[0]}: {cli.DEATH}{more}"
