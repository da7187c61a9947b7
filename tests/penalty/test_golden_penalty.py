"""Values and gradients of the reference implementation, from the golden arrays."""

import functools

import jax
import jax.numpy as jnp
import pytest

from gpld.penalty import (
    Head,
    Hidden,
    Output,
    average,
    closed_form,
    closed_form_rows,
    exact,
    first_preactivation,
    probed,
)
from tests.golden_files import Golden, assert_close

from .heads import full_jacobian, probabilities

GOLDEN = Golden("penalty")
TOLERANCE = 2e-5
LAYERS = {"post": ("obs0",), "prior": ("prior0", "prior1")}
OUTPUT = {"post": "obslogit", "prior": "priorlogit"}


def names(which: str) -> Head:
    """The reference's parameter names, in the shape of a head."""
    layers = tuple(
        Hidden(f"dyn/{name}/kernel", f"dyn/{name}/bias", f"dyn/{name}norm/scale") for name in LAYERS[which]
    )
    out = Output(f"dyn/{OUTPUT[which]}/kernel", f"dyn/{OUTPUT[which]}/bias")
    return Head(
        layers,
        out,
        rows=GOLDEN.scalar("cfg/stoch"),
        eps=GOLDEN.scalar("cfg/norm_eps"),
        unimix=GOLDEN.scalar("cfg/unimix"),
    )


def read(which: str, prefix: str) -> Head:
    return jax.tree.map(lambda name: GOLDEN[f"{prefix}/{name}"], names(which))


def inputs(which: str) -> jax.Array:
    """States `[B * T, d]`."""
    u = GOLDEN["u" if which == "post" else "deter"]
    return u.reshape(-1, u.shape[-1])


def probes(which: str, case: str) -> jax.Array:
    """`[1, n, rows, C]`."""
    return jnp.swapaxes(GOLDEN[f"{which}/{case}/eps"], 0, 1)[None].astype(jnp.float32)


def assert_all_close(actual: Head, expected: Head, names: Head) -> None:
    jax.tree.map(lambda a, b, name: assert_close(a, b, TOLERANCE, name), actual, expected, names)


both = pytest.mark.parametrize("which", ["post", "prior"])


@both
def test_golden_probabilities_and_jacobian(which):
    """The heads as the tests describe them are the reference's."""
    head, u = read(which, "param"), inputs(which)
    probs = jax.vmap(probabilities, (None, 0))(head, u)
    assert_close(probs.reshape(GOLDEN[f"{which}/probs"].shape), GOLDEN[f"{which}/probs"], TOLERANCE)
    assert_close(full_jacobian(head, u[0]), GOLDEN[f"{which}/jac_state00"], TOLERANCE)


@both
def test_golden_exact(which):
    head, u = read(which, "param"), inputs(which)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(head, u):
        rows = closed_form_rows(head, first_preactivation(head, u))
        return jnp.mean(rows), rows

    (value, rows), (d_head, d_u) = loss(head, u)
    states = GOLDEN[f"{which}/exact_per_state"].reshape(-1)
    assert_close(rows, GOLDEN[f"{which}/exact_per_row"].reshape(rows.shape), TOLERANCE, "rows")
    assert_close(jnp.mean(rows, axis=1), states, TOLERANCE, "states")
    assert_close(value, GOLDEN[f"{which}/exact_mean"], TOLERANCE, "mean")
    assert_close(d_u, GOLDEN[f"{which}/grad_input"].reshape(u.shape), TOLERANCE, "input")
    assert_all_close(d_head, read(which, f"{which}/grad"), names(which))

    generic = jax.jit(jax.vmap(lambda u: exact(lambda u: probabilities(head, u), u)))
    assert_close(generic(u), states, TOLERANCE, "generic")


@both
@pytest.mark.parametrize("case", ["hutch", "hutch_part", "hutch_rows"])
def test_golden_probes(which, case):
    """With the reference's own states, rows and probes: per state, and both ways to average."""
    head, u = read(which, "param"), inputs(which)
    epsilon, indices = probes(which, case), GOLDEN[f"{which}/{case}/indices"]
    count = epsilon.shape[2]

    @jax.jit
    def values(u):
        generic = jax.vmap(lambda u, e: probed(lambda u: probabilities(head, u), u, e, rows=count), (0, 1))
        return closed_form(head, first_preactivation(head, u), epsilon, rows=count), generic(u, epsilon)

    ours, generic = values(u[indices])
    expected = GOLDEN[f"{which}/{case}/loss"].reshape(-1)[indices]
    assert_close(ours, expected, TOLERANCE, "closed form")
    assert_close(generic, expected, TOLERANCE, "generic")
    for scaling, name in (("all", "loss_mean"), ("sampled", "metric_mean")):
        actual = average(ours, u.shape[0], scaling)
        assert_close(actual, GOLDEN[f"{which}/{case}/{name}"], TOLERANCE, scaling)


@both
def test_golden_gradients_of_probes(which):
    epsilon, indices = probes(which, "hutch"), GOLDEN[f"{which}/hutch/indices"]

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def loss(head, u):
        return jnp.mean(closed_form(head, first_preactivation(head, u[indices]), epsilon))

    u = inputs(which)
    value, (d_head, d_u) = loss(read(which, "param"), u)
    assert_close(value, GOLDEN[f"{which}/hutch/loss_mean"], TOLERANCE, "mean")
    assert_close(d_u, GOLDEN[f"{which}/hutch/grad_input"].reshape(u.shape), TOLERANCE, "input")
    assert_all_close(d_head, read(which, f"{which}/hutch/grad"), names(which))
