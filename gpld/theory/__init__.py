"""The tabular precursor of the penalty and its continuous limit, made of numbers: `docs/theory.md` explains.

- `EmbeddedMDP`: finite MDPs whose states have places in a metric space;
- `maximum_likelihood` and `smoothed`: estimators of their laws, the latter to a proven optimum;
- `by_data`, `by_weight`: their errors, by the amount of data and by lambda;
- `step_limit`, `direction_limit`: from finite differences to the Jacobian's Frobenius norm;
- `FIGURES`: all of it drawn.
"""

from gpld.theory._estimators import (
    ConvergenceError as ConvergenceError,
    Estimate as Estimate,
    error as error,
    maximum_likelihood as maximum_likelihood,
    neighbour_laplacian as neighbour_laplacian,
    sample_counts as sample_counts,
    smoothed as smoothed,
)
from gpld.theory._experiments import (
    ESTIMATORS as ESTIMATORS,
    MDPS as MDPS,
    by_data as by_data,
    by_weight as by_weight,
    gains as gains,
    intervals as intervals,
)
from gpld.theory._figures import FIGURES as FIGURES, Drawn as Drawn, chosen as chosen, save as save
from gpld.theory._limits import (
    direction_limit as direction_limit,
    rate as rate,
    smooth_map as smooth_map,
    step_limit as step_limit,
)
from gpld.theory._mdps import (
    EmbeddedMDP as EmbeddedMDP,
    grid as grid,
    normal_law as normal_law,
    pendulum as pendulum,
    random_flow as random_flow,
    random_smooth as random_smooth,
    shuffled as shuffled,
)
