"""Operations of the compiled programs, at the 12M agent's sizes and rho = 0.5."""

import jax
import pytest

from tests import scripts


@pytest.fixture(scope="module")
def benchmark():
    return scripts.load("benchmarks/penalty.py")


@pytest.mark.slow
def test_closed_form_probes_take_at_most_a_fifth_of_the_operations(benchmark):
    options = benchmark.Options(rho=(0.5,), targets=("posterior",))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        cases = list(benchmark.penalty_cases(options))
        programs = list(benchmark.compile_all(cases))
    cost = {
        case.labels["estimator"]: benchmark.measure(case, program, repeats=0, execute=False).gigaflops
        for case, program in zip(cases, programs, strict=True)
    }
    assert cost["vjp probes"] > 40  # 512 states, 32 rows: three times 2 * (2304 + 512) * 256 each, at least
    assert cost["closed-form probes"] < cost["vjp probes"] / 5
    assert cost["closed-form exact"] < 1.5 * cost["vjp probes"]


@pytest.mark.slow
def test_the_benchmark_measures_every_case_and_writes_it_down(benchmark, tmp_path):
    small = {"deter": 16, "units": 8, "hidden": 8, "stoch": 2, "classes": 4, "states": 8}
    options = benchmark.Options(**small, runs=2, rho=(0.5,), targets=("joint",), repeats=1, out=tmp_path)
    measurements = benchmark.main(options)
    assert [m.labels["estimator"] for m in measurements] == list(options.estimators)
    assert all(m.milliseconds > 0 and m.gigaflops > 0 for m in measurements)
    assert (tmp_path / "penalty.json").read_text().count('"estimator"') == 3
