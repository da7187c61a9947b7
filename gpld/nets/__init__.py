"""Small layers that know nothing of reinforcement learning. Each computes in the type of its input."""

from gpld.nets._conv import Conv, ConvLayer
from gpld.nets._layers import (
    MLP,
    NORM_EPS,
    BlockLinear,
    Dense,
    Linear,
    MLPHead,
    RMSNorm,
    add_bias,
    cast,
    unrolled,
)

__all__ = [
    "MLP",
    "NORM_EPS",
    "BlockLinear",
    "Conv",
    "ConvLayer",
    "Dense",
    "Linear",
    "MLPHead",
    "RMSNorm",
    "add_bias",
    "cast",
    "unrolled",
]
