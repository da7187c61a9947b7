"""Local sensitivity: how much the latent distributions change when their inputs are moved a little.

For a map r from an input x to K categorical distributions, and a step delta in a random direction,

    KL(r(x) || r(x + delta)) / || delta ||

with the KL divergence summed over the K rows, is averaged over states and over lengths of the step from 0.1%
to 10% of the inputs' mean norm. `MAPS` says what is moved. All maps are the agent's own functions.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from gpld import world_model
from gpld.agent import Model
from gpld.analysis import rollouts
from gpld.config import AgentConfig
from gpld.population import TITLES
from gpld.training.saved import Trained
from gpld.types import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sensitivity"

MAPS = {
    "posterior": "e, of q(z | h, e)",
    "prior": "h, of p(z | h)",
    "observation": "o, through the encoder, of q(z | h, e(o))",
}
"""The maps, and what is moved."""

MAGNITUDES = tuple(np.geomspace(0.001, 0.1, 10).tolist())
"""Lengths of the steps, in mean norms of the input."""


class Sensitivity(NamedTuple):
    """Averages over N states, for each of M lengths of a step."""

    kl: Float[Array, " M"]
    """KL(r(x) || r(x + delta)), summed over rows, divided by the length of the step."""
    total_variation: Float[Array, " M"]
    """Total variation, summed over rows, divided by the length of the step."""
    length: Float[Array, " M"]
    """|| delta ||."""


def change(
    p: Float[Array, "N K C"], q: Float[Array, "N K C"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """KL(p || q) and total variation, summed over the K rows.

    The former as sum p (r - log(1 + r)) with r = q/p - 1, which is the same for distributions, and keeps its
    digits where they are almost equal: no term is negative.
    """
    ratio = (q - p) / p
    kl = jnp.sum(p * (ratio - jnp.log1p(ratio)), axis=(1, 2))
    return kl, jnp.sum(jnp.abs(q - p), axis=(1, 2)) / 2


def along_random_directions(
    fn: Callable[[Float[Array, "N d"]], Array],
    x: Float[Array, "N d"],
    key: PRNGKeyArray,
    *,
    magnitudes: Sequence[float] = MAGNITUDES,
    change: Callable[[Array, Array], tuple[Array, Array]] = change,
) -> Sensitivity:
    """Sensitivity of a map at N inputs, each moved in a direction of its own for every length.

    `change` gives KL divergence and total variation, `[N]`, from the map's values before and after.
    """
    values, norm = fn(x), jnp.mean(jnp.linalg.norm(x, axis=1))

    def one(given: tuple[Float[Array, ""], PRNGKeyArray]) -> Sensitivity:
        magnitude, key = given
        directions = jax.random.normal(key, x.shape, x.dtype)
        directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
        length = magnitude * norm
        kl, variation = change(values, fn(x + length * directions))
        return Sensitivity(kl.mean() / length, variation.mean() / length, length)

    # One after the other, so that no more than one set of moved inputs is held.
    keys = jax.random.split(key, len(magnitudes))
    return jax.lax.map(one, (jnp.asarray(magnitudes, x.dtype), keys))


@partial(jax.jit, static_argnums=0, static_argnames="magnitudes")
def sensitivities(
    config: AgentConfig,
    model: Model,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    magnitudes: tuple[float, ...] = MAGNITUDES,
) -> tuple[dict[str, Sensitivity], dict[str, Float[Array, ""]]]:
    """Sensitivity of every map on a batch's T*B states, and the exact penalty of those that can have one.

    As in training, that is 1/K sum_i || J_i ||_F^2 by [h, e] for the posterior and by h for the prior. A pure
    function of its arguments: training may call it as well.
    """
    config = rollouts.in_float32(config)
    penalised = dataclasses.replace(
        config.penalty, posterior=1.0, prior=1.0, rho=1.0, estimator="exact", rows=0, random_rows=False
    )
    config = dataclasses.replace(config, penalty=penalised)
    world, states = model.world, batch.reward.size
    classes_key, noise_key, *keys = jax.random.split(key, 2 + len(MAPS))
    with jax.default_matmul_precision("float32"):
        uniform = jax.random.uniform(classes_key, (*batch.reward.shape, config.model.stoch))
        prediction = world_model.predict(config, world, batch, uniform)
        noise = world_model.draw_penalty_noise(config, states, key=noise_key)
        jacobians = world_model.penalties(config, world.dynamics, prediction, noise)

        h = prediction.observed.h.reshape(states, -1)
        obs = jax.tree.map(lambda x: x.reshape(states, *x.shape[2:]).astype(jnp.float32), batch.obs)
        observations = jax.vmap(lambda one: ravel_pytree(one)[0])(obs)
        _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], obs))

        def encode(o: Float[Array, "N d"]) -> Float[Array, "N E"]:
            return world.encoder(jax.vmap(unravel)(o), jnp.dtype(config.compute))

        def posterior(e: Float[Array, "N E"]) -> Float[Array, "N K C"]:
            return world.dynamics.probs(world.dynamics.posterior(jnp.concatenate([h, e], axis=1)))

        inputs = {
            "posterior": (posterior, encode(observations)),
            "prior": (lambda h: world.dynamics.probs(world.dynamics.prior(h)), h),
            "observation": (lambda o: posterior(encode(o)), observations),
        }
        found = {
            name: along_random_directions(*inputs[name], key, magnitudes=magnitudes)
            for name, key in zip(MAPS, keys, strict=True)
        }
    return found, jacobians


def measure(trained: Trained, batch: Batch, *, seed: int = 0) -> pandas.DataFrame:
    """A row for every map and length of a step.

    Columns `map`, `magnitude`, `length`, `kl`, `total_variation`, and `jacobian`, the exact penalty, which
    has no value for the map from observations.
    """
    found, jacobians = sensitivities(trained.config.agent, trained.model, batch, jax.random.key(seed))
    return pandas.DataFrame(
        {
            "map": name,
            "magnitude": magnitude,
            "length": float(values.length[i]),
            "kl": float(values.kl[i]),
            "total_variation": float(values.total_variation[i]),
            "jacobian": float(jacobians.get(name, np.nan)),
        }
        for name, values in found.items()
        for i, magnitude in enumerate(MAGNITUDES)
    )


def averages(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Means over the lengths of steps: a row for every map of every checkpoint of every run."""
    keys = ["task", "method", "seed", "run", "env_steps", "map"]
    values = ["kl", "total_variation", "jacobian"]
    return rows.groupby(keys, sort=False, as_index=False)[values].mean()


def table(rows: pandas.DataFrame) -> pandas.DataFrame:
    """By task, map and method, the mean and standard deviation over runs of their last checkpoints.

    `ratio` is a method's mean KL to that of the first method of its task and map, which is DreamerV3 if there
    is one.
    """
    groups = rollouts.last_checkpoints(averages(rows)).groupby(["task", "map", "method"])
    summary = groups.agg(
        runs=("run", "nunique"),
        env_steps=("env_steps", "max"),
        kl=("kl", "mean"),
        kl_std=("kl", partial(np.std, ddof=0)),
        total_variation=("total_variation", "mean"),
        jacobian=("jacobian", "mean"),
    )
    rows = summary.reset_index()
    others = rows["method"] != TITLES["dreamerv3"]
    first = rows.assign(others=others).sort_values("others", kind="stable").groupby(["task", "map"])["kl"]
    return rows.assign(ratio=rows["kl"] / first.transform("first"))


def draw(rows: pandas.DataFrame, maps: Sequence[str] = ("posterior", "prior")) -> "Figure":
    """The paper's figure: sensitivity over training; a row of panels for each task, a line for a method."""
    from gpld.analysis import figures

    found = averages(rows.loc[rows["map"].isin(maps)])
    return figures.lines(
        found, x="env_steps", y="kl", panel="map", columns=maps, xlabel="env steps", ylabel="KL / step (nats)"
    )
