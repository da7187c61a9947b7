"""Writes tests/analysis/rliable.json: what rliable says about some scores, for the tests of our statistics.

rliable needs pandas older than ours, so it lives in an environment of its own:

    uv run --no-project --with 'rliable==1.2.0' --with 'pandas<3' scripts/rliable_oracle.py
"""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

OUT = Path(__file__).parent.parent / "tests" / "analysis" / "rliable.json"
REPS = 20_000
THRESHOLDS = np.linspace(0.0, 2.0, 9)


def main() -> None:
    """Compute everything for a few shapes of scores."""
    rng = np.random.default_rng(0)
    cases = []
    for runs, tasks in ((5, 18), (3, 4), (10, 6)):
        # Rounded, so that there are ties.
        ours, theirs = (np.round(rng.gamma(4.0, scale, (runs, tasks)), 1) for scale in (0.3, 0.25))
        aggregates = {
            "mean": metrics.aggregate_mean,
            "median": metrics.aggregate_median,
            "iqm": metrics.aggregate_iqm,
            "optimality_gap": metrics.aggregate_optimality_gap,
        }
        case = {"ours": ours.tolist(), "theirs": theirs.tolist(), "values": {}, "intervals": {}}
        for name, function in aggregates.items():
            points, intervals = library.get_interval_estimates(
                {"ours": ours}, lambda x, f=function: np.array([f(x)]), reps=REPS, random_state=rng_state()
            )
            case["values"][name] = float(points["ours"][0])
            case["intervals"][name] = intervals["ours"][:, 0].tolist()
        points, intervals = library.get_interval_estimates(
            {"pair": (ours, theirs)}, metrics.probability_of_improvement, reps=REPS, random_state=rng_state()
        )
        case["values"]["probability_of_improvement"] = float(points["pair"])
        case["intervals"]["probability_of_improvement"] = np.ravel(intervals["pair"]).tolist()
        case["profile"] = profile(ours)
        cases.append(case)
    found = {"reps": REPS, "thresholds": THRESHOLDS.tolist(), "cases": cases}
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {OUT}")


def profile(scores: np.ndarray) -> list[float]:
    """Share of runs above each threshold."""
    profiles, _ = library.create_performance_profile({"ours": scores}, THRESHOLDS, reps=10)
    return profiles["ours"].tolist()


def rng_state() -> np.random.RandomState:
    """The same bootstrap each time this is run."""
    return np.random.RandomState(0)


if __name__ == "__main__":
    main()
