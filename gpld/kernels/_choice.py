import warnings
from functools import cache

import jax
import jax.numpy as jnp

from gpld.config import AgentConfig, ConfigError
from gpld.kernels._activation import activate
from gpld.kernels._tiles import Tile, interpreted


def chosen(config: AgentConfig, rows: int) -> bool:
    """Whether to use these kernels for steps of `rows` states."""
    if config.kernels == "plain":
        return False
    model = config.model
    widths = (model.deter // model.blocks, model.hidden, model.classes, model.stoch * model.classes)
    # Every tile's side is a power of two, and a matrix unit takes sixteen rows.
    fits = rows % 16 == 0 and model.posterior_layers == 1 and model.units == model.hidden
    fits &= all(width >= 16 and width & (width - 1) == 0 for width in widths)
    # Gradients by h and z are columns of one array, which tiles of z's width must divide.
    fits &= model.deter % (model.stoch * model.classes) == 0
    # A tile holds whole rows of classes, and bins in pairs about the one at zero.
    fits &= model.classes <= Tile().columns and model.bins & (model.bins + 1) == 0
    if config.kernels == "fused" and not fits:
        raise ConfigError(
            "agent.kernels: 'fused' needs powers of two from 16 for agent.model.deter over blocks, hidden, "
            f"classes and stoch times classes, the last a divisor of deter; at most {Tile().columns} "
            "classes, bins one less than a power of two, as many units as hidden, one posterior layer, and "
            f"batches that 16 divides; got {widths}, {model.deter} for deter, {model.bins} bins, "
            f"{model.units} units, {model.posterior_layers} layers and batches of {rows}. Take 'auto'"
        )
    if config.kernels == "fused" or not fits:
        return fits
    return config.compute == "bfloat16" and work_here()


@cache
def work_here() -> bool:
    """Whether there is a GPU for which JAX can make such kernels, tried with a small one."""
    if interpreted():
        return False
    narrow = jax.ShapeDtypeStruct((16,), jnp.float32)
    rows = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
    try:
        # Matrix units take bfloat16 from Ampere on; GPUs that are not NVIDIA's name theirs otherwise.
        if float(jax.devices()[0].compute_capability) < 8:
            return False
        jax.jit(activate).lower(rows, narrow, narrow).compile()
    except Exception as error:  # of whatever kind: the plain functions do the same
        warnings.warn(f"our GPU kernels do not work here, XLA's are used instead: {error!r}", stacklevel=2)
        return False
    return True
