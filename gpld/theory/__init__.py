"""The tabular precursor of the penalty and its continuous limit, made of numbers: `docs/theory.md` explains.

- `EmbeddedMDP`: finite MDPs whose states have places in a metric space;
- `maximum_likelihood` and `smoothed`: estimators of their laws, the latter to a proven optimum;
- `by_data`, `by_weight`: their errors, by the amount of data and by lambda;
- `step_limit`, `direction_limit`: from finite differences to the Jacobian's Frobenius norm;
- `FIGURES`: all of it drawn.
"""

from gpld.theory._estimators import (
    ConvergenceError,
    Estimate,
    error,
    maximum_likelihood,
    neighbour_laplacian,
    sample_counts,
    smoothed,
)
from gpld.theory._experiments import ESTIMATORS, MDPS, by_data, by_weight, gains, intervals
from gpld.theory._figures import FIGURES, Drawn, chosen, save
from gpld.theory._limits import direction_limit, rate, smooth_map, step_limit
from gpld.theory._mdps import EmbeddedMDP, grid, normal_law, pendulum, random_flow, random_smooth, shuffled

__all__ = [
    "ESTIMATORS",
    "FIGURES",
    "MDPS",
    "ConvergenceError",
    "Drawn",
    "EmbeddedMDP",
    "Estimate",
    "by_data",
    "by_weight",
    "chosen",
    "direction_limit",
    "error",
    "gains",
    "grid",
    "intervals",
    "maximum_likelihood",
    "neighbour_laplacian",
    "normal_law",
    "pendulum",
    "random_flow",
    "random_smooth",
    "rate",
    "sample_counts",
    "save",
    "shuffled",
    "smooth_map",
    "smoothed",
    "step_limit",
]
