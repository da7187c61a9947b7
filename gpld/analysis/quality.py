"""How good a world model's predictions are: open loop, by how far ahead it predicts.

From every moment of a trajectory the posterior's state is taken, and from there on the model only hears which
actions were taken. What it expects after k steps is compared with what came:

- `latent`: KL of the posterior, which sees the observation, to the open-loop prior, summed over the K rows;
- `reward`: absolute error of the predicted reward;
- `observation`: squared error of the decoded observation in symlog space, summed over its dimensions, as the
  world model's loss has it.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpld import world_model
from gpld.agent import Model
from gpld.analysis import open_loop, rollouts
from gpld.config import AgentConfig
from gpld.distributions import kl
from gpld.training.saved import Trained
from gpld.types import Batch
from gpld.world_model import WorldModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "quality"
MEASURES = ("latent", "reward", "observation")
HORIZON = 25
"""As far as agents imagine in training."""


class Errors(NamedTuple):
    """Mean errors after k = 1 to H steps without observations, and how many predictions they average."""

    latent: Float[Array, " H"]
    reward: Float[Array, " H"]
    observation: Float[Array, " H"]
    count: Float[Array, " H"]


@partial(jax.jit, static_argnums=(0, 4))
def open_loop_errors(
    config: AgentConfig, model: Model, batch: Batch, key: PRNGKeyArray, horizon: int = HORIZON
) -> Errors:
    """Errors of predictions from every step of a batch `[T, B]` that has `horizon` steps after it.

    A prediction ends where its episode does: what comes after a reset could not be foreseen.
    """
    config, world = rollouts.in_float32(config), model.world
    steps, streams = batch.reward.shape
    classes_key, dream_key = jax.random.split(key)
    with jax.default_matmul_precision("float32"):
        uniform = jax.random.uniform(classes_key, (steps, streams, config.model.stoch))
        seen = world_model.predict(config, world, batch, uniform).observed
        starts, posterior = steps - horizon, world.dynamics.probs(seen.logits)
        episode = jnp.cumsum(batch.is_first, axis=0)

        def after(x: Array, ahead: Array | int) -> Array:
            """The values `ahead` steps after every start."""
            return jax.lax.dynamic_slice_in_dim(x, ahead, starts).reshape(starts * streams, *x.shape[2:])

        def look(ahead: Array, h: Float[Array, "N D"], z: Float[Array, "N KC"]) -> Errors:
            truth = jax.tree.map(lambda x: after(x, ahead), (batch._replace(start=None), posterior))
            return _errors(world, h, z, *truth, after(episode, ahead) == after(episode, 0))

        actions = jnp.stack([after(batch.prev_action, ahead) for ahead in range(1, horizon + 1)])
        return open_loop.dream(model, after(seen.h, 0), after(seen.z, 0), actions, dream_key, look)


def _errors(
    world: WorldModel,
    h: Float[Array, "N D"],
    z: Float[Array, "N KC"],
    batch: Batch,
    posterior: Float[Array, "N K C"],
    going: Bool[Array, " N"],
) -> Errors:
    """Errors of one step of all predictions, averaged over those that are still going."""
    prior = world.dynamics.probs(world.dynamics.prior(h))
    reward = jnp.abs(open_loop.reward_of(world, h, z) - batch.reward)
    observation = sum(world.decoder.loss(h, z, batch.obs).values())
    count = jnp.sum(going, dtype=jnp.float32)

    def mean(x: Float[Array, " N"]) -> Float[Array, ""]:
        return jnp.sum(jnp.where(going, x, 0.0)) / count

    return Errors(mean(kl(posterior, prior)), mean(reward), mean(observation), count)


def measure(trained: Trained, batch: Batch, *, seed: int = 0, horizon: int = HORIZON) -> pandas.DataFrame:
    """A row for every number of steps ahead: columns `ahead`, `latent`, `reward`, `observation`, `count`."""
    horizon = min(horizon, len(batch.reward) - 1)
    found = open_loop_errors(trained.config.agent, trained.model, batch, jax.random.key(seed), horizon)
    rows = {name: np.asarray(x, np.float64) for name, x in found._asdict().items()}
    return pandas.DataFrame({"ahead": np.arange(1, horizon + 1), **rows})


def table(rows: pandas.DataFrame, ahead: Sequence[int] = (1, 5, 10, 25)) -> pandas.DataFrame:
    """By task, steps ahead and method, mean errors over runs of their last checkpoints."""
    chosen = rollouts.last_checkpoints(rows.loc[rows["ahead"].isin(ahead)])
    groups = chosen.groupby(["task", "ahead", "method"])
    means = groups.agg(runs=("run", "nunique"), **{name: (name, "mean") for name in MEASURES})
    return means.reset_index()


def draw(rows: pandas.DataFrame) -> "Figure":
    """Errors by steps ahead: a row of panels for each task, a line for each method."""
    from gpld.analysis import figures

    keys = ["task", "method", "seed", "run", "ahead"]
    long = rollouts.last_checkpoints(rows).melt(keys, MEASURES, "measure", "error")
    return figures.lines(
        long, x="ahead", y="error", panel="measure", columns=MEASURES, xlabel="steps ahead", ylabel="error"
    )
