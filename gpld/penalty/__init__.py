"""Row-wise Jacobian penalties: GPLD's regulariser, for any model.

A map from a state `u` to K categorical distributions of C classes is smoothed by penalising

    R(u) = 1/K * sum_i || d q_i / d u ||_F^2

Three ways to get it, each returning one value per state, differentiable by parameters and by `u`:

- `hutchinson`: random probes, for any differentiable map;
- `exact`: the full Jacobian, for any differentiable map;
- `closed_form`: both, without automatic differentiation inside, for heads that are MLPs (`Head`).

`schedules` holds the decay of the penalty's weight, `gpld.penalty.torch` the same functions for PyTorch.
Nothing here depends on the rest of the package.
"""

from gpld.penalty import schedules
from gpld.penalty._closed_form import closed_form, closed_form_rows
from gpld.penalty._estimators import Rows, exact, hutchinson, probed
from gpld.penalty._head import Head, Hidden, Output, first_preactivation
from gpld.penalty._sampling import (
    average,
    draw_probes,
    sample_rows,
    sample_states,
    sampled_count,
    take_states,
)

__all__ = [
    "Head",
    "Hidden",
    "Output",
    "Rows",
    "average",
    "closed_form",
    "closed_form_rows",
    "draw_probes",
    "exact",
    "first_preactivation",
    "hutchinson",
    "probed",
    "sample_rows",
    "sample_states",
    "sampled_count",
    "schedules",
    "take_states",
]
