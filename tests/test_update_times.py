"""What benchmarks/update.py measures, and when it compiles it, on made-up programs."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
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


class MadeUp:
    """A program that takes 2 ms, or 3 ms with the penalty."""

    compile_seconds, temporary, kernels, flops = 1.0, 2**30, 100, 1e9
    states = SimpleNamespace(skipped=jnp.zeros(1))

    def __init__(self, config, spaces, *, runs, updates):
        self.ms = 3.0 if config.agent.penalty.posterior else 2.0

    def time(self):
        return self.ms


@pytest.fixture
def measured(update, tmp_path: Path, monkeypatch):
    """What is written with some options, for made-up programs."""
    monkeypatch.setattr(update, "Program", MadeUp)
    monkeypatch.setattr(update, "product_rate", lambda dtype: 1e12)

    def written(file: str, **options):
        update.main(update.Options(out=tmp_path, **options))
        return json.loads((tmp_path / file).read_text(), parse_constant=pytest.fail)

    return written


def ratios(written):
    return [(row["runs"], row["variant"], row["ratio"]) for row in written["rows"]]


def test_baselines_come_first_in_whatever_order_they_are_asked_for(measured):
    written = measured("update.json", runs=(1, 2), variants=("probes", "baseline"))
    assert ratios(written) == [
        (1, "baseline", 1.0),
        (1, "probes", 1.5),
        (2, "baseline", 1.0),
        (2, "probes", 1.5),
    ]


def test_without_a_baseline_there_is_no_ratio(measured, capsys):
    assert ratios(measured("update.json", runs=(1,), variants=("probes",))) == [(1, "probes", None)]
    assert "nan" not in capsys.readouterr().out.lower()


def test_files_are_named_as_asked_and_do_not_tell_where_they_were(measured, tmp_path):
    written = measured("update-2.5.json", runs=(1,), name="update-2.5")
    assert [path.name for path in tmp_path.iterdir()] == ["update-2.5.json"]
    assert "runs=(1,)" in written["options"]
    assert str(tmp_path) not in written["options"]
    measured("update-pixels.json", runs=(1,), pixels=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runs": (1, 0)}, "runs: 0 is not allowed; it must be at least 1"),
        ({"updates": 0}, "updates: 0 is not allowed; it must be at least 1"),
        ({"repeats": 0}, "repeats: 0 is not allowed; it must be at least 1"),
        ({"jobs": 0}, "jobs: 0 is not allowed; it must be at least 1"),
        ({"rho": (0.5, 2.0)}, "agent.penalty.rho: 2.0 is not allowed; it must be in (0, 1]"),
        ({"rho": (0.0,)}, "agent.penalty.rho: 0.0 is not allowed; it must be in (0, 1]"),
        ({"variants": ("probe",)}, "variants: 'probe' is not allowed; it must be one of baseline"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_anything_is_written(update, tmp_path, wrong, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        update.main(update.Options(out=tmp_path, **wrong))
    assert not list(tmp_path.iterdir())
