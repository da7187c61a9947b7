"""Sections of the report, out of rows as measurements keep them."""

import json

import numpy as np
import pandas as pd
import pytest

from gpld import results
from gpld.analysis import report
from gpld.analysis.curves import Curve
from gpld.analysis.report._page import render
from gpld.display.curve import COLOURS
from tests.analysis.test_quality import ROWS as QUALITY

NOTHING = pd.DataFrame(columns=list(results.COLUMNS)).astype({"return": float})
"""No results."""
SENSITIVITY = pd.DataFrame(
    {
        "run": f"{method}{seed}",
        "task": "walker-walk",
        "method": method,
        "seed": seed,
        "env_steps": steps,
        "updates": steps,
        "map": name,
        "magnitude": magnitude,
        "length": 1.0,
        "kl": scale * magnitude * steps * (1 + seed),
        "total_variation": 0.5,
        "jacobian": np.nan if name == "observation" else 2.0,
    }
    for method, scale in (("DreamerV3", 4.0), ("GPLD-DreamerV3", 1.0))
    for seed in (0, 1)
    for steps in (100, 200)
    for name in ("posterior", "prior", "observation")
    for magnitude in (0.1, 0.3)
)


def test_the_sensitivity_of_posterior_and_prior_is_drawn_over_training():
    section = report.section_of("sensitivity", SENSITIVITY, ["the source"])
    assert [chart.title for chart in section.charts] == ["walker-walk: posterior", "walker-walk: prior"]
    curves = {(curve["method"], curve["seed"]): curve for curve in section.charts[0].curves}
    assert len(curves) == 4
    # Means over the lengths of steps, 0.1 and 0.3.
    assert curves["GPLD-DreamerV3", 1]["xs"] == [100, 200]
    assert curves["GPLD-DreamerV3", 1]["ys"] == pytest.approx([40.0, 80.0])
    (table,) = section.tables
    rows = {row[1:3]: row for row in table.rows}
    assert rows["prior", "GPLD-DreamerV3"][6] == "0.250"
    assert rows["posterior", "DreamerV3"][3] == "240 \u00b1 80"
    assert rows["observation", "DreamerV3"][5] == "-"
    assert table.notes[-1] == "the source"


def test_errors_of_the_last_checkpoints_are_drawn_by_steps_ahead():
    section = report.section_of("quality", QUALITY)
    titles = [f"walker-walk: {name}" for name in ("latent", "reward", "observation")]
    assert [chart.title for chart in section.charts] == titles
    curves = {(curve["method"], curve["seed"]): curve for curve in section.charts[0].curves}
    assert curves["DreamerV3", 1] == {
        "task": "walker-walk",
        "method": "DreamerV3",
        "seed": 1,
        "xs": [1, 2, 5],
        "ys": [3.0, 5.0, 11.0],
    }
    assert section.tables[0].rows[0] == ("walker-walk", "1", "DreamerV3", "2.5", "0.1", "400", "2")


def test_a_single_run_has_no_deviation():
    section = report.section_of("sensitivity", SENSITIVITY[SENSITIVITY["seed"] == 0])
    assert section.tables[0].rows[0][3] == "160"


def data_of(page):
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def test_what_there_is_nothing_of_is_left_out():
    page = render(report.Page("title", ["Nothing yet."], ["DreamerV3"], NOTHING))
    for name in ("scores", "sensitivity", "quality", "films", "environment"):
        assert f'id="{name}"' not in page
    assert "<!--" not in page
    page = render(report.Page("title", [], [], NOTHING, no_films="no film: no screen"))
    assert '<section id="films"><h2>Films</h2><p>No film: no screen.</p></section>' in page


def test_curves_of_others_have_their_bounds_and_colours():
    line = np.array([0.0, 10.0])
    others = {("walker-walk", "TD-MPC2"): Curve(1000 * line, line, line - 1, line + 2, 0)}
    page = render(report.Page("title", [], ["DreamerV3", "GPLD-DreamerV3"], NOTHING, others=others))
    data = data_of(page)
    assert data["others"] == [
        {
            "task": "walker-walk",
            "method": "TD-MPC2",
            "steps": [0.0, 10_000.0],
            "mean": [0.0, 10.0],
            "low": [-1.0, 9.0],
            "high": [2.0, 12.0],
        }
    ]
    assert data["colours"] == {"DreamerV3": COLOURS[1], "GPLD-DreamerV3": COLOURS[0], "TD-MPC2": COLOURS[2]}


def test_a_page_holds_its_sections_and_numbers_that_are_missing():
    rows = QUALITY.assign(reward=QUALITY["reward"].where(QUALITY["ahead"] != 2))
    sections = [report.section_of("sensitivity", SENSITIVITY), report.section_of("quality", rows)]
    page = render(report.Page("title", [], ["DreamerV3"], NOTHING, sections=sections))
    assert data_of(page)["charts"]["quality"][1]["curves"][0]["ys"] == [0.1, None, 0.5]
    assert page.index('id="curves"') < page.index('id="sensitivity"') < page.index('id="quality"')
