"""Estimators of a transition law from counted transitions: maximum likelihood, alone and with smoothing.

    minimise   L_MLE(P) + lambda * L_FD(P)
    L_MLE(P) = - sum over s, a, s' of  N(s, a, s') log P(s' | s, a)
    L_FD(P)  = sum over a, s, neighbours k of s, of  || P(. | k, a) - P(. | s, a) ||^2 / || e(k) - e(s) ||^2

over tables of probabilities: convex, and a problem of its own for each action. Everything is in float64.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpld.theory._mdps import EmbeddedMDP

Counts = Int[np.ndarray, "A S S"]
Law = Float[np.ndarray, "A S S"]


class ConvergenceError(RuntimeError):
    """An estimate is not proven to be as close to the optimum as was asked."""


class Estimate(NamedTuple):
    """A smoothed estimate, and how good an optimum it is."""

    law: Law
    gap: float
    """At most so much, per transition, is its objective above the smallest one."""
    iterations: int
    """The most that any action took."""


def sample_counts(mdp: EmbeddedMDP, transitions: int, rng: np.random.Generator) -> Counts:
    """N(s, a, s') of transitions from state-action pairs that are drawn uniformly."""
    actions, states, _ = mdp.law.shape
    visits = rng.multinomial(transitions, np.full(mdp.pairs, 1 / mdp.pairs)).reshape(actions, states)
    law = mdp.law / mdp.law.sum(axis=-1, keepdims=True)  # to the last bit, as numpy wants it
    return rng.multinomial(visits, law)


def maximum_likelihood(counts: Counts) -> Law:
    """Observed frequencies. Any row is as likely as another where nothing was observed: uniform there."""
    visits = counts.sum(axis=-1, keepdims=True)
    return np.where(visits > 0, counts / np.maximum(visits, 1), 1 / counts.shape[-1])


def neighbour_laplacian(embedding: Float[np.ndarray, "S d"], radius: float) -> Float[np.ndarray, "S S"]:
    """The graph Laplacian of neighbours, weighted by 1 / || e(k) - e(s) ||^2."""
    squares = np.sum(np.square(embedding[:, None] - embedding[None]), axis=-1)
    near = (squares <= radius**2) & ~np.eye(len(squares), dtype=bool)
    weights = np.divide(1.0, squares, out=np.zeros_like(squares), where=near)
    return np.diag(weights.sum(axis=1)) - weights


def smoothed(
    mdp: EmbeddedMDP, counts: Counts, weight: float, *, tolerance: float = 1e-6, limit: int = 20_000
) -> Estimate:
    """The estimate with `weight` (the paper's lambda) on finite differences between neighbours.

    Ends when the duality gap proves that the objective is within `tolerance` per transition of the smallest
    one; raises `ConvergenceError` if it does not in `limit` iterations.
    """
    if weight == 0:
        return Estimate(maximum_likelihood(counts), 0.0, 0)
    total = max(int(counts.sum()), 1)
    laplacian = neighbour_laplacian(mdp.embedding, mdp.radius)
    with jax.enable_x64(True):
        law, gaps, iterations = _solve(
            jnp.asarray(counts / total), jnp.float64(weight / total), jnp.asarray(laplacian), tolerance, limit
        )
        found = Estimate(np.asarray(law), float(gaps.sum()), int(iterations.max()))
    if not found.gap <= tolerance * len(counts):
        raise ConvergenceError(
            f"{mdp.name}, lambda {weight:g}: after {found.iterations} iterations the objective may still be "
            f"{found.gap:.1e} above the smallest one (allowed: {tolerance * len(counts):.1e})"
        )
    return found


def error(mdp: EmbeddedMDP, law: Law) -> float:
    """Total variation between estimated and true next-state laws, averaged over state-action pairs."""
    return float(np.abs(law - mdp.law).sum(axis=-1).mean() / 2)


class _Point(NamedTuple):
    """Where the method of multipliers is."""

    iteration: Int[Array, ""]
    law: Float[Array, "S S"]
    """A table of probabilities, in the domain of the likelihood."""
    smooth: Float[Array, "S S"]
    """The same table as the penalty wants it; equal to `law` in the end."""
    dual: Float[Array, "S S"]
    step: Float[Array, ""]
    gap: Float[Array, ""]


@partial(jax.jit, static_argnums=(3, 4))
def _solve(
    share: Float[Array, "A S S"],
    weight: Float[Array, ""],
    laplacian: Float[Array, "S S"],
    tolerance: float,
    limit: int,
) -> tuple[Float[Array, "A S S"], Float[Array, " A"], Int[Array, " A"]]:
    """Tables of all actions, their duality gaps and iterations, for counts divided by their sum.

    Alternating directions: one half-step minimises the likelihood's part for each row of the table apart, the
    other the penalty's part, which is linear algebra with the Laplacian.
    """
    eigenvalues, vectors = jnp.linalg.eigh(laplacian)

    def advance(share: Array, point: _Point) -> _Point:
        law = _likelihood_step(point.smooth - point.dual, share, point.step)
        relaxed = 1.6 * law - 0.6 * point.smooth
        shrunk = vectors.T @ (relaxed + point.dual) / (1 + 4 * weight * eigenvalues / point.step)[:, None]
        smooth = vectors @ shrunk
        dual = point.dual + relaxed - smooth
        # The two residuals are kept within a factor of five, so that neither half lags behind.
        primal = jnp.linalg.norm(law - smooth)
        change = point.step * jnp.linalg.norm(smooth - point.smooth)
        factor = jnp.where(primal > 5 * change, 2.0, jnp.where(change > 5 * primal, 0.5, 1.0))
        factor = jnp.where(point.iteration % 5 == 4, factor, 1.0)
        gap = duality_gap(law, share, weight, laplacian)
        return _Point(point.iteration + 1, law, smooth, dual / factor, point.step * factor, gap)

    def one_action(share: Array) -> tuple[Array, Array, Array]:
        uniform = jnp.full_like(share, 1 / share.shape[-1])
        begin = _Point(
            jnp.int32(0), uniform, uniform, 0 * share, jnp.float64(1 / len(share)), jnp.float64(jnp.inf)
        )
        end = jax.lax.while_loop(
            lambda point: (point.gap > tolerance) & (point.iteration < limit), partial(advance, share), begin
        )
        return end.law, end.gap, end.iteration

    return jax.lax.map(one_action, share)


def duality_gap(
    law: Float[Array, "S S"],
    share: Float[Array, "S S"],
    weight: Float[Array, ""],
    laplacian: Float[Array, "S S"],
) -> Float[Array, ""]:
    """How far the objective of one action may be above its minimum, from its exact gradient.

    The objective is convex, so it is at least its linearisation, and that is smallest where every row puts
    all its mass on the entry with the smallest derivative.
    """
    seen = share > 0
    likelihood = jnp.where(seen, -share / jnp.where(seen, law, 1.0), 0.0)
    # Each pair of neighbours is counted twice in the paper's sum, and squares give another factor of two.
    gradient = likelihood + 4 * weight * laplacian @ law
    return jnp.sum(jnp.sum(gradient * law, axis=1) - jnp.min(gradient, axis=1))


def _likelihood_step(
    point: Float[Array, "S S"], share: Float[Array, "S S"], step: Float[Array, ""]
) -> Float[Array, "S S"]:
    """For every row, the distribution p that minimises  - <share, log p> + step / 2 * || p - point ||^2.

    p_j = (x_j + sqrt(x_j^2 + 4 share_j / step)) / 2 with x = point - m, where the number m makes it sum to 1.
    Without counts this is the projection onto the simplex. The sum is convex and decreasing in m, so Newton's
    method from the left never overshoots.
    """
    last = point.shape[-1]
    begin = jnp.maximum(point.max(axis=1) - 1, (point.sum(axis=1) - 1) / last)

    def roots(m: Array) -> tuple[Array, Array]:
        x = point - m[:, None]
        return x, jnp.sqrt(jnp.square(x) + 4 * share / step)

    def newton(_: Array, m: Array) -> Array:
        x, root = roots(m)
        p = (x + root) / 2
        slope = jnp.sum(jnp.where(root > 0, p / jnp.where(root > 0, root, 1.0), 0.0), axis=1)
        return m + (p.sum(axis=1) - 1) / slope

    x, root = roots(jax.lax.fori_loop(0, 6, newton, begin))
    p = (x + root) / 2
    return p / p.sum(axis=1, keepdims=True)
