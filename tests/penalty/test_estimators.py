import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.penalty import draw_probes, exact, hutchinson, probed

from .heads import full_jacobian, penalty_rows, probabilities, random_head, relative_error

HEAD = random_head(jax.random.key(0), inputs=7, rows=3, classes=4)
U = jax.random.normal(jax.random.key(1), (7,))


def posterior(u):
    return probabilities(HEAD, u)


@pytest.mark.parametrize("inputs", [2, 30])  # narrower and wider than the 12 probabilities
def test_exact_and_its_gradients_equal_the_full_jacobian(inputs):
    with jax.enable_x64(True):
        head = random_head(jax.random.key(0), inputs=inputs)
        u = jax.random.normal(jax.random.key(1), (inputs,))
        ours = jax.value_and_grad(lambda h, u: exact(lambda u: probabilities(h, u), u), (0, 1))
        full = jax.value_and_grad(lambda h, u: jnp.mean(penalty_rows(h, u)), (0, 1))
        actual, expected = jax.jit(lambda *x: (ours(*x), full(*x)))(head, u)
        assert relative_error(actual, expected) < 1e-6


def count(primitive: str, fn, *arguments) -> int:
    """How often a primitive occurs in the program of `fn`, inner programs included."""

    def inside(jaxpr):
        for equation in jaxpr.eqns:
            yield equation.primitive.name
            for parameter in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
            ):
                inner = getattr(parameter, "jaxpr", parameter)
                if hasattr(inner, "eqns"):
                    yield from inside(inner)

    return list(inside(jax.make_jaxpr(fn)(*arguments).jaxpr)).count(primitive)


@pytest.mark.parametrize(("inputs", "mode"), [(2, "forward"), (30, "reverse")])
def test_exact_takes_the_cheaper_mode(inputs, mode):
    """Forward mode pushes the d basis vectors of the state, reverse mode pulls the K*C of the output."""
    kernel = jax.random.normal(jax.random.key(0), (inputs, 12))
    text = str(jax.make_jaxpr(lambda u: exact(lambda u: jnp.tanh(u @ kernel).reshape(3, 4), u))(kernel[:, 0]))
    assert (f"f32[12,{inputs}]" in text) == (mode == "reverse")


@pytest.mark.parametrize("probes", [1, 5])
def test_all_rows_and_probes_share_one_forward_pass(probes):
    def fn(u):
        return jax.nn.softmax(jnp.tanh(u).reshape(3, 4), axis=-1)

    u = jnp.linspace(-1, 1, 12)
    assert count("tanh", lambda u: hutchinson(fn, u, jax.random.key(0), probes=probes), u) == 1


def test_probed_is_the_mean_of_squared_pull_backs():
    epsilon = draw_probes(jax.random.key(2), (2, 3, 4), "gaussian")
    gradients = jnp.einsum("kcd,pkc->pkd", full_jacobian(HEAD, U), epsilon)
    expected = jnp.mean(jnp.sum(jnp.square(gradients), axis=-1))
    np.testing.assert_allclose(probed(posterior, U, epsilon), expected, rtol=1e-5)


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_hutchinson_is_unbiased(noise):
    """Within three standard errors of the exact value over 10,000 probes."""
    keys = jax.random.split(jax.random.key(3), 10_000)
    samples = jax.jit(jax.vmap(lambda key: hutchinson(posterior, U, key, noise=noise)))(keys)
    assert abs(jnp.mean(samples) - exact(posterior, U)) < 3 * jnp.std(samples) / 100


def test_hutchinson_averages_its_probes():
    @functools.partial(jax.jit, static_argnames=("number", "probes"))
    def draw(number, probes):
        keys = jax.random.split(jax.random.key(number), number)
        return jax.vmap(lambda key: hutchinson(posterior, U, key, probes=probes))(keys)

    samples, single = draw(number=200, probes=64), draw(number=2000, probes=1)
    assert 0.6 < jnp.var(samples) * 64 / jnp.var(single) < 1.5


def test_hutchinson_is_differentiable_by_parameters_and_state():
    key = jax.random.key(4)

    def estimate(head, u):
        return hutchinson(lambda u: probabilities(head, u), u, key, probes=2)

    def expected(head, u):
        epsilon = draw_probes(key, (2, 3, 4))
        return jnp.mean(
            jnp.sum(jnp.square(jnp.einsum("kcd,pkc->pkd", full_jacobian(head, u), epsilon)), axis=-1)
        )

    actual, wanted = jax.jit(lambda *x: (jax.grad(estimate, (0, 1))(*x), jax.grad(expected, (0, 1))(*x)))(
        HEAD, U
    )
    assert relative_error(actual, wanted) < 1e-5


@pytest.mark.parametrize("rows", [2, jnp.array([2, 0])])
def test_rows_are_the_first_or_the_named_ones(rows):
    chosen = jnp.arange(2) if isinstance(rows, int) else rows
    np.testing.assert_allclose(
        exact(posterior, U, rows=rows), jnp.mean(penalty_rows(HEAD, U)[chosen]), rtol=1e-5
    )
    estimates = jax.vmap(lambda key: hutchinson(posterior, U, key, rows=rows))(
        jax.random.split(jax.random.key(0), 4000)
    )
    error = jnp.std(estimates) / 4000**0.5
    assert abs(jnp.mean(estimates) - exact(posterior, U, rows=rows)) < 3 * error


@pytest.mark.parametrize("estimate", [exact, lambda fn, u: hutchinson(fn, u, jax.random.key(0))])
def test_a_map_to_something_else_than_rows_is_told(estimate):
    """A vector would silently be taken for as many rows as it has classes."""
    with pytest.raises(ValueError, match=r"the map must return \[K, C\] of one state, not \[12\]"):
        estimate(lambda u: posterior(u).reshape(-1), U)
