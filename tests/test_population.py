from pathlib import Path

import pytest

from gpld import population, results
from gpld.config import Config, ConfigError, diff, override
from gpld.population import METHODS, TITLES, method_of, with_method

STATES = Config("walker-run")
PIXELS = override(STATES, {"env": {"pixels": True}})


def penalty(config):
    own = config.agent.penalty
    return own.posterior, own.prior, own.scaling, own.floor, own.start


def test_methods_are_the_paper_as_printed_as_launched_and_the_baseline():
    assert list(METHODS) == ["gpld", "dreamerv3", "gpld-launched"]
    assert penalty(with_method(STATES, "gpld")) == (0.5, 0.0, "sampled", 0.001, 0)
    assert penalty(with_method(PIXELS, "gpld")) == (0.5, 0.0, "sampled", 0.001, 0)
    assert penalty(with_method(STATES, "gpld-launched")) == (0.5, 0.0, "all", 0.1, 0)
    assert penalty(with_method(PIXELS, "gpld-launched")) == (0.5, 0.0, "all", 0.01, 0)
    assert penalty(with_method(STATES, "dreamerv3")) == (0.0, 0.0, "sampled", 0.001, 0)


@pytest.mark.parametrize("config", [STATES, PIXELS])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_known_by_its_options(config, name):
    run = with_method(config, name)
    assert method_of(run) == name
    assert results.method_of(run) == TITLES[name]


def test_titles_tell_what_was_launched_from_what_was_printed():
    assert TITLES["gpld-launched"] == "GPLD-DreamerV3 (as launched)"
    assert results.METHODS == ("DreamerV3", "GPLD-DreamerV3")
    # Half of what was launched is not as launched, nor are floors for images as launched from states.
    assert method_of(override(STATES, {"agent": {"penalty": {"scaling": "all"}}})) == "gpld"
    launched = with_method(PIXELS, "gpld-launched")
    assert method_of(override(launched, {"env": {"pixels": False}})) == "gpld"


def test_options_lie_over_what_a_method_sets():
    changes = {"agent": {"penalty": {"floor": 0.05, "prior": 0.5}}}
    run = with_method(STATES, "gpld-launched", changes)
    assert penalty(run) == (0.5, 0.5, "all", 0.05, 0)
    alone = override(STATES, {"agent": {"penalty": {"posterior": 0.0}}})
    assert penalty(with_method(alone, "gpld", changes)) == (0.0, 0.5, "sampled", 0.05, 0)


def test_members_are_every_method_with_every_seed_and_one_program_takes_them():
    runs = population.members(STATES, [0, 3], list(METHODS), Path("out"))
    names = [f"{method}-seed{seed}" for method in METHODS for seed in (0, 3)]
    assert [run.folder for run in runs] == [Path("out") / name for name in names]
    assert [method_of(run.config) for run in runs] == [method for method in METHODS for _ in range(2)]
    assert diff(STATES, population.shared(runs)) == {}


@pytest.mark.parametrize("name", ["gpld", "gpld-launched"])
def test_a_penalty_that_is_off_is_refused_by_name(name):
    off = with_method(STATES, "dreamerv3")
    with pytest.raises(ConfigError, match=f"posterior: 0.0 is not allowed with method {name}; it or"):
        population.members(off, [0], [name], Path("out"))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["gpld-lanched"], "method: 'gpld-lanched' is not a method; did you mean gpld-launched"),
        (["sac"], "method: 'sac' is not a method; allowed are gpld, dreamerv3, gpld-launched"),
        (["gpld", "gpld"], "method: gpld is named twice"),
    ],
)
def test_wrong_names_are_refused(methods, message):
    with pytest.raises(ConfigError, match=message):
        population.members(STATES, [0], methods, Path("out"))
