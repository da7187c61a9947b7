"""Distributions of latents, actions, rewards and values, as functions of their parameters. All in float32."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpld import kernels


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


# Rewards and values: a softmax over an odd number of bins that are spaced evenly in symlog space. If the
# number of logits is even, the last of them is padding, and does not count.


def symexp_bins(count: int) -> Float[Array, " bins"]:
    """An odd number of bins, symmetric about an exact zero, from symexp(-20) to symexp(20)."""
    half = symexp(jnp.linspace(-20.0, 0.0, count // 2 + 1))
    return jnp.concatenate([half, -half[-2::-1]])


def twohot_mean(logits: Float[Array, "*N bins"]) -> Float[Array, "*N"]:
    """Mean of the distribution; bins of opposite sign are paired, so that uniform logits give exactly 0."""
    count = _odd(logits)
    wide = logits[..., :count].astype(jnp.float32)
    wide = wide - jax.nn.logsumexp(wide, axis=-1, keepdims=True)
    # Both of a pair in one loop: where XLA cuts a row into vectors and a rest, these round differently.
    upper, lower = jnp.exp(wide[..., count // 2 + 1 :]), jnp.exp(wide[..., count // 2 - 1 :: -1])
    return jnp.sum((upper - lower) * jnp.broadcast_to(_positive(count), upper.shape), axis=-1)


@jax.custom_vjp
def twohot_loss(logits: Float[Array, "*N bins"], target: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Cross-entropy to the two bins around `target`, weighted linearly in raw value space.

    No gradient flows to the target. Forwards only two logits of each row are picked out; backwards the dense
    weights are made in passing. So no `[*N, bins]` array of weights is ever stored.
    """
    return _twohot_loss_forward(logits, target)[0]


def _twohot_loss_forward(logits, target):
    count = _odd(logits)
    wide = logits[..., :count].astype(jnp.float32)
    below, share = _neighbours(target, count)
    picked = [jnp.take_along_axis(wide, (below + i)[..., None], axis=-1)[..., 0] for i in (0, 1)]
    total = jax.nn.logsumexp(wide, axis=-1)
    return total - (1 - share) * picked[0] - share * picked[1], (logits, total, below, share)


def _twohot_loss_backward(residuals, gradient):
    logits, total, below, share = residuals
    width, count = logits.shape[-1], _odd(logits)
    probs = jnp.exp(logits.astype(jnp.float32) - total[..., None])
    column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    difference = jnp.where(column < count, probs, 0.0) - _twohot(below, share, width)
    return (gradient[..., None] * difference).astype(logits.dtype), jnp.zeros_like(share)


twohot_loss.defvjp(_twohot_loss_forward, _twohot_loss_backward)


class TwoHot(NamedTuple):
    """Rewards or values by their logits."""

    logits: Float[Array, "*N bins"]

    def mean(self) -> Float[Array, "*N"]:
        """Of each distribution."""
        return twohot_mean(self.logits)

    def losses(self, *targets: Float[Array, "*N"]) -> list[Float[Array, "*N"]]:
        """Cross-entropies to several targets."""
        return [twohot_loss(self.logits, target) for target in targets]


class FusedTwoHot(NamedTuple):
    """The same in GPU kernels, which read the logits of many states once forwards, and once backwards."""

    product: Float[Array, "*N bins"]
    """The logits without their bias."""
    bias: Float[Array, " bins"]
    center: Float[Array, "*N"]
    normaliser: Float[Array, "*N"]

    @classmethod
    def of(cls, product: Float[Array, "*N bins"], bias: Float[Array, " bins"]) -> "FusedTwoHot":
        """The distributions whose logits are `product + bias`."""
        values = jax.lax.stop_gradient((_rows(product), bias))
        moments = kernels.twohot_mean(*values, _positive(_odd(product)))
        return cls(product, bias, *(x.reshape(product.shape[:-1]) for x in moments))

    def mean(self) -> Float[Array, "*N"]:
        """Of each distribution. No gradient flows through it."""
        return self.center

    def losses(self, *targets: Float[Array, "*N"]) -> list[Float[Array, "*N"]]:
        """Cross-entropies to several targets."""
        return _fused_losses(self.product, self.bias, self.normaliser, targets)


@jax.custom_vjp
def _fused_losses(product, bias, normaliser, targets):
    return _fused_losses_forward(product, bias, normaliser, targets)[0]


def _fused_losses_forward(product, bias, normaliser, targets):
    count = _odd(product)
    neighbours = [_neighbours(target, count) for target in targets]

    def logit(index):
        picked = jnp.take_along_axis(product, index[..., None], axis=-1)[..., 0]
        return picked.astype(jnp.float32) + bias[index]

    losses = [
        normaliser - (1 - share) * logit(below) - share * logit(below + 1) for below, share in neighbours
    ]
    return losses, (product, bias, normaliser, neighbours)


def _fused_losses_backward(residuals, gradients):
    product, bias, normaliser, neighbours = residuals
    targets = [
        kernels.Target(below.ravel(), share.ravel(), gradient.ravel())
        for (below, share), gradient in zip(neighbours, gradients, strict=True)
    ]
    by_product, by_bias = kernels.pull_twohot(
        _rows(product), bias, normaliser.ravel(), targets, _odd(product)
    )
    zeros = jnp.zeros_like(normaliser)
    return by_product.reshape(product.shape), by_bias, zeros, tuple(zeros for _ in targets)


_fused_losses.defvjp(_fused_losses_forward, _fused_losses_backward)


def _rows(logits: Float[Array, "*N bins"]) -> Float[Array, "M bins"]:
    return logits.reshape(-1, logits.shape[-1])


def _positive(count: int) -> Float[Array, " half"]:
    """The bins above zero."""
    return symexp_bins(count)[count // 2 + 1 :]


def _odd(logits: Float[Array, "*N bins"]) -> int:
    """The number of bins."""
    return logits.shape[-1] - 1 + logits.shape[-1] % 2


def _neighbours(target: Float[Array, "*N"], count: int) -> tuple[Int[Array, "*N"], Float[Array, "*N"]]:
    """Index of the bin at or below each target, and the next bin's share of the weight."""
    bins = symexp_bins(count)
    # The bins are even in symlog space; rounding can miss by one.
    guess = jnp.floor((symlog(target) + 20) * ((count - 1) / 40)).astype(jnp.int32)
    guess = jnp.clip(guess, 0, count - 2)
    below = guess + (target >= bins[guess + 1]).astype(jnp.int32) - (target < bins[guess]).astype(jnp.int32)
    below = jnp.clip(below, 0, count - 2)
    low, high = bins[below], bins[below + 1]
    return below, jnp.clip((target - low) / (high - low), 0, 1)


def _twohot(below: Int[Array, "*N"], share: Float[Array, "*N"], count: int) -> Float[Array, "*N bins"]:
    """Weights of all bins."""
    after = jax.lax.broadcasted_iota(below.dtype, (*below.shape, count), below.ndim) - below[..., None]
    return jnp.where(after == 0, 1 - share[..., None], jnp.where(after == 1, share[..., None], 0.0))


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

    def again(self, action: Float[Array, "*N A"]) -> Float[Array, "*N A"]:
        """A sample as it was drawn: a function of mean and standard deviation, the noise being given."""
        return self.sample(jax.lax.stop_gradient((action - self.mean) / self.std))

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

    def log_prob(self, action: Float[Array, "*N A"]) -> Float[Array, "*N"]:
        """Log-probability of a one-hot action."""
        return jnp.sum(action * jax.nn.log_softmax(self.logits), axis=-1)

    def entropy(self) -> Float[Array, "*N"]:
        """Entropy in nats."""
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


Policy = Normal | OneHot
