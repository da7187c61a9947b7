from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpld.behavior._returns import dream_returns, replay_returns
from gpld.config import BehaviorConfig
from gpld.distributions import FusedTwoHot, Normal, Policy, TwoHot


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
        levels = jnp.array([config.return_low, config.return_high])
        low, high = jnp.percentile(returns.ravel(), levels)
        rate = config.return_rate
        return Normalizer((1 - rate) * self.low + rate * low, (1 - rate) * self.high + rate * high)

    def scale(self, config: BehaviorConfig) -> Float[Array, ""]:
        """The range that advantages are divided by."""
        return jnp.maximum(config.return_limit, self.high - self.low)


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
    entropy_weight: Float[Array, ""],
    *,
    reward: Float[Array, "S N"],
    cont: Float[Array, "S N"],
    action: Float[Array, "S-1 N A"],
    policy: Policy,
    value: TwoHot | FusedTwoHot,
    slow_value: Float[Array, "S N"],
    by_action: Float[Array, "S-1 N A"] | None = None,
) -> DreamLosses:
    """REINFORCE with normalised lambda-returns for the policy, two-hot regression to them for the value.

    `value` describes all S states, `policy` the first S-1. The normaliser is updated before it is used. With
    `by_action`, the gradient by the actions of all advantages together, the policy follows that instead.
    """
    reward, cont, mean, slow_value = jax.lax.stop_gradient((reward, cont, value.mean(), slow_value))
    baseline = slow_value if config.slow_target else mean
    returns, advantage, weight = advantages(config, reward, cont, baseline)
    normalizer = normalizer.follow(config, returns)
    scale = normalizer.scale(config)
    advantage, entropy = advantage / scale, policy.entropy()
    if by_action is None:
        policy_loss = -weight * (policy.log_prob(action) * advantage + entropy_weight * entropy)
    else:
        assert isinstance(policy, Normal)
        change = jnp.sum(by_action / scale * (policy.again(action) - action), axis=-1)
        policy_loss = -weight * (advantage + entropy_weight * entropy) - change
    # The last state has no return, and its loss is left out.
    value_loss = weight * _value_loss(config, value, jnp.pad(returns, ((0, 1), (0, 0))), slow_value)[:-1]
    metrics = {
        "return/mean": returns.mean(),
        "return/std": returns.std(),
        "return/low": normalizer.low,
        "return/high": normalizer.high,
        "return/scale": scale,
        "value/mean": mean.mean(),
        "value/std": mean.std(),
        "value/slow_mean": slow_value.mean(),
        "advantage/mean": advantage.mean(),
        "advantage/std": advantage.std(),
        "entropy/policy": entropy.mean(),
        "dream/reward": reward.mean(),
        "dream/continue": cont.mean(),
        "dream/weight": weight.mean(),
    }
    return DreamLosses(policy_loss, value_loss, returns, normalizer, metrics)


def advantages(
    config: BehaviorConfig,
    reward: Float[Array, "S N"],
    cont: Float[Array, "S N"],
    baseline: Float[Array, "S N"],
) -> tuple[Float[Array, "S-1 N"], Float[Array, "S-1 N"], Float[Array, "S-1 N"]]:
    """Returns of all but the last of S states, their advantages as they are, and the weights of these."""
    discount = 1.0 if config.learned_discount else 1 - 1 / config.discount_horizon
    returns = dream_returns(reward, cont, baseline, trace=config.trace, discount=discount)
    # How likely the dream still goes on at each state.
    weight = (jnp.cumprod(discount * cont, axis=0) / discount)[:-1]
    return returns, returns - baseline[:-1], jax.lax.stop_gradient(weight)


def replay_value_loss(
    config: BehaviorConfig,
    *,
    reward: Float[Array, "T B"],
    is_last: Bool[Array, "T B"],
    is_terminal: Bool[Array, "T B"],
    bootstrap: Float[Array, "T B"],
    value_logits: Float[Array, "T B bins"],
    slow_logits: Float[Array, "T B bins"],
) -> Float[Array, "T-1 B"]:
    """The value's loss on replayed states, whose returns are bootstrapped with imagined ones."""
    discount = 1 - 1 / config.discount_horizon
    returns = replay_returns(reward, is_last, is_terminal, bootstrap, trace=config.trace, discount=discount)
    slow_value = TwoHot(jax.lax.stop_gradient(slow_logits[:-1])).mean()
    loss = _value_loss(config, TwoHot(value_logits[:-1]), returns, slow_value)
    return jnp.where(is_last[:-1], 0.0, loss)


def _value_loss(
    config: BehaviorConfig,
    value: TwoHot | FusedTwoHot,
    returns: Float[Array, "*N"],
    slow_value: Float[Array, "*N"],
) -> Float[Array, "*N"]:
    """Towards the returns and, as a regulariser, towards the slow value."""
    to_returns, to_slow = value.losses(returns, slow_value)
    return to_returns + config.slow_weight * to_slow
