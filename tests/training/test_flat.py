"""A long run holds no more of the machine at its end than near its beginning."""

import os
from pathlib import Path

import pytest

from tests.training.helpers import opened, tiny

EARLY, LATE = 4000, 20_000
"""Updates after which is looked."""


def held():
    """Resident bytes, open descriptors and mappings of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), mappings


def least(training):
    """What is held between checkpoints, which hold some files while they are written."""
    seen = []
    for _ in range(40):
        training.advance()
        seen.append(held())
    return [min(values) for values in zip(*seen, strict=True)]


@pytest.mark.slow
def test_memory_descriptors_and_mappings_stay_flat(tmp_path):
    many = {"train_ratio": 200.0}  # 25 updates after each step of all environments
    config = tiny(env_steps=100_000, replay=many, eval={"every": 0}, checkpoint={"minutes": 0.05})
    with opened(config, tmp_path / "run") as training:
        while training.updates < EARLY:
            training.advance()
        early = least(training)
        while training.updates < LATE:
            training.advance()
        late = least(training)
    assert late[0] <= early[0] + 64 * 2**20
    assert late[1] <= early[1] + 2
    assert late[2] <= early[2] + 200
