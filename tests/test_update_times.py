"""What benchmarks/update.py measures, and when it compiles it, on made-up programs."""

import pytest

from gpld.config import Config, ConfigError
from tests import scripts


@pytest.fixture(scope="module")
def update():
    return scripts.load("benchmarks/update.py")


@pytest.mark.parametrize(
    ("jobs", "order"),
    [(1, ["make 0", "time 0", "make 1", "time 1"]), (2, ["make 0", "make 1", "time 0", "time 1"])],
)
def test_nothing_is_compiled_while_another_is_timed(update, jobs, order):
    seen = []
    makers = (lambda i=i: (seen.append(f"make {i}"), i)[1] for i in range(2))
    for program in update.compiled(makers, jobs):
        seen.append(f"time {program}")
    assert sorted(seen[:jobs]) + seen[jobs:] == order


def test_baselines_are_measured_once_and_without_a_penalty(update):
    options = update.Options(runs=(1, 8), variants=("baseline", "probes"), rho=(0.25, 1.0))
    found = [
        (what["runs"], what["variant"], what["rho"])
        for what, _ in update.cases(options, Config("walker-walk"))
    ]
    assert found[:3] == [(1, "baseline", 0.0), (1, "probes", 0.25), (1, "probes", 1.0)]
    assert [runs for runs, _, _ in found] == [1] * 3 + [8] * 3
    penalties = [config.agent.penalty for _, config in update.cases(options, Config("walker-walk"))]
    assert [penalty.posterior > 0 for penalty in penalties] == [False, True, True] * 2
    assert [penalty.rho for penalty in penalties[1:3]] == [0.25, 1.0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"jobs": 0}, "jobs: 0 is not allowed"),
        ({"variants": ("probe",)}, "variants: 'probe' .* one of baseline"),
    ],
)
def test_what_cannot_be_is_refused_by_name(update, wrong, message):
    with pytest.raises(ConfigError, match=message):
        update.main(update.Options(**wrong))
