import dataclasses
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpld.config import Config, with_presets
from gpld.display.curve import COLOURS, colours, draw_curve, mean_curve, save_curve, text_curve, title_of

BITS = {
    0x01: (0, 0),
    0x02: (1, 0),
    0x04: (2, 0),
    0x40: (3, 0),
    0x08: (0, 1),
    0x10: (1, 1),
    0x20: (2, 1),
    0x80: (3, 1),
}


def dots(text):
    """Column to rows (upwards) of all dots, from the braille characters between the axes."""
    rows = [line.split(mark, 1)[1] for line in text.splitlines() for mark in "┤│" if mark in line]
    found = {}
    for i, row in enumerate(rows):
        for j, character in enumerate(row):
            for bit, (down, right) in BITS.items():
                if 0x2800 <= ord(character) < 0x2900 and (ord(character) - 0x2800) & bit:
                    found.setdefault(2 * j + right, set()).add(4 * len(rows) - 1 - (4 * i + down))
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 1000.0), min_size=2, max_size=40), st.integers(30, 100), st.integers(3, 15))
def test_rising_returns_give_a_rising_line_without_gaps(steps, width, height):
    returns = np.cumsum(np.array(steps) + 0.1)
    env_steps = 5000 * np.arange(len(returns))
    text = text_curve(env_steps, returns, width=width, height=height)
    assert max(map(len, text.splitlines()[:-1])) <= width
    found = dots(text)
    columns = sorted(found)
    assert columns == list(range(columns[-1] + 1))
    tops = [max(found[column]) for column in columns]
    assert tops == sorted(tops)
    assert tops[-1] == 4 * height - 1
    for left, right in itertools.pairwise(columns):
        assert min(found[right]) - max(found[left]) <= 1


def test_falling_returns_fall():
    found = dots(text_curve(range(50), range(50, 0, -1), width=60))
    lows = [min(found[column]) for column in sorted(found)]
    assert lows == sorted(lows, reverse=True)
    assert lows[0] > lows[-1]


def test_axes_are_labelled_with_the_extremes():
    text = text_curve([2000, 4000, 30_000], [50.0, 848.0, 300.0], title="walker-walk", width=60).splitlines()
    assert text[0] == "walker-walk"
    assert text[1].split("┤")[0] == " 848"
    assert text[6].split("┤")[0] == " 424"
    assert text[11].split("┤")[0] == "   0"
    assert text[-2].split() == ["0", "30,000", "env", "steps"]
    assert text[-1] == "return: first 50, best 848 at 4,000 env steps, last 300"


def test_a_point_is_where_its_numbers_say():
    found = dots(text_curve([0, 1000, 4000], [0.0, 10.0, 0.0], width=44, height=11))
    columns = 2 * (44 - 3 - 1)
    peak = next(column for column in sorted(found) if 43 in found[column])
    assert peak == pytest.approx((columns - 1) / 4, abs=1)
    assert found[max(found)] == {0}
    assert max(found) == columns - 1


def test_negative_returns_reach_from_the_smallest_to_the_largest():
    text = text_curve([1, 2], [-1500.0, -100.0], width=50).splitlines()
    assert text[0].split("┤")[0].strip() == "-100"
    assert text[10].split("┤")[0].strip() == "-1,500"


def test_the_random_policy_is_a_dashed_line_at_its_return():
    text = text_curve([0, 100], [1000.0, 1000.0], random_return=500.0, width=50).splitlines()
    assert [i for i, line in enumerate(text[:-1]) if "╌" in line] == [5]
    assert text[5].count("╌") == 50 - len("  1,000┤") + 1
    assert text[-1].endswith("random policy (╌) 500")


def test_one_point_constant_returns_and_none():
    assert sum(map(len, dots(text_curve([5000], [3.0], width=50)).values())) == 1
    assert set(dots(text_curve([0, 9], [-3.0, -3.0], width=50))) == set(range(2 * 46))
    assert text_curve([5000], [float("nan")], title="walker-walk") == "walker-walk\nno returns yet"


def test_returns_that_are_not_finite_are_left_out():
    clean = text_curve([0, 2, 3], [1.0, 5.0, 9.0], width=50)
    assert text_curve([3, 2, 1, 0], [9.0, 5.0, float("inf"), 1.0], width=50) == clean


def test_the_width_is_the_terminals_up_to_a_hundred(monkeypatch):
    for columns, expected in ((60, 60), (300, 100)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, text_curve([0, 1], [0.0, 7.0]).splitlines()[:-1])) == expected


def test_the_mean_of_runs_is_over_their_common_env_steps():
    curve = mean_curve(
        [([0, 10, 20, 30], [0, 10, 20, 30]), ([10, 30], [20, 40]), ([30, 20, 10, 0], [0, 0, 0, 0])]
    )
    assert curve.env_steps.tolist() == [10, 20, 30]
    assert curve.mean.tolist() == [10.0, 50 / 3, 70 / 3]
    assert curve.std[0] == pytest.approx(np.std([10.0, 20.0, 0.0]))
    assert mean_curve([([1, 2], [3.0, 4.0])]).std.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([([1, 2], [3.0, float("nan")]), ([1], [float("nan")])], "no finite return"),
        ([([0, 100], [1.0, 2.0]), ([200], [1.0])], "begins at 200 env steps and another ends at 100"),
    ],
)
def test_runs_that_cannot_be_averaged_are_refused(runs, message):
    with pytest.raises(ValueError, match=message):
        mean_curve(runs)


RUNS = [
    ("GPLD-DreamerV3", [0, 10_000, 20_000], [0.0, 100.0, 300.0]),
    ("GPLD-DreamerV3", [0, 10_000, 20_000], [0.0, 200.0, 500.0]),
    ("DreamerV3", [0, 10_000, 20_000], [0.0, 50.0, 100.0]),
]


def test_the_picture_shows_mean_deviation_and_random_policy():
    figure = draw_curve(RUNS, title="walker-walk, seeds 0, 1", random_return=30.0)
    (axes,), (legend,) = figure.axes, figure.legends
    gpld, dreamer, random = axes.lines
    assert gpld.get_ydata().tolist() == [0.0, 150.0, 400.0]
    assert dreamer.get_ydata().tolist() == [0.0, 50.0, 100.0]
    assert (gpld.get_color(), dreamer.get_color()) == COLOURS[:2]
    assert (random.get_linestyle(), random.get_ydata()[0]) == ("--", 30.0)
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y1 == 500.0  # 400 and one standard deviation of 300 and 500
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("env steps", "return")
    assert axes.get_title(loc="left") == "walker-walk, seeds 0, 1"
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["GPLD-DreamerV3 (mean and std of 2 runs)", "DreamerV3", "random policy"]
    assert axes.get_ylim()[0] == 0


def test_a_method_has_its_colour_in_whatever_company():
    assert colours(["DreamerV3", "GPLD-DreamerV3"]) == {"DreamerV3": COLOURS[1], "GPLD-DreamerV3": COLOURS[0]}
    found = colours(["a", "DreamerV3", "b", "c", "d", "e", "f"])
    assert found["DreamerV3"] == COLOURS[1]
    assert [found[name] for name in "abcdef"] == [*COLOURS[2:], COLOURS[2]]


def test_a_single_run_needs_no_legend_and_negative_returns_are_not_cut():
    (axes,) = draw_curve([("GPLD", [0, 1], [-9.0, -1.0])], title="", random_return=None).axes
    assert axes.get_legend() is None
    assert axes.get_ylim()[0] < -9


def test_the_picture_is_saved_whole(tmp_path):
    from matplotlib.image import imread

    path = tmp_path / "curve.png"
    save_curve(path, RUNS, title="walker-walk", random_return=30.0)
    pixels = imread(path)[..., :3]
    assert pixels.shape == (640, 1024, 3)
    blue = np.array([int(COLOURS[0][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert (np.abs(pixels - blue).max(-1) < 0.01).sum() > 500
    assert os.listdir(tmp_path) == ["curve.png"]


def test_a_title_names_task_method_and_seeds():
    config = Config(task="walker-walk", seed=3)
    assert title_of([config]) == "walker-walk, GPLD-DreamerV3, seed 3"
    assert (
        title_of([dataclasses.replace(config, seed=seed) for seed in (0, 1)])
        == "walker-walk, GPLD-DreamerV3, seeds 0, 1"
    )
    penalty = dataclasses.replace(config.agent.penalty, posterior=0.0)
    baseline = dataclasses.replace(config, agent=dataclasses.replace(config.agent, penalty=penalty))
    assert title_of([with_presets(baseline, ["nano"])]) == "walker-walk, DreamerV3, seed 3"
