import numpy as np
import pytest

from gpld.theory import EmbeddedMDP, grid, pendulum, random_smooth, shuffled

SMOOTH = {"random": random_smooth(0), "grid": grid(), "pendulum": pendulum()}


def neighbour_variation(mdp: EmbeddedMDP) -> float:
    """Mean total variation between the laws of neighbours, relative to that between any two states."""
    distances = np.linalg.norm(mdp.embedding[:, None] - mdp.embedding[None], axis=-1)
    variation = np.abs(mdp.law[:, :, None] - mdp.law[:, None]).sum(-1) / 2
    apart = ~np.eye(len(distances), dtype=bool)
    return variation[:, apart & (distances <= mdp.radius)].mean() / variation[:, apart].mean()


@pytest.mark.parametrize("name", SMOOTH)
def test_laws_are_distributions_and_neighbours_have_similar_ones(name):
    mdp = SMOOTH[name]
    assert mdp.law.dtype == mdp.embedding.dtype == np.float64
    assert mdp.pairs == mdp.law.shape[0] * len(mdp.embedding)
    np.testing.assert_allclose(mdp.law.sum(-1), 1.0, rtol=1e-12)
    assert mdp.law.min() >= 0
    assert neighbour_variation(mdp) < 0.75


def test_shuffling_keeps_the_rows_and_only_loses_the_neighbourhood():
    mdp = random_smooth(1)
    other = shuffled(mdp, 1)
    for before, after in zip(mdp.law, other.law, strict=True):
        assert sorted(map(tuple, before)) == sorted(map(tuple, after))
    assert neighbour_variation(other) == pytest.approx(1.0, abs=0.06)
    np.testing.assert_array_equal(other.embedding, mdp.embedding)


def test_the_grid_moves_as_its_actions_say():
    mdp = grid(side=5, noise=0.3)
    middle = 12
    assert [int(rows[middle].argmax()) for rows in mdp.law] == [7, 17, 11, 13]
    assert [int(rows[0].argmax()) for rows in mdp.law] == [0, 5, 0, 1]  # walls stop two of them


def test_the_pendulum_is_a_cylinder():
    mdp = pendulum(angles=10, speeds=5)
    first, last = 2, 9 * 5 + 2  # no speed, at both ends of a full turn
    assert np.linalg.norm(mdp.embedding[first] - mdp.embedding[last]) <= mdp.radius
    distances = np.linalg.norm(mdp.embedding[:, None] - mdp.embedding[None], axis=-1)
    assert ((distances <= mdp.radius).sum(1) - 1).tolist() == [3, 4, 4, 4, 3] * 10
    upright = mdp.law[:, first] @ mdp.embedding[:, 2]
    assert upright[0] < -0.1 < upright[1] < 0.1 < upright[2]  # pushed left, not at all, right


def test_seeds_make_random_mdps():
    np.testing.assert_array_equal(random_smooth(3).law, random_smooth(3).law)
    assert np.abs(random_smooth(3).law - random_smooth(4).law).max() > 0.1
    assert np.abs(shuffled(grid(), 3).law - shuffled(grid(), 4).law).max() > 0.1
