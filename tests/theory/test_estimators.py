import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from gpld.theory import (
    ConvergenceError,
    EmbeddedMDP,
    error,
    grid,
    maximum_likelihood,
    neighbour_laplacian,
    random_smooth,
    sample_counts,
    smoothed,
)

MDP = random_smooth(0, states=9, actions=2)
COUNTS = sample_counts(MDP, 60, np.random.default_rng(0))


def finite_differences(law, embedding, radius):
    """L_FD, summed term by term as the paper writes it."""
    total = 0.0
    for rows in law:
        for s, place in enumerate(embedding):
            distances = np.linalg.norm(embedding - place, axis=1)
            for k in np.flatnonzero((distances <= radius) & (np.arange(len(embedding)) != s)):
                total += float(np.sum(np.square((rows[k] - rows[s]) / distances[k])))
    return total


def objective(mdp: EmbeddedMDP, counts: np.ndarray, law: np.ndarray, weight: float) -> float:
    """The paper's, term by term."""
    seen = counts > 0
    return -np.sum(counts[seen] * np.log(law[seen])) + weight * finite_differences(
        law, mdp.embedding, mdp.radius
    )


def test_counts_are_draws_from_the_law():
    mdp = grid(side=3)
    counts = sample_counts(mdp, 400_000, np.random.default_rng(0))
    assert counts.sum() == 400_000
    visits = counts.sum(-1)
    np.testing.assert_allclose(visits, 400_000 / mdp.pairs, rtol=0.05)
    np.testing.assert_allclose(counts / visits[..., None], mdp.law, atol=0.02)


def test_maximum_likelihood_is_the_observed_frequency_and_uniform_without_any():
    counts = np.array([[[3, 1, 0], [0, 0, 0], [0, 0, 5]]])
    expected = [[[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 1.0]]]
    np.testing.assert_allclose(maximum_likelihood(counts), expected)
    mdp = EmbeddedMDP("", np.eye(3), np.full((1, 3, 3), 1 / 3), 2.0)
    assert smoothed(mdp, counts, 0.0).law.tolist() == maximum_likelihood(counts).tolist()


def test_the_paper_s_sum_is_a_quadratic_form_of_the_laplacian():
    laplacian = neighbour_laplacian(MDP.embedding, MDP.radius)
    np.testing.assert_allclose(laplacian.sum(1), 0.0, atol=1e-12)
    form = 2 * np.einsum("akj,ks,asj->", MDP.law, laplacian, MDP.law)
    assert finite_differences(MDP.law, MDP.embedding, MDP.radius) == pytest.approx(form, rel=1e-12)


def test_finite_differences_of_a_known_table():
    embedding, law = np.array([[0.0], [2.0], [9.0]]), np.array([[[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]])
    # One pair of neighbours, two apart, whose rows differ by 1 and -1; the sum has it from both sides.
    assert finite_differences(law, embedding, 2.0) == pytest.approx(2 * (1 + 1) / 4)


@pytest.mark.parametrize("weight", [0.1, 2.0, 50.0])
def test_the_optimum_is_that_of_a_softmax_by_scipy(weight):
    # With every transition seen, the optimum is inside the simplex, where a softmax can get to.
    counts = COUNTS + 1
    found = smoothed(MDP, counts, weight, tolerance=1e-10)
    laplacian = neighbour_laplacian(MDP.embedding, MDP.radius)

    def of_logits(logits):
        log_law = jax.nn.log_softmax(logits.reshape(counts.shape))
        law = jnp.exp(log_law)
        form = jnp.einsum("akj,ks,asj->", law, laplacian, law)
        return -jnp.sum(counts.astype(float) * log_law) + 2 * weight * form

    with jax.enable_x64(True):
        gradient = jax.jit(jax.value_and_grad(of_logits))
        second = scipy.optimize.minimize(
            lambda x: [np.asarray(y) for y in gradient(jnp.asarray(x))],
            np.zeros(counts.size),
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9, "maxcor": 50},
        )
        law = np.asarray(jax.nn.softmax(jnp.asarray(second.x).reshape(counts.shape)))
    assert objective(MDP, counts, found.law, weight) == pytest.approx(second.fun, rel=1e-9)
    np.testing.assert_allclose(found.law, law, atol=1e-4)


def test_the_gap_bounds_how_far_any_table_is_from_the_optimum():
    weight, rng = 1.0, np.random.default_rng(1)
    best = objective(MDP, COUNTS, smoothed(MDP, COUNTS, weight, tolerance=1e-10).law, weight)
    for tolerance in (1e-1, 1e-2, 1e-4):
        rough = smoothed(MDP, COUNTS, weight, tolerance=tolerance)
        excess = (objective(MDP, COUNTS, rough.law, weight) - best) / COUNTS.sum()
        assert -1e-9 <= excess <= rough.gap + 1e-9
        other = 0.9 * rough.law + 0.1 * rng.dirichlet(np.ones(9), (2, 9))
        assert objective(MDP, COUNTS, other, weight) > best


def test_little_smoothing_leaves_the_frequencies_and_much_pools_all_data():
    mdp = grid(side=3)
    counts = sample_counts(mdp, 50 * mdp.pairs, np.random.default_rng(0))
    frequencies = maximum_likelihood(counts)
    np.testing.assert_allclose(smoothed(mdp, counts, 1e-3, tolerance=1e-9).law, frequencies, atol=1e-3)
    pooled = counts.sum(1, keepdims=True) / counts.sum((1, 2), keepdims=True)
    much = smoothed(mdp, counts, 1e6, tolerance=1e-9).law
    np.testing.assert_allclose(much, np.broadcast_to(pooled, much.shape), atol=1e-3)


def test_a_state_never_seen_learns_from_its_neighbours():
    mdp = EmbeddedMDP("line", np.array([[0.0], [1.0], [2.0]]), np.zeros((1, 3, 3)), 1.0)
    counts = np.array([[[800, 200, 0], [0, 0, 0], [200, 800, 0]]])
    law = smoothed(mdp, counts, 1.0, tolerance=1e-10).law[0]
    np.testing.assert_allclose(law[1], (law[0] + law[2]) / 2, atol=1e-3)
    np.testing.assert_allclose(law[1], [0.5, 0.5, 0.0], atol=1e-2)


def test_an_optimum_that_is_not_proven_is_refused():
    with pytest.raises(ConvergenceError, match=r"random, lambda 2: after 3 iterations .* above the smallest"):
        smoothed(MDP, COUNTS, 2.0, tolerance=1e-9, limit=3)


def test_the_error_is_total_variation():
    law = np.zeros_like(MDP.law)
    law[..., 0] = 1.0
    assert error(MDP, MDP.law) == 0.0
    assert error(MDP, law) == pytest.approx(1 - MDP.law[..., 0].mean())
