"""The screening design: sixteen runs of one program, whose effects are those of single options."""

import itertools

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
def test_all_runs_are_one_program(screen, small, tmp_path):
    config = with_presets(Config("walker-walk"), screen.PRESETS[small])
    values = screen.factors(small)
    runs = screen.members(config, values, tmp_path)
    assert len(programs(runs)) == 1
    assert len({run.config.seed for run in runs}) == 16
    for signs, run in zip(screen.design(), runs, strict=True):
        own = flat(run.config)
        assert [own[name] for name in values] == [
            pair[sign > 0] for pair, sign in zip(values.values(), signs, strict=True)
        ]
