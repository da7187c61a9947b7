"""Small layers that know nothing of reinforcement learning. Each computes in the type of its input."""

from gpld.nets._deferred import deferred_scan
from gpld.nets._layers import MLP, NORM_EPS, BlockLinear, Dense, Head, Linear, RMSNorm, joint_linear

__all__ = [
    "MLP",
    "NORM_EPS",
    "BlockLinear",
    "Dense",
    "Head",
    "Linear",
    "RMSNorm",
    "deferred_scan",
    "joint_linear",
]
