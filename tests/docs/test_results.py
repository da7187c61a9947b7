"""Tables of measurements are what the data say, and nothing is kept that no page names."""

import dataclasses
import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from gpld.analysis import cost
from gpld.config import flat
from tests import scripts

from .pages import ROOT

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def script():
    return scripts.load("scripts/results_tables.py")


def test_tables_are_fresh(script, capsys):
    assert script.main(["--check"]) == 0, capsys.readouterr().out


def test_every_page_has_tables_and_every_table_a_page(script):
    used = [found[2] for page in script.PAGES for found in script.MARKED.finditer((ROOT / page).read_text())]
    assert set(used) == set(script.TABLES)
    marks = "".join((ROOT / page).read_text() for page in script.PAGES).count("<!-- table:")
    assert marks == len(used)


def test_a_table_that_is_stale_is_noticed_and_written(script, tmp_path, monkeypatch, capsys):
    (tmp_path / "results").mkdir()
    page = tmp_path / "results" / "README.md"
    page.write_text("before\n<!-- table: start -->\n| 1 |\n<!-- end -->\nafter\n")
    (tmp_path / "start.json").write_text(
        json.dumps(
            {
                "provenance": {
                    "command": ["a.py", "-x"],
                    "date": "2026-01-02T03:04",
                    "git": {"commit": "0123456789", "dirty": True},
                    "packages": {"jax": "9.9"},
                    "device": {"kind": "abacus"},
                },
                "rows": [
                    {"cache": "empty", "seconds": 12.34},
                    {"cache": "warm", "seconds": 5.0},
                    {"cache": "warm", "seconds": 4.0},
                ],
            }
        )
    )
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "PAGES", ("results/README.md",))
    assert script.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: results/README.md\n"
    assert script.main([]) == 0
    made = "`python a.py -x`, 2026-01-02, abacus, jax 9.9, commit 0123456 with changes"
    assert page.read_text().splitlines() == [
        "before",
        "<!-- table: start -->",
        "| empty cache, s to the first update | warm cache, s |",
        "| --- | --- |",
        "| 12.3 | 4.0 to 5.0 |",
        "",
        f"{made} ([start.json](start.json)).",
        "<!-- end -->",
        "after",
    ]
    assert script.main(["--check"]) == 0


def test_a_table_that_there_is_not_is_refused(script, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("<!-- table: nothing -->\n<!-- end -->")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    with pytest.raises(KeyError, match="nothing"):
        script.written("page.md")


def test_numbers_are_the_datas(script):
    (whole,) = script.read("end_to_end")["rows"]
    assert f"| 8, H200, 12M | {whole['updates_per_second']:.1f} |" in script.TABLES["loop"]()
    assert "| 250,000 | 500 (328 to 668) | 455 (387 to 522) | 890 (827 to 946) |" in script.walker()
    row = next(row for row in script.read("update-exact")["rows"] if row["variant"] == "exact")
    assert f"| {row['ms']:.3f} | {row['ratio']:.3f} |" in script.one_update()


def test_the_page_of_results_is_short_and_names_all_that_is_kept():
    text = (RESULTS / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    text += "".join(page.read_text() for page in (RESULTS / "archive").glob("*.md"))
    text += (ROOT / "scripts" / "results_tables.py").read_text()
    kept = [path.name for path in RESULTS.iterdir() if path.suffix in (".json", ".png")]
    assert [name for name in kept if name not in text and f'"{name[:-5]}"' not in text] == []


@pytest.mark.parametrize("page", ["README.md", "archive/performance.md", "archive/walker-walk.md"])
def test_links_of_results_lead_somewhere(page):
    path = RESULTS / page
    links = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.fixture(scope="module")
def page():
    return scripts.load("scripts/results_page.py")


def test_the_page_about_results_is_fresh(page, capsys):
    assert page.main(["--check"]) == 0, capsys.readouterr().out


def test_its_figures_are_there(page):
    named = re.findall(r"\]\((figures/.*?\.png)\)", page.PAGE.read_text())
    assert named
    for name in named:
        assert 0 < (page.PAGE.parent / name).stat().st_size < 2_000_000


def test_the_page_says_what_the_data_say(page, monkeypatch):
    """Were GPLD's returns half as high, and a task not run, the page would say so."""
    tables = page.results.read_tables(page.DATA)
    *_, left_out = page.Evidence().tasks
    changed = {}
    for name, rows in tables.tables.items():
        rows = rows.loc[rows["task"] != left_out].reset_index(drop=True)
        if "return" in rows:
            rows.loc[rows["method"] == page.GPLD, "return"] /= 2
        changed[name] = rows
    runs = tuple(run for run in tables.runs if run.task != left_out)
    monkeypatch.setattr(page.results, "read_tables", lambda _: replace(tables, runs=runs, tables=changed))
    found = page.Evidence()
    text = page.write_page(found)
    compared = [task for task in found.tasks if found.has_ratio(task)]
    assert compared
    for task in compared:
        gain = found.gain(found.scores, task)
        assert gain < 0
        assert f"**{-gain:.0%} less** on {task}" in text
        assert f"On {task}, where the paper reports a gain, GPLD scores {-gain:.0%} less here." in text
    for task in set(found.tasks) - set(compared):
        assert f"On {task}, where DreamerV3 scores too little for a percentage" in text
    assert f"{left_out} is still missing." in text
    assert page.write_page(found) != page.PAGE.read_text()


def _as_json(value):
    return json.loads(json.dumps(value, default=dataclasses.asdict))


def test_studies_of_few_runs_are_shown_once_they_have_results(page, monkeypatch, tmp_path):
    name = "variants-short"
    text, tables = page.more(name), page.results.read_tables(RESULTS / name)
    study, scores = page.studies.get(name), tables.tables["scores"]
    assert "Two seeds of each rank nothing" in text
    for method in study.methods:
        own = scores.loc[(scores["method"] == method) & (scores["env_steps"] == study.env_steps[-1])]
        low, high = sorted(own.groupby("seed")["return"].mean())
        assert f"| {study.tasks[0]}, {method} | {(low + high) / 2:.0f} | {low:.0f}, {high:.0f} |" in text
    every = page.Evidence()
    ours, theirs = (every.values(every.scores, study.tasks[0], x).mean() for x in (page.GPLD, page.DREAMER))
    assert f"they are {theirs:.0f} ({page.DREAMER}) and {ours:.0f} ({page.GPLD})." in text
    monkeypatch.setattr(page, "DATA", tmp_path / page.STUDY)
    assert not page.kept(name)
    some = tuple(run for run in tables.runs if run.method in (page.DREAMER, page.GPLD))
    rows = {
        kind: own.loc[own["method"].isin([page.DREAMER, page.GPLD])] for kind, own in tables.tables.items()
    }
    page.results.write_tables(replace(tables, runs=some, tables=rows), tmp_path / name)
    assert page.kept(name)
    shutil.copytree(RESULTS / page.STUDY, tmp_path / page.STUDY)
    assert "as launched |" not in page.more(name)


def test_the_cost_of_every_setting_is_shown_beside_the_paper_s(page, monkeypatch, tmp_path):
    """With ratios that are made up."""
    study = page.studies.get(page.COST)
    runs = page.studies.plan(study).runs
    made = {"date": "today", "device": {"kind": "a GPU"}, "packages": {"jax": "1"}, "git": {"commit": "0"}}
    records = [
        page.results.RunRecord(run.task, run.method, run.seed, _as_json(flat(run.config)), made)
        for run in runs
    ]
    rows = []
    for number, run in enumerate(runs):
        about = {"task": run.task, "method": run.method, "seed": run.seed, "device": "a GPU"}
        numbers = dict.fromkeys(page.results.TABLES["cost"][5:], 1.0) | {"ratio": 1 + number / 100}
        rows.append(about | cost.setting_of(run.config)._asdict() | numbers)
    tables = dict(page.results.read_tables(RESULTS / page.STUDY).tables)
    tables = {name: own.iloc[:0] for name, own in tables.items()} | {"cost": pd.DataFrame(rows)}
    made_up = page.results.Tables(_as_json(study), tuple(records), tables)
    page.results.write_tables(made_up, tmp_path / page.COST)
    monkeypatch.setattr(page, "DATA", tmp_path / page.STUDY)
    _, table, how = page._settings()
    for number, run in enumerate(runs):
        assert (f"| {1 + number / 100:.3f} ± 1.000 |" in table) == (run.method != page.DREAMER)
    assert "a GPU" in how
