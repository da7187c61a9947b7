"""Python in our pages runs: all blocks of a page one after the other, as a reader would type them."""

import shutil

import numpy as np
import pytest

from tests.envs.custom import Counter
from tests.training.helpers import tiny

from .pages import DOCS, PAGES, blocks

ELSEWHERE = {"docs/tutorial.md": "test_tutorial.py runs it, and looks at what it prints"}

GIVEN = {"docs/environments.md": {"actions": np.zeros((16, 6), np.float32), "MyEnv": Counter}}
"""What pages speak of without making it."""

NEEDS_MORE = {
    "docs/deployment.md": "needs a robot; tests/deploy runs exported steps beside the agents they came from",
    "docs/films.md": "draws films of a trained run, which the tests of films do",
    "docs/many_runs.md": "trains ten runs of the paper's size; tests/training/test_population.py small ones",
    "docs/your_environment.md": "trains for a million env steps; a test below does so for some",
    "docs/studies.md": "needs a study that was run; a test below reads a run in its place",
}
"""Why blocks of `py` are not run with the others of their page: those are of `python`."""

CODE = [block for page in PAGES for block in blocks(page) if block.language in ("python", "py")]


def of(page, language):
    return [block for block in CODE if (block.page, block.language) == (page, language)]


def execute(found, names):
    for block in found:
        exec(compile(block.code, block.name, "exec"), names)
    return names


def test_other_blocks_have_a_reason():
    assert {block.page for block in CODE if block.language == "py"} <= NEEDS_MORE.keys()


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({b.page for b in CODE if b.language == "python"} - ELSEWHERE.keys()))
def test_python_runs(page, tmp_path, monkeypatch):
    if any("torch" in block.code for block in of(page, "python")):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    execute(of(page, "python"), dict(GIVEN.get(page, {})))


@pytest.mark.slow
def test_training_on_the_readers_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = "docs/your_environment.md"
    names = execute(of(page, "python"), {})
    assert capsys.readouterr().out == ""  # as the page says of an environment without a fault
    (block,) = of(page, "py")
    small = 'with_presets(Config("gym:Spring-v0"), ["nano", "cpu"])'
    assert small in block.code
    names["small"] = tiny("gym:Spring-v0", env_steps=400, replay={"train_ratio": 0.001})  # nothing to compile
    exec(block.code.replace(small, "small"), names)
    import gpld

    policy = gpld.load("runs/spring")
    assert policy.act({"observation": np.zeros(2, np.float32)}).shape == (1,)


@pytest.mark.slow
def test_the_readme_s_agent_holds_the_pole_up(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    execute([block for block in of("README.md", "python") if "gpld.load" in block.code], {})
    assert 600 <= float(capsys.readouterr().out) <= 1000


def test_reading_results_as_the_page_does(small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run, "studies/proprio/run")
    rows = execute(of("docs/studies.md", "py"), {})["rows"]
    described = [
        line.split("|")[1] for line in (DOCS / "studies.md").read_text().splitlines() if line[:3] == "| `"
    ]
    columns = {name.strip(" `") for line in described for name in line.split(",")}
    assert set(rows.columns) - {"agent.penalty.rho"} <= columns
    assert (rows["agent.penalty.rho"] == 0.5).all()
