import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from gpld.config import ModelConfig
from gpld.nets import Head
from gpld.types import Spaces
from gpld.world_model._decoder import Decoder
from gpld.world_model._encoder import Encoder
from gpld.world_model._rssm import Dynamics


class WorldModel(eqx.Module):
    """Encoder, dynamics and the heads that a latent state is trained to predict with."""

    encoder: Encoder
    dynamics: Dynamics
    decoder: Decoder
    reward: Head
    cont: Head

    @classmethod
    def init(cls, config: ModelConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "WorldModel":
        """A freshly initialised world model; its reward prediction starts at zero."""
        keys = jax.random.split(key, 5)
        feature = config.deter + config.stoch * config.classes
        encoder = Encoder.init(config, spaces, key=keys[0])
        return cls(
            encoder,
            Dynamics.init(config, spaces.actions, encoder.width, key=keys[1]),
            Decoder.init(config, spaces, key=keys[2]),
            Head.init(feature, config.units, config.reward_layers, config.bins, scale=0.0, key=keys[3]),
            Head.init(feature, config.units, config.continue_layers, 1, key=keys[4]),
        )
