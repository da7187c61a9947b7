"""Runs that see: images from the environment through replay and checkpoints to the agent, and back."""

import io

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from PIL import Image

import gpld
from gpld.config import override
from gpld.envs import Step
from gpld.training import _program, evaluate, evaluation, saved, train
from gpld.training._program import RandomKeys
from gpld.types import Spaces
from tests.training.helpers import contents, differing, lines, tiny
from tests.training.test_logs import events

pytestmark = pytest.mark.slow


class Square(gymnasium.Env):
    """A square that moves to and fro, as an image, and the time."""

    def __init__(self):
        self.observation_space = Dict(
            {"view": Box(0, 255, (16, 16, 3), np.uint8), "time": Box(0.0, 1.0, (1,), np.float32)}
        )
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self):
        view = np.full((16, 16, 3), 20, np.uint8)
        column = int(np.clip(self.place, 0, 12))
        view[4:8, column : column + 4] = (255, 200, 90)
        return {"view": view, "time": np.array([self.time / 30], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.uniform(0, 12)
        return self._observe(), {}

    def step(self, action):
        self.time, self.place = self.time + 1, self.place + 2 * float(action[0])
        return self._observe(), float(self.place > 6), False, self.time == 30, {}


def square(**changes):
    """A run of 300 agent steps, unless said otherwise."""
    config = tiny("gym:Square-v0", env_steps=600, eval={"every": 0}, replay={"capacity": 160})
    return override(config, {"agent": {"model": {"depth": 1}}, **changes})


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "straight"
    assert train(square(), folder, task=Square).finished
    return folder


def test_every_part_of_a_run_takes_images(straight):
    spaces = Spaces.of({"view": (16, 16, 3), "time": (1,)}, 1, images=["view"])
    assert saved.read_spaces(straight) == spaces
    losses = [line["loss/view"] for line in lines(straight)]
    assert losses[-1] < losses[0]
    found = contents(square(), straight, Square)
    (steps,) = [array for path, array in found.items() if "steps" in path]
    # In a word of four bytes each: 16 x 16 x 3 bytes, time, action, reward and three flags.
    assert (steps.dtype, steps.shape) == (np.uint32, (1, 4, 40, 16 * 16 * 3 // 4 + 6))
    assert {20, 255, 200, 90} == set(steps[..., 1:-5].copy().view(np.uint8).ravel().tolist())


def test_a_run_goes_on_to_the_bit(straight, tmp_path):
    train(square(env_steps=400), tmp_path, task=Square)
    assert train(square(), tmp_path, task=Square).finished
    assert differing(contents(square(), straight, Square), contents(square(), tmp_path, Square)) == []


FILMED = {"eval": {"every": 50, "episodes": 2}, "log": {"tensorboard": True, "films": 2}}
"""Evaluated after 50, 100, ... 300 agent steps. Of episodes with 30 frames, 16 steps are seen."""


@pytest.fixture(scope="module")
def filmed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "filmed"
    assert train(square(**FILMED), folder, task=Square).finished
    return folder


def test_films_of_evaluations_change_no_bit(straight, filmed):
    """Not of training, and not of the evaluation."""
    assert differing(contents(square(), straight, Square), contents(square(**FILMED), filmed, Square)) == []
    found = [line for line in lines(filmed) if "eval/return" in line]
    assert len(found) == 6
    assert [line for line in lines(filmed) if "eval/return" not in line] == lines(straight)
    again = evaluate(square(), saved.load(filmed).model, key=key_at(300), **AT_THE_END)
    assert np.mean(again) == found[-1]["eval/return"]


AT_THE_END = {"episodes": 2, "number": 300, "task": Square}


def key_at(agent_steps):
    return _program.fold_in(RandomKeys.of_all([square().seed]).evaluate, np.int32(agent_steps))[0]


def test_a_run_films_the_first_the_last_and_every_nth_evaluation(filmed):
    found = [(e.step, v) for e in events(filmed) for v in e.summary.value if v.HasField("image")]
    assert [(step, value.tag) for step, value in found] == [
        (step, "films/view") for step in (104, 304, 504, 600)
    ]
    played, config = [], square()
    with evaluation.make_env(config, 2, 300, task=Square) as env:
        evaluation.play(config.agent, saved.load(filmed).model, env, key_at(300), played.append)
    views = [step.obs["view"][0] for step in played]
    assert len(views) == 16
    assert played[-1].is_last[0]
    with Image.open(io.BytesIO(found[-1][1].image.encoded_image_string)) as film:
        moments = []
        for i in range(film.n_frames):
            film.seek(i)
            repeats = round(film.info["duration"] / 80)  # a picture that stays is stored once
            moments += [np.asarray(film.convert("RGB"))] * repeats
    np.testing.assert_array_equal(moments, views)


def test_a_warm_start_takes_the_convolutions(straight, tmp_path):
    trained = saved.load(straight).model.world
    config = square(env_steps=320, seed=5, init_from=str(straight), replay={"train_ratio": 0.001})
    train(config, tmp_path, task=Square)
    begun = saved.load(tmp_path).model.world
    for part in ("encoder", "decoder"):
        ours, theirs = getattr(begun, part).cnn, getattr(trained, part).cnn
        np.testing.assert_array_equal(ours.layers[0].conv.weight, theirs.layers[0].conv.weight)
    assert not np.array_equal(begun.dynamics.hidden.weight, trained.dynamics.hidden.weight)


def test_a_trained_agent_looks(straight):
    agent = gpld.load(straight)
    env = Square()
    obs, _ = env.reset(seed=0)
    action = agent.act(obs, is_first=True)
    assert action.shape == (1,)
    assert np.abs(action).max() <= 1


def test_updates_on_a_cpu_one_by_one_are_those_of_one_program(straight):
    """Which loops over them: convolutions are then computed otherwise, and round otherwise."""
    config, spaces = square(), saved.read_spaces(straight)
    keys = RandomKeys.of_all([config.seed])
    live = _program.init(config, spaces, "device", [config])
    env = Square()
    for index in range(20):
        obs, _ = env.reset(seed=index)
        seen = {name: np.broadcast_to(x, (1, 4, *x.shape)) for name, x in obs.items()}
        flags = [np.full((1, 4), index % 10 == first) for first in (0, 9, -1)]
        reward = np.full((1, 4), index % 3, np.float32)
        step = Step(seen, reward, *flags)
        live = _program.act(config, live, step, index, keys.act)
    trained = jax.tree.map(jnp.copy, (live.agent, live.replay, live.sums))
    state, memory, sums = _program._learn(config.agent, config.replay, 3, None, trained, keys.sample)
    live = _program.learn(config, live, 3, keys.sample)
    assert int(live.agent.updates[0]) == int(state.updates[0]) == 3
    assert float(live.sums["loss/view"][0]) == pytest.approx(float(sums["loss/view"][0]), rel=1e-4)
    np.testing.assert_array_equal(live.replay.steps, memory.steps)
    for ours, theirs in zip(jax.tree.leaves(live.agent.model), jax.tree.leaves(state.model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
