import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import ModelConfig
from gpld.distributions import symlog
from gpld.nets import MLP
from gpld.types import Spaces


class Encoder(eqx.Module):
    """Vector observations to e: the symlog of every key, concatenated by name, through an MLP."""

    mlp: MLP
    obs: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "Encoder":
        """A freshly initialised encoder for these observation keys."""
        width = sum(math.prod(shape) for _, shape in spaces.obs)
        return cls(MLP.init(width, config.units, config.encoder_layers, key=key), spaces.obs)

    def __call__(self, obs: dict[str, Array], dtype: jnp.dtype) -> Float[Array, "*N E"]:
        return self.mlp(jnp.concatenate([symlog(x) for x in flat(obs, self.obs)], axis=-1).astype(dtype))


def flat(
    obs: dict[str, Array], keys: tuple[tuple[str, tuple[int, ...]], ...]
) -> list[Float[Array, "*N width"]]:
    """Every observation key as a vector, in the order of `keys`."""
    return [obs[name].reshape(*obs[name].shape[: obs[name].ndim - len(shape)], -1) for name, shape in keys]
