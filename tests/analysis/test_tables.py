import csv
import io
import re
from typing import get_args

import numpy as np
import pandas
import pytest
from rich.console import Console

from gpld import results
from gpld.analysis import comparisons, curves, figures, statistics
from gpld.analysis.tables import Format, Table, render, rich_table
from gpld.display.curve import COLOURS
from gpld.tasks import LOCOMOTION, PROPRIO
from tests.results.helpers import METHODS, rows

TABLE = Table(
    "a_b",
    ("task", "x|y", "50%"),
    (("t", "1.0 \u00b1 0.5", "-"), ("all", "2", "+1.0%")),
    ("data: here; command: this",),
    1,
)
COMPARED = comparisons.Comparison(["cheetah-run", "walker-walk"], METHODS, "DreamerV3")


def value(t, m, s, x):
    return np.full(len(x), 100.0 * (t + 1) * (1 + 0.5 * m) + s)


def test_every_format_has_every_cell_the_title_and_the_source():
    texts = {form: render(TABLE, form) for form in get_args(Format)}
    assert list(csv.reader(texts["csv"].splitlines()[2:])) == [list(TABLE.header), *map(list, TABLE.rows)]
    assert "| t | 1.0 \u00b1 0.5 | - |" in texts["markdown"]
    assert r"x\|y" in texts["markdown"]
    assert r"t & 1.0 $\pm$ 0.5 & - \\" in texts["latex"]
    assert r"\caption{a\_b}" in texts["latex"]
    assert texts["latex"].index(r"\midrule", texts["latex"].index("t & 1.0")) < texts["latex"].index(
        "all & 2"
    )
    for text in texts.values():
        assert "data: here; command: this" in text
        assert "+1.0" in text


def test_a_table_for_the_terminal_breaks_no_cell_at_80_columns():
    maps, methods = ("observation", "posterior", "prior"), ("DreamerV3", "GPLD-DreamerV3")
    columns = ("task", "map", "method", "env_steps", "kl", "kl_std", "total_variation", "jacobian", "ratio")
    numbers = (1_000_000, 0.01234, 0.00123, 0.345, np.nan, 0.51)
    frame = pandas.DataFrame(
        [("cartpole-swingup_sparse", name, method, *numbers) for name in maps for method in methods],
        columns=columns,
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(rich_table(frame))
    _, above, _, _, *lines = console.export_text().splitlines()
    assert above.strip() == "task cartpole-swingup_sparse, env steps 1,000,000"
    assert [line.split() for line in lines if line.strip()] == [
        [name, method, "0.0123", "0.00123", "0.345", "-", "0.51"] for name in maps for method in methods
    ]


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_table_wider_than_the_terminal_is_cut_between_columns(monkeypatch, width):
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", str(width))
    header = ("rho", "weight", *(f"seconds of column {i}" for i in range(9)))
    cells = [("0.5", str(i), *(f"{j}.123 \u00b1 {i}.456" for j in range(9))) for i in range(2)]
    shown = re.sub(r"\x1b\[[\d;]*m", "", render(Table("wide", header, tuple(cells), labels=2), "terminal"))
    lines = shown.splitlines()
    rows = [line.strip("\u2502").split("\u2502") for line in lines if line.startswith("\u2502")]
    for i, expected in enumerate(cells):
        found = [cell.strip() for row in rows[i::2] for cell in row[2:]]
        assert found == list(expected[2:])
        assert {tuple(cell.strip() for cell in row[:2]) for row in rows[i::2]} == {expected[:2]}
    assert max(map(len, lines)) <= width
    assert (len(rows) == 2) == (width == 300)


def test_one_checkpoint_is_drawn_as_bars():
    columns = ("task", "method", "run", "env_steps", "map", "kl")
    runs = [("DreamerV3", "a", 2.0), ("DreamerV3", "b", 4.0), ("GPLD-DreamerV3", "c", 1.0)]
    steps = {"walker-run": [1000], "walker-walk": [1000, 2000]}
    rows = [(task, m, r, step, "prior", kl) for task in steps for step in steps[task] for m, r, kl in runs]
    frame = pandas.DataFrame(rows, columns=columns)
    names = {"x": "env_steps", "y": "kl", "panel": "map", "xlabel": "env steps", "ylabel": "KL"}
    one, several = figures.lines(frame, columns=["prior"], **names).axes
    assert [bar.get_height() for bar in one.patches] == [3.0, 1.0]
    assert one.get_xlabel() == "1,000 env steps"
    assert not several.patches
    assert [line.get_ydata().tolist() for line in several.lines] == [[3.0, 3.0], [1.0, 1.0]]


def test_the_papers_table_is_printed_as_the_paper_prints_it():
    compared = comparisons.Comparison(PROPRIO, METHODS, "DreamerV3")
    table = comparisons.score_table(
        results.paper_scores(), compared, title="", subsets={"locomotion": LOCOMOTION}
    )
    found = {row[0]: row[1:] for row in table.rows}
    assert found["hopper-hop"] == ("81.8 \u00b1 79.0", "197.4 \u00b1 41.7", "+141.3%")
    assert found["finger-turn_easy"][2] == "-4.1%"
    assert found["all tasks, raw mean"] == ("704.4", "755.8", "+7.3%")
    assert found["all tasks, normalised mean"] == ("1.000", "1.177", "+17.7%")
    assert found["locomotion, normalised mean"][2] == "+34.6%"
    assert table.totals == 4


def test_scores_that_are_missing_are_blank_and_do_not_count():
    table = rows(value=value)
    table = table[~((table["task"] == "walker-walk") & (table["method"] == "GPLD-DreamerV3"))]
    table = table[
        ~((table["task"] == "cheetah-run") & (table["method"] == "DreamerV3") & (table["seed"] == 0))
    ]
    shown = comparisons.score_table(statistics.final_scores(table), COMPARED, title="")
    found = {row[0]: row[1:] for row in shown.rows}
    assert found["walker-walk"] == ("201.0 \u00b1 0.8 [200.0, 202.0]", "-", "-")
    gain = 151 / 101.5 - 1
    assert found["1 of 2 tasks, raw mean"] == ("101.5", "151.0", f"{gain:+.1%}")
    expected = ("1.000", f"{1 + gain:.3f}", f"{gain:+.1%}")
    assert found["1 of 2 tasks, normalised mean"] == expected
    assert "DreamerV3: 2 to 3" in shown.notes[0]
    robust = comparisons.statistics_table(statistics.final_scores(table), COMPARED, title="")
    assert [row[0] for row in robust.rows] == ["DreamerV3", "GPLD-DreamerV3 (1 of 2 tasks)"]
    nothing = comparisons.score_table(statistics.final_scores(table.iloc[:0]), COMPARED, title="")
    assert {cell for row in nothing.rows for cell in row[1:]} == {"-"}


def test_a_single_seed_has_neither_deviation_nor_interval():
    scores = statistics.final_scores(rows(value=value, seeds=1))
    shown = comparisons.score_table(scores, COMPARED, title="")
    assert shown.rows[0] == ("cheetah-run", "100.0", "150.0", "+50.0%")


def test_a_single_seed_has_statistics_without_intervals():
    scores = statistics.final_scores(rows(value=value, seeds=1))
    baseline, ours = comparisons.statistics_table(scores, COMPARED, title="").rows
    assert baseline[1:] == ("1.000", "1.000", "1.000", "0.000", "-")
    assert ours[1:] == ("1.500", "1.500", "1.500", "0.000", "1.000")


def test_who_scores_more_needs_no_scale():
    scores = statistics.final_scores(rows(value=lambda *at: value(*at) - 1000))
    _, ours = comparisons.statistics_table(scores, COMPARED, title="").rows
    assert ours[1:] == ("-", "-", "-", "-", "1.000 [1.000, 1.000]")


def test_brackets_in_names_are_shown_as_they_are():
    table = Table("half [b]", ("task", "GPLD [/half]"), (("t [red]", "[1, 2]"),), ())
    shown = render(table, "terminal")
    assert all(text in shown for text in ("half [b]", "GPLD [/half]", "t [red]", "[1, 2]"))


def test_others_runs_are_shown_where_all_of_them_have_a_point():
    peers = results.peers(agents=["DreamerV3", "TD-MPC2"])
    shown = comparisons.peer_table(peers, ["walker-walk", "acrobot-swingup_sparse", "walker-run"], 220_000)
    assert shown.title == "others' runs after 200,000 env steps"
    assert shown.header == ("task", "DreamerV3", "TD-MPC2")
    assert shown.rows[0][:2] == ("walker-walk", "399.0 [327.4, 470.6]")
    assert [row[0] for row in shown.rows] == ["walker-walk", "walker-run"]
    assert comparisons.peer_table(peers, ["walker-walk"], 70_000) is None


def test_robust_statistics_are_of_normalised_scores():
    scores = statistics.final_scores(rows(value=value))
    shown = comparisons.statistics_table(scores, COMPARED, title="")
    baseline, ours = shown.rows
    assert baseline[0] == "DreamerV3"
    assert baseline[3].startswith("1.000 [")
    expected = (151 / 101 + 301 / 201) / 2
    assert ours[3].startswith(f"{expected:.3f} [")
    assert ours[4] == "0.000 [0.000, 0.000]"
    assert ours[5] == "1.000 [1.000, 1.000]"
    assert comparisons.statistics_table(scores.iloc[:0], COMPARED, title="").rows[0][1:] == ("-",) * 5


def test_sample_efficiency_is_measured_against_where_the_baseline_ends():
    table = rows(value=lambda t, m, s, x: (m + 1) * x / 1000)
    shown = comparisons.efficiency_table(curves.align(table), COMPARED, title="")
    assert shown.rows[0] == ("cheetah-run", "10,000", "5,000")
    assert comparisons.efficiency_table({}, COMPARED, title="").rows[0][1:] == ("-",) * 2
    ours = curves.align(table[table["method"] != "DreamerV3"])
    assert comparisons.efficiency_table(ours, COMPARED, title="").rows[0][1:] == ("-",) * 2


@pytest.mark.parametrize("band", ["std", "interval"])
def test_figures_draw_every_curve_where_it_is(band):
    aligned = curves.align(rows(value=value))
    figure = figures.tasks(aligned, COMPARED, band=band, marks=results.paper_scores())
    first = figure.axes[0]
    assert first.get_title(loc="left") == "cheetah-run"
    drawn = {line.get_label(): line.get_ydata() for line in first.get_lines()}
    np.testing.assert_allclose(drawn["DreamerV3"], 101.0)
    np.testing.assert_allclose(drawn["GPLD-DreamerV3"], 151.0)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["DreamerV3", "GPLD-DreamerV3"]
    raw, normalised = figures.aggregate(aligned, COMPARED, band).axes
    assert raw.get_lines()[1].get_ydata()[-1] == pytest.approx((151 + 301) / 2)
    assert normalised.get_lines()[0].get_ydata()[-1] == pytest.approx(1.0)
    assert [line.get_color() for line in normalised.get_lines()] == [COLOURS[1], COLOURS[0]]


def test_means_over_tasks_are_of_those_that_all_methods_have():
    aligned = curves.align(rows(value=value))
    del aligned["walker-walk", "GPLD-DreamerV3"]
    raw, _ = figures.aggregate(aligned, COMPARED).axes
    assert raw.get_title(loc="left") == "raw mean of 1 task"
    assert raw.get_lines()[0].get_ydata()[-1] == pytest.approx(101)
    (panel,) = figures.ablation(aligned, COMPARED, title="x").axes
    assert panel.get_title(loc="left") == "x, 1 of 2 tasks"
    del aligned["cheetah-run", "DreamerV3"]  # now they share none
    assert not any(axes.get_lines() for axes in figures.aggregate(aligned, COMPARED).axes)


def test_curves_of_others_are_thin_and_between_their_bounds():
    peers = curves.peer_curves(results.peers(agents=["DreamerV3", "TD-MPC2"]), 250_000)
    figure = figures.tasks(curves.align(rows(value=value)), COMPARED, others=peers)
    _, walker = figure.axes
    drawn = {line.get_label(): line for line in walker.get_lines()}
    assert list(drawn) == ["DreamerV3", "GPLD-DreamerV3", "DreamerV3 (others' runs)", "TD-MPC2"]
    dreamer = drawn["DreamerV3 (others' runs)"]
    assert dreamer.get_ydata()[-1] == 454.9
    assert drawn["TD-MPC2"].get_xdata().tolist() == [0, 100_000, 200_000]
    assert dreamer.get_linewidth() < drawn["DreamerV3"].get_linewidth()
    assert len({line.get_color() for line in drawn.values()}) == 4
    band = walker.collections[2].get_paths()[0].vertices
    assert band[:, 1].max() == 522.4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(drawn)


def test_figures_say_so_if_there_is_nothing_to_draw(tmp_path):
    none = rows().iloc[:0]
    for figure in (
        figures.aggregate({}, COMPARED),
        figures.tasks({}, COMPARED),
        figures.ablation({}, COMPARED, title="x"),
    ):
        assert "no results yet" in [text.get_text() for text in figure.axes[0].texts]
    paths = figures.save(figures.profile(statistics.final_scores(none), COMPARED), tmp_path, "x", source="s")
    assert [path.name for path in paths] == ["x.pdf", "x.png"]
    assert b"/Subject (s)" in paths[0].read_bytes()
