"""Every task by name, as `gpld tasks --all` lists them."""

import re

import pytest

from gpld.cli import main
from gpld.envs import all_tasks, all_tasks_text, make
from gpld.envs._catalog import Listed
from gpld.tasks import SUITE
from gpld.types import Spaces
from tests.envs.helpers import need


def test_a_line_says_what_the_agent_sees_and_does():
    both = Spaces.of({"view": (16, 32, 3), "arm": (2, 3), "time": ()}, 4, True, ["view"])
    assert Listed.of("a", "b", both) == ("a", "b", "16x32x3 + 7", "4 choices")
    assert Listed.of("a", "b", Spaces.of({"arm": (2,)}, 4)) == ("a", "b", "2", "4")
    assert Listed.of("a", "b", Spaces.of({"view": (16, 16, 1)}, 4, images=["view"])).observations == "16x16x1"


def test_the_suite_is_listed_also_without_envpool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpld.envs._catalog.has_envpool", lambda: False)
    listed, why = all_tasks()
    assert {task.name for task in listed} == {*SUITE}
    assert why == []
    assert Listed("walker-walk", "dm_control", "24", "6") in listed
    assert Listed("fish-swim", "dm_control") in listed


def test_envpool_s_tasks_are_listed_with_what_they_have(capsys):
    need("envpool")
    assert main(["tasks", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == all_tasks_text().splitlines()
    found = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines}
    assert found["envpool:Ant-v4"] == ["envpool (Gym MuJoCo)", "27", "8"]
    assert found["envpool:Alien-v5"] == [
        "envpool (Atari)",
        "64x64x3",
        "18 choices",
    ]  # Adventure's, as all are
    assert len([name for name in found if name.startswith("envpool:")]) > 1000
    (games,) = [line for line in lines if line.startswith("left out") and "Pgx" in line]
    assert (
        games
        == "left out: 18 of Pgx, such as envpool:Go9x9-v1 is for several players, but there is one agent"
    )
    with make("envpool:Alien-v5", count=1, seed=0) as env:
        assert Listed.of("envpool:Alien-v5", "envpool (Atari)", env.spaces)[2:] == ("64x64x3", "18 choices")
