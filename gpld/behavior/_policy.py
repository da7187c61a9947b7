import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import AgentConfig
from gpld.distributions import Normal, OneHot, Policy
from gpld.nets import MLP, Linear
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
        feature = model.deter + model.stoch * model.classes
        mlp_key, *keys = jax.random.split(key, 3)
        names = ("logits",) if spaces.discrete else ("mean", "stddev")
        return cls(
            MLP.init(feature, model.units, model.policy_layers, key=mlp_key),
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

    def __call__(self, feature: Float[Array, "*N F"]) -> Policy:
        x = self.mlp(feature)
        return self.distribution({name: linear(x) for name, linear in self.outputs.items()})

    def distribution(self, outputs: dict[str, Float[Array, "*N A"]]) -> Policy:
        """The policy whose parameters the output layers give."""
        out = {name: y.astype(jnp.float32) for name, y in outputs.items()}
        if "logits" in out:
            return OneHot(out["logits"])
        std = self.min_std + (self.max_std - self.min_std) * jax.nn.sigmoid(out["stddev"] + 2)
        return Normal(jnp.tanh(out["mean"]), std)
