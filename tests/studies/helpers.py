"""What the tests of studies share: a study that trains nothing, and one that trains a little."""

from pathlib import Path

import numpy as np

from gpld import results
from gpld.studies import Plan, plan
from gpld.studies import _study as study_files

TEXT = """
title = "Small"
purpose = "For tests."
tasks = ["cartpole-balance", "walker-walk"]
seeds = [3, 4]
env_steps = [600, 1200]
presets = ["nano", "cpu"]

[methods.DreamerV3]
agent.penalty = { posterior = 0.0 }

[methods."half, rho 1"]
agent.penalty = { posterior = 0.5, rho = 1.0 }

[methods."quarter, rho 1"]
agent.penalty = { posterior = 0.25, rho = 1.0 }
"""


def small(**changes) -> Plan:
    """A plan of 12 runs; `changes` are entries of the study's file."""
    import tomllib

    return plan(study_files.from_dict(tomllib.loads(TEXT) | changes, "small"))


def comparable(folder: Path):
    """Results without what may differ between two machines that compute the same: the clock."""
    table = results.load(folder / results.FOLDER).drop(columns=["seconds"])
    return table.astype({name: str for name in table if str(table[name].dtype) == "category"})


def same(one, two) -> bool:
    """Whether two such tables are the same to the bit."""
    return one.shape == two.shape and all(
        np.array_equal(one[name].to_numpy(), two[name].to_numpy(), equal_nan=one[name].dtype.kind == "f")
        for name in one
    )
