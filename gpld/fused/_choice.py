import dataclasses
import warnings
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from gpld import nets, world_model
from gpld.config import AgentConfig, ConfigError
from gpld.fused import _layers, _rssm, _twohot
from gpld.fused.kernels import Tile, activate, interpreted
from gpld.types import Batch

T = TypeVar("T")
Twins = Mapping[type[eqx.Module], type[eqx.Module]]

FOR_GPUS: Twins = {
    nets.BlockLinear: _layers.BlockLinear,
    nets.Conv: _layers.Conv,
    nets.ConvLayer: _layers.ConvLayer,
    world_model.RSSM: _rssm.DeferredRSSM,
}
"""Modules that XLA compiles better for a GPU, whatever their sizes."""
IN_KERNELS: Twins = {
    **FOR_GPUS,
    nets.Dense: _layers.Dense,
    world_model.RSSM: _rssm.RSSM,
    world_model.Decoder: _rssm.Decoder,
    world_model.TwoHotHead: _twohot.TwoHotHead,
}
"""Modules that compute in kernels."""


def chosen(config: AgentConfig, batch: Batch, models: T) -> T:
    """The same models, of modules that compute the same faster here for such a batch; or as they are."""
    return replaced(models, _twins(config, batch.reward.size))


def replaced(tree: T, twins: Twins) -> T:
    """A tree in which every module that has a twin is replaced by it, and has the same fields."""

    def replace(node):
        if type(node) not in twins:
            return node
        fields = {f.name: replaced(getattr(node, f.name), twins) for f in dataclasses.fields(node)}
        return twins[type(node)](**fields)

    return jax.tree.map(replace, tree, is_leaf=lambda node: type(node) in twins)


def _twins(config: AgentConfig, rows: int) -> Twins:
    if config.kernels == "plain":
        return {}
    model = config.model
    widths = (model.deter // model.blocks, model.hidden, model.classes, model.stoch * model.classes)
    # Every tile's side is a power of two, and a matrix unit takes sixteen rows.
    fits = rows % 16 == 0 and model.posterior_layers == 1 and model.units == model.hidden
    fits &= all(width >= 16 and width & (width - 1) == 0 for width in widths)
    # Gradients of h and z are columns of one array, which tiles of z's width must divide.
    fits &= model.deter % (model.stoch * model.classes) == 0
    # A tile holds whole rows of classes, and bins in pairs about the one at zero.
    fits &= model.classes <= Tile().columns and model.bins & (model.bins + 1) == 0
    if config.kernels == "fused" and not fits:
        raise ConfigError(
            "agent.kernels: 'fused' needs powers of two from 16 for agent.model.deter over blocks, hidden, "
            f"classes and stoch times classes, the last a divisor of deter; at most {Tile().columns} "
            "classes, bins one less than a power of two, as many units as hidden, one posterior layer, and "
            f"batches whose states 16 divides; got {widths}, {model.deter} for deter, {model.bins} bins, "
            f"{model.units} units, {model.posterior_layers} layers and {rows} states. Take 'auto'"
        )
    if config.kernels == "fused" or (fits and config.compute == "bfloat16" and work_here()):
        return IN_KERNELS
    return {} if interpreted() else FOR_GPUS


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
        warnings.warn(f"the GPU kernels do not work here, XLA's are used instead: {error!r}", stacklevel=2)
        return False
    return True
