"""Gymnasium's environments: spaces, actions, ends, seeds and repeated episodes."""

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from gpld.config import ConfigError
from gpld.envs import EnvironmentFailure, check, make
from gpld.envs._gymnasium import _lacking
from gpld.types import Spaces
from tests.envs.custom import Choices, Counter
from tests.envs.helpers import actions, need, run, same


def taken(env, stream: int = 0) -> list[np.ndarray]:
    """The actions that an environment was given in this episode."""
    return env._streams[stream]._env.taken


def test_nested_observations_get_flat_keys():
    with make(Counter, count=1, seed=0) as env:
        assert env.spaces == Spaces((("time.now", ()), ("where", (2,))), 2, False)


def test_actions_are_clipped_and_rescaled_to_the_bounds():
    with make(Counter, count=1, seed=0, action_repeat=1) as env:
        assert env.spaces.bounds == ((0.0, 2.0), (-4.0, 4.0))
        env.step(np.zeros((1, 2)))
        for action in ([-1, 1], [0, 0.5], [3, -3]):
            env.step(np.array([action]))
        np.testing.assert_array_equal(taken(env), [[0, 4], [1, 2], [2, -4]])


def test_discrete_actions_come_one_hot():
    with make(Choices, count=2, seed=0, action_repeat=1) as env:
        assert (env.spaces.actions, env.spaces.discrete, env.spaces.bounds) == (3, True, ())
        env.step(np.eye(3)[[0, 0]])
        assert env.step(np.eye(3)[[0, 2]]).reward.tolist() == [5, 7]


@pytest.mark.parametrize("terminates", [True, False])
def test_only_termination_is_terminal(terminates: bool):
    with make(partial(Counter, 4, terminates), count=2, seed=0) as env:
        end = run(env, actions(env, 3))[-1]
        assert end.is_last.all()
        assert (end.is_terminal == terminates).all()


def test_time_limit_of_the_registry_truncates():
    with make("gym:Pendulum-v1", count=1, seed=0) as env:
        steps = run(env, actions(env, 101))
        assert [i for i, step in enumerate(steps) if step.is_last[0]] == [100]
        assert not steps[100].is_terminal[0]


def test_every_episode_has_its_own_seed():
    with make(Counter, count=1, seed=0) as env:
        starts = [tuple(step.obs["where"][0]) for step in run(env, actions(env, 21)) if step.is_first[0]]
    assert len(starts) == 5
    assert len(set(starts)) == 5


def test_an_environment_that_does_not_repeat_itself_begins_a_new_episode_when_restored():
    class Unseeded(Counter):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None, options=options)

    with make(Unseeded, count=2, seed=0) as env, make(Unseeded, count=2, seed=0) as again:
        run(env, actions(env, 3))
        assert again.restore(env.save()) == [0, 1]
        assert again.step(np.zeros((2, 2))).is_first.all()


def test_an_environment_that_breaks_while_repeating_begins_a_new_episode():
    class Once(Counter):
        broken = False

        def step(self, action):
            if self.broken:
                raise RuntimeError("worn out")
            return super().step(action)

    with make(Once, count=1, seed=0) as env, make(Once, count=1, seed=0) as again:
        run(env, actions(env, 3))
        Once.broken = True
        assert again.restore(env.save()) == [0]
        Once.broken = False
        assert same([again.step(np.zeros((1, 2)))], [make_second_episode()])


def make_second_episode():
    with make(Counter, count=1, seed=0) as env:
        env.step(np.zeros((1, 2)))
        env.reset()
        return env.step(np.zeros((1, 2)))


def test_an_environment_with_an_unusable_space_is_refused_in_words():
    class Speaks(Counter):
        def __init__(self):
            super().__init__()
            self.observation_space = Text(9)

    with pytest.raises(
        EnvironmentFailure, match=r"error in observation: its space is Text\(.*; supported are"
    ):
        make(Speaks, count=1, seed=0)
    with pytest.raises(EnvironmentFailure, match=r"error in observation: its space is Text"):
        make(Speaks, count=1, seed=0, check=False)


class Slots(gymnasium.Env):
    """Observes choices of all kinds; takes several at once."""

    observation_space = Tuple(
        (Discrete(3, start=1), Dict({"a": MultiDiscrete([2, 3]), "b": MultiBinary(2)}), Box(-1, 1, (2,)))
    )
    action_space = MultiDiscrete([2, 3], start=[0, 5])

    def __init__(self, wrong=0):
        self.wrong = wrong

    def observe(self):
        now = self.now % 2
        choices = {"a": np.array([now, 2]), "b": np.array([1, now], np.int8)}
        return 1 + now + self.wrong, choices, np.full(2, now / 2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.now += 1
        return self.observe(), float(action[0] * 100 + action[1]), False, self.now > 20, {}


def test_choices_are_observed_as_zeros_and_ones():
    with make(Slots, count=1, seed=0, action_repeat=1) as env:
        assert dict(env.spaces.obs) == {"0": (3,), "1.a": (5,), "1.b": (2,), "2": (2,)}
        step = env.step(np.eye(6)[[0]])
        while step.obs["2"][0, 0] == 0.0:
            step = env.step(np.eye(6)[[0]])
    found = {name: value[0].tolist() for name, value in step.obs.items()}
    assert found == {"0": [0, 1, 0], "1.a": [0, 1, 0, 0, 1], "1.b": [1, 1], "2": [0.5, 0.5]}


def test_several_choices_are_one_among_their_combinations():
    with make(Slots, count=6, seed=0, action_repeat=1) as env:
        assert (env.spaces.actions, env.spaces.discrete) == (6, True)
        env.step(np.eye(6))
        assert env.step(np.eye(6)).reward.tolist() == [5, 6, 7, 105, 106, 107]


def test_an_observation_outside_its_choices_is_named():
    (issue,) = check(lambda: Slots(wrong=3))
    assert issue.key == "observation"
    found = r"reset\(\) returned an observation outside its space: [45] is not in Discrete\(3, start=1\)"
    assert re.fullmatch(found, issue.problem)


def test_arguments_of_an_environment():
    with make("gym:CartPole-v1", count=1, seed=0, kwargs={"sutton_barto_reward": True}) as env:
        env.step(np.eye(2)[[0]])
        assert env.step(np.eye(2)[[0]]).reward.tolist() == [0.0]
    for check_first in (True, False):
        with pytest.raises(
            ConfigError, match=r"^env\.kwargs: gym:CartPole-v1 cannot be made with gravitas: .*argument"
        ):
            make("gym:CartPole-v1", count=1, seed=0, kwargs={"gravitas": "{{}}"}, check=check_first)
    for name in ("id", "disable_env_checker"):
        message = f"env.kwargs: {name!r} is not allowed; it must be an argument of gym:CartPole-v1 itself"
        with pytest.raises(ConfigError, match=re.escape(message)):
            make("gym:CartPole-v1", count=1, seed=0, kwargs={name: True})


@pytest.mark.parametrize("task", ["gym:.foo:Bar-v0", "gym:foo..bar:Bar-v0", "jax:.foo:Bar", "jax:foo.:Bar"])
def test_a_module_is_named_in_full(task):
    with pytest.raises(
        ConfigError, match=f"^task: {re.escape(repr(task))} is not allowed; its module must be"
    ):
        make(task, count=1, seed=0)


@pytest.mark.parametrize(
    ("task", "problem", "remedy"),
    [
        ("Ant-v4", ModuleNotFoundError("No module named 'imageio'"), r"; pip install 'gymnasium\[mujoco\]'"),
        ("CartPole-v1", ModuleNotFoundError("none"), r"; pip install 'gymnasium\[classic-control\]'"),
        ("HalfCheetah-v2", ImportError("the mujoco v2 based environments have been moved"), ""),
        ("LunarLander-v3", gymnasium.error.DependencyNotInstalled('run `pip install "x"`\n'), ""),
    ],
)
@pytest.mark.parametrize("checks", [True, False])
def test_a_missing_package_is_told_in_one_line(task, problem, remedy, checks, monkeypatch):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(gymnasium, "make", fail)
    said = re.escape(" ".join(str(problem).split()))
    instead = f"(, or use envpool:{task})?"  # where EnvPool is installed
    with pytest.raises(ConfigError, match=f"^task: gym:{task} cannot be made here: {said}{remedy}{instead}$"):
        make(f"gym:{task}", count=1, seed=0, check=checks)


def test_envpool_is_named_where_it_has_the_task():
    need("envpool")
    with pytest.raises(ConfigError, match=r"Namespace ALE not found; .* did you mean envpool:Pong-v5\?$"):
        make("gym:ALE/Pong-v5", count=1, seed=0)
    assert str(_lacking("Ant-v4", "Ant-v4", ImportError("a"))).endswith("[mujoco]', or use envpool:Ant-v4")


def test_atari_s_own_package_is_named():
    with pytest.raises(
        ConfigError, match=r"resized, is gym:ale_py:ALE/Pong-v5, with pip install 'gymnasium\[atari\]'"
    ):
        make("gym:ALE/Pong-v5", count=1, seed=0)


def test_tasks_of_a_module_are_named_with_it():
    gymnasium.register("Counting-v0", Counter)
    try:
        for typed in ("tests.envs.custom:Countin-v0", "tests.envs.custom:Counting-v3"):
            with pytest.raises(ConfigError, match=r"did you mean gym:tests\.envs\.custom:Counting-v0\b"):
                make(f"gym:{typed}", count=1, seed=0)
        with pytest.raises(ConfigError, match="is not known") as shown:
            make("gym:Countin-v0", count=1, seed=0)
        assert "gym:Counting-v0" not in str(shown.value)  # which finds nothing where no module is named
    finally:
        gymnasium.registry.pop("Counting-v0")


def test_an_old_version_is_made_without_a_warning():
    """Warnings are errors here."""
    gymnasium.register("Old-v0", Counter)
    gymnasium.register("Old-v1", Counter)
    try:
        make("gym:Old-v0", count=1, seed=0, check=False).close()
    finally:
        for version in (0, 1):
            gymnasium.registry.pop(f"Old-v{version}")


def test_render():
    class Painted(Counter):
        def render(self):
            return np.full((4, 5, 3), self.now, np.uint8)

    with make(Painted, count=2, seed=0) as env:
        run(env, actions(env, 2))
        assert (env.render(1) == 2).all()


class Seen(Counter):
    """A counter that is seen as an image, besides its position."""

    def __init__(self):
        super().__init__()
        spaces = {"where": Box(-np.inf, np.inf, (2,), np.float32), "view": Box(0, 255, (16, 32, 3), np.uint8)}
        self.observation_space = Dict(spaces)

    def observe(self):
        return {"where": self.where.astype(np.float32), "view": np.full((16, 32, 3), 30 * self.now, np.uint8)}


def test_images_stay_bytes():
    with make(Seen, count=2, seed=0, action_repeat=1) as env:
        assert env.spaces == Spaces.of({"where": (2,), "view": (16, 32, 3)}, 2, images=["view"])
        for now in range(3):
            view = env.step(np.zeros((2, 2))).obs["view"]
            assert (view.dtype, view.shape) == (np.uint8, (2, 16, 32, 3))
            assert (view == 30 * now).all()
        again = make(Seen, count=2, seed=0, action_repeat=1)
        assert again.restore(env.save()) == []
        assert (again.step(np.zeros((2, 2))).obs["view"] == 90).all()
        again.close()
