import os
import subprocess
import sys

import pytest

from gpld import tasks

LIST_SUITE = "from dm_control import suite; print(*('-'.join(task) for task in suite.ALL_TASKS))"


def test_the_suite_is_dm_controls_own_list():
    # In a process of its own: importing dm_control fixes the GL backend of the whole process.
    environment = os.environ | {"MUJOCO_GL": "disable"}
    listed = subprocess.run(
        [sys.executable, "-c", LIST_SUITE], env=environment, capture_output=True, text=True, check=True
    )
    assert sorted(listed.stdout.split()) == sorted(tasks.SUITE)


def test_groups_have_the_papers_sizes_and_are_in_the_suite():
    assert [len(g) for g in (tasks.PROPRIO, tasks.LOCOMOTION, tasks.QUADRUPED, tasks.DMC)] == [18, 6, 2, 20]
    assert set(tasks.LOCOMOTION) < set(tasks.PROPRIO) < set(tasks.DMC) < set(tasks.SUITE)
    assert len(set(tasks.SUITE)) == len(tasks.SUITE)


KNOWN = (
    *tasks.SUITE,
    *(f"gym:{name}" for name in ("Ant-v4", "Pendulum-v1")),
    *(f"envpool:{name}" for name in ("Ant-v4", "Ant-v5", "Pendulum-v1", "Pong-v5", "CoinrunEasy-v0")),
    tasks.CRAFTER,
)


@pytest.mark.parametrize(
    ("task", "meant"),
    [
        ("walker-wlak", "walker-walk"),
        ("dmc_walker_walk", "walker-walk"),
        ("Walker-Walk", "walker-walk"),
        ("Ant-v4", "gym:Ant-v4 envpool:Ant-v4"),
        ("Envpool:Ant-v4", "envpool:Ant-v4"),
        ("Gym:ant-v4", "gym:Ant-v4"),
        ("Jax:gpld.envs:CartPole", "jax:gpld.envs:CartPole"),
        ("envpool:Ant-v9", "envpool:Ant-v5 envpool:Ant-v4"),
        ("gym:Ant-v4", "envpool:Ant-v4"),  # and not itself
        ("Pendulum-v1", "gym:Pendulum-v1 envpool:Pendulum-v1"),
        ("Crafter-v1", tasks.CRAFTER),
        ("crafter", tasks.CRAFTER),
        ("gym:crafter", tasks.CRAFTER),
        ("pong", "envpool:Pong-v5"),
        ("atari_pong", "envpool:Pong-v5"),
        ("gym:ALE/Pong-v5", "envpool:Pong-v5"),
        ("coinrun", "envpool:CoinrunEasy-v0"),
        ("qqq", ""),
        ("", ""),
    ],
)
def test_the_nearest_tasks_are_found_in_any_case_and_under_other_prefixes(task, meant):
    assert sorted(tasks.near(task, KNOWN)[: len(meant.split()) or 3]) == sorted(meant.split())


def test_registered_tasks_are_those_that_can_be_made(monkeypatch: pytest.MonkeyPatch):
    found = tasks.registered_tasks()
    assert {"gym:Pendulum-v1", "gym:Ant-v5", tasks.CRAFTER} <= set(found)
    assert "gym:Ant-v2" not in found  # an entry that only says that it is gone
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.delitem(sys.modules, "envpool.registration", raising=False)
    assert tasks.registered_tasks() == [task for task in found if not task.startswith("envpool:")]
