"""Every task by name, as `gpld tasks --all` lists them."""

import re
import sys

import pytest

from gpld.cli import main
from gpld.envs import all_tasks, all_tasks_text, make
from gpld.envs._catalog import Listed
from gpld.machine import install
from gpld.tasks import SUITE
from gpld.types import Spaces
from tests.envs.helpers import need


def test_a_line_says_what_the_agent_sees_and_does():
    both = Spaces.of({"view": (16, 32, 3), "arm": (2, 3), "time": ()}, 4, True, ["view"])
    assert Listed.of("a", "b", both) == ("a", "b", "16x32x3 + 7", "4 choices")
    assert Listed.of("a", "b", Spaces.of({"arm": (2,)}, 4)) == ("a", "b", "2", "4")
    assert Listed.of("a", "b", Spaces.of({"view": (16, 16, 1)}, 4, images=["view"])).observations == "16x16x1"


def without(monkeypatch: pytest.MonkeyPatch, *engines: str) -> None:
    for engine in engines:
        monkeypatch.setitem(sys.modules, engine, None)


@pytest.mark.parametrize("command", [["tasks"], ["tasks", "--all"]])
def test_tasks_are_listed_without_any_engine(command, monkeypatch: pytest.MonkeyPatch, capsys):
    without(monkeypatch, "envpool", "dm_control")
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "walker-walk" in said
    assert install("suite") in said


def test_what_envpool_would_add_is_told_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    without(monkeypatch, "envpool")
    listed, why = all_tasks()
    assert {task.name for task in listed} == {*SUITE}
    own = "more than 1,000 other tasks are EnvPool's, envpool:NAME, which is not installed"
    assert why == [f"{own}: {install('suite')}"]
    assert Listed("walker-walk", "dm_control", "24", "6") in listed
    assert Listed("fish-swim", "dm_control", "24", "5") in listed


def test_an_engine_that_is_not_installed_is_not_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpld.envs._catalog.has_envpool", lambda: True)
    monkeypatch.setattr("gpld.envs._catalog._pool", lambda left_out: [])
    without(monkeypatch, "dm_control")
    listed, why = all_tasks()
    assert why == [f"dm_control, which all tasks of its suite run on, is not installed: {install('suite')}"]
    assert Listed("walker-walk", "envpool", "24", "6") in listed
    assert Listed("fish-swim", "not installed", "24", "5") in listed


@pytest.mark.slow
def test_the_listed_sizes_are_dm_control_s():
    need("dm_control")
    found = {task.name: task[2:] for task in all_tasks()[0] if task.name in SUITE}
    for name in SUITE:
        with make(name, count=1, seed=0, backend="dm_control") as env:
            assert Listed.of(name, "", env.spaces)[2:] == found[name]


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
