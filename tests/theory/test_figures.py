import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest

from gpld import cli, theory

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text()
COMMANDS = list(
    dict.fromkeys(line.split("#")[0].strip() for line in re.findall(r"^(gpld theory.*)$", PAGE, re.M))
)


def test_a_figure_and_its_numbers_are_written(tmp_path, capsys):
    assert cli.main(["theory", "estimate", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "estimate.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "estimate.svg").read_text()
    numbers = pandas.read_csv(tmp_path / "estimate.csv")
    assert numbers.groupby("law")["probability"].sum().tolist() == pytest.approx([1.0] * 3)
    mdp = theory.grid()
    truth = numbers[numbers["law"] == "the truth"]["probability"]
    np.testing.assert_allclose(truth, mdp.law[3, 24])
    out = capsys.readouterr().out
    errors = {name: float(x) for name, x in re.findall(r"^([a-z].*?)  +([\d.]+) *$", out, re.M)}
    assert errors["the truth"] == 0 < errors["smoothed, lambda 0.5"] < errors["maximum likelihood"]


def test_the_same_numbers_give_the_same_files(tmp_path):
    for folder in ("one", "two"):
        theory.save("estimate", theory.FIGURES["estimate"](), tmp_path / folder)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.slow
def test_data_and_lambda_draw_every_mean_that_they_tabulate():
    drawn = theory.FIGURES["data"](2)
    means = drawn.data.groupby(["mdp", "estimator", "visits"])["error"].mean()
    panels = {axis.get_title(): axis for axis in drawn.figure.axes}
    assert list(panels) == list(theory.MDPS)
    for mdp, axis in panels.items():
        lines = {line.get_label(): line for line in axis.get_lines()}
        assert list(lines) == list(theory.ESTIMATORS)
        for estimator, line in lines.items():
            np.testing.assert_allclose(line.get_ydata(), means[mdp, estimator])
    assert drawn.summary.shape == (4 * 6, 2 + 3)
    gain = theory.gains(drawn.data).set_index(["mdp", "visits", "estimator"])["mean"]
    cell = drawn.summary.set_index(["mdp", "visits"]).loc[("grid", 4), "sqrt decay"]
    assert float(cell.split(" ± ")[0]) == pytest.approx(gain["grid", 4, "sqrt decay"], abs=0.0006)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["limit"], "figure: 'limit' is not one; there are estimate, data, lambda, limits"),
        (["data", "--seeds", "1"], "seeds: 1 is not allowed; it must be at least 2 and at most 10000"),
    ],
)
def test_mistakes_are_told(arguments, message, capsys):
    assert cli.main(["theory", *arguments]) == 2
    assert capsys.readouterr().err == f"gpld theory: {message}\n"


def test_the_page_s_python_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(code, "theory.md", "exec"), {})
    frequencies, smooth, gap = map(float, capsys.readouterr().out.split())
    assert smooth < frequencies
    assert gap < 4e-6


def test_the_page_names_a_command_for_each_figure():
    assert {name for line in COMMANDS for name in shlex.split(line)[2:]} == set(theory.FIGURES)


def test_the_page_shows_figures_that_exist():
    names = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(names) == len(theory.FIGURES)
    assert [name for name in names if not (ROOT / "docs" / name).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_s_commands_run_and_give_its_numbers(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command)[1:]) == 0
    out = capsys.readouterr().out
    for name in theory.chosen(shlex.split(command)[2:]):
        assert (tmp_path / "theory" / f"{name}.png").stat().st_size > 10_000
    if command == "gpld theory data":
        cells = re.findall(r"[+-]0\.\d{3} ± 0\.\d{3}", PAGE)
        assert len(cells) == 20
        assert [cell for cell in cells if cell not in out] == []
