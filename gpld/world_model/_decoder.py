import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import ModelConfig
from gpld.distributions import symlog
from gpld.nets import MLP, Linear, joint_linear
from gpld.types import Spaces
from gpld.world_model._encoder import flat


class Decoder(eqx.Module):
    """[z, h] to a prediction of the symlog of every observation key."""

    mlp: MLP
    outputs: dict[str, Linear]
    obs: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "Decoder":
        """A freshly initialised decoder for these observation keys."""
        mlp_key, *keys = jax.random.split(key, 1 + len(spaces.obs))
        inputs = config.stoch * config.classes + config.deter
        outputs = {
            name: Linear.init(config.units, math.prod(shape), key=k)
            for (name, shape), k in zip(spaces.obs, keys, strict=True)
        }
        mlp = MLP.init(inputs, config.units, config.decoder_layers, key=mlp_key)
        return cls(mlp, outputs, spaces.obs)

    def __call__(self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"]) -> dict[str, Float[Array, "..."]]:
        """Predictions in symlog space, flat: `[..., prod(shape)]` for every key."""
        x = self.mlp.finish(*joint_linear([self.mlp.layers[0].linear], z, h))
        names = [name for name, _ in self.obs]
        predictions = joint_linear([self.outputs[name] for name in names], x)
        return {name: y.astype(jnp.float32) for name, y in zip(names, predictions, strict=True)}

    def loss(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"], obs: dict[str, Array]
    ) -> dict[str, Float[Array, "*N"]]:
        """Squared error to the symlog of every key, summed over its dimensions."""
        predictions = self(h, z)
        targets = flat(obs, self.obs)
        return {
            name: jnp.sum(jnp.square(predictions[name] - symlog(target)), axis=-1)
            for (name, _), target in zip(self.obs, targets, strict=True)
        }
