"""Combinations of values: what they are called, what they change, and what is refused."""

import pytest

from gpld import cli
from gpld.config import Config, ConfigError, diff, unnested, with_presets
from gpld.sweeps.settings import parse, settings
from tests import scripts

BASE = Config("walker-run")


def combinations(*words):
    return settings(parse(words))


def test_the_last_option_changes_first():
    found = combinations("agent.optimizer.learning_rate=4e-5,1e-3", "agent.penalty.posterior=0,.5")
    assert [setting.name for setting in found] == [
        "learning_rate=4e-5,posterior=0",
        "learning_rate=4e-5,posterior=0.5",
        "learning_rate=0.001,posterior=0",
        "learning_rate=0.001,posterior=0.5",
    ]
    assert diff(BASE, found[3].apply(BASE)) == {"agent.optimizer.learning_rate": (4e-5, 1e-3)}
    assert diff(BASE, found[0].apply(BASE)) == {"agent.penalty.posterior": (0.5, 0.0)}


def test_values_have_the_types_of_their_options():
    values = parse(
        [
            "replay.capacity=1e6,2000000",
            "replay.online=true,false",
            "init-from=7",
            "--agent.penalty.custom=[[0,1.0]],[[0,0.5],[500,0.1]]",
            "agent.loss.dyn=1,1e-7",
        ]
    )
    assert values == {
        "replay.capacity": [1_000_000, 2_000_000],
        "replay.online": [True, False],
        "init_from": ["7"],
        "agent.penalty.custom": [[[0, 1.0]], [[0, 0.5], [500, 0.1]]],
        "agent.loss.dyn": [1.0, 1e-7],
    }
    first = settings(values)[0]
    assert first.name == "capacity=1000000,online=true,init_from=7,custom=-0,1.0-,dyn=1"
    assert first.values["agent.penalty.custom"] == ((0, 1.0),)


def test_names_tell_options_and_long_values_apart():
    assert combinations("agent.loss.reward=1", "agent.model.units=8")[0].name == "reward=1,units=8"
    both = combinations("agent.model.prior_layers=1", "agent.penalty.prior=2")
    assert both[0].name == "prior_layers=1,prior=2"
    alike = settings(
        {"env.count": [1], "agent.penalty.start": [1], "replay.batch": [1], "eval.episodes": [3]}
    )
    assert alike[0].name == "count=1,start=1,batch=1,episodes=3"
    long = settings({"init_from": ["x" * 300, "x" * 299 + "y"]})
    assert len({setting.name for setting in long}) == 2
    assert {len(setting.name) for setting in long} == {160}


def test_presets_and_methods_are_swept_with_what_they_set():
    found = combinations("preset=nano,1m", "agent.optimizer.learning_rate=0.5", "method=gpld,dreamerv3")
    assert [setting.name for setting in found][:2] == [
        "preset=nano,learning_rate=0.5,method=gpld",
        "preset=nano,learning_rate=0.5,method=dreamerv3",
    ]
    config = found[1].apply(BASE)
    assert diff(with_presets(BASE, ["nano"]), config) == {
        "agent.optimizer.learning_rate": (1e-3, 0.5),  # the option wins over its preset
        "agent.penalty.posterior": (0.5, 0.0),
    }


def test_the_tables_of_toml_are_dotted_names():
    values = {"agent": {"loss": {"dyn": [1, 2]}, "penalty": {"prior": [0]}}, "env.count": [4]}
    assert unnested(values) == {"agent.loss.dyn": [1, 2], "agent.penalty.prior": [0], "env.count": [4]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["learning_rate=1"],
            "sweep: learning_rate: no such option; did you mean agent.optimizer.learning_rate?",
        ),
        (["agent.los.dyn=1"], "sweep: agent.los.dyn: no such option; did you mean agent.loss.dyn"),
        (["agent.loss=1"], "sweep: agent.loss: no such option; did you mean"),
        (["seed=1,2"], "sweep: seed cannot be swept; the seeds of all settings are named by seeds"),
        (
            ["env_steps=1,2"],
            "sweep: env_steps cannot be swept; settings are compared after the same env steps",
        ),
        (["agent.loss.dyn"], "sweep: 'agent.loss.dyn' is not allowed; it must be OPTION=VALUE,VALUE"),
        (["agent.loss.dyn=1", "agent.loss.dyn=2"], "sweep: agent.loss.dyn is named twice"),
        (["agent.loss.dyn="], "sweep: agent.loss.dyn has no values"),
        (["agent.loss.dyn=1,1.0"], "sweep: agent.loss.dyn: 1 is named twice"),
        (["agent.loss.dyn=1,,2"], "agent.loss.dyn: '' is not of type float"),
        (["replay.batch=1.5"], "replay.batch: 1.5 is not of type int"),
        (["replay.batch=" + "[" * 5000], "replay.batch: '[[[["),
        (["replay.online=yes"], "replay.online: 'yes' is not of type bool"),
        (["agent.penalty.noise=x"], "agent.penalty.noise: 'x' is not one of rademacher, gaussian"),
        (["preset=1mm"], "sweep: preset: '1mm' is not a preset; did you mean 1m"),
        (["preset=demo"], "sweep: preset: demo is not allowed; it sets env_steps"),
        (
            ["method=dreamerv3", "agent.penalty.posterior=1"],
            "sweep: agent.penalty.posterior is swept, and the method dreamerv3 sets it",
        ),
        (
            ["agent.loss.dyn=" + ",".join(map(str, range(5000)))],
            "sweep: 5,000 runs are too many; at most 4,096",
        ),
        (["init_from=a/b,a:b"], "sweep: two settings would have the same name, init_from=a-b"),
        ([], "sweep: no option is named"),
    ],
)
def test_mistakes_are_refused_by_name(words, message):
    with pytest.raises(ConfigError) as told:
        combinations(*words)
    assert str(told.value).startswith(message)


def test_in_python_values_are_lists():
    with pytest.raises(ConfigError, match=r"agent\.loss\.dyn: '12' is not a list of values"):
        settings({"agent.loss.dyn": "12"})
    with pytest.raises(ConfigError, match=r"agent\.loss\.dyn: 1 is not a list of values"):
        settings({"agent.loss.dyn": 1})


@pytest.mark.parametrize(("small", "runs"), [(False, 6 * [12]), (True, [6, 6, 6, 6, 3, 6])])
def test_the_stages_of_the_search_are_sweeps(small, runs):
    search = scripts.load("scripts/recipe_search.py")
    found = [cli.parse_train(search.command(stage, [], small=small)).settings for stage in search.STAGES]
    assert [sum(map(len, own.values())) for own in found] == runs
