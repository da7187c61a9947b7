from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld.behavior._policy import PolicyHead
from gpld.behavior._returns import dream_returns, replay_returns
from gpld.config import BehaviorConfig
from gpld.distributions import Policy, TwoHot, bernoulli_mean
from gpld.nets import of_each
from gpld.types import Batch
from gpld.world_model import Dream, TwoHotHead, WorldModel


class Normalizer(NamedTuple):
    """Running percentiles of the imagined returns."""

    low: Float[Array, ""]
    high: Float[Array, ""]

    @classmethod
    def init(cls) -> "Normalizer":
        """Both percentiles start at zero, without bias correction."""
        return cls(jnp.zeros(()), jnp.zeros(()))

    def follow(self, config: BehaviorConfig, returns: Float[Array, "..."]) -> "Normalizer":
        """Move towards the percentiles of `returns`."""
        levels = jnp.stack([jnp.float32(config.return_low), jnp.float32(config.return_high)])
        low, high = jnp.percentile(returns.ravel(), levels)
        rate = config.return_rate
        return Normalizer((1 - rate) * self.low + rate * low, (1 - rate) * self.high + rate * high)

    def scale(self, config: BehaviorConfig) -> Float[Array, ""]:
        """The range that advantages are divided by."""
        return jnp.maximum(config.return_limit, self.high - self.low)


class Scores(NamedTuple):
    """What all heads make of a dream of S = H + 1 states."""

    reward: Float[Array, "S N"]
    cont: Float[Array, "S N"]
    """Probability that the episode goes on."""
    slow_value: Float[Array, "S N"]
    value: TwoHot
    """Of all S states."""
    policy: Policy
    """Of the first H: the last state does not act."""


def score(
    world: WorldModel, policy: PolicyHead, value: TwoHotHead, slow_value: TwoHotHead, dream: Dream
) -> Scores:
    """Evaluate all heads on a dream. Only policy and value learn from it."""
    fixed = jax.lax.stop_gradient((world.reward, world.cont, slow_value))
    reward, cont_logit, slow, values, actions = dream.read(*fixed, value, policy)
    return Scores(
        reward.mean(),
        bernoulli_mean(cont_logit[..., 0]),
        slow.mean(),
        values,
        jax.tree.map(lambda x: x[:-1], actions),
    )


class DreamLosses(NamedTuple):
    """Losses of all but the last of S imagined states, and what they rest on."""

    policy: Float[Array, "H N"]
    value: Float[Array, "H N"]
    returns: Float[Array, "H N"]
    normalizer: Normalizer
    metrics: dict[str, Float[Array, ""]]


def dream_losses(
    config: BehaviorConfig,
    normalizer: Normalizer,
    action: Float[Array, "H N A"],
    scores: Scores,
) -> DreamLosses:
    """REINFORCE with normalised lambda-returns for the policy, two-hot regression to them for the value.

    The normaliser is updated before it is used.
    """
    policy, value = scores.policy, scores.value
    fixed = (scores.reward, scores.cont, value.mean(), scores.slow_value)
    reward, cont, mean, slow_value = jax.lax.stop_gradient(fixed)
    discount = 1.0 if config.learned_discount else 1 - 1 / config.discount_horizon
    baseline = slow_value if config.slow_target else mean
    returns = dream_returns(reward, cont, baseline, trace=config.trace, discount=discount)
    normalizer = normalizer.follow(config, returns)
    scale = normalizer.scale(config)
    advantage = (returns - baseline[:-1]) / scale
    # How likely the dream still goes on at each state.
    weight = (jnp.cumprod(discount * cont, axis=0) / discount)[:-1]
    entropy = policy.entropy()
    policy_loss = -weight * (policy.log_prob(action) * advantage + config.entropy * entropy)
    averaged = {
        "return/mean": returns,
        "value/mean": mean,
        "value/slow_mean": slow_value,
        "advantage/mean": advantage,
        "entropy/policy": entropy,
        "dream/reward": reward,
        "dream/continue": cont,
        "dream/weight": weight,
    }
    spread = {"return/std": returns, "value/std": mean, "advantage/std": advantage}
    metrics = of_each(jnp.mean, averaged) | of_each(jnp.std, spread)
    metrics |= {
        "return/low": normalizer.low,
        "return/high": normalizer.high,
        "return/scale": scale,
    }
    losses = weight * value_loss(config, value, returns, slow_value)
    return DreamLosses(policy_loss, losses, returns, normalizer, metrics)


def replay_value_loss(
    config: BehaviorConfig,
    batch: Batch,
    bootstrap: Float[Array, "T B"],
    value: TwoHot,
    slow_value: Float[Array, "T B"],
) -> Float[Array, "T-1 B"]:
    """The value's loss on replayed states, whose returns are bootstrapped with imagined ones."""
    returns = replay_returns(
        batch.reward,
        batch.is_last,
        batch.is_terminal,
        jax.lax.stop_gradient(bootstrap),
        trace=config.trace,
        discount=1 - 1 / config.discount_horizon,
    )
    return jnp.where(batch.is_last[:-1], 0.0, value_loss(config, value, returns, slow_value))


def value_loss(
    config: BehaviorConfig, value: TwoHot, returns: Float[Array, "H N"], slow_value: Float[Array, "S N"]
) -> Float[Array, "H N"]:
    """Towards the returns and, as a regulariser, towards the slow value. The last state has no return."""
    slow_value = jax.lax.stop_gradient(slow_value)
    to_returns, to_slow = value.losses(jnp.pad(returns, ((0, 1), (0, 0))), slow_value)
    return (to_returns + config.slow_weight * to_slow)[:-1]
