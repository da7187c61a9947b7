"""Names, backends, seeds and the list of tasks."""

import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from gpld.envs import EnvironmentFailure, choose, make, tasks, tasks_table
from gpld.envs._base import ActionScale, stream_seed
from gpld.tasks import DMC
from tests.envs.custom import Counter


def test_the_catalog_is_the_benchmark_and_one_more():
    assert [task.name for task in tasks()] == [*DMC, "ball_in_cup-catch"]
    assert {task.group for task in tasks()} == {"proprio", "quadruped", "extra"}
    walker = next(task for task in tasks() if task.name == "walker-walk")
    assert dict(walker.spaces.obs) == {"height": (), "orientations": (14,), "velocity": (9,)}
    assert walker.spaces.actions == 6


def test_table_has_a_line_for_each_task():
    console = Console(width=80, file=io.StringIO())
    console.print(tasks_table())
    text = console.file.getvalue()
    for task in tasks():
        (line,) = [line for line in text.splitlines() if f" {task.name} " in line]
        assert line.split("│")[4].strip() == str(task.spaces.actions)
    assert " 78 " in next(line for line in text.splitlines() if "quadruped-run" in line)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("walker-wlak", r"task 'walker-wlak' is not known: did you mean walker-walk"),
        ("walker", r"task 'walker' is not known: did you mean walker-"),
        ("Pendulum-v1", r"did you mean gym:Pendulum-v1"),
        ("", r"task '' is not known: `gpld tasks`"),
        (
            "gym:nowhere:Pole-v0",
            r"task 'gym:nowhere:Pole-v0' is not known: No module named 'nowhere'; is nowhere installed, or "
            r"its folder in PYTHONPATH\?$",
        ),
        ("gym:pendulum", r"Environment `pendulum` doesn't exist; did you mean gym:Pendulum-v1 or .*\?$"),
        ("gym:crafter", r"doesn't exist; did you mean gym:gpld.envs.crafter:Crafter-v1\?$"),
        ("gym:Nothing-v0", r"task 'gym:Nothing-v0' is not known: Environment `Nothing` doesn't exist"),
    ],
)
def test_unknown_tasks_are_told_by_name(task: str, message: str):
    with pytest.raises(ValueError, match=message):
        make(task, count=1, seed=0)


def test_a_module_that_registers_its_environments_is_imported_by_the_task_s_name(tmp_path, monkeypatch):
    register = "gymnasium.register('OfAReader-v0', Counter)"
    lines = ["import gymnasium", "from tests.envs.custom import Counter", register]
    (tmp_path / "of_a_reader.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with make("gym:of_a_reader:OfAReader-v0", count=2, seed=0) as env:
        assert dict(env.spaces.obs) == {"time.now": (), "where": (2,)}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("count", 0, "count must be at least 1, not 0"),
        ("seed", -1, "seed must be at least 0, not -1"),
        ("action_repeat", 0, "action_repeat must be at least 1, not 0"),
        ("threads", -2, "threads must be at least 0, not -2"),
        ("share", 0, "share must be at least 1, not 0"),
    ],
)
def test_options_out_of_range_are_told_by_name(option: str, value: int, message: str):
    with pytest.raises(ValueError, match=message):
        make("walker-walk", **({"count": 1, "seed": 0} | {option: value}))


def test_backends_are_chosen_by_machine_and_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpld.envs._make.has_envpool", lambda: True)
    monkeypatch.setattr("gpld.envs._make._envpool_works", lambda: True)
    assert choose("walker-walk") == "envpool"
    assert choose("walker-walk", render=True) == "dm_control"
    assert choose("fish-swim") == "dm_control"
    assert choose("gym:Pendulum-v1") == choose(Counter) == "gymnasium"
    with pytest.raises(ValueError, match="'envpool' has no task 'fish-swim', only acrobot-swingup, "):
        choose("fish-swim", "envpool")
    with pytest.raises(ValueError, match="does not render"):
        choose("walker-walk", "envpool", render=True)
    assert choose("envpool:Ant-v4") == choose("envpool:Ant-v4", render=True) == "envpool"
    wrong = (
        ("walker-walk", "gymnasium"),
        ("gym:Pendulum-v1", "dm_control"),
        ("envpool:Ant-v4", "dm_control"),
    )
    for task, backend in wrong:
        with pytest.raises(ValueError, match=f"^backend: '{backend}' is not allowed; .* for {task}"):
            choose(task, backend)
    with pytest.raises(
        ValueError, match=r"^backend: 'x' is not allowed; it must be auto, envpool or dm_control for"
    ):
        choose("walker-walk", "x")
    monkeypatch.setattr("gpld.envs._make.has_envpool", lambda: False)
    assert choose("walker-walk") == "dm_control"
    with pytest.raises(
        ValueError, match=r"^backend 'envpool' is not installed: pip .*, or use 'dm_control'$"
    ):
        choose("walker-walk", "envpool")
    with pytest.raises(ValueError, match=r"'envpool:Ant-v4' needs EnvPool, which is not installed: pip inst"):
        choose("envpool:Ant-v4")


@pytest.mark.parametrize(
    ("options", "processes", "threads"),
    [
        ({}, 5, 5),
        ({"share": 2}, 4, 4),
        ({"share": 3}, 3, 3),
        ({"share": 8}, 0, 1),  # this one
        ({"processes": 2, "threads": 7}, 2, 7),
        ({"processes": 9, "share": 8}, 5, 1),
    ],
)
def test_images_have_a_process_and_envpool_a_thread_a_core(monkeypatch, options, processes, threads):
    def stop(*_, hosts=(), threads=0, **__):
        raise EnvironmentFailure(len(hosts), threads)

    def made(**how):
        with pytest.raises(RuntimeError) as asked:
            make("walker-walk", count=5, seed=0, **how)
        return asked.value.args

    monkeypatch.setattr("gpld.envs._make.cores", lambda: 8)
    monkeypatch.setattr("gpld.envs._make.choose_renderer", lambda render: "egl")
    monkeypatch.setattr("gpld.envs._make.has_envpool", lambda: True)
    monkeypatch.setattr("gpld.envs._make._envpool_works", lambda: True)
    monkeypatch.setattr("gpld.envs._process.Process", object)
    monkeypatch.setattr("gpld.envs._make.SerialEnv", stop)
    monkeypatch.setattr("gpld.envs._envpool.EnvPoolEnv", stop)
    assert made(pixels=True, **options) == (processes, 0)
    assert made(**options) == (0, threads)
    assert made(backend="dm_control", share=options.get("share", 1)) == (0, 0)


def test_seeds_of_streams_roles_restarts_and_episodes_differ():
    grid = itertools.product(range(3), range(20), (False, True), range(3), range(5))
    seeds = [stream_seed(s, i, evaluation=e, restart=r, episode=n) for s, i, e, r, n in grid]
    assert len(set(seeds)) == len(seeds) == 1800
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert stream_seed(0, 0) == stream_seed(0, 0)


def test_action_scale():
    scale = ActionScale.of(np.array([-1.0, -1.0, -0.8]), np.array([1.0, 1.1, 0.8]))
    np.testing.assert_allclose(
        scale(np.array([[1, 1, 1], [-1, -1, -1], [9, 0, -9]])),
        [[1, 1.1, 0.8], [-1, -1, -0.8], [1, 0.05, -0.8]],
    )
    rng = np.random.default_rng(0)
    action = rng.uniform(-1, 1, 100).astype(np.float32)
    assert np.array_equal(ActionScale.of(-np.ones(100), np.ones(100))(action), action)


def test_scaled_actions_stay_within_their_bounds():
    """Half the sum and half the difference of -0.1 and 0.3 add up to a little more than 0.3."""
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.uniform(-1, 1, (2, 1000)), axis=0)
    low[0], high[0] = -1.7e308, 1.7e308
    scale = ActionScale.of(low, high)
    for end, bound in ((-1.0, low), (1.0, high)):
        action = scale(np.full(1000, end))
        assert (low <= action).all()
        assert (action <= high).all()
        np.testing.assert_allclose(action, bound, atol=1e-15)


def test_quadruped_takes_its_uneven_bounds():
    """All the way up in the agent's range is 1.1 for the legs' lift: what dm_control is given."""
    with make("quadruped-walk", count=1, seed=0, backend="dm_control") as env:
        env.step(np.ones((1, 12)))
        env.step(np.ones((1, 12)))
        ctrl = env._streams[0]._env.physics.data.ctrl
        np.testing.assert_allclose(ctrl, [1.0, 1.1, 0.8] * 4)
