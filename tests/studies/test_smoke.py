"""The study `smoke` from end to end, as a user runs it."""

import json

import pandas as pd
import pytest
from PIL import Image

from gpld import cli, results
from gpld.analysis import statistics
from gpld.training import saved

pytestmark = pytest.mark.slow  # minutes, for all that it compiles


def test_every_run_is_scored_at_every_milestone(smoke):
    table = results.load(smoke)
    scores = table[table["kind"] == "score"]
    assert len(scores) == 2 * 2 * 2 * 2
    assert sorted(scores["env_steps"].unique()) == [600, 1200]
    assert set(scores["episodes"]) == {2}
    evaluations = table[table["kind"] == "evaluation"]
    assert (evaluations.groupby("run", observed=True).size() == 4).all()
    assert table["seconds"].notna().all()
    assert table["return"].between(0, 1000).all()
    assert set(results.with_options(table, ["agent.penalty.scaling"])["agent.penalty.scaling"]) == {"sampled"}
    assert len(list((smoke / "results").iterdir())) == 1  # put together when all was done


@pytest.mark.parametrize(("name", "column"), [("sensitivity", "kl"), ("quality", "observation")])
def test_every_scored_checkpoint_is_measured(smoke, name, column):
    for run in results.runs_in(smoke / "runs"):
        measured = pd.read_csv(run / f"{name}.csv")
        assert sorted(measured["env_steps"].unique()) == [600, 1200]
        assert (measured[column] > 0).all()


def test_agents_outlive_the_replay_that_is_given_back(smoke):
    run = smoke / "runs" / "cartpole-swingup" / "GPLD-DreamerV3" / "seed1"
    assert saved.load(run).env_steps == 1200
    assert not list(run.rglob("latents"))
    assert not (run / "checkpoints" / "steps").exists()


@pytest.fixture
def said(capsys):
    """A `gpld` command in this process, which has loaded everything; what it printed."""

    def run(*arguments):
        assert cli.main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run


def test_running_it_again_does_nothing(smoke, said):
    before = {path: path.stat().st_mtime_ns for path in smoke.rglob("*") if path.is_file()}
    said("study", "run", "smoke", "--out", smoke)
    after = {path: path.stat().st_mtime_ns for path in smoke.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {"plan.json"}


def test_status_counts_what_is_done(smoke, said):
    last = [line for line in said("study", "status", "smoke", "--out", smoke).splitlines() if "all" in line][
        -1
    ]
    assert last.replace("\u2502", " ").split() == ["all", "8", "100%"]


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "terminal"])
def test_tables_say_the_aggregates_their_data_and_their_command(smoke, said, form):
    text = said("study", "table", "smoke", "--out", smoke, "--format", form)
    finals = statistics.final_scores(results.load(smoke), 1200)
    gain = statistics.aggregate(statistics.summarise(finals), "DreamerV3").loc["GPLD-DreamerV3", "gain"]
    assert f"{gain:+.1%}".replace("%", r"\%" if form == "latex" else "%") in text
    assert f"{smoke}/results" in text
    assert "gpld study table smoke" in text


def test_figures_are_drawn_and_name_their_source(smoke, said):
    names = [line.rsplit("/", 1)[1] for line in said("study", "figure", "smoke", "--out", smoke).splitlines()]
    drawn = {"aggregate", "tasks", "singly", "ablation", "profile", "sensitivity", "quality"}
    drawn |= {"films"} if filmed(smoke) else set()
    assert set(names) == {f"smoke-{name}.{suffix}" for name in drawn for suffix in ("pdf", "png")}
    for name in drawn:
        with Image.open(smoke / "figures" / f"smoke-{name}.png") as picture:
            assert f"{smoke}/results" in picture.text["Description"]
            assert picture.convert("RGB").getcolors(20) is None  # more: lines, areas, letters


def test_the_report_has_every_number_and_no_link_to_elsewhere(smoke):
    page = (smoke / "report.html").read_text()
    table = results.load(smoke)
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert len(data["curves"]) == len(data["configs"]) == 8
    first = data["curves"][0]
    rows = table[(table["run"] == first["run"]) & (table["kind"] == "evaluation")]
    assert first["returns"] == [round(x, 3) for x in rows["return"]]
    assert {name: len(charts) for name, charts in data["charts"].items()} == {"sensitivity": 4, "quality": 6}
    swing = data["charts"]["quality"][4]
    assert (swing["title"], swing["x"]) == ("cartpole-swingup: reward", "steps ahead")
    measured = pd.read_csv(smoke / "runs" / "cartpole-swingup" / "DreamerV3" / "seed0" / "quality.csv")
    expected = measured.loc[measured["env_steps"] == 1200, "reward"]
    assert swing["curves"][0]["ys"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "8 of 8" in page
    assert ("data:video/mp4" in page) == filmed(smoke)


def filmed(smoke):
    """Films need a machine that can draw."""
    return any(smoke.rglob("film.gif"))
