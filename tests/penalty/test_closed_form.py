import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpld import penalty
from gpld.penalty import Head, Output, closed_form, closed_form_rows, first_preactivation

from .heads import full_jacobian, penalty_rows, probabilities, random_head, relative_error

all_penalty_rows = jax.vmap(penalty_rows, in_axes=(None, 0))
all_jacobians = jax.vmap(full_jacobian, in_axes=(None, 0))


def states(inputs: int, number: int = 3, dtype=None) -> jax.Array:
    return jax.random.normal(jax.random.key(2), (number, inputs), dtype)


def softened(x):
    return jnp.where(x > 0, x, 0.2 * x) + jnp.sin(x)


# Programs are compiled for each of these; every example draws its own numbers.
ARCHITECTURES = (
    {"hidden": (4,), "norm": "rms", "activation": "silu", "inputs": 5, "rows": 3, "classes": 4},
    {
        "hidden": (5,),
        "norm": "layer",
        "activation": softened,
        "inputs": 2,
        "rows": 1,
        "classes": 5,
        "unimix": 0.3,
    },
    {"hidden": (4,), "norm": None, "activation": "tanh", "inputs": 7, "rows": 2, "classes": 2, "bias": False},
    {
        "hidden": (4, 3),
        "norm": "rms",
        "activation": "elu",
        "inputs": 3,
        "rows": 2,
        "classes": 3,
        "unimix": 0.0,
    },
    {
        "hidden": (3, 4),
        "norm": None,
        "activation": "silu",
        "inputs": 4,
        "rows": 3,
        "classes": 2,
        "unimix": 0.1,
    },
    {"hidden": (3, 4, 3), "norm": "layer", "activation": "tanh", "inputs": 4, "rows": 2, "classes": 3},
)
WEIGHTS = jnp.array([[1.0], [2.0], [-1.5]])  # a different cotangent for every state


@jax.jit
def ours_and_full(head: Head, u: jax.Array, epsilon: jax.Array):
    """Penalties of all rows, exact and probed, and gradients: in closed form, and by the full Jacobian."""

    def ours(head, u):
        y = first_preactivation(head, u)
        return closed_form_rows(head, y), closed_form_rows(head, y, epsilon)

    def full(head, u):
        jacobians = all_jacobians(head, u)
        pulled = jnp.einsum("nkcd,pnkc->pnkd", jacobians, epsilon)
        probed = jnp.mean(jnp.sum(jnp.square(pulled), axis=3), axis=0)
        return jnp.sum(jnp.square(jacobians), axis=(2, 3)), probed

    def weighted(fn, head, u):
        exact, probed = fn(head, u)
        return jnp.sum(WEIGHTS.astype(u.dtype) * (exact + 0.7 * probed)), (exact, probed)

    evaluated = jax.value_and_grad(weighted, (1, 2), has_aux=True)
    return evaluated(ours, head, u), evaluated(full, head, u)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(ARCHITECTURES), st.sampled_from((0.3, 2.0, 5.0)), st.integers(0, 1000))
def test_values_and_gradients_equal_those_of_the_full_jacobian(options, sharpness, seed):
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), 3)
        head = random_head(keys[0], **options, sharpness=sharpness)
        u = jax.random.normal(keys[1], (3, options["inputs"]))
        epsilon = jax.random.normal(keys[2], (2, 3, options["rows"], options["classes"]))
        actual, expected = ours_and_full(head, u, epsilon)
        for ours, full in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, full, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("hidden", [(8,), (8, 6)])
def test_confident_rows_lose_no_digits(hidden):
    """Nearly one-hot rows, in single precision, against double."""
    head = random_head(jax.random.key(3), hidden=hidden, sharpness=30.0, unimix=0.0)
    y = first_preactivation(head, states(7))
    value = jax.jit(jax.value_and_grad(lambda head, y: jnp.sum(closed_form_rows(head, y)), (0, 1)))
    single = value(head, y)
    with jax.enable_x64(True):
        double = value(*jax.tree.map(lambda x: x.astype(jnp.float64), (head, y)))
    assert relative_error(single, jax.tree.map(lambda x: x.astype(jnp.float32), double)) < 3e-4
    smallest = jnp.min(closed_form_rows(head, y))
    assert 0 <= smallest < 1e-9  # where differences of squares would leave rounding errors of 1e-6


def test_one_hot_rows_have_finite_gradients():
    head = random_head(jax.random.key(3), sharpness=1e4)
    y = first_preactivation(head, states(7))
    value, gradients = jax.jit(jax.value_and_grad(lambda head: jnp.sum(closed_form(head, y))))(head)
    assert value == 0
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(("hidden", "probed"), [((32,), False), ((32,), True), ((32, 32), True)])
def test_bfloat16_products_stay_close_and_results_keep_their_type(hidden, probed):
    head = random_head(jax.random.key(0), inputs=48, hidden=hidden, rows=4, classes=8)
    y = first_preactivation(head, states(48, 16))
    epsilon = penalty.draw_probes(jax.random.key(1), (1, 16, 4, 8)) if probed else None

    def value(head, y, dtype):
        loss = jax.value_and_grad(lambda *x: jnp.mean(closed_form(*x, epsilon, dtype=dtype)), (0, 1))
        return jax.jit(loss)(head, y)

    full = value(head, y, None)
    half = value(head, y.astype(jnp.bfloat16), jnp.bfloat16)
    assert half[0].dtype == jnp.float32
    assert half[1][1].dtype == jnp.bfloat16
    assert abs(half[0] / full[0] - 1) < 0.01
    half = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    assert relative_error(half, full) < 0.06


@pytest.mark.parametrize("epsilon", [False, True])
def test_rows_are_the_first_or_the_named_ones(epsilon):
    head = random_head(jax.random.key(0), rows=5)
    y = first_preactivation(head, states(7))
    epsilon = penalty.draw_probes(jax.random.key(1), (2, 3, 5, 4)) if epsilon else None
    named = jnp.array([4, 0])
    rows = jax.jit(closed_form_rows, static_argnames="rows")
    every = rows(head, y, epsilon)
    first = rows(head, y, None if epsilon is None else epsilon[:, :, :2], rows=2)
    chosen = jax.jit(closed_form_rows)(head, y, None if epsilon is None else epsilon[:, :, named], rows=named)
    np.testing.assert_allclose(first, every[:, :2], rtol=1e-5)
    np.testing.assert_allclose(chosen, every[:, named], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(closed_form)(head, y, epsilon), jnp.mean(every, axis=1), rtol=1e-5)


def test_generic_estimators_agree_on_the_same_head():
    head = random_head(jax.random.key(0))
    u = states(7)
    y = first_preactivation(head, u)
    generic = jax.vmap(lambda u: penalty.exact(lambda u: probabilities(head, u), u))(u)
    np.testing.assert_allclose(closed_form(head, y), generic, rtol=1e-5)

    epsilon = penalty.draw_probes(jax.random.key(5), (2, 3, 3, 4))
    probed = jax.vmap(lambda u, e: penalty.probed(lambda u: probabilities(head, u), u, e), (0, 1))
    np.testing.assert_allclose(closed_form(head, y, epsilon), probed(u, epsilon), rtol=1e-5)


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_probes_are_unbiased_and_have_the_documented_variance(noise):
    """10,000 probes; row i's variance is 2 |M|_F^2, minus 2 sum_c M_cc^2 for signs, with M = J_i J_i'."""
    head = random_head(jax.random.key(0), rows=2)
    u = states(7, 1)
    epsilon = penalty.draw_probes(jax.random.key(4), (10_000, 1, 2, 4), noise)
    estimate = jax.jit(lambda e: closed_form_rows(head, first_preactivation(head, u), e[None])[0])
    samples = np.asarray(jax.lax.map(estimate, epsilon, batch_size=1000), np.float64)
    exact = all_penalty_rows(head, u)[0]
    error = samples.std(axis=0) / 100
    assert np.all(np.abs(samples.mean(axis=0) - exact) < 3 * error)

    jacobian = full_jacobian(head, u[0])
    product = jnp.einsum("kcd,ked->kce", jacobian, jacobian)
    variance = 2 * jnp.sum(jnp.square(product), axis=(1, 2))
    if noise == "rademacher":
        variance = variance - 2 * jnp.sum(jnp.square(jnp.einsum("kcc->kc", product)), axis=1)
    np.testing.assert_allclose(samples.var(axis=0), variance, rtol=0.1)


def test_runs_in_one_program_do_not_touch_each_other():
    keys = jax.random.split(jax.random.key(0), 3)
    stacked = jax.vmap(lambda key: random_head(key))(keys)
    y = jax.random.normal(jax.random.key(1), (3, 4, 6))
    for epsilon in (None, penalty.draw_probes(jax.random.key(2), (3, 1, 4, 3, 4))):
        together = jax.jit(jax.vmap(closed_form))(stacked, y, epsilon)
        for i in range(3):
            alone = jax.jit(closed_form)(*jax.tree.map(lambda x, i=i: x[i], (stacked, y, epsilon)))
            np.testing.assert_allclose(together[i], alone, rtol=1e-5)


def test_wrong_descriptions_say_what_is_allowed():
    head = random_head(jax.random.key(0))
    with pytest.raises(ValueError, match=r"activation must be a function or named in jax\.nn, not 'swoosh'"):
        Head(head.layers, head.out, 3, activation="swoosh")
    with pytest.raises(ValueError, match="at least one hidden layer"):
        Head((), Output(head.out.kernel), 3)
    with pytest.raises(ValueError, match="rows must be between 1 and 3, not 4"):
        closed_form(head, jnp.zeros((2, 6)), rows=4)
