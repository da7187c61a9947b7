from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld import kernels
from gpld.config import AgentConfig
from gpld.distributions import Normal, OneHot, Policy
from gpld.kernels import At, Part
from gpld.nets import MLP, Linear, joint_linear
from gpld.types import Spaces


class PolicyHead(eqx.Module):
    """[h, z] to a distribution over actions: bounded normal, or one-hot for discrete ones."""

    mlp: MLP
    outputs: dict[str, Linear]
    """`mean` and `stddev`, or `logits`."""
    min_std: float = eqx.field(static=True)
    max_std: float = eqx.field(static=True)

    @classmethod
    def init(cls, config: AgentConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "PolicyHead":
        """A freshly initialised policy, close to mean zero or uniform."""
        model = config.model
        mlp_key, *keys = jax.random.split(key, 3)
        names = ("logits",) if spaces.discrete else ("mean", "stddev")
        return cls(
            MLP.init(
                model.deter + model.stoch * model.classes, model.units, model.policy_layers, key=mlp_key
            ),
            {
                name: Linear.init(model.units, spaces.actions, scale=0.01, key=k)
                for name, k in zip(names, keys, strict=False)
            },
            config.behavior.min_std,
            config.behavior.max_std,
        )

    def draw_noise(self, shape: tuple[int, ...], *, key: PRNGKeyArray) -> Float[Array, "..."]:
        """What sampling an action for each entry of `shape` takes."""
        if "logits" in self.outputs:
            return jax.random.uniform(key, shape)
        return jax.random.normal(key, (*shape, self.outputs["mean"].weight.shape[1]))

    @property
    def first(self) -> Linear:
        """The linear map of the first layer."""
        return self.mlp.layers[0].linear

    def finish(self, y: Float[Array, "*N units"]) -> Policy:
        """What follows `first`."""
        return self._distribution(joint_linear(self._outputs, self.mlp.finish(y)))

    def finish_fused(self, y: Sequence[Part], record: At) -> tuple[Policy, Float[Array, "T N units"]]:
        """What follows `first`, whose product without bias is the sum of `y` and is kept, in GPU kernels."""
        layers, outputs = self.mlp.layers, self._outputs
        last = jnp.concatenate([linear.weight for linear in outputs], axis=1)
        width = last.shape[1]
        # A matrix unit takes sixteen columns, and tiles are powers of two.
        last = jnp.pad(last, ((0, 0), (0, max(16, 1 << (width - 1).bit_length()) - width)))
        weights = [*(layer.linear.weight for layer in layers[1:]), last]
        x, kept = kernels.dense_kept(y, layers[0].activation, weights[0], record)
        for layer, weight in zip(layers[1:], weights[1:], strict=True):
            x = kernels.dense([Part(x)], layer.activation, weight)
        split = jnp.split(x[:, :width], len(outputs), axis=1)
        out = [linear.add_bias(y) for linear, y in zip(outputs, split, strict=True)]
        return self._distribution(out), kept

    def __call__(
        self, feature: Float[Array, "*N F"], *, fused: bool = False, known: Part | None = None
    ) -> Policy:
        """`feature` is [h, z], `known` its product with the weight of `first`, if that has been formed."""
        return self._distribution(joint_linear(self._outputs, self.mlp(feature, fused=fused, known=known)))

    @property
    def _outputs(self) -> list[Linear]:
        return [self.outputs[name] for name in sorted(self.outputs)]

    def _distribution(self, outputs: Sequence[Float[Array, "*N A"]]) -> Policy:
        out = {name: y.astype(jnp.float32) for name, y in zip(sorted(self.outputs), outputs, strict=True)}
        if "logits" in out:
            return OneHot(out["logits"])
        std = self.min_std + (self.max_std - self.min_std) * jax.nn.sigmoid(out["stddev"] + 2)
        return Normal(jnp.tanh(out["mean"]), std)
