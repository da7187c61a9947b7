"""The two limits that lead from finite differences to the Jacobian penalty, on a law of which all is known.

The map is the transition law of a random smooth MDP, f(x) = P(. | x, a), at points of R^d; its Jacobian J is
exact. Everything is in float64: a difference quotient at small h has no digits to lose.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
import pandas
from jaxtyping import Array, Float, PRNGKeyArray

from gpld import penalty
from gpld.theory._mdps import normal_law, random_flow

DIMS, STATES, NOISE, SIDE = 8, 32, 2.0, 4.0
STEPS = tuple(np.geomspace(0.3, 0.001, 11).tolist())
DIRECTIONS = tuple(4**k for k in range(1, 8))


def smooth_map(seed: int):
    """f: R^d -> probabilities of S next states."""
    rng = np.random.default_rng([seed, 2])
    centres = rng.uniform(0.0, SIDE, (STATES, DIMS))
    return normal_law(centres, random_flow(rng, DIMS, wavelength=SIDE), NOISE)


def step_limit(seed: int = 0, *, steps: Sequence[float] = STEPS, points: int = 100) -> pandas.DataFrame:
    """Finite differences as their step h shrinks: columns `average`, `h` and `error`.

    `one direction`: || (f(x + hu) - f(x)) / h ||^2 against || J u ||^2, for a random unit vector u.
    `grid neighbours`: the mean of that over the 2d neighbours of x on a grid of spacing h, against
    || J ||_F^2 / d. Errors are relative, root mean squares over random points x.
    """
    f = smooth_map(seed)

    def quotient(x: Float[Array, " d"], u: Float[Array, " d"], h: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.sum(jnp.square((f(x + h * u) - f(x)) / h))

    def errors(x: Float[Array, " d"], u: Float[Array, " d"]) -> Float[Array, "2 steps"]:
        axes = jnp.concatenate([jnp.eye(len(x)), -jnp.eye(len(x))])
        directional = jnp.sum(jnp.square(jax.jvp(f, (x,), (u,))[1]))
        isotropic = squared_jacobian(f, x) / len(x)
        one = jax.vmap(lambda h: quotient(x, u, h))(jnp.asarray(steps))
        grid = jax.vmap(lambda h: jnp.mean(jax.vmap(lambda axis: quotient(x, axis, h))(axes)))
        return jnp.stack([one / directional - 1, grid(jnp.asarray(steps)) / isotropic - 1])

    with jax.enable_x64(True):
        place, aim = jax.random.split(jax.random.key(seed))
        x = jax.random.uniform(place, (points, DIMS), maxval=SIDE)
        found = jax.jit(jax.vmap(errors))(x, unit_vectors(aim, points, DIMS))
        root_mean_square = np.asarray(jnp.sqrt(jnp.mean(jnp.square(found), axis=0)))
    names = ("one direction", "grid neighbours")
    return pandas.DataFrame(
        {"average": name, "h": h, "error": error}
        for name, row in zip(names, root_mean_square.tolist(), strict=True)
        for h, error in zip(steps, row, strict=True)
    )


def direction_limit(
    seed: int = 0, *, directions: Sequence[int] = DIRECTIONS, repeats: int = 64
) -> pandas.DataFrame:
    """Averages of || J u ||^2 over n random unit vectors u, in units of || J ||_F^2 / d, at one point.

    Columns: `directions` n; `mean` of the first average, and `bar`, its standard error estimated from its own
    n values, as one who has only them would; `error`, the root mean square over all repeats of the distance
    from 1; and `predicted`, what it should be. For u uniform on the sphere, with M = J'J,

        Var || J u ||^2 = 2 / (d (d + 2)) * (|| M ||_F^2 - (tr M)^2 / d)
    """
    f = smooth_map(seed)

    @partial(jax.jit, static_argnums=2)
    def averages(jacobian: Array, key: PRNGKeyArray, n: int) -> tuple[Array, Array]:
        u = unit_vectors(key, n, DIMS)
        values = jnp.sum(jnp.square(u @ jacobian.T), axis=1)
        return values.mean(), values.std(ddof=1)

    rows = []
    with jax.enable_x64(True):
        place, aim = jax.random.split(jax.random.key(seed))
        x = jax.random.uniform(place, (DIMS,), maxval=SIDE)
        jacobian, unit = jax.jacfwd(f)(x), squared_jacobian(f, x) / DIMS
        square = jacobian.T @ jacobian
        variance = jnp.sum(jnp.square(square)) - jnp.square(jnp.trace(square)) / DIMS
        deviation = jnp.sqrt(2 / (DIMS * (DIMS + 2)) * variance) / unit
        for n in directions:
            keys = jax.random.split(jax.random.fold_in(aim, n), repeats)
            means, spreads = jax.lax.map(lambda key, n=n: averages(jacobian, key, n), keys)
            rows.append(
                {
                    "directions": n,
                    "mean": float(means[0] / unit),
                    "bar": float(spreads[0] / unit) / n**0.5,
                    "error": float(jnp.sqrt(jnp.mean(jnp.square(means / unit - 1)))),
                    "predicted": float(deviation) / n**0.5,
                }
            )
    return pandas.DataFrame(rows)


def rate(x: Iterable[SupportsFloat], error: Iterable[SupportsFloat]) -> float:
    """The power of x that an error follows: the slope of a straight line through their logarithms."""
    return float(np.polyfit(np.log([*map(float, x)]), np.log([*map(float, error)]), 1)[0])


def squared_jacobian(f, x: Float[Array, " d"]) -> Float[Array, ""]:
    """|| J ||_F^2, by the function that penalises it in training: one row of S classes."""
    return penalty.exact(lambda x: f(x)[None], x)


def unit_vectors(key: PRNGKeyArray, count: int, dims: int) -> Float[Array, "n d"]:
    """Uniform on the unit sphere."""
    v = jax.random.normal(key, (count, dims))
    return v / jnp.linalg.norm(v, axis=1, keepdims=True)
