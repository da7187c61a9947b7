import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

from gpld import cli
from gpld.analysis import cost
from gpld.analysis.cost import BASELINE, Setting
from gpld.config import Config, with_presets
from tests.training.helpers import tiny


def test_matrix_products_are_counted_through_loops_and_calls():
    def program(a, b, x):
        c = jax.jit(lambda a, b: jnp.tanh(a @ b))(a, b)  # [4, 5] @ [5, 6]
        x, _ = jax.lax.scan(lambda x, _: (x @ x, None), x, length=7)  # [3, 3] @ [3, 3]
        return c, jnp.einsum("bij,bjk->bik", jnp.stack([a, a]), jnp.stack([b, b])), x.sum()

    jaxpr = jax.make_jaxpr(program)(jnp.ones((4, 5)), jnp.ones((5, 6)), jnp.ones((3, 3))).jaxpr
    assert cost.matrix_flops(jaxpr) == 2 * 4 * 5 * 6 + 7 * 2 * 27 + 2 * 2 * 4 * 5 * 6


@pytest.mark.parametrize("groups", [1, 3])
def test_a_convolution_and_its_gradients_are_counted(groups):
    x, weight = jnp.ones((2, 8, 6, 3)), jnp.ones((5, 3, 3 // groups, 12))

    def convolved(x, weight):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, weight, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=groups
        )

    def flops(program):
        return cost.matrix_flops(jax.make_jaxpr(program)(x, weight).jaxpr)

    def total(x, weight):
        return jnp.sum(jnp.sin(convolved(x, weight)))

    # Each of 12 channels at 8 x 6 places of 2 maps reads 5 x 3 places of its group's channels.
    once = 2 * (2 * 8 * 6) * 12 * (5 * 3) * (3 // groups)
    assert flops(convolved) == once
    # Either gradient is a convolution of the same products.
    assert flops(jax.grad(total, argnums=0)) == 2 * once
    assert flops(jax.grad(total, argnums=(0, 1))) == 3 * once


@pytest.mark.slow
def test_the_arithmetic_of_an_update_grows_with_the_penalty():
    config = tiny("walker-walk")

    def flops(*setting):
        changed = cost.with_penalty(config, Setting(*setting)).agent
        state = jax.eval_shape(lambda: cost.agent.init(changed, cost.WALKER, jax.random.key(0)))
        batch = jax.eval_shape(lambda: cost.random_batch(config, cost.WALKER, jax.random.key(0)))
        traced = jax.make_jaxpr(lambda *x: cost.agent.update(changed, *x))(state, batch)
        return cost.matrix_flops(traced.jaxpr)

    none, half, whole = flops(*BASELINE), flops(0.5, 0.5, 0.0), flops(1.0, 0.5, 0.0)
    products = flops(0.5, 0.5, 0.0, "vjp")
    assert products > half
    assert none < half < whole
    # All but the Gram matrix is proportional to the number of states.
    assert half - none > 0.4 * (whole - none)
    assert flops(0.5, 0.25, 0.0) == half
    assert flops(0.5, 0.5, 0.5) > half


def test_kernels_are_counted_through_loops_of_known_length():
    text = """HloModule jit_f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %add = f32[4]{0} add(%p, %p)
}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%arg), index=1
  %fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %dot = f32[4]{0} dot(%x, %fusion.1), lhs_contracting_dims={0}
  ROOT %out = (s32[], f32[4]{0}) tuple(%x, %dot)
}

%condition (arg: (s32[], f32[4])) -> pred[] {
  ROOT %less = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %copy = f32[4]{0} copy(%p)
  %loop = (s32[], f32[4]{0}) while(%t), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %out = f32[4]{0} fusion(%copy), kind=kLoop, calls=%fused
}
"""
    assert cost.kernel_count(text) == 2 + 5 * 2
    assert cost.kernel_count(re.sub(r", backend_config=.*", "", text)) == 2 + 2


def test_a_compiled_loop_has_the_kernels_of_all_its_turns():
    def compiled(turns):
        step = jax.jit(lambda x: jax.lax.fori_loop(0, turns, lambda _, x: jnp.sin(x @ x), x))
        return cost.kernel_count(step.lower(jnp.ones((64, 64))).compile().as_text())

    few, many = compiled(10), compiled(30)
    each, rest = divmod(many - few, 20)
    assert each >= 1
    assert rest == 0
    assert few >= 10 * each


def test_the_settings_are_the_papers_by_both_estimators_and_a_run_has_its_updates():
    settings = cost.paper_settings()
    assert len(settings) == 24
    assert settings[10:12] == [Setting(0.5, 0.5, 0.0, "vjp"), Setting(0.5, 0.5, 0.0, "probes")]
    # 500k env steps are 250k agent steps; at a train ratio of 512 and 1024 steps a batch, 125k updates.
    assert cost.updates_in(with_presets(Config("walker-walk"), ["12m"]), 500_000) == 125_000


class Clock(cost.Program):
    """Takes as long as its setting says, and longer in some rounds."""

    def __init__(self, config, spaces, *, runs, updates):
        penalty = config.agent.penalty
        self.flops, self.compile_seconds, self.calls = 2e9, 1.0, 0
        share = (0.3 if penalty.estimator == "vjp" else 0.1) * penalty.rho
        self.base = 10.0 * (1 + share * ((penalty.posterior > 0) + (penalty.prior > 0)))

    def time(self):
        self.calls += 1
        return self.base * (3.0 if self.calls == 4 else 1.0)  # something else is busy: for all alike

    temporary, kernels = 2**20, 7.0


def test_ratios_are_taken_round_by_round(monkeypatch):
    monkeypatch.setattr(cost, "Program", Clock)
    config = with_presets(Config("walker-walk"), ["12m"])
    found = cost.measure(config, [Setting(1.0, 0.5, 0.0), Setting(0.5, 0.5, 0.5)], repeats=5)
    np.testing.assert_allclose(found["ratio"], [1.0, 1.1, 1.1])
    np.testing.assert_allclose(found["ratio_std"], 0.0, atol=1e-12)
    np.testing.assert_allclose(found["ms"], [10.0, 11.0, 11.0])
    np.testing.assert_allclose(found["seconds_more"], [0.0, 125.0, 125.0])  # 1 ms of 125k updates
    assert found["paper"].tolist() == [1.0, 1.68, 1.44]
    assert found["paper_std"].tolist() == [0.0, 0.1, 0.027]
    assert found["paper_seconds_more"].tolist() == [0.0, 4920.4, 3177.4]


def test_the_command_writes_the_papers_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cost, "Program", Clock)
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["cost", "--preset", "nano", "cpu", "--repeats", "2", "--out", str(tmp_path)]) == 0
    rows = pandas.read_csv(tmp_path / "cost.csv")
    assert len(rows) == 25
    paper = cost.results.paper_cost()
    for estimator in ("vjp", "probes"):
        own = rows[rows["estimator"] == estimator]
        for ours, theirs in (
            ("paper", "ratio"),
            ("paper_std", "std"),
            ("paper_seconds_more", "seconds_more"),
        ):
            np.testing.assert_allclose(own[ours], paper[theirs])
    assert len((tmp_path / "cost.md").read_text().splitlines()) == 27
    out = capsys.readouterr().out
    assert "presets nano cpu" in out
    assert "compile: 19 of 19" in out  # weights do not change a program
    cells = [[cell.strip() for cell in line.split("\u2502")][1:-1] for line in out.splitlines()]
    (line,) = [row for row in cells if row[:4] == ["1", "0.5", "0", "by products"]]
    assert line[4:9] == ["1.300 \u00b1 0.000", "1.68 \u00b1 0.100", "375", "4920", "13 (0)"]
    (line,) = [row for row in cells if row[:4] == ["1", "0.5", "0", "in closed form"]]
    assert line[4:6] == ["1.100 \u00b1 0.000", "1.68 \u00b1 0.100"]


def test_the_command_times_chosen_settings(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cost, "Program", Clock)
    chosen = ["--settings", "0.5,0.5,0", "1,0.1,0.1", "--estimators", "probes"]
    assert cli.main(["cost", "--preset", "nano", "cpu", *chosen, "--out", str(tmp_path)]) == 0
    rows = pandas.read_csv(tmp_path / "cost.csv", keep_default_na=False)
    found = rows[["rho", "posterior", "prior", "estimator"]].values.tolist()
    assert found == [[0, 0, 0, ""], [0.5, 0.5, 0, "probes"], [1, 0.1, 0.1, "probes"]]
    out = capsys.readouterr().out
    assert "the baseline and 2 settings" in out
    assert re.search(r"compile: 3 of 3, about \d+ seconds? left", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--settings", "0.5"], "settings: '0.5' is not allowed; it must be RHO,POST,PRIOR"),
        (["--settings", "0.5,0.5,0", "0,1,1"], "settings: '0,1,1' is not allowed"),
        (["--settings", "0.5,0,0"], "settings: '0.5,0,0' is not allowed"),
        (["--settings", "1,nan,1"], "settings: '1,nan,1' is not allowed"),
        (["--repeats", "1"], "repeats: 1 is not allowed; it must be at least 2"),
        (["--preset", "nanno"], "preset: 'nanno'"),
    ],
)
def test_mistakes_are_told(arguments, message, capsys):
    assert cli.main(["cost", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_program_is_timed_and_described():
    program = cost.Program(tiny("walker-walk"), updates=2)
    assert 0 < program.time() < 1000
    assert program.flops > 1e6
    assert program.temporary > 0
    assert program.kernels > 100
    assert int(program.states.updates[0]) == 2 * 2
    assert int(program.states.skipped[0]) == 0
