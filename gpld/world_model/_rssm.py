"""The recurrent state-space model: h by a block GRU, z by categorical posterior and prior.

Inside this module z is a flat one-hot vector `[..., K*C]`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from gpld.config import ModelConfig
from gpld.distributions import mixed_softmax, sample_classes, straight_through
from gpld.nets import BlockLinear, Dense, Head, Linear, RMSNorm, deferred_scan
from gpld.types import Latent


class Dynamics(eqx.Module):
    """The parameters, in the reference's shapes: gradient clipping works on whole tensors."""

    inputs: tuple[Dense, Dense, Dense]
    """Of h, z and a."""
    hidden: BlockLinear
    hidden_norm: RMSNorm
    gates: BlockLinear
    posterior: Head
    prior: Head
    stoch: int = eqx.field(static=True)
    unimix: float = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, actions: int, *, key: PRNGKeyArray) -> "Dynamics":
        """Freshly initialised dynamics."""
        keys = jax.random.split(key, 7)
        deter, hidden, blocks, code = (
            config.deter,
            config.hidden,
            config.blocks,
            config.stoch * config.classes,
        )
        widths = (deter, code, actions)
        return cls(
            inputs=tuple(Dense.init(width, hidden, key=k) for width, k in zip(widths, keys, strict=False)),
            hidden=BlockLinear.init(deter + blocks * 3 * hidden, deter, blocks, key=keys[3]),
            hidden_norm=RMSNorm.init(deter),
            gates=BlockLinear.init(deter, 3 * deter, blocks, key=keys[4]),
            posterior=Head.init(deter + config.units, hidden, config.posterior_layers, code, key=keys[5]),
            prior=Head.init(deter, hidden, config.prior_layers, code, key=keys[6]),
            stoch=config.stoch,
            unimix=config.unimix,
        )

    def probs(self, logits: Float[Array, "*N KC"]) -> Float[Array, "*N K C"]:
        """Class probabilities of prior or posterior."""
        return mixed_softmax(logits.reshape(*logits.shape[:-1], self.stoch, -1), self.unimix)

    def one_hot(self, z: Integer[Array, "*N K"], dtype: jnp.dtype) -> Float[Array, "*N KC"]:
        """Stored class indices as the flat vector that the layers read."""
        classes = self.prior.out.weight.shape[1] // self.stoch
        return jax.nn.one_hot(z, classes, dtype=dtype).reshape(*z.shape[:-1], -1)


class _Core(eqx.Module):
    """The layers of one recurrent step, cut so that what does not depend on h or z can be done before."""

    h_in: Dense
    z_in: Dense
    h_block: BlockLinear
    hz_shared: Linear
    norm: RMSNorm
    gates: BlockLinear
    blocks: int = eqx.field(static=True)

    def __call__(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"], action_part: Float[Array, "*N D"]
    ) -> Float[Array, "*N D"]:
        shared = jnp.concatenate([self.h_in(h), self.z_in(z)], axis=-1)
        hidden = jax.nn.silu(self.norm(self.h_block(h) + self.hz_shared(shared) + action_part))
        gates = self.gates(hidden).reshape(*h.shape[:-1], self.blocks, 3, -1)
        reset, candidate, update = (gates[..., i, :].reshape(h.shape) for i in range(3))
        candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
        update = jax.nn.sigmoid(update - 1)
        return update * candidate + (1 - update) * h


class _ActionIn(NamedTuple):
    """The action's way into the hidden layer of the recurrent step."""

    dense: Dense
    shared: Linear

    def __call__(self, action: Float[Array, "*N A"]) -> Float[Array, "*N D"]:
        # Only the direction of an action beyond the unit box is kept.
        action = action / jax.lax.stop_gradient(jnp.maximum(1, jnp.abs(action)))
        return self.shared(self.dense(action))


def _split(dynamics: Dynamics) -> tuple[_Core, _ActionIn]:
    """Cut the hidden block-linear layer, which reads [its block of h, shared h, z and a], by inputs."""
    h_in, z_in, a_in = dynamics.inputs
    weight = dynamics.hidden.weight
    own = weight.shape[2]
    # What all blocks read is one ordinary matrix.
    shared = weight[:, own:].transpose(1, 0, 2).reshape(weight.shape[1] - own, -1)
    hz = shared.shape[0] // 3 * 2
    core = _Core(
        h_in,
        z_in,
        BlockLinear(weight[:, :own], None),
        Linear(shared[:hz], None),
        dynamics.hidden_norm,
        dynamics.gates,
        weight.shape[0],
    )
    return core, _ActionIn(a_in, Linear(shared[hz:], dynamics.hidden.bias))


class _Posterior(NamedTuple):
    """The posterior's layers with the first cut: its part that reads h."""

    h_first: Linear
    head: Head

    def __call__(self, h: Float[Array, "*N D"], e_part: Float[Array, "*N hidden"]) -> tuple[Array, Array]:
        """Preactivation of the first layer, and logits."""
        y = self.h_first(h) + e_part
        return y, self.head.out(self.head.mlp.finish(y))


def _split_posterior(dynamics: Dynamics) -> tuple[_Posterior, Linear]:
    """The posterior as a function of h and of the encoder's part, and the map to that part."""
    deter = dynamics.hidden_norm.scale.shape[0]
    first = dynamics.posterior.first
    # The cut layer is left out of the head: `h_first` and the encoder's part stand for it.
    head = eqx.tree_at(lambda head: head.mlp.layers[0].linear, dynamics.posterior, None)
    return _Posterior(Linear(first.weight[:deter], None), head), Linear(first.weight[deter:], first.bias)


class Observed(NamedTuple):
    """What the posterior made of a sequence, `[T, B, ...]`."""

    h: Float[Array, "T B D"]
    z: Float[Array, "T B KC"]
    """Sampled, one-hot, with straight-through gradients."""
    logits: Float[Array, "T B KC"]
    first: Float[Array, "T B hidden"]
    """Preactivation of the posterior's first layer, where the penalty's closed form starts."""
    index: Integer[Array, "T B K"]


def observe(
    dynamics: Dynamics,
    start: Latent,
    e: Float[Array, "T B E"],
    prev_action: Float[Array, "T B A"],
    is_first: Bool[Array, "T B"],
    uniform: Float[Array, "T B K"],
    *,
    unroll: int = 1,
) -> Observed:
    """Posterior states along B sequences; h, z and a are zeroed where an episode starts."""
    core, action_in = _split(dynamics)
    posterior, e_in = _split_posterior(dynamics)
    keep = ~is_first[..., None]
    action_part = action_in(jnp.where(keep, prev_action, 0).astype(e.dtype))
    # Static values only: nothing differentiated may be closed over.
    stoch, unimix = dynamics.stoch, dynamics.unimix

    def step(layers, carry, x):
        core, posterior = layers
        h, z = carry
        keep, action_part, e_part, uniform = x
        h, z = h * keep.astype(h.dtype), z * keep.astype(z.dtype)
        h = core(h, z, action_part)
        first, logits = posterior(h, e_part)
        probs = mixed_softmax(logits.reshape(*logits.shape[:-1], stoch, -1), unimix)
        index = sample_classes(jax.lax.stop_gradient(probs), uniform)
        z = straight_through(probs, index).reshape(z.shape).astype(z.dtype)
        return (h, z), Observed(h, z, logits, first, index)

    carry = (start.h.astype(e.dtype), dynamics.one_hot(start.z, e.dtype))
    xs = (keep, action_part, e_in(e), uniform)
    return deferred_scan(step, (core, posterior), carry, xs, unroll=unroll)[1]


def step_posterior(
    dynamics: Dynamics,
    last: Latent,
    e: Float[Array, "N E"],
    prev_action: Float[Array, "N A"],
    is_first: Bool[Array, " N"],
    uniform: Float[Array, "N K"],
) -> Latent:
    """The next latent states given one observation each: `observe` for a single step, as acting needs it."""
    core, action_in = _split(dynamics)
    posterior, e_in = _split_posterior(dynamics)
    keep = ~is_first[:, None]
    h = jnp.where(keep, last.h, 0).astype(e.dtype)
    z = jnp.where(keep, dynamics.one_hot(last.z, e.dtype), 0)
    h = core(h, z, action_in(jnp.where(keep, prev_action, 0).astype(e.dtype)))
    _, logits = posterior(h, e_in(e))
    return Latent(h, sample_classes(dynamics.probs(logits), uniform).astype(jnp.uint8))


def imagine_step(dynamics: Dynamics):
    """A function `(h, z, action, uniform) -> (h, z)` that follows the prior, for use inside a scan."""
    core, action_in = _split(dynamics)

    def step(h, z, action, uniform):
        h = core(h, z, action_in(action.astype(h.dtype)))
        index = sample_classes(dynamics.probs(dynamics.prior(h)), uniform)
        return h, dynamics.one_hot(index, h.dtype)

    return step
