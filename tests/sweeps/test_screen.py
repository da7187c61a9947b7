"""The screening design: sixteen runs of one program, whose effects are those of single options."""

import itertools
import json
import re

import numpy as np
import pytest

from gpld.config import Config, flat, with_presets
from gpld.population import programs
from tests import scripts


@pytest.fixture(scope="module")
def screen():
    return scripts.load("scripts/recipe_screen.py")


def test_effects_are_free_of_each_other_and_of_pairs(screen):
    columns = np.array(screen.design()).T
    np.testing.assert_array_equal(columns @ columns.T, 16 * np.eye(8))
    pairs = [columns[i] * columns[j] for i, j in itertools.combinations(range(8), 2)]
    np.testing.assert_array_equal(columns @ np.array(pairs).T, 0)


def test_what_was_put_in_is_found(screen):
    signs, noise = np.array(screen.design()), np.random.default_rng(0).normal(size=16)
    pair = signs[:, 0] * signs[:, 1]
    found, error = screen.effects(100 + 10 * signs[:, 2] - 5 * signs[:, 6] + 3 * pair + noise)
    np.testing.assert_allclose(found, [0, 0, 20, 0, 0, 0, -10, 0], atol=3)
    assert error > screen.effects(10 * signs[:, 2] + noise)[1]  # a pair is noise to it
    exact, none = screen.effects(4.0 * signs[:, 3])
    np.testing.assert_allclose(exact, [0, 0, 0, 8, 0, 0, 0, 0])
    assert none == 0


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("options", ["behavior", "losses"])
def test_all_runs_are_one_program(screen, options, small, tmp_path):
    config = with_presets(Config("walker-walk"), screen.PRESETS[small])
    values = screen.factors(options, small)
    runs = screen.members(config, values, tmp_path)
    assert len(programs(runs)) == 1
    assert len({run.config.seed for run in runs}) == 16
    for signs, run in zip(screen.design(), runs, strict=True):
        own = flat(run.config)
        assert [own[name] for name in values] == [
            pair[sign > 0] for pair, sign in zip(values.values(), signs, strict=True)
        ]


def test_what_runs_hold_so_far_is_shown_and_kept(screen, tmp_path, capsys):
    line = ["walker-walk", "--small", "--show", "--out", str(tmp_path)]
    assert screen.main(line) == 0
    assert "no evaluation of all runs yet" in capsys.readouterr().out
    for run, signs in enumerate(screen.design()):
        folder = tmp_path / f"run{run:02}"
        folder.mkdir()
        evaluations = 3 if run == 0 else 2  # the first has one more
        lines = [
            {"env_steps": 5000 * i, "updates": i, "eval/return": 100.0 + 20 * signs[4]}
            for i in range(1, evaluations + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert screen.main(line) == 0
    said = capsys.readouterr().out
    assert "after 10,000 env steps" in said
    assert re.search(r"loss.reward.*\+40.0 ± 0.0", said)
    kept = json.loads((tmp_path / "screen.json").read_text())
    assert kept["env_steps"] == [5000, 10000]
    assert np.shape(kept["returns"]) == (16, 2)
    assert kept["summary"]["last evaluation"]["effects"]["agent.loss.reward"] == pytest.approx(40)
