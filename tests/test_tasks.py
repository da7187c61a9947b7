import os
import subprocess
import sys

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
