"""Tables, figures and reports of what a study had found up to some env steps."""

import pytest

from gpld.config import ConfigError
from gpld.studies import _show, study_command
from tests.studies.helpers import TEXT, finish, opened, small

COLUMN = 1
"""Of the baseline, in tables of scores."""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study's file, and its folder with everything trained and scored at 600 and 1,200 env steps."""
    folder = tmp_path_factory.mktemp("until")
    figures = ["aggregate", "tasks", "profile"]
    (folder / "small.toml").write_text(f"figures = {figures}\n{TEXT}")
    plan = small(figures=figures)
    plan.write(folder / "small")
    for run in plan.runs:
        finish(folder / "small", run, 600, 1200)
    return plan, folder / "small.toml", folder / "small"


def shown(study, until):
    plan, _, folder = study
    return _show.all_tables(opened(plan, folder, until), "source")


@pytest.mark.parametrize(
    ("until", "steps", "mean"),
    [
        (600, ["600"], "1063.5"),  # the score there
        (900, ["600", "900"], "93.5"),  # the evaluation there
        (1000, ["600", "1,000"], "93.5"),  # the last evaluation before it
        (1200, ["600", "1,200"], "1123.5"),
        (5000, ["600", "1,200"], "1123.5"),  # more than there is
    ],
)
def test_scores_are_those_of_the_last_moment_shown(study, until, steps, mean):
    tables = [table for table in shown(study, until) if ": scores after" in table.title]
    assert [table.title.split("after ")[1] for table in tables] == [f"{step} env steps" for step in steps]
    assert [row[COLUMN].split(" ")[0] for row in tables[-1].rows[:2]] == [mean] * 2
    assert not any("not finished" in note for note in tables[-1].notes)


def test_nothing_later_is_drawn_or_written(study, capsys):
    plan, file, folder = study
    rows = _show.load(folder, plan)
    drawn = _show.draw(opened(plan, folder, 900).study, rows)
    assert drawn["aggregate"].axes[0].lines[0].get_xdata().tolist() == [300, 600, 900]
    assert study_command(["figure", str(file), "--out", str(folder), "--until", "900"]) == 0
    names = [line.rsplit("/", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert set(names) == {
        f"small-{name}-900.{suffix}"
        for name in ("aggregate", "tasks", "profile")
        for suffix in ("pdf", "png")
    }
    assert study_command(["report", str(file), "--out", str(folder), "--until", "900"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report-900.html")
    page = (folder / "report-900.html").read_text()
    assert "12 of 12" in page
    assert "At 900 env steps" in page
    assert "1,200 env steps" not in page


@pytest.mark.parametrize("action", ["table", "figure", "report"])
def test_env_steps_before_the_first_results_are_refused(study, action):
    _, file, folder = study
    with pytest.raises(ConfigError, match="until: 10 is not allowed; the first results are at 300 env steps"):
        study_command([action, str(file), "--out", str(folder), "--until", "10"])


@pytest.mark.parametrize("action", ["table", "figure", "report"])
def test_no_env_steps_at_all_are_refused(study, action):
    _, file, folder = study
    with pytest.raises(ConfigError, match="until: 0 is not allowed; it must be positive"):
        study_command([action, str(file), "--out", str(folder), "--until", "0"])
