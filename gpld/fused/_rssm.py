"""The world model's parts that run along sequences or read latent states, in XLA or in kernels."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpld import world_model
from gpld.behavior import PolicyHead
from gpld.fused import _imagine, _observe, _states
from gpld.fused._layers import activated_product, joint_linear, joint_products
from gpld.types import Latent
from gpld.world_model import Dream, DreamNoise, Observed, States


class DeferredRSSM(world_model.RSSM):
    """The gradients of parameters are formed for all steps at once, by XLA."""

    in_kernels = False

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
        in_kernels = self.in_kernels and e.shape[1] % 16 == 0  # as many rows as a matrix unit takes
        states = self.unpack(start, e.dtype)
        out = _observe.observe(
            self, states, e, prev_action, is_first, uniform, unroll=unroll, in_kernels=in_kernels
        )
        kind = _states.Observed if self.in_kernels else Observed
        return kind(out.h, out.z, out.logits, out.first)


class RSSM(DeferredRSSM):
    """In GPU kernels, dreams too."""

    in_kernels = True

    def imagine(self, policy: PolicyHead, start: States, noise: DreamNoise, *, unroll: int = 1) -> Dream:
        """Follow the prior and the policy from N states. No gradient flows through a dream."""
        return _imagine.imagine(self, policy, start, noise, unroll=unroll)


class Decoder(world_model.Decoder):
    """The concatenation of z and h is never formed, and all outputs are one product."""

    def decode_vectors(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"]
    ) -> dict[str, Float[Array, "*N width"]]:
        """Predictions of vectors alone."""
        if self.mlp is None:
            return {}
        first, *others = self.mlp.layers
        (product,) = joint_products([first.linear.weight], z, h)
        x = activated_product(first, product)
        for layer in others:
            x = layer(x)
        names = [name for name, _ in self.vectors]
        predictions = joint_linear([self.outputs[name] for name in names], x)
        return {name: y.astype(jnp.float32) for name, y in zip(names, predictions, strict=True)}
