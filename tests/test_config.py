import dataclasses
import json
import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpld.config import (
    PRESETS,
    AgentConfig,
    Config,
    ConfigError,
    ReplayConfig,
    check_numbers,
    diff,
    flat,
    load,
    override,
    save,
    validate,
    with_presets,
)
from gpld.config._validation import AGENT_RANGES, COMMAND_RANGES, RUN_RANGES

BASE = Config(task="walker-walk")


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def option_values(kind):
    """Any value that an option of this type can hold, allowed or not."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        return st.lists(option_values(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(option_values, get_args(kind)))
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return {int: st.integers(), float: floats, bool: st.booleans(), str: st.text()}[kind]


def any_options(cls):
    """Nested dictionaries of all options of a configuration class."""
    hints = get_type_hints(cls).items()
    return st.fixed_dictionaries(
        {name: any_options(t) if dataclasses.is_dataclass(t) else option_values(t) for name, t in hints}
    )


DEEP = "deep=" + "[" * 5000


def test_arguments_of_an_environment_are_numbers_lists_or_text():
    words = (
        "g=9.81",
        "flat=true",
        "Wide=False",
        "map=[1, 2]",
        "name=a=b",
        "none=",
        "size=(3, 4)",
        "set={{}}",
        DEEP,
    )
    config = override(Config("gym:Arm-v0"), {"env": {"kwargs": words}})
    validate(config)
    assert config.env.keyword_arguments == {
        "g": 9.81,
        "flat": True,
        "Wide": False,
        "map": [1, 2],
        "name": "a=b",
        "none": "",
        "size": (3, 4),
        "set": "{{}}",  # what has no value is a text too
        "deep": DEEP.removeprefix("deep="),
    }
    with pytest.raises(ConfigError, match=r"env\.kwargs: .* it must be NAME=VALUE each, no NAME twice"):
        validate(override(config, {"env": {"kwargs": ("g=1", "h=1", "g=2")}}))
    for word in ("gravity", "=3", "9g=3"):
        with pytest.raises(ConfigError, match=r"env\.kwargs: .* it must be NAME=VALUE each"):
            validate(override(config, {"env": {"kwargs": (word,)}}))


# Files


@given(any_options(Config))
@settings(max_examples=25, deadline=None)
def test_a_saved_config_is_loaded_exactly(tmp_path_factory, options):
    config = override(BASE, options)
    assert dataclasses.asdict(config) == options
    path = tmp_path_factory.mktemp("config") / "config.json"
    save(config, path)
    assert load(path) == config
    assert [p.name for p in path.parent.iterdir()] == ["config.json"]


def test_the_file_holds_every_option(tmp_path):
    save(BASE, tmp_path / "c.json")
    written = json.loads((tmp_path / "c.json").read_text())
    for path, value in flat(BASE).items():
        at = written
        for name in path.split("."):
            at = at[name]
        assert at == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"task": "walker-walk", "sed": 1}', "sed: no such option; did you mean seed?"),
        ('{"task": "walker-walk", "agent": {"penalty": {"roh": 1}}}', "agent.penalty.roh: no such option"),
        ('{"task": "walker-walk", "seed": 1.5}', "seed: 1.5 is not of type int"),
        ('{"task": "walker-walk", "seed": true}', "seed: True is not of type int"),
        (
            f'{{"task": "walker-walk", "replay": {{"train_ratio": 1{"0" * 400}}}}}',
            "train_ratio: 10000000000000",
        ),
        ('{"task": "walker-walk", "agent": 3}', "agent: 3 is not a group of options"),
        ('{"task": "walker-walk", "backend": "mjx"}', "backend: 'mjx' is not one of auto, envpool"),
        ('{"task": "walker-walk", "agent": {"penalty": {"custom": [[1]]}}}', "agent.penalty.custom[0]: [1]"),
        ('{"seed": 1}', "no task"),
        ("{", "not a file of options"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_of_an_earlier_version_is_read_without_options_that_are_gone(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"task": "walker-walk", "agent": {"behavior": {"gradient": "reinforce", "horizon": 9}}}')
    assert load(path) == override(Config("walker-walk"), {"agent": {"behavior": {"horizon": 9}}})
    path.write_text('{"task": "walker-walk", "agent": {"behavior": {"gradient": "dynamics"}}}')
    with pytest.raises(ConfigError, match=r"agent\.behavior\.gradient: this version has only 'reinforce'"):
        load(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.json: cannot be read"):
        load(tmp_path / "nothing.json")


def test_diff_names_what_differs():
    other = override(BASE, {"seed": 3, "agent": {"penalty": {"posterior": 0.25}}})
    assert diff(BASE, other) == {"seed": (0, 3), "agent.penalty.posterior": (0.5, 0.25)}
    assert diff(BASE, BASE) == {}


# Overrides


def test_override_changes_only_what_is_named_and_makes_floats_of_whole_numbers():
    changed = override(
        BASE, {"replay": {"train_ratio": 64}, "agent": {"penalty": {"custom": [[0, 1], [9, 0]]}}}
    )
    assert changed.agent.penalty.custom == ((0, 1.0), (9, 0.0))
    assert type(changed.replay.train_ratio) is float
    assert set(diff(BASE, changed)) == {"replay.train_ratio", "agent.penalty.custom"}
    assert hash(changed.agent) != hash(BASE.agent)


# Steps and updates


def test_the_papers_run_in_agent_steps_and_updates():
    assert BASE.agent_steps == 500_000
    assert BASE.updates_at(500_000) == (500_000 - 1024) // 2
    assert BASE.updates_at(1024) == 0
    assert BASE.updates_at(10) == 0


@given(
    ratio=st.floats(0.01, 1024),
    batch=st.integers(1, 32),
    length=st.integers(2, 64),
    count=st.integers(1, 20),
    steps=st.integers(1, 200),
)
@settings(max_examples=50, deadline=None)
def test_fractional_updates_are_counted_without_drift(ratio, batch, length, count, steps):
    replay = ReplayConfig(train_ratio=ratio, batch=batch, length=length, min_steps=7)
    config = dataclasses.replace(BASE, replay=replay, env=dataclasses.replace(BASE.env, count=count))
    start = max(7, count * length)  # a first sequence must be there
    taken = [start + count * i for i in range(steps + 1)]
    made = [config.updates_at(b) - config.updates_at(a) for a, b in pairwise(taken)]
    per_step = Fraction(ratio) * count / (batch * length)
    assert config.updates_at(start) == 0
    assert sum(made) == int(steps * per_step)
    assert all(abs(n - per_step) < 1 for n in made)


# Presets


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_described_in_a_line(name):
    task = "envpool:Pong-v5" if name == "atari100k" else "walker-walk"
    validate(with_presets(Config(task), [name]))
    assert 5 < len(PRESETS[name].description) < 80


@pytest.mark.parametrize("classes", [4, 16, 24, 32, 48, 64, 96])
def test_sizes_scale_by_their_classes(classes):
    # Published: every size is a multiple of the same shape, except the smallest's deter.
    names = {4: "1m", 16: "12m", 24: "25m", 32: "50m", 48: "100m", 64: "200m", 96: "400m"}
    model = with_presets(BASE, [names[classes]]).agent.model
    assert (model.classes, model.hidden, model.units) == (classes, 16 * classes, 16 * classes)
    assert model.deter == 128 * classes
    assert (model.stoch, model.blocks) == (32, 8)


def test_the_default_agent_is_the_12m_one_of_the_paper():
    assert with_presets(BASE, ["12m"]) == BASE


def test_atari_and_crafter_are_dreamerv3_s():
    atari, crafter = (with_presets(BASE, [name]) for name in ("atari", "crafter"))
    assert (atari.agent_steps, atari.replay.train_ratio, atari.env.count) == (50_000_000, 32.0, 16)
    assert (crafter.agent_steps, crafter.replay.train_ratio, crafter.env.count) == (1_000_000, 512.0, 1)
    short = with_presets(BASE, ["atari", "atari100k"])
    assert (short.agent_steps, short.replay.train_ratio, short.env.count) == (100_000, 256.0, 1)
    assert short.env.keyword_arguments == {"repeat_action_probability": 0.0, "full_action_space": False}
    assert {c.agent.behavior.horizon for c in (atari, crafter, short)} == {15}


def test_presets_apply_from_left_to_right():
    assert with_presets(BASE, ["gpu", "cpu"]).agent.compute == "float32"
    assert with_presets(BASE, ["cpu", "gpu"]).agent.compute == "bfloat16"
    assert with_presets(BASE, ["nano", "12m"]).agent.model == BASE.agent.model
    assert with_presets(BASE, ["quadruped"]).env_steps == 4_000_000


def test_the_default_penalty_is_the_paper_as_printed_also_from_pixels():
    penalty = BASE.agent.penalty
    assert (penalty.posterior, penalty.prior, penalty.rho) == (0.5, 0.0, 0.5)
    assert (penalty.scaling, penalty.schedule, penalty.scale) == ("sampled", "sqrt", 1000.0)
    assert (penalty.floor, penalty.start) == (0.001, 0)
    assert diff(BASE, with_presets(BASE, ["pixels"])) == {"env.pixels": (False, True)}


@pytest.mark.parametrize("gone", ["paper", "proprio", "locomotion"])
def test_presets_that_said_something_else_or_nothing_are_gone(gone):
    with pytest.raises(ConfigError, match=f"preset: '{gone}' is not a preset"):
        with_presets(BASE, [gone])


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="preset: 'nanno' is not a preset; did you mean nano"):
        with_presets(BASE, ["nanno"])


# Validation


def test_the_default_is_valid():
    validate(BASE)
    validate(BASE.agent)


def test_every_number_has_a_range():
    numbers = {path for path, value in flat(BASE).items() if type(value) in (int, float)}
    assert numbers == set(RUN_RANGES) | {f"agent.{path}" for path in AGENT_RANGES}


WHOLE = {
    int: st.integers() | st.integers(-(10**40), 10**40) | st.sampled_from([0, 1, 10**31, 2**31, -1, 10**400]),
    float: st.floats() | st.sampled_from([5e-324, -5e-324, 1e-310, 1e31, 1e300, float("inf"), float("nan")]),
}


@pytest.mark.parametrize("path", sorted(RUN_RANGES | {f"agent.{name}": 0 for name in AGENT_RANGES}))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_number_is_taken_or_refused_by_name_with_its_bound(path, data):
    kind = type(flat(BASE)[path])
    value = data.draw(WHOLE[kind])
    allowed = (RUN_RANGES | {f"agent.{name}": each for name, each in AGENT_RANGES.items()})[path]
    try:
        validate(override(BASE, nested(path, value)))
    except ConfigError as error:
        message = str(error)
        assert "is not allowed; it must be" in message
        if value not in allowed:
            assert message.startswith(f"{path}: {value!r} ")
            assert str(allowed.high) in message
        assert "\n" not in message
    else:
        assert value in allowed
        assert np.isfinite(np.float32(value))
        # What is above 0 or below 1 stays so in the precision that is computed in.
        assert not allowed.above or np.float32(value) > 0
        assert not allowed.below or np.float32(value) < 1


@pytest.mark.parametrize("name", COMMAND_RANGES)
@given(value=WHOLE[int])
@settings(max_examples=60, deadline=None)
def test_every_number_of_a_command_is_taken_or_refused_by_name_with_its_bound(name, value):
    allowed, options = COMMAND_RANGES[name], SimpleNamespace(**{name: value})
    if allowed.low <= value <= allowed.high:
        check_numbers(options, name)
        return
    with pytest.raises(ConfigError) as shown:
        check_numbers(options, name)
    assert str(shown.value) == f"{name}: {value!r} is not allowed; it must be {allowed}"
    assert str(allowed.high) in str(allowed)


def test_every_number_has_an_upper_bound():
    for allowed in [*RUN_RANGES.values(), *AGENT_RANGES.values(), *COMMAND_RANGES.values()]:
        assert math.isfinite(allowed.high)
        for number in (math.inf, -math.inf, math.nan, 10**400, 1e39, -1):
            assert number not in allowed


def test_more_updates_than_can_be_counted_are_refused():
    changes = {"env_steps": 2**31 - 1, "env": {"action_repeat": 1}, "replay": {"train_ratio": 1e6}}
    with pytest.raises(ConfigError, match=r"replay\.train_ratio: 1000000\.0 .* at most 2147483647 updates"):
        validate(override(BASE, changes))


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        ("task", "walker-wlak", "did you mean walker-walk"),
        ("task", "Pendulum-v1", "did you mean gym:Pendulum-v1"),
        ("task", "Crafter-v1", "did you mean gym:gpld.envs.crafter:Crafter-v1?"),
        ("task", "Gym:pendulum-v1", "did you mean gym:Pendulum-v1?"),
        ("task", "gym:", "gym:Name-v0"),
        ("task", "jax:gpld.envs", "jax:module:name"),
        ("task", "jax::CartPole", "jax:module:name"),
        ("env.limit", 0, "at least 1"),
        ("task", "envpool:", "envpool:Name-v0"),
        ("backend", "gymnasium", "auto, envpool or dm_control"),
        ("seed", -1, "in [0, 4294967295]"),
        ("env_steps", 0, "at least 1"),
        ("env_steps", 2079, "at least 2080: a sequence of replay.length + 1"),
        ("env.count", 0, "at least 1"),
        ("replay.length", 1, "at least 2"),
        ("replay.train_ratio", -1.0, "above 0"),
        ("replay.train_ratio", float("nan"), "above 0"),
        ("replay.capacity", 1039, "at least 1040"),
        ("agent.penalty.posterior", -0.5, "at least 0"),
        ("agent.penalty.posterior", float("inf"), "at least 0"),
        ("agent.penalty.rho", 1.5, "in (0, 1]"),
        ("agent.penalty.rho", 0.0, "in (0, 1]"),
        ("agent.penalty.rho", 0.0009, "no state is sampled"),
        ("agent.penalty.rows", 33, "at most stoch = 32"),
        ("agent.penalty.schedule", "custom", "at least one (update, weight) pair"),
        ("agent.penalty.custom", ((5, 1.0), (5, 0.5)), "increasing updates"),
        ("agent.penalty.custom", ((-1, 1.0),), "increasing updates"),
        ("agent.penalty.custom", ((0, -1.0),), "weights are at least 0"),
        (
            "agent.penalty.custom",
            ((0, 1.0),),
            "empty without schedule = custom, which alone reads it; it is sqrt",
        ),
        ("agent.model.deter", 2049, "a multiple of agent.model.blocks = 8"),
        ("agent.model.bins", 254, "odd"),
        ("agent.model.classes", 257, "in [2, 256]"),
        ("agent.behavior.max_std", 0.05, "at least min_std = 0.1"),
        ("agent.behavior.return_high", 5.0, "above return_low = 5"),
        ("agent.optimizer.beta1", 1.0, "in [0, 1)"),
        ("env.kwargs", ("gravity=9.81",), "empty for walker-walk"),
    ],
)
def test_an_impossible_value_is_refused_by_name(path, value, allowed):
    with pytest.raises(ConfigError) as error:
        validate(override(BASE, nested(path, value)))
    message = str(error.value)
    assert path.rsplit(".", 1)[0] in message
    assert allowed in message
    assert "\n" not in message
    if path != "agent.penalty.schedule":  # what is missing there is the table
        assert message.startswith(f"{path}: {value!r} ")


def test_an_agent_alone_is_validated_under_its_own_paths():
    agent = AgentConfig()
    with pytest.raises(ConfigError, match=r"^penalty\.rho: 2\.0 is not allowed"):
        validate(dataclasses.replace(agent, penalty=dataclasses.replace(agent.penalty, rho=2.0)))


def test_gymnasium_tasks_pass_through():
    validate(Config(task="gym:Pendulum-v1"))
    with pytest.raises(ConfigError, match="backend: 'envpool' is not allowed; it must be auto or gymnasium"):
        validate(Config(task="gym:Pendulum-v1", backend="envpool"))


def test_jax_tasks_pass_through():
    task = "jax:gpld.envs:CartPole"
    validate(Config(task))
    with pytest.raises(ConfigError, match="backend: 'envpool' is not allowed; it must be auto for jax:gpld"):
        validate(Config(task, backend="envpool"))
    with pytest.raises(ConfigError, match=r"env.pixels: True is not allowed; it must be off for jax:gpld"):
        validate(override(Config(task), {"env": {"pixels": True}}))


def test_tasks_of_envpool_pass_through():
    validate(Config(task="envpool:Ant-v4"))
    validate(Config(task="envpool:MetaWorld/Reach-v3", backend="envpool"))
    for changes, message in (
        (
            {"backend": "dm_control"},
            "backend: 'dm_control' is not allowed; it must be auto or envpool for envp",
        ),
        ({"env": {"pixels": True}}, "env.pixels: True is not allowed; it must be off for envpool:Ant-v4"),
        ({"env": {"threads": 2}}, "env.threads: 2 is not allowed; it must be 0 for envpool:Ant-v4: each of"),
    ):
        with pytest.raises(ConfigError, match=message):
            validate(override(Config(task="envpool:Ant-v4"), changes))


def test_importing_the_config_imports_nothing_heavy():
    code = "import gpld.config, sys; print(*sorted({'jax', 'numpy', 'mujoco', 'tyro'} & set(sys.modules)))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == []
