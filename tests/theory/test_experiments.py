"""The paper's tabular claim: smoothing beats maximum likelihood where laws are smooth and data are few."""

import numpy as np
import pandas
import pytest

from gpld.theory import by_data, by_weight, gains, intervals

SEEDS = 20


@pytest.fixture(scope="module")
def few_visits() -> pandas.DataFrame:
    errors = by_data(SEEDS, visits=(4,), estimators=("maximum likelihood", "constant"))
    return gains(errors).set_index("mdp")


@pytest.mark.parametrize("mdp", ["random", "grid", "pendulum"])
def test_smoothing_wins_with_little_data_where_laws_are_smooth(few_visits, mdp):
    assert few_visits.loc[mdp, "high"] < -0.05


def test_smoothing_loses_where_neighbours_have_nothing_in_common(few_visits):
    assert few_visits.loc["shuffled", "low"] > 0.05


def test_a_constant_lambda_costs_much_data_dear_and_a_decaying_one_does_not():
    found = gains(by_data(5, visits=(256,), mdps=("random", "grid"))).set_index(["mdp", "estimator"])
    for mdp in ("random", "grid"):
        constant, decaying, faded = (
            found.loc[(mdp, name)] for name in ("constant", "sqrt decay", "fixed in the sum")
        )
        assert constant["low"] > 0.1
        assert decaying["high"] < 0.02
        assert faded["high"] < 0.002


@pytest.mark.slow
def test_the_best_lambda_is_smaller_with_more_data():
    found = intervals(by_weight(5, weights=(0.02, 0.5, 10.0), mdps=("random",)))
    best = {visits: x.set_index("lambda")["mean"].idxmin() for visits, x in found.groupby("visits")}
    assert best == {4: 0.5, 64: 0.02}


def test_seeds_decide_everything():
    one, two = (by_data(2, visits=(2,), mdps=("random", "shuffled")) for _ in range(2))
    pandas.testing.assert_frame_equal(one, two)
    assert one.groupby("seed")["error"].mean().nunique() == 2
    assert one.groupby(["mdp", "estimator"]).size().eq(2).all()


def test_lambdas_follow_their_schedules():
    errors = by_data(1, visits=(1, 3), mdps=("grid",), base=0.5)
    found = errors.set_index(["estimator", "visits"])["lambda"]
    assert found["constant"].tolist() == [0.5, 0.5]
    np.testing.assert_allclose(found["sqrt decay"], [0.5 / 2**0.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(found["fixed in the sum"], [0.5, 0.5 / 3])
    assert found["maximum likelihood"].tolist() == [0.0, 0.0]


def test_intervals_are_students_and_gains_are_paired():
    keys = {"mdp": "m", "visits": 1}
    rows = [
        keys | {"seed": seed, "estimator": name, "lambda": weight, "error": error}
        for seed, pair in enumerate([(0.9, 0.5), (0.8, 0.3), (0.4, 0.1)])
        for name, weight, error in zip(("maximum likelihood", "e"), (0.0, 0.5), pair, strict=True)
    ]
    (gain,) = gains(pandas.DataFrame(rows)).to_dict("records")
    assert gain["mean"] == pytest.approx(-0.4)
    # Standard deviation 0.1 over three seeds; the 97.5% quantile of t with two degrees of freedom is 4.303.
    half = 4.302652729911275 * 0.1 / 3**0.5
    assert (gain["low"], gain["high"]) == (pytest.approx(-0.4 - half), pytest.approx(-0.4 + half))
