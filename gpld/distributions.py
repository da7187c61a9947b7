"""Distributions of latents, actions, rewards and values, as functions of their parameters. All in float32."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def symlog(x: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """`sign(x) ln(1 + |x|)`: squashes large values, leaves small ones."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Inverse of `symlog`."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


# Categorical variables: logits and probabilities are [..., K, C], samples are class indices [..., K].


def mixed_softmax(logits: Float[Array, "*N C"], unimix: float) -> Float[Array, "*N C"]:
    """Probabilities with a share `unimix` of the uniform distribution."""
    probs = jax.nn.softmax(logits.astype(jnp.float32))
    return (1 - unimix) * probs + unimix / logits.shape[-1]


def sample_classes(probs: Float[Array, "*N C"], uniform: Float[Array, "*N"]) -> Int[Array, "*N"]:
    """Class indices by the inverse of the cumulative distribution: one uniform number per variable."""
    # The last class takes what rounding leaves of the unit interval.
    return jnp.sum(jnp.cumsum(probs, axis=-1)[..., :-1] <= uniform[..., None], axis=-1)


def entropy(probs: Float[Array, "*N K C"]) -> Float[Array, "*N"]:
    """Entropy in nats, summed over the K variables."""
    return -jnp.sum(probs * jnp.log(probs), axis=(-2, -1))


def kl(p: Float[Array, "*N K C"], q: Float[Array, "*N K C"]) -> Float[Array, "*N"]:
    """KL(p || q) in nats, summed over the K variables."""
    return jnp.sum(p * (jnp.log(p) - jnp.log(q)), axis=(-2, -1))


# Rewards and values: a softmax over an odd number of bins that are spaced evenly in symlog space.


def symexp_bins(count: int) -> Float[Array, " bins"]:
    """An odd number of bins, symmetric about an exact zero, from symexp(-20) to symexp(20)."""
    half = symexp(jnp.linspace(-20.0, 0.0, count // 2 + 1))
    return jnp.concatenate([half, -half[-2::-1]])


def twohot_mean(logits: Float[Array, "*N bins"]) -> Float[Array, "*N"]:
    """Mean of the distribution; bins of opposite sign are paired, so that uniform logits give exactly 0."""
    half = logits.shape[-1] // 2
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    # Both of a pair in one loop: where XLA cuts a row into vectors and a rest, these round differently.
    upper, lower = jnp.exp(log_probs[..., half + 1 :]), jnp.exp(log_probs[..., half - 1 :: -1])
    positive = symexp_bins(logits.shape[-1])[half + 1 :]
    return jnp.sum((upper - lower) * jnp.broadcast_to(positive, upper.shape), axis=-1)


def twohot_weights(target: Float[Array, "*N"], count: int) -> Float[Array, "*N bins"]:
    """Weights of `count` bins whose mean is the target: of the two around it, linear in raw value space."""
    bins = symexp_bins(count)
    below = jnp.clip(jnp.searchsorted(bins, target, side="right") - 1, 0, count - 2)
    low, high = bins[below], bins[below + 1]
    share = jnp.clip((target - low) / (high - low), 0, 1)[..., None]
    return (1 - share) * jax.nn.one_hot(below, count) + share * jax.nn.one_hot(below + 1, count)


def twohot_loss(logits: Float[Array, "*N bins"], target: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Cross-entropy to the two bins around `target`. No gradient flows to the target."""
    weights = twohot_weights(jax.lax.stop_gradient(target), logits.shape[-1])
    return -jnp.sum(weights * jax.nn.log_softmax(logits.astype(jnp.float32)), axis=-1)


class TwoHot(eqx.Module):
    """Rewards or values by their logits."""

    logits: Float[Array, "*N bins"]

    def mean(self) -> Float[Array, "*N"]:
        """Of each distribution."""
        return twohot_mean(self.logits)

    def losses(self, *targets: Float[Array, "*N"]) -> list[Float[Array, "*N"]]:
        """Cross-entropies to several targets."""
        return [twohot_loss(self.logits, target) for target in targets]


# Continuation: one logit.


def bernoulli_mean(logit: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Its probability."""
    return jax.nn.sigmoid(logit.astype(jnp.float32))


def bernoulli_loss(logit: Float[Array, "*N"], target: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Cross-entropy to a target probability."""
    logit = logit.astype(jnp.float32)
    return -target * jax.nn.log_sigmoid(logit) - (1 - target) * jax.nn.log_sigmoid(-logit)


# Policies. An action is a float vector [..., A], one-hot if discrete.


class Normal(NamedTuple):
    """A diagonal normal over actions; samples are not clipped."""

    mean: Float[Array, "*N A"]
    std: Float[Array, "*N A"]

    def sample(self, noise: Float[Array, "*N A"]) -> Float[Array, "*N A"]:
        """The action for standard-normal `noise`."""
        return self.mean + self.std * noise

    def mode(self) -> Float[Array, "*N A"]:
        """The likeliest action."""
        return self.mean

    def log_prob(self, action: Float[Array, "*N A"]) -> Float[Array, "*N"]:
        """Log-density, summed over the action's dimensions."""
        z = (action - self.mean) / self.std
        return jnp.sum(-0.5 * jnp.square(z) - jnp.log(self.std) - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Float[Array, "*N"]:
        """Differential entropy in nats."""
        return jnp.sum(jnp.log(self.std) + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


class OneHot(NamedTuple):
    """One of A discrete actions; no uniform share is mixed in."""

    logits: Float[Array, "*N A"]

    def sample(self, noise: Float[Array, "*N"]) -> Float[Array, "*N A"]:
        """The action for `noise` uniform in [0, 1)."""
        index = sample_classes(jax.nn.softmax(self.logits), noise)
        return jax.nn.one_hot(index, self.logits.shape[-1])

    def mode(self) -> Float[Array, "*N A"]:
        """The likeliest action."""
        return jax.nn.one_hot(jnp.argmax(self.logits, axis=-1), self.logits.shape[-1])

    def log_prob(self, action: Float[Array, "*N A"]) -> Float[Array, "*N"]:
        """Log-probability of a one-hot action."""
        return jnp.sum(action * jax.nn.log_softmax(self.logits), axis=-1)

    def entropy(self) -> Float[Array, "*N"]:
        """Entropy in nats."""
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


Policy = Normal | OneHot
