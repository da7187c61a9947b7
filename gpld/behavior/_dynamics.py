import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld.behavior._imagination import Dream
from gpld.behavior._losses import advantages
from gpld.config import AgentConfig
from gpld.distributions import TwoHot, bernoulli_mean
from gpld.nets import Head
from gpld.world_model import WorldModel, pull_dream


def pull_advantages(
    config: AgentConfig, world: WorldModel, baseline: Head, dream: Dream
) -> Float[Array, "H N A"]:
    """Gradient by the actions of a dream of the sum of all its advantages, each by its weight.

    It comes through the dynamics and through the heads, `baseline` being the value's. Policies read states,
    but no gradient flows back through that.
    """
    world, baseline, feature = jax.lax.stop_gradient((world, baseline, dream.feature))

    def total(feature):
        cont = bernoulli_mean(world.cont(feature)[..., 0])
        reward, value = (TwoHot(head(feature)).mean() for head in (world.reward, baseline))
        _, advantage, weight = advantages(config.behavior, reward, cont, value)
        return jnp.sum(weight * advantage)

    return pull_dream(world.dynamics, feature, dream.action, jax.grad(total)(feature), unroll=config.unroll)
