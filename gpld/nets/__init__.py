"""Small layers that know nothing of reinforcement learning. Each computes in the type of its input."""

from gpld.nets._conv import Conv as Conv, ConvLayer as ConvLayer
from gpld.nets._layers import (
    MLP as MLP,
    NORM_EPS as NORM_EPS,
    BlockLinear as BlockLinear,
    Dense as Dense,
    Linear as Linear,
    MLPHead as MLPHead,
    RMSNorm as RMSNorm,
    add_bias as add_bias,
    cast as cast,
    of_each as of_each,
    unrolled as unrolled,
)
