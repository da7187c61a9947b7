import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.theory import direction_limit, rate, smooth_map, step_limit


@pytest.mark.parametrize("seed", [0, 1])
def test_finite_differences_become_derivatives_at_the_rates_of_theory(seed):
    found = step_limit(seed, points=20)
    rates = {name: rate(line["h"], line["error"]) for name, line in found.groupby("average")}
    # Taylor's next term: of first order along one direction, cancelled by the opposite neighbour on a grid.
    assert rates["one direction"] == pytest.approx(1.0, abs=0.03)
    assert rates["grid neighbours"] == pytest.approx(2.0, abs=0.03)
    assert found.groupby("average")["error"].min().max() < 1e-3


def test_averages_over_directions_become_the_frobenius_norm_at_the_rate_of_theory():
    found = direction_limit(0, directions=(4, 16, 64, 256, 1024))
    assert rate(found["directions"], found["error"]) == pytest.approx(-0.5, abs=0.05)
    # The root mean square of 64 errors is itself uncertain by about 1 / sqrt(2 * 64) = 9%.
    np.testing.assert_allclose(found["error"], found["predicted"], rtol=0.27)
    # The bars that one set of directions gives for itself are the right ones, and the mean is within them.
    large = found[found["directions"] >= 64]
    np.testing.assert_allclose(large["bar"], large["predicted"], rtol=0.3)
    assert (np.abs(large["mean"] - 1) < 4 * large["bar"]).all()


def test_the_map_is_a_law_whose_jacobian_rows_sum_to_zero():
    f = smooth_map(0)
    with jax.enable_x64(True):
        x = jnp.linspace(0.5, 3.5, 8)
        assert f(x).dtype == jnp.float64
        assert float(f(x).sum()) == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose(jax.jacfwd(f)(x).sum(0), 0.0, atol=1e-12)


def test_the_rate_of_a_power_is_its_exponent():
    x = [0.1, 0.2, 0.7, 5.0]
    assert rate(x, [3 * y**1.5 for y in x]) == pytest.approx(1.5)
