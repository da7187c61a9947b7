"""The PyTorch estimators against the JAX ones, on the same weights: values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import penalty
from gpld.penalty import schedules

from .heads import full_jacobian, penalty_rows, probabilities, random_head

torch = pytest.importorskip("torch")
ours = pytest.importorskip("gpld.penalty.torch")

ACTIVATIONS = {"silu": torch.nn.functional.silu, "tanh": torch.tanh}
ARCHITECTURES = (
    {"hidden": (6,), "norm": "rms", "activation": "silu"},
    {"hidden": (6, 5), "norm": "rms", "activation": "silu"},
    {"hidden": (6,), "norm": "layer", "activation": "tanh", "unimix": 0.2},
    {"hidden": (5, 4), "norm": None, "activation": "tanh", "bias": False},
)
architectures = pytest.mark.parametrize(
    "options", ARCHITECTURES, ids=lambda o: f"{o['norm']}-{len(o['hidden'])}"
)


def tensor(x):
    """A leaf of the graph with the values of an array."""
    return None if x is None else torch.tensor(np.asarray(x)).requires_grad_()


def translated(head):
    return ours.Head(
        tuple(ours.Hidden(*map(tensor, layer)) for layer in head.layers),
        ours.Output(*map(tensor, head.out)),
        head.rows,
        head.norm,
        head.eps,
        ACTIVATIONS[head.activation],
        head.unimix,
    )


def parameters(head) -> list:
    """All arrays or tensors of a head, in one order for both libraries."""
    return [x for layer in (*head.layers, head.out) for x in layer if x is not None]


def torch_probabilities(head, u):
    """Probabilities `[N, K, C]` by plain code."""
    x = u
    for kernel, bias, scale, shift in head.layers:
        x = x @ kernel if bias is None else x @ kernel + bias
        if head.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        if head.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + head.eps).sqrt() * scale + shift
        x = head.activation(x)
    logits = x @ head.out.kernel
    logits = logits if head.out.bias is None else logits + head.out.bias
    probs = logits.unflatten(-1, (head.rows, -1)).softmax(-1)
    return (1 - head.unimix) * probs + head.unimix / probs.shape[-1]


def draw(options):
    keys = jax.random.split(jax.random.key(0), 3)
    head = random_head(keys[0], **options)
    u = jax.random.normal(keys[1], (3, 7))
    epsilon = penalty.draw_probes(keys[2], (2, 3, 3, 4))
    return head, u, epsilon


def assert_same(jax_loss, head, u, torch_loss):
    """Values per state, and gradients of their weighted sum by every parameter and by the states."""
    weights = jnp.array([1.0, 2.0, -1.5])
    loss = jax.value_and_grad(
        lambda h, u: (jnp.sum(weights * (v := jax_loss(h, u))), v), (0, 1), has_aux=True
    )
    (_, values), (d_head, d_u) = jax.jit(loss)(head, u)
    torch_head, torch_u = translated(head), tensor(u)
    actual = torch_loss(torch_head, torch_u)
    np.testing.assert_allclose(actual.detach(), values, rtol=2e-5)
    leaves = [*parameters(torch_head), torch_u]
    gradients = torch.autograd.grad((torch.tensor(np.asarray(weights)) * actual).sum(), leaves)
    for gradient, expected in zip(gradients, [*parameters(d_head), d_u], strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-4 * float(jnp.max(jnp.abs(expected))))


@architectures
def test_closed_form_is_jaxs(options):
    head, u, epsilon = draw(options)
    eps = torch.tensor(np.asarray(epsilon))
    assert_same(
        lambda h, u: penalty.closed_form(h, penalty.first_preactivation(h, u)),
        head,
        u,
        lambda h, u: ours.closed_form(h, ours.first_preactivation(h, u)),
    )
    assert_same(
        lambda h, u: penalty.closed_form(h, penalty.first_preactivation(h, u), epsilon),
        head,
        u,
        lambda h, u: ours.closed_form(h, ours.first_preactivation(h, u), eps),
    )


def test_generic_estimators_are_jaxs():
    head, u, epsilon = draw(ARCHITECTURES[0])
    eps = torch.tensor(np.asarray(epsilon))
    assert_same(
        jax.vmap(lambda h, u: penalty.exact(lambda u: probabilities(h, u), u), (None, 0)),
        head,
        u,
        lambda h, u: ours.exact(lambda u: torch_probabilities(h, u), u),
    )
    assert_same(
        lambda h, u: jax.vmap(lambda u, e: penalty.probed(lambda u: probabilities(h, u), u, e), (0, 1))(
            u, epsilon
        ),
        head,
        u,
        lambda h, u: ours.probed(lambda u: torch_probabilities(h, u), u, eps),
    )


def test_exact_equals_the_full_jacobian_in_double_precision():
    with jax.enable_x64(True):
        head = random_head(jax.random.key(1), hidden=(6, 5))
        u = jax.random.normal(jax.random.key(2), (3, 7))
        expected = jnp.mean(jax.vmap(penalty_rows, (None, 0))(head, u), axis=1)
    torch_head, torch_u = translated(head), tensor(u)
    assert torch_u.dtype == torch.float64
    generic = ours.exact(lambda u: torch_probabilities(torch_head, u), torch_u)
    closed = ours.closed_form(torch_head, ours.first_preactivation(torch_head, torch_u))
    np.testing.assert_allclose(generic.detach(), expected, rtol=1e-6)
    np.testing.assert_allclose(closed.detach(), expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [2, [2, 0]])
def test_rows_are_the_first_or_the_named_ones(rows):
    head, u, epsilon = draw(ARCHITECTURES[0])
    torch_head, torch_u = translated(head), torch.tensor(np.asarray(u))
    chosen = list(range(rows)) if isinstance(rows, int) else rows
    rows = rows if isinstance(rows, int) else torch.tensor(rows)
    eps = torch.tensor(np.asarray(epsilon))[:, :, chosen]
    y = ours.first_preactivation(torch_head, torch_u)
    every = ours.closed_form_rows(torch_head, y).detach()
    np.testing.assert_allclose(
        ours.closed_form_rows(torch_head, y, rows=rows).detach(), every[:, chosen], rtol=1e-5
    )
    generic = ours.exact(lambda u: torch_probabilities(torch_head, u), torch_u, rows=rows).detach()
    np.testing.assert_allclose(generic, every[:, chosen].mean(1), rtol=1e-5)
    probed = ours.probed(lambda u: torch_probabilities(torch_head, u), torch_u, eps, rows=rows).detach()
    np.testing.assert_allclose(ours.closed_form(torch_head, y, eps, rows=rows).detach(), probed, rtol=1e-5)


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_hutchinson_is_unbiased(noise):
    """Within three standard errors of the exact value over 10,000 probes of one state."""
    head, u, _ = draw(ARCHITECTURES[0])
    torch_head, one = translated(head), torch.tensor(np.asarray(u[:1]))
    generator = torch.Generator().manual_seed(1)
    samples = ours.hutchinson(
        lambda u: torch_probabilities(torch_head, u), one.expand(10_000, -1), generator, noise=noise
    ).detach()
    expected = float(jnp.mean(penalty_rows(head, u[0])))
    assert abs(samples.mean() - expected) < 3 * samples.std() / 100


def test_hutchinson_averages_its_probes():
    head, u, _ = draw(ARCHITECTURES[0])
    torch_head, torch_u = translated(head), torch.tensor(np.asarray(u))

    def fn(u):
        return torch_probabilities(torch_head, u)

    actual = ours.hutchinson(fn, torch_u, torch.Generator().manual_seed(0), probes=3)
    epsilon = ours.draw_probes((3, 3, 3, 4), generator=torch.Generator().manual_seed(0))
    jacobians = jax.vmap(full_jacobian, (None, 0))(head, u)
    gradients = jnp.einsum("nkcd,pnkc->pnkd", jacobians, jnp.asarray(epsilon.numpy()))
    expected = jnp.mean(jnp.sum(jnp.square(gradients), axis=3), axis=(0, 2))
    np.testing.assert_allclose(actual.detach(), expected, rtol=1e-4)


def test_states_are_drawn_uniformly_without_replacement():
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([ours.sample_states(6, 0.5, generator) for _ in range(4000)])
    assert all(len(set(row)) == 3 for row in draws.tolist())
    for pair in ((0, 1), (2, 5)):
        frequency = torch.isin(draws, torch.tensor(pair)).sum(1).eq(2).float().mean()
        assert abs(frequency - 0.2) < 4 * (0.2 * 0.8 / 4000) ** 0.5


def test_averages_and_schedules_are_jaxs():
    values = torch.tensor([1.0, 2.0, 6.0])
    assert ours.average(values, 12) == 3.0
    assert ours.average(values, 12, "all") == 0.75
    weight = ours.coefficient("sqrt", 1500, 0.5, start=500)
    assert isinstance(weight, float)
    assert weight == float(schedules.coefficient("sqrt", 1500, 0.5, start=500))


def test_too_many_rows_say_what_is_allowed():
    with pytest.raises(ValueError, match="rows must be between 1 and 3, not 4"):
        ours.take_rows(torch.zeros(3, 2), 4)


@pytest.mark.parametrize("estimate", [ours.exact, ours.hutchinson])
@pytest.mark.parametrize("shape", [(5, 12), (1, 3, 4)])
def test_a_map_to_something_else_than_rows_is_told(estimate, shape):
    u = torch.ones(5, 2)
    with pytest.raises(ValueError, match=r"the map must return \[N, K, C\] of states \[5, 2\], not"):
        estimate(lambda u: u.sum() * torch.ones(shape), u)
