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

from gpld.penalty import schedules as schedules
from gpld.penalty._closed_form import closed_form as closed_form, closed_form_rows as closed_form_rows
from gpld.penalty._estimators import Rows as Rows, exact as exact, hutchinson as hutchinson, probed as probed
from gpld.penalty._head import (
    Head as Head,
    Hidden as Hidden,
    Output as Output,
    first_preactivation as first_preactivation,
)
from gpld.penalty._sampling import (
    average as average,
    draw_probes as draw_probes,
    sample_rows as sample_rows,
    sample_states as sample_states,
    sampled_count as sampled_count,
    take_states as take_states,
)
