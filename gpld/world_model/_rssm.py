"""The recurrent state-space model: h by a block GRU, z by a categorical posterior or prior.

    h_t  = cell(h_{t-1}, z_{t-1}, a_{t-1})
    z_t  ~ posterior(h_t, e_t)        where there is an observation: `observe`
    z_t  ~ prior(h_t)                 where there is none: `imagine`

In here z is a flat one-hot vector `[..., K*C]`; stored, it is class indices `[..., K]`.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from gpld.config import ModelConfig
from gpld.distributions import Policy, mixed_softmax, sample_classes
from gpld.nets import BlockLinear, Dense, MLPHead, RMSNorm, cast, unrolled
from gpld.types import Latent


class States(eqx.Module):
    """Latent states, of any leading shape."""

    h: Float[Array, "*N D"]
    z: Float[Array, "*N KC"]

    @property
    def feature(self) -> Float[Array, "*N F"]:
        """[h, z], which all heads read but the decoder's."""
        return jnp.concatenate([self.h, self.z], axis=-1)

    def read(self, *heads: Callable[[Float[Array, "*N F"]], PyTree]) -> list[PyTree]:
        """What each head makes of these states."""
        return [head(self.feature) for head in heads]


class Observed(States):
    """Posterior states. z is sampled, with straight-through gradients."""

    logits: Float[Array, "*N KC"]
    first: Float[Array, "*N hidden"]
    """Output of the posterior's first linear map, where the penalty's closed form starts."""


class DreamNoise(NamedTuple):
    """The random numbers of one dream."""

    classes: Float[Array, "H N K"]
    """Uniform in [0, 1)."""
    actions: Float[Array, "H N *A"]
    """Standard normal `[H, N, A]`, or uniform `[H, N]` for discrete actions."""


class Dream(States):
    """H steps from each of N states: S = H + 1 states `[S, N, ...]`, the first being where it starts."""

    action: Float[Array, "H N A"]


class RSSM(eqx.Module):
    """The parameters, in the reference's shapes: gradient clipping works on whole tensors."""

    inputs: tuple[Dense, Dense, Dense]
    """Of h, z and a."""
    hidden: BlockLinear
    hidden_norm: RMSNorm
    gates: BlockLinear
    posterior: MLPHead
    prior: MLPHead
    stoch: int = eqx.field(static=True)
    unimix: float = eqx.field(static=True)

    @classmethod
    def init(
        cls, config: ModelConfig, actions: int, encoded: int | None = None, *, key: PRNGKeyArray
    ) -> "RSSM":
        """A freshly initialised model; `encoded` is E, by default that of vectors alone."""
        keys = jax.random.split(key, 7)
        deter, hidden, blocks = config.deter, config.hidden, config.blocks
        code = config.stoch * config.classes
        widths = (deter, code, actions)
        width = deter + (config.units if encoded is None else encoded)
        return cls(
            inputs=tuple(Dense.init(width, hidden, key=k) for width, k in zip(widths, keys, strict=False)),
            hidden=BlockLinear.init(deter + blocks * 3 * hidden, deter, blocks, key=keys[3]),
            hidden_norm=RMSNorm.init(deter),
            gates=BlockLinear.init(deter, 3 * deter, blocks, key=keys[4]),
            posterior=MLPHead.init(width, hidden, config.posterior_layers, code, key=keys[5]),
            prior=MLPHead.init(deter, hidden, config.prior_layers, code, key=keys[6]),
            stoch=config.stoch,
            unimix=config.unimix,
        )

    def cell(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"], action: Float[Array, "*N A"]
    ) -> Float[Array, "*N D"]:
        """The next h: a GRU in blocks, each of which reads its own part of h and all of [h, z, a]."""
        entered = [dense(x) for dense, x in zip(self.inputs, (h, z, bounded(action)), strict=True)]
        x = self.hidden(h, jnp.concatenate(entered, axis=-1))
        gates = self.gates(jax.nn.silu(self.hidden_norm(x)))
        by_block = gates.reshape(*h.shape[:-1], len(self.gates.weight), -1)
        reset, candidate, update = (gate.reshape(h.shape) for gate in jnp.split(by_block, 3, axis=-1))
        candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
        update = jax.nn.sigmoid(update - 1)
        return update * candidate + (1 - update) * h

    def probs(self, logits: Float[Array, "*N KC"]) -> Float[Array, "*N K C"]:
        """Class probabilities of prior or posterior."""
        return mixed_softmax(logits.reshape(*logits.shape[:-1], self.stoch, -1), self.unimix)

    def sample(self, logits: Float[Array, "*N KC"], uniform: Float[Array, "*N K"]) -> Float[Array, "*N KC"]:
        """Sampled classes, one-hot, with the gradient of their probabilities."""
        probs = self.probs(logits)
        fixed = jax.lax.stop_gradient(probs)
        z = jax.nn.one_hot(sample_classes(fixed, uniform), probs.shape[-1]) + (probs - fixed)
        return z.reshape(logits.shape).astype(logits.dtype)

    def mode(self, logits: Float[Array, "*N KC"]) -> Float[Array, "*N KC"]:
        """The likeliest classes, one-hot."""
        probs = self.probs(logits)
        z = jax.nn.one_hot(jnp.argmax(probs, axis=-1), probs.shape[-1])
        return z.reshape(logits.shape).astype(logits.dtype)

    def unpack(self, latent: Latent, dtype: jnp.dtype) -> States:
        """Stored latent states as the layers read them."""
        classes = self.prior.out.weight.shape[1] // self.stoch
        z = jax.nn.one_hot(latent.z, classes, dtype=dtype)
        return States(latent.h.astype(dtype), z.reshape(*z.shape[:-2], -1))

    def pack(self, states: States) -> Latent:
        """Latent states as they are stored: z as class indices, no gradient."""
        h, z = jax.lax.stop_gradient((states.h, states.z))
        return Latent(h, jnp.argmax(z.reshape(*z.shape[:-1], self.stoch, -1), axis=-1).astype(jnp.uint8))

    def observe_step(
        self,
        last: States,
        e: Float[Array, "B E"],
        prev_action: Float[Array, "B A"],
        is_first: Bool[Array, " B"],
        uniform: Float[Array, "B K"],
    ) -> Observed:
        """The next states given one observation each; h, z and a are zeroed where an episode starts."""
        h, z, action = (jnp.where(is_first[:, None], 0, x) for x in (last.h, last.z, prev_action))
        h = self.cell(h, z, action.astype(h.dtype))
        first = self.posterior.first(jnp.concatenate([h, e], axis=-1))
        logits = self.posterior.after_first(first)
        return Observed(h, self.sample(logits, uniform), logits, first)

    def observe(
        self,
        start: Latent,
        e: Float[Array, "T B E"],
        prev_action: Float[Array, "T B A"],
        is_first: Bool[Array, "T B"],
        uniform: Float[Array, "T B K"],
        *,
        unroll: int = 1,
    ) -> Observed:
        """Posterior states along B sequences."""
        model = cast(self, e.dtype)

        def step(last, given):
            seen = model.observe_step(last, *given)
            return States(seen.h, seen.z), seen

        given = (e, prev_action, is_first, uniform)
        states = model.unpack(start, e.dtype)
        return jax.lax.scan(step, states, given, unroll=unrolled(len(e), unroll))[1]

    def imagine_step(
        self, state: States, action: Float[Array, "N A"], uniform: Float[Array, "N K"]
    ) -> States:
        """The next states that the prior expects after an action each."""
        h = self.cell(state.h, state.z, action.astype(state.h.dtype))
        return States(h, self.sample(self.prior(h), uniform))

    def imagine(
        self,
        policy: Callable[[Float[Array, "N F"]], Policy],
        start: States,
        noise: DreamNoise,
        *,
        unroll: int = 1,
    ) -> Dream:
        """Follow the prior and the policy from N states. No gradient flows through a dream."""
        model, policy, start = jax.lax.stop_gradient((self, policy, start))
        model, policy = cast(model, start.h.dtype), cast(policy, start.h.dtype)

        def step(state, noise):
            action = policy(state.feature).sample(noise.actions)
            return model.imagine_step(state, action, noise.classes), (state, action)

        steps = len(noise.classes)
        last, (states, actions) = jax.lax.scan(step, start, noise, unroll=unrolled(steps, unroll))
        h, z = (jnp.concatenate([x, y[None]]) for x, y in ((states.h, last.h), (states.z, last.z)))
        return Dream(h, z, actions)


def bounded(action: Float[Array, "*N A"]) -> Float[Array, "*N A"]:
    """The action as the model sees it: entries beyond [-1, 1] keep their sign alone."""
    return action / jax.lax.stop_gradient(jnp.maximum(1, jnp.abs(action)))
