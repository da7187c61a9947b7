"""The commands of docs/sensitivity.md and docs/cost.md do what the pages say."""

import re
import shlex
import shutil
from pathlib import Path

import pandas
import pytest

from gpld import cli

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[str]:
    return re.findall(r"^(gpld .*)$", (DOCS / page).read_text(), re.M)


@pytest.mark.parametrize("page", ["sensitivity.md", "cost.md"])
def test_the_pages_python_runs(page):
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S):
        exec(compile(code, page, "exec"), {})


def test_the_page_names_the_columns_that_there_are():
    from gpld.analysis import cost

    named = re.findall(r"`(\w+)`", (DOCS / "cost.md").read_text().split("| column | |")[1].split("lambda")[0])
    columns = {*re.findall(r'"(\w+)":', Path(cost.__file__).read_text()), *cost.Setting._fields}
    columns |= {*cost.PAPER.values()}
    assert set(named) <= columns


def test_the_page_names_a_command_for_each_measurement():
    assert [line.split()[1] for line in commands("sensitivity.md")] == ["sensitivity", "quality"]


def test_the_pages_way_to_keep_models_is_one():
    line, *_ = re.findall(r"`(gpld train .*?)`", (DOCS / "sensitivity.md").read_text())
    options = cli.parse_train(shlex.split(line)[2:])
    assert options.config.checkpoint.milestones == 25_000


@pytest.mark.slow
@pytest.mark.parametrize("command", commands("sensitivity.md"))
def test_the_page_s_commands_run(command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs["gpld"].parent, tmp_path / "runs" / "walker-walk")
    assert cli.main(shlex.split(command)[1:]) == 0
    name = command.split()[1]
    rows = pandas.read_csv(tmp_path / name / f"{name}.csv")
    assert set(rows["method"]) == {"DreamerV3", "GPLD-DreamerV3"}
    assert rows["env_steps"].nunique() == (2 if "--all-checkpoints" in command else 1)
