"""The modules of `nets`, `world_model` and `behavior` again, as a GPU runs them fast.

The plain modules say what is computed. Those in here are their subclasses, with the same parameters,
methods and results, and are held to them by tests, values and gradients. `chosen` replaces one by the other
where that pays; on a CPU it does not. Nothing but the agent knows of this room.

- `RSSM.observe` has a gradient of its own: those of the parameters are formed for all steps at once.
- `RSSM.observe`, `RSSM.imagine`, dense layers and two-hot distributions are GPU kernels.
- Heads that read the same states share the product of their first layers (`Observed.read`, `Dream.read`).
- Convolutions of many runs are computed run by run, and in blocks of 2x2 places.
"""

from gpld.fused._choice import FOR_GPUS, IN_KERNELS, chosen, replaced, work_here
from gpld.fused._layers import BlockLinear, Conv, ConvLayer, Dense
from gpld.fused._rssm import RSSM, Decoder, DeferredRSSM
from gpld.fused._twohot import TwoHot, TwoHotHead
