"""GPU kernels for the recurrent step and for activations, written in Pallas for Triton.

XLA makes some thirty kernels of a recurrent step, because a norm reduces over whole rows and cuts every
fusion. Here each kernel begins with the norm and activation of the rows it reads and ends with whatever is
elementwise, so that only matrix products separate one kernel from the next. Where few rows are read, doing
the norm again for every tile of the output costs nothing; where there are many, the caller does it once.

Inside a scan they find by themselves what belongs to a step, in arrays of all steps, and write what it adds
to such arrays in place (`At`): stacked by the scan, arrays of many runs would be copied and transposed.

On machines without a GPU the kernels are interpreted, which is slow and serves tests. Where a GPU cannot run
them, `chosen` says so, and the plain functions are taken.
"""

from gpld.kernels._activation import activate, activate_part, pull_activation
from gpld.kernels._choice import chosen, work_here
from gpld.kernels._dream import activate_hidden, dense, dense_kept, enter, gru_blocks
from gpld.kernels._pull import Slope, pull_draw, pull_entered, pull_gates, pull_gru, pull_hidden
from gpld.kernels._step import Activation, draw, gru, hidden, read
from gpld.kernels._tiles import NORM_EPS, At, Part, inverse_rms
from gpld.kernels._twohot import Target, pull_twohot, twohot_mean

__all__ = [
    "NORM_EPS",
    "Activation",
    "At",
    "Part",
    "Slope",
    "Target",
    "activate",
    "activate_hidden",
    "activate_part",
    "chosen",
    "dense",
    "dense_kept",
    "draw",
    "enter",
    "gru",
    "gru_blocks",
    "hidden",
    "inverse_rms",
    "pull_activation",
    "pull_draw",
    "pull_entered",
    "pull_gates",
    "pull_gru",
    "pull_hidden",
    "pull_twohot",
    "read",
    "twohot_mean",
    "work_here",
]
