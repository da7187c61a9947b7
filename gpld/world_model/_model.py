import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import ModelConfig
from gpld.distributions import TwoHot
from gpld.nets import MLPHead
from gpld.types import Spaces
from gpld.world_model._decoder import Decoder
from gpld.world_model._encoder import Encoder
from gpld.world_model._rssm import RSSM


class TwoHotHead(MLPHead):
    """A head for rewards or values, which starts at zero."""

    @classmethod
    def init(cls, config: ModelConfig, layers: int, *, key: PRNGKeyArray) -> "TwoHotHead":
        """A freshly initialised head on [h, z]."""
        feature = config.deter + config.stoch * config.classes
        head = MLPHead.init(feature, config.units, layers, config.bins, scale=0.0, key=key)
        return cls(head.mlp, head.out)

    def __call__(self, x: Float[Array, "*N F"]) -> TwoHot:
        return TwoHot(super().__call__(x))


class WorldModel(eqx.Module):
    """Encoder, dynamics and the heads that a latent state is trained to predict with."""

    encoder: Encoder
    dynamics: RSSM
    decoder: Decoder
    reward: TwoHotHead
    cont: MLPHead

    @classmethod
    def init(cls, config: ModelConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "WorldModel":
        """A freshly initialised world model; its reward prediction starts at zero."""
        keys = jax.random.split(key, 5)
        feature = config.deter + config.stoch * config.classes
        encoder = Encoder.init(config, spaces, key=keys[0])
        return cls(
            encoder,
            RSSM.init(config, spaces.actions, encoder.width, key=keys[1]),
            Decoder.init(config, spaces, key=keys[2]),
            TwoHotHead.init(config, config.reward_layers, key=keys[3]),
            MLPHead.init(feature, config.units, config.continue_layers, 1, key=keys[4]),
        )
