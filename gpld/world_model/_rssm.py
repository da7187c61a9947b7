"""The recurrent state-space model: h by a block GRU, z by categorical posterior and prior.

Inside this module z is a flat one-hot vector `[..., K*C]`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from gpld.config import ModelConfig
from gpld.distributions import mixed_softmax, sample_classes
from gpld.nets import BlockLinear, Dense, Head, Linear, RMSNorm, cast
from gpld.types import Latent
from gpld.world_model._observe import Given, Layers, posterior_scan
from gpld.world_model._recurrence import Cell, next_h


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
    def init(
        cls, config: ModelConfig, actions: int, encoded: int | None = None, *, key: PRNGKeyArray
    ) -> "Dynamics":
        """Freshly initialised dynamics; `encoded` is E, by default that of vectors alone."""
        keys = jax.random.split(key, 7)
        deter, hidden, blocks, code = (
            config.deter,
            config.hidden,
            config.blocks,
            config.stoch * config.classes,
        )
        widths = (deter, code, actions)
        width = deter + (config.units if encoded is None else encoded)
        return cls(
            inputs=tuple(Dense.init(width, hidden, key=k) for width, k in zip(widths, keys, strict=False)),
            hidden=BlockLinear.init(deter + blocks * 3 * hidden, deter, blocks, key=keys[3]),
            hidden_norm=RMSNorm.init(deter),
            gates=BlockLinear.init(deter, 3 * deter, blocks, key=keys[4]),
            posterior=Head.init(width, hidden, config.posterior_layers, code, key=keys[5]),
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


class ActionIn(NamedTuple):
    """The action's way into the hidden layer of the recurrent step."""

    dense: Dense
    shared: Linear

    def __call__(self, action: Float[Array, "*N A"]) -> Float[Array, "*N D"]:
        return self.shared(self.dense(bounded(action)))


def bounded(action: Float[Array, "*N A"]) -> Float[Array, "*N A"]:
    """The action as the model sees it: entries beyond [-1, 1] keep their sign alone."""
    return action / jax.lax.stop_gradient(jnp.maximum(1, jnp.abs(action)))


def split(dynamics: Dynamics, dtype: jnp.dtype) -> tuple[Cell, ActionIn]:
    """Cut the hidden block-linear layer, which reads [its block of h, shared h, z and a], by inputs."""
    dynamics = cast(dynamics, dtype)
    h_in, z_in, a_in = dynamics.inputs
    weight = dynamics.hidden.weight
    own = weight.shape[2]
    # What all blocks read is one ordinary matrix.
    shared = weight[:, own:].transpose(1, 0, 2).reshape(weight.shape[1] - own, -1)
    hz = shared.shape[0] // 3 * 2
    cell = Cell(
        h_in,
        z_in,
        BlockLinear(weight[:, :own], None),
        Linear(shared[:hz], None),
        dynamics.hidden_norm,
        dynamics.gates,
    )
    return cell, ActionIn(a_in, Linear(shared[hz:], dynamics.hidden.bias))


def split_posterior(dynamics: Dynamics, dtype: jnp.dtype) -> tuple[Linear, Head, Linear]:
    """The posterior's first layer, cut: its part that reads h, the layers after it, its part that reads e."""
    deter = dynamics.hidden_norm.scale.shape[0]
    posterior = cast(dynamics.posterior, dtype)
    weight, bias = posterior.first.weight, posterior.first.bias
    head = eqx.tree_at(lambda head: head.mlp.layers[0].linear, posterior, None)
    return Linear(weight[:deter], None), head, Linear(weight[deter:], bias)


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
    fused: bool = False,
) -> Observed:
    """Posterior states along B sequences; h, z and a are zeroed where an episode starts.

    `fused` takes the GPU kernels.
    """
    cell, action_in = split(dynamics, e.dtype)
    first, head, e_in = split_posterior(dynamics, e.dtype)
    keep = ~is_first[..., None]
    given = Given(
        keep.astype(jnp.float32),
        action_in(jnp.where(keep, prev_action, 0).astype(e.dtype)),
        e_in(e),
        uniform,
    )
    layers = Layers(cell, first, head, dynamics.stoch, dynamics.unimix)
    start_at = (start.h.astype(e.dtype), dynamics.one_hot(start.z, e.dtype))
    seen = posterior_scan(layers, start_at, given, unroll=unroll, fused=fused)
    index = jnp.argmax(jax.lax.stop_gradient(seen.z).reshape(*uniform.shape, -1), axis=-1)
    return Observed(seen.h, seen.z, seen.logits, seen.first, index)


def step_posterior(
    dynamics: Dynamics,
    last: Latent,
    e: Float[Array, "N E"],
    prev_action: Float[Array, "N A"],
    is_first: Bool[Array, " N"],
    uniform: Float[Array, "N K"],
) -> Latent:
    """The next latent states given one observation each: `observe` for a single step, as acting needs it."""
    cell, action_in = split(dynamics, e.dtype)
    first, head, e_in = split_posterior(dynamics, e.dtype)
    keep = ~is_first[:, None]
    h = jnp.where(keep, last.h, 0).astype(e.dtype)
    z = jnp.where(keep, dynamics.one_hot(last.z, e.dtype), 0)
    action_part = action_in(jnp.where(keep, prev_action, 0).astype(e.dtype))
    h = next_h(cell, h, z, action_part)
    logits = head.finish(first(h) + e_in(e))
    return Latent(h, sample_classes(dynamics.probs(logits), uniform).astype(jnp.uint8))
