"""Tables, figures and pages of studies, out of made-up results."""

import json

import pytest

from gpld.analysis.statistics import final_scores
from gpld.cli import main
from gpld.config import ConfigError
from gpld.studies import _show, get
from tests.results.helpers import rows
from tests.studies.helpers import opened, small

FAR = {"env_steps": [200_000], "tasks": ["cheetah-run", "walker-walk"], "figures": ["aggregate"]}


def study(**changes):
    return small(**(FAR | changes)).study


def made(**changes):
    """Results of the made-up methods as far as the study goes."""
    table = rows(methods=("DreamerV3", "half, rho 1"), **changes)
    return table.assign(env_steps=table["env_steps"] * 20)


def titles(found):
    return [table.title.partition(": ")[2] or table.title for table in found]


def test_ends_and_areas_have_the_same_tables():
    found = _show.tables(study(), made(value=lambda t, m, s, x: (m + 1) * (x / 1000 + s)), "here")
    assert titles(found) == [
        "scores after 200,000 env steps",
        "statistics of scores after 200,000 env steps",
        "area under the curve to 200,000 env steps",
        "statistics of the area under the curve to 200,000 env steps",
        "sample efficiency",
    ]
    ends, _, areas, robust, _ = found
    assert ends.rows[0][1:3] == ("11.0 \u00b1 0.8 [10.0, 12.0]", "22.0 \u00b1 1.6 [20.0, 24.0]")
    assert areas.rows[0][1:3] == ("6.5 \u00b1 0.8 [5.5, 7.5]", "13.0 \u00b1 1.6 [11.0, 15.0]")
    assert ends.header[:3] == areas.header[:3] == ("task", "DreamerV3", "half, rho 1")
    assert robust.rows[1][3].startswith("2.000 [")


@pytest.mark.parametrize(
    ("seeds", "less", "value", "sure"),
    [
        (3, 0, "+100.0%", "probability 1.00 (95% interval 1.00 to 1.00)."),
        (1, 0, "+100.0%", "probability 1.00 (one seed): not settled."),
        (3, 1000, "1.00", "At 200,000 env steps. A run of half, rho 1 scores more than one of DreamerV3"),
    ],
)
def test_the_first_number_of_a_page_says_how_sure_it_is(seeds, less, value, sure):
    scores = final_scores(made(seeds=seeds, value=lambda t, m, s, x: (m + 1) * x / 1000 - less))
    tile = _show._gain_tile(study(), scores, "half, rho 1", 200_000)
    assert tile.value == value
    assert sure in tile.detail


def test_what_nothing_is_known_of_has_no_table():
    assert _show.tables(study(), made().iloc[:0], "here") == []
    begun = _show.tables(study(), made(points=5), "here")
    assert titles(begun) == ["sample efficiency"]


def test_a_study_that_compares_with_peers_shows_them():
    study = get("locomotion-short")
    assert study.compare == ("paper", "peers")
    table = _show.tables(study, made().iloc[:0], "here")[-1]
    assert table.title == "others' runs after 200,000 env steps"
    assert [row[0] for row in table.rows] == list(study.tasks)
    drawn = _show.draw(study, made().iloc[:0])["tasks"]
    assert [line.get_label() for line in drawn.axes[0].get_lines()] == ["DreamerV3 (others' runs)"]
    assert max(line.get_xdata()[-1] for panel in drawn.axes for line in panel.get_lines()) == 200_000


def test_any_study_is_drawn_beside_peers_that_are_asked_for():
    assert set(_show.draw(study(), made())) == {"aggregate"}
    drawn = _show.draw(study(), made(), peers=["SAC", "BMPC"])
    assert set(drawn) == {"aggregate", "tasks"}
    labels = {line.get_label() for line in drawn["tasks"].axes[1].get_lines()}
    assert labels == {"DreamerV3", "half, rho 1", "SAC", "BMPC"}
    with pytest.raises(ConfigError, match="peers: there are no peers' curves of 'PPO'; allowed are BMPC"):
        _show.draw(study(), made(), peers=["PPO"])
    with pytest.raises(ConfigError, match="peers: SAC cannot be drawn: no curves of the tasks up to 600 env"):
        _show.draw(study(env_steps=[600]), made(), peers=["SAC"])


def test_the_command_draws_peers_and_refuses_strangers(tmp_path, capsys):
    small(**FAR).write(tmp_path)
    arguments = ["study", "figure", "locomotion-short", "--out", str(tmp_path), "--peers"]
    assert main([*arguments, "DreamerV3", "TD-MPC2"]) == 0
    names = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    assert names == [f"small-{name}.{kind}" for name in ("aggregate", "tasks") for kind in ("pdf", "png")]
    assert main([*arguments, "TDMPC2"]) == 2
    assert "peers: there are no peers' curves of 'TDMPC2'; did you mean TD-MPC2" in capsys.readouterr().err


def test_the_command_says_that_there_are_no_results_yet(tmp_path, capsys):
    small().write(tmp_path)
    assert main(["study", "table", "smoke", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no results yet\n"


def test_a_page_holds_the_peers_of_its_study(tmp_path):
    plan = small(**FAR, compare=["peers"])
    plan.write(tmp_path)
    page = _show.write_study_report(opened(plan, tmp_path), make_films=False).read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert {(curve["task"], curve["method"]) for curve in data["others"]} == {
        (task, "DreamerV3 (others' runs)") for task in FAR["tasks"]
    }
    assert "Others&#x27; runs after 200,000 env steps" in page
    assert 'id="films"' not in page
