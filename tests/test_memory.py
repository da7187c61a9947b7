import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from gpld import agent
from gpld.config import PRESETS, Config, ConfigError, override, with_presets
from gpld.memory import MemoryEstimate, memory_estimate, place_replay
from gpld.types import Batch, Latent, Spaces

WALKER = Spaces.of({"height": (), "orientations": (14,), "velocity": (9,)}, actions=6)
PAPER = Config(task="walker-walk")
GIB = 2**30
SMALL = MemoryEstimate(parameters=1, optimizer=2, gradients=3, activations=GIB - 6, replay=4 * GIB)


def storage(where):
    return override(PAPER, {"replay": {"storage": where}})


def test_the_papers_agent():
    estimate = memory_estimate(PAPER, WALKER)
    value = 853_503
    assert estimate.parameters == 4 * (9_738_019 + value)
    assert estimate.gradients == 2 * 4 * 9_738_019
    # Two running averages and a few counters.
    assert 0 <= estimate.optimizer - 2 * 4 * 9_738_019 < 100
    # 500k agent steps of h (2048 float32), z (32 bytes) and 34 further numbers.
    assert estimate.replay / 500_000 == pytest.approx(4 * 2048 + 32 + 4 * (24 + 6 + 1 + 3), rel=0.01)


@pytest.mark.parametrize("preset", ["nano", "1m", "12m", "25m", "50m", "100m", "200m", "400m"])
def test_presets_say_how_many_parameters_they_have(preset):
    estimate = memory_estimate(with_presets(PAPER, [preset]), WALKER)
    parameters = estimate.gradients / (2 * 4)
    said = re.search(r"([\d.]+)M parameters", PRESETS[preset].description)
    assert said
    assert round(parameters / 1e6, 1 if "." in said[1] else 0) == float(said[1])


def test_half_precision_halves_what_is_computed_in_it():
    half = memory_estimate(override(PAPER, {"agent": {"compute": "bfloat16"}}), WALKER)
    full = memory_estimate(PAPER, WALKER)
    assert (half.parameters, half.optimizer) == (full.parameters, full.optimizer)
    assert half.replay / full.replay == pytest.approx(0.51, abs=0.01)
    assert 0.5 < half.activations / full.activations < 0.6


def test_replay_is_no_larger_than_the_run():
    short = replace(PAPER, env_steps=100_000)
    assert memory_estimate(short, WALKER).replay / memory_estimate(PAPER, WALKER).replay == pytest.approx(
        0.1, rel=0.01
    )


def test_the_breakdown_is_readable():
    lines = str(SMALL).splitlines()
    assert [line.split()[0] for line in lines] == [
        "parameters",
        "optimizer",
        "gradients",
        "activations",
        "replay",
        "total",
    ]
    assert lines[4].split()[1:] == ["4.00", "GiB"]
    assert lines[5].split()[1:] == ["5.00", "GiB"]


@pytest.mark.parametrize(
    ("asked", "device", "host", "placed"),
    [
        ("auto", 5 * GIB, 0, "device"),
        ("auto", 5 * GIB - 1, 4 * GIB, "host"),
        ("device", 5 * GIB, 0, "device"),
        ("host", 9 * GIB, 4 * GIB, "host"),
    ],
)
def test_replay_goes_where_it_fits(asked, device, host, placed):
    where, line = place_replay(storage(asked), SMALL, device, host)
    assert where == placed
    assert "4.00 GiB" in line


@pytest.mark.parametrize(
    ("asked", "device", "host", "words"),
    [
        ("auto", GIB - 1, 99 * GIB, ["agent.model: an update needs 1.00 GiB", "device has 1024.00 MiB"]),
        ("auto", 5 * GIB - 1, 4 * GIB - 1, ["replay.capacity", "needs 4.00 GiB"]),
        ("device", 5 * GIB - 1, 99 * GIB, ["replay.storage: 'device'", "needs 4.00 GiB"]),
        ("host", 99 * GIB, 4 * GIB - 1, ["replay.storage: 'host'", "needs 4.00 GiB"]),
    ],
)
def test_what_cannot_fit_is_refused_by_name(asked, device, host, words):
    with pytest.raises(ConfigError) as error:
        place_replay(storage(asked), SMALL, device, host)
    assert all(word in str(error.value) for word in words)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "horizon"), [("nano", 15), ("1m", 25), ("1m", 5)])
def test_the_estimate_is_near_what_xla_plans(preset, horizon):
    config = override(with_presets(PAPER, [preset]), {"agent": {"behavior": {"horizon": horizon}}})
    model, steps = config.agent.model, (config.replay.length, config.replay.batch)
    numbers = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    flags = jax.ShapeDtypeStruct(steps, jnp.bool_)
    batch = Batch(
        obs={name: numbers((*steps, *shape)) for name, shape in WALKER.obs},
        prev_action=numbers((*steps, WALKER.actions)),
        reward=numbers(steps),
        is_first=flags,
        is_last=flags,
        is_terminal=flags,
        start=Latent(
            numbers((config.replay.batch, model.deter)),
            jax.ShapeDtypeStruct((config.replay.batch, model.stoch), jnp.uint8),
        ),
    )
    state = jax.eval_shape(partial(agent.init, config.agent, WALKER), jax.random.key(0))
    update = jax.jit(partial(agent.update, config.agent), donate_argnums=0)
    planned = update.lower(state, batch).compile().memory_analysis().temp_size_in_bytes
    estimate = memory_estimate(config, WALKER)
    assert (estimate.activations + estimate.gradients) / planned == pytest.approx(1, abs=0.3)
