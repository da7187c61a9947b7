import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st

from gpld import agent
from gpld.config import PRESETS, Config, ConfigError, override, with_presets
from gpld.memory import MemoryEstimate, fit, memory_estimate, spread
from gpld.types import Batch, Latent, Spaces

WALKER = Spaces.of({"height": (), "orientations": (14,), "velocity": (9,)}, actions=6)
PIXELS = Spaces.of({"image": (64, 64, 3)}, actions=6, images=["image"])
PAPER = Config(task="walker-walk")
GIB = 2**30
SMALL = MemoryEstimate(parameters=1, optimizer=2, gradients=3, activations=GIB - 6, replay=4 * GIB)


def storage(where):
    return override(PAPER, {"replay": {"storage": where}})


def test_the_papers_agent():
    estimate = memory_estimate(PAPER, WALKER)
    value = 853_503
    assert estimate.parameters == 4 * (9_738_019 + value)
    assert estimate.played == 4 * 9_738_019
    assert memory_estimate(override(PAPER, {"eval": {"every": 0}}), WALKER).played == 0
    assert estimate.gradients == 2 * 4 * 9_738_019
    # Two running averages and a few counters.
    assert 0 <= estimate.optimizer - 2 * 4 * 9_738_019 < 100
    # 500k agent steps of h (2048 float32), z (32 bytes) and 34 further numbers.
    assert estimate.replay / 500_000 == pytest.approx(4 * 2048 + 32 + 4 * (24 + 6 + 1 + 3), rel=0.01)


def test_images_take_a_byte_each_and_their_maps_take_memory():
    estimate = memory_estimate(PAPER, PIXELS)
    row = 64 * 64 * 3 + 4 * (6 + 1 + 3)
    assert estimate.replay / 500_000 == pytest.approx(4 * 2048 + 32 + row, rel=0.01)
    # Largest: 64 x 64 places of 2 x 16 channels in float32, for each of 1,024 images and in three arrays.
    assert estimate.activations - memory_estimate(PAPER, WALKER).activations > 3 * 1024 * 64 * 64 * 32 * 4


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


def test_the_penalty_by_products_pulls_every_row_back_to_the_input():
    def more(**changes):
        asked = override(PAPER, {"agent": {"penalty": {"estimator": "vjp"} | changes}})
        return memory_estimate(asked, WALKER).activations - memory_estimate(PAPER, WALKER).activations

    rows = 512 * 32  # of half of the states
    assert more() == rows * (3 * 2304 + 10 * 512) * 4
    assert more(posterior=0.0, prior=0.5) == rows * (3 * 2048 + 10 * 512) * 4
    assert more(prior=0.5) == more() + more(posterior=0.0, prior=0.5)
    assert more(posterior=0.0) == 0
    assert more(rows=8, probes=2) == more() // 2


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
        "played",
        "evaluation",
        "total",
    ]
    assert lines[4].split()[1:] == ["4.00", "GiB"]
    assert lines[7].split()[1:] == ["5.00", "GiB"]


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
    found = fit(storage(asked), SMALL, 1, 1, device, host)
    assert (found.groups, found.storage) == ([1], placed)
    assert "4.00 GiB" in found.message


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
        fit(storage(asked), SMALL, 1, 1, device, host)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("runs", "devices", "device", "host", "groups", "placed"),
    [
        (8, 1, 40 * GIB, 0, [8], "device"),
        (8, 1, 40 * GIB - 1, 0, [4, 4], "device"),  # seven fit, and groups are alike
        (10, 1, 20 * GIB, 0, [4, 3, 3], "device"),
        (3, 1, 5 * GIB, 99 * GIB, [1, 1, 1], "device"),  # in turn rather than in host memory
        (5, 1, 3 * GIB, 12 * GIB, [3, 2], "host"),  # an update of three fits, and replays of three
        (5, 1, 3 * GIB, 8 * GIB, [2, 2, 1], "host"),
        (8, 4, 10 * GIB, 0, [8], "device"),
        (10, 4, 15 * GIB, 0, [10], "device"),  # 3 on each of four
        (10, 4, 10 * GIB, 0, [5, 5], "device"),  # 2 on each of three, in turn
        (5, 4, 2 * GIB, 24 * GIB, [5], "host"),  # 2 on each of three: six replays
        (5, 4, 2 * GIB, 20 * GIB, [3, 2], "host"),
    ],
)
def test_runs_are_split_into_as_few_groups_as_fit(runs, devices, device, host, groups, placed):
    found = fit(storage("auto"), SMALL, runs, devices, device, host)
    assert (found.groups, found.storage) == (groups, placed)
    assert ("in turn" in found.message) == (len(groups) > 1)


@given(runs=st.integers(1, 40), devices=st.integers(1, 9), device=st.integers(5, 60), host=st.integers(4, 60))
@settings(max_examples=100, deadline=None)
def test_every_group_fits(runs, devices, device, host):
    found = fit(storage("auto"), SMALL, runs, devices, device * GIB, host * GIB)
    assert sum(found.groups) == runs
    assert max(found.groups) - min(found.groups) <= 1
    for size in found.groups:
        used, each = spread(size, devices)
        assert used <= devices
        assert (used - 1) * each < size <= used * each
        assert each * 5 <= device or (each <= device and used * each * 4 <= host)


def test_the_arithmetic_is_shown():
    one = fit(storage("auto"), SMALL, 1, 1, 80 * GIB, 0).message
    assert one == (
        "memory: 1.00 GiB for training and 4.00 GiB for the replay on the device, 5.00 GiB of 80.00 GiB free"
    )
    many = fit(storage("auto"), SMALL, 10, 1, 20 * GIB, 0).message
    assert many.splitlines() == [
        "memory: 4 x 1.00 GiB for training and 4 x 4.00 GiB for the replay on the device, "
        "20.00 GiB of 20.00 GiB free",
        "10 runs do not fit at once: they train in groups of 4, 3, 3, in turn",
    ]
    spread = fit(storage("host"), SMALL, 8, 4, 80 * GIB, 64 * GIB).message
    assert spread == (
        "memory: 2 x 1.00 GiB for training on each of 4 devices, 2.00 GiB of 80.00 GiB free; replays of "
        "32.00 GiB in host memory, 64.00 GiB free: updates wait for copies, so training is slower"
    )


@pytest.mark.parametrize(
    ("runs", "devices", "found"),
    [(8, 4, (4, 2)), (8, 3, (3, 3)), (7, 4, (4, 2)), (10, 4, (4, 3)), (10, 8, (5, 2)), (1, 8, (1, 1))],
)
def test_runs_are_spread_over_all_devices_that_make_it_faster(runs, devices, found):
    assert spread(runs, devices) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "horizon", "spaces"),
    [("nano", 15, WALKER), ("1m", 25, WALKER), ("1m", 5, WALKER), ("nano", 15, PIXELS), ("1m", 5, PIXELS)],
)
def test_the_estimate_is_near_what_xla_plans(preset, horizon, spaces):
    config = override(with_presets(PAPER, [preset]), {"agent": {"behavior": {"horizon": horizon}}})
    model, steps = config.agent.model, (config.replay.length, config.replay.batch)
    numbers = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    flags = jax.ShapeDtypeStruct(steps, jnp.bool_)
    batch = Batch(
        obs={name: jax.ShapeDtypeStruct((*steps, *shape), spaces.dtype(name)) for name, shape in spaces.obs},
        prev_action=numbers((*steps, spaces.actions)),
        reward=numbers(steps),
        is_first=flags,
        is_last=flags,
        is_terminal=flags,
        start=Latent(
            numbers((config.replay.batch, model.deter)),
            jax.ShapeDtypeStruct((config.replay.batch, model.stoch), jnp.uint8),
        ),
    )
    state = jax.eval_shape(partial(agent.init, config.agent, spaces), jax.random.key(0))
    update = jax.jit(partial(agent.update, config.agent), donate_argnums=0)
    planned = update.lower(state, batch).compile().memory_analysis().temp_size_in_bytes
    estimate = memory_estimate(config, spaces)
    assert (estimate.activations + estimate.gradients) / planned == pytest.approx(1, abs=0.3)
