import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import AgentConfig
from gpld.distributions import Normal, OneHot, Policy
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
        return self._distribution(self.mlp.finish(y))

    def __call__(self, feature: Float[Array, "*N F"], *, fused: bool = False) -> Policy:
        """`feature` is [h, z]."""
        return self._distribution(self.mlp(feature, fused=fused))

    def _distribution(self, x: Float[Array, "*N units"]) -> Policy:
        names = sorted(self.outputs)
        outputs = joint_linear([self.outputs[name] for name in names], x)
        out = {name: y.astype(jnp.float32) for name, y in zip(names, outputs, strict=True)}
        if "logits" in out:
            return OneHot(out["logits"])
        std = self.min_std + (self.max_std - self.min_std) * jax.nn.sigmoid(out["stddev"] + 2)
        return Normal(jnp.tanh(out["mean"]), std)
