"""Two-hot distributions in kernels, which read the logits of many states once each way."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpld import distributions, nets, world_model
from gpld.distributions import symexp_bins, symlog
from gpld.fused import kernels
from gpld.nets import Linear


class TwoHot(distributions.TwoHot):
    """`logits` are without their bias, and may have a last column that is padding."""

    bias: Float[Array, " bins"]
    center: Float[Array, "*N"]
    normaliser: Float[Array, "*N"]

    @classmethod
    def of(cls, product: Float[Array, "*N bins"], bias: Float[Array, " bins"]) -> "TwoHot":
        """The distributions whose logits are `product + bias`."""
        values = jax.lax.stop_gradient((_rows(product), bias))
        count = _odd(product)
        moments = kernels.twohot_mean(*values, symexp_bins(count)[count // 2 + 1 :])
        return cls(product, bias, *(x.reshape(product.shape[:-1]) for x in moments))

    def mean(self) -> Float[Array, "*N"]:
        """Of each distribution. No gradient flows through it."""
        return self.center

    def losses(self, *targets: Float[Array, "*N"]) -> list[Float[Array, "*N"]]:
        """Cross-entropies to several targets."""
        return _losses(self.logits, self.bias, self.normaliser, targets)


class TwoHotHead(world_model.TwoHotHead):
    """A head whose distributions are made in kernels."""

    def __call__(self, x: Float[Array, "*N F"]) -> TwoHot:
        return twohot(self, self.mlp(x), x.shape[:-1])


def twohot(head: nets.MLPHead, x: Float[Array, "*N units"], shape: tuple[int, ...]) -> TwoHot:
    """What a head's output layer makes of the layer before it, for states of this shape."""
    odd = head.out.weight.shape[1] % 2
    # A column of zeros added to an odd number of outputs, by which GPUs multiply slowly.
    out = Linear(jnp.pad(head.out.weight, ((0, 0), (0, odd))), jnp.pad(head.out.bias, (0, odd)))
    return TwoHot.of((x @ out.weight.astype(x.dtype)).reshape(*shape, -1), out.bias)


@jax.custom_vjp
def _losses(product, bias, normaliser, targets):
    return _losses_forward(product, bias, normaliser, targets)[0]


def _losses_forward(product, bias, normaliser, targets):
    count = _odd(product)
    neighbours = [_neighbours(target, count) for target in targets]

    def logit(index):
        picked = jnp.take_along_axis(product, index[..., None], axis=-1)[..., 0]
        return picked.astype(jnp.float32) + bias[index]

    losses = [
        normaliser - (1 - share) * logit(below) - share * logit(below + 1) for below, share in neighbours
    ]
    return losses, (product, bias, normaliser, neighbours)


def _losses_backward(residuals, gradients):
    product, bias, normaliser, neighbours = residuals
    targets = [
        kernels.Target(below.ravel(), share.ravel(), gradient.ravel())
        for (below, share), gradient in zip(neighbours, gradients, strict=True)
    ]
    dproduct, dbias = kernels.vjp_twohot(_rows(product), bias, normaliser.ravel(), targets, _odd(product))
    zeros = jnp.zeros_like(normaliser)
    return dproduct.reshape(product.shape), dbias, zeros, tuple(zeros for _ in targets)


_losses.defvjp(_losses_forward, _losses_backward)


def _rows(logits: Float[Array, "*N bins"]) -> Float[Array, "M bins"]:
    return logits.reshape(-1, logits.shape[-1])


def _odd(logits: Float[Array, "*N bins"]) -> int:
    """The number of bins."""
    return logits.shape[-1] - 1 + logits.shape[-1] % 2


def _neighbours(target: Float[Array, "*N"], count: int) -> tuple[Int[Array, "*N"], Float[Array, "*N"]]:
    """Index of the bin at or below each target, and the next bin's share of the weight, without a search."""
    bins = symexp_bins(count)
    # The bins are even in symlog space; rounding can miss by one.
    guess = jnp.floor((symlog(target) + 20) * ((count - 1) / 40)).astype(jnp.int32)
    guess = jnp.clip(guess, 0, count - 2)
    below = guess + (target >= bins[guess + 1]).astype(jnp.int32) - (target < bins[guess]).astype(jnp.int32)
    below = jnp.clip(below, 0, count - 2)
    low, high = bins[below], bins[below + 1]
    return below, jnp.clip((target - low) / (high - low), 0, 1)
