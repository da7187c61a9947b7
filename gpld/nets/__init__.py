"""Small layers that know nothing of reinforcement learning. Each computes in the type of its input."""

from gpld.kernels import NORM_EPS
from gpld.nets._conv import Conv, ConvLayer, from_blocks, in_blocks
from gpld.nets._layers import (
    MLP,
    BlockLinear,
    Dense,
    Head,
    Linear,
    RMSNorm,
    aligned,
    cast,
    joint_heads,
    joint_linear,
    joint_product,
    unrolled,
)

__all__ = [
    "MLP",
    "NORM_EPS",
    "BlockLinear",
    "Conv",
    "ConvLayer",
    "Dense",
    "Head",
    "Linear",
    "RMSNorm",
    "aligned",
    "cast",
    "from_blocks",
    "in_blocks",
    "joint_heads",
    "joint_linear",
    "joint_product",
    "unrolled",
]
