"""GPU kernels, written in Pallas for Triton.

XLA makes some thirty kernels of a recurrent step, because a norm reduces over whole rows and cuts every
fusion. Here each kernel begins with the norm and activation of the rows it reads and ends with whatever is
elementwise, so that only matrix products separate one kernel from the next. Where few rows are read, doing
the norm again for every tile of the output costs nothing; where there are many, the caller does it once.

Inside a scan they find by themselves what belongs to a step, in arrays of all steps, and write what it adds
to such arrays in place (`At`): stacked by the scan, arrays of many runs would be copied and transposed.

Without a GPU the kernels are interpreted, which is slow and serves tests.
"""

from gpld.fused.kernels._activation import activate, activate_part, vjp_activation
from gpld.fused.kernels._dream import activate_hidden, dense, dense_and_sum, enter, gru_blocks
from gpld.fused.kernels._step import Activation, draw, gru, hidden, read
from gpld.fused.kernels._tiles import At, Part, Tile, empty_record, interpreted, write
from gpld.fused.kernels._twohot import Target, twohot_mean, vjp_twohot
from gpld.fused.kernels._vjp import NormSlope, vjp_draw, vjp_gates, vjp_gru, vjp_hidden, vjp_inputs
