from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld.config import AgentConfig
from gpld.distributions import bernoulli_loss, entropy, kl
from gpld.nets import of_each
from gpld.types import Batch, Number
from gpld.world_model._model import WorldModel
from gpld.world_model._rssm import Observed

TERMS = (
    *("reward", "cont", "dyn", "rep", "policy", "value", "replay_value"),
    *("penalty_posterior", "penalty_prior", "total"),
)
"""Terms of the agent's loss besides reconstructions, and their sum."""


class Prediction(NamedTuple):
    """What one pass over a batch gives."""

    observed: Observed
    e: Float[Array, "T B E"]
    """Encoded observations."""
    losses: dict[str, Float[Array, "T B"]]
    """Unweighted terms: one per observation key, `reward`, `cont`, `dyn`, `rep`.

    That of an observation called like one of `TERMS` is `observed/NAME`.
    """
    metrics: dict[str, Float[Array, ""]]


def predict(
    config: AgentConfig, model: WorldModel, batch: Batch, uniform: Float[Array, "T B K"]
) -> Prediction:
    """Run the posterior along a batch and score everything the model predicts of it."""
    dynamics = model.dynamics
    e = model.encoder(batch.obs, jnp.dtype(config.compute))
    seen = dynamics.observe(batch.start, e, batch.prev_action, batch.is_first, uniform, unroll=config.unroll)
    posterior, prior = dynamics.probs(seen.logits), dynamics.probs(dynamics.prior(seen.h))
    reward, cont_logit = seen.read(model.reward, model.cont)

    decoded = model.decoder.loss(seen.h, seen.z, batch.obs)
    losses = {f"observed/{name}" if name in TERMS else name: loss for name, loss in decoded.items()}
    losses |= kl_losses(posterior, prior, config.loss.free_nats)
    (losses["reward"],) = reward.losses(batch.reward)
    losses["cont"] = bernoulli_loss(cont_logit[..., 0], continue_target(config, batch))

    reward_mean = reward.mean()
    averaged = {
        "kl": kl(posterior, prior),
        "entropy/prior": entropy(prior),
        "entropy/posterior": entropy(posterior),
        "reward/mean": batch.reward,
        "reward/predicted_mean": reward_mean,
        "reward/error": jnp.abs(reward_mean - batch.reward),
    }
    spread = {"reward/std": batch.reward, "reward/predicted_std": reward_mean}
    return Prediction(seen, e, losses, of_each(jnp.mean, averaged) | of_each(jnp.std, spread))


def continue_target(config: AgentConfig, batch: Batch) -> Float[Array, "T B"]:
    """Probability that an episode goes on; by default the discount is part of it."""
    discount = 1 - 1 / config.behavior.discount_horizon if config.behavior.learned_discount else 1.0
    return jnp.where(batch.is_terminal, 0.0, discount)


def kl_losses(
    posterior: Float[Array, "*N K C"], prior: Float[Array, "*N K C"], free_nats: Number
) -> dict[str, Float[Array, "*N"]]:
    """Train the prior towards the posterior and, separately weighted, the posterior towards the prior."""
    stop = jax.lax.stop_gradient
    return {
        "dyn": jnp.maximum(kl(stop(posterior), prior), free_nats),
        "rep": jnp.maximum(kl(posterior, stop(prior)), free_nats),
    }
