import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.penalty import schedules
from gpld.penalty.schedules import coefficient
from tests.golden_files import Golden

KINDS = ("sqrt", "none", "linear", "exponential", "cosine", "step", "custom")
TABLE = ((10, 0.3), (20, 0.05))


def reference_options(golden: Golden) -> dict:
    pairs = zip(golden["cfg/schedule_steps"].tolist(), golden["cfg/schedule_values"].tolist(), strict=True)
    return {
        "floor": golden.scalar("cfg/min_lam"),
        "decay_steps": int(golden.scalar("cfg/decay_steps")),
        "step_interval": int(golden.scalar("cfg/decay_interval")),
        "step_factor": golden.scalar("cfg/decay_factor"),
        "table": [(int(step), value) for step, value in pairs],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_golden_schedule(kind):
    """Every kind at every step, for all starts and initial weights; to 1e-6 of the initial weight."""
    golden = Golden("schedule")
    options = reference_options(golden)
    starts = golden.arrays["cfg/start_step"] * golden.scalar("cfg/env_to_opt_ratio")
    name = {"sqrt": "sqrt_time"}.get(kind, kind)
    for i, start in enumerate(starts):
        for j, base in enumerate(golden.arrays["base"]):
            actual = coefficient(kind, golden["steps"], float(base), start=float(start), **options)
            expected = golden[f"lam/start{i}/base{j}/{name}"]
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * base)


def test_golden_schedule_custom_without_a_table():
    golden = Golden("schedule")
    actual = coefficient("custom", golden["steps"], golden["base"][0], table=())
    np.testing.assert_array_equal(actual, golden["lam_custom_placeholder"])


def test_square_root_decay_is_the_papers():
    """Algorithm 2 at its defaults: 0.5 at first, 0.5 / sqrt(2) after 1000 updates, never below 0.001."""
    weights = schedules.sqrt(jnp.array([0, 1000, 3000, 10**9]), 0.5)
    np.testing.assert_allclose(weights, [0.5, 0.5 / 2**0.5, 0.25, 0.001], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_many_runs_in_one_program(kind):
    base = jnp.array([0.5, 0.0, 2.0])
    updates = jnp.array([3, 15, 40])
    floor = jnp.array([0.01, 0.01, 0.3])
    options = {"start": 4, "decay_steps": 30, "step_interval": 8, "table": TABLE, "scale": 5.0}
    program = jax.jit(jax.vmap(lambda u, b, f: coefficient(kind, u, b, floor=f, **options)))
    together = program(updates, base, floor)
    runs = zip(updates.tolist(), base.tolist(), floor.tolist(), strict=True)
    alone = [coefficient(kind, u, b, floor=f, **options) for u, b, f in runs]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    assert together[0] == 0  # not started yet
    assert together[1] == 0  # a baseline stays one


@pytest.mark.parametrize("kind", KINDS)
def test_weights_never_rise_nor_fall_below_the_floor(kind):
    updates = jnp.arange(0, 200, 3)
    weights = coefficient(
        kind, updates, 0.5, floor=0.1, decay_steps=50, step_interval=8, table=TABLE, scale=5.0
    )
    assert weights[0] == 0.5
    assert jnp.all(jnp.diff(weights) <= 0)
    assert jnp.all(weights >= 0.1)
    assert (weights[-1] < 0.5) == (kind != "none")
