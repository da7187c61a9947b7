"""EnvPool against dm_control, and its saved states."""

import numpy as np
import pytest

from gpld.envs import Step, make, tasks
from gpld.envs._base import stream_seed
from gpld.envs._dm_control import DMControlStream
from gpld.envs._serial import SerialEnv
from tests.envs.helpers import CxxRandom, actions, need, run, same

need("envpool")

NAMES = [task.name for task in tasks()]


def reference(task: str, count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> SerialEnv:
    """dm_control's task, beginning every episode where EnvPool begins it."""
    from dm_control import suite

    load = suite.load
    monkeypatch.setattr(
        suite,
        "load",
        lambda *a, task_kwargs: load(*a, task_kwargs={"random": CxxRandom(task_kwargs["random"])}),
    )
    return SerialEnv(lambda i, restart: DMControlStream(task, stream_seed(seed, i)), count=count)


def assert_equal(task: str, ours: list[Step], theirs: list[Step]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for key, value in a.obs.items():
            if task.startswith("quadruped"):  # the C++ and NumPy versions of asinh round differently
                np.testing.assert_allclose(value, b.obs[key], rtol=2e-7, atol=1e-14, err_msg=key)
            else:
                np.testing.assert_array_equal(value, b.obs[key], err_msg=key)
        # EnvPool rounds the reward of each frame to float32, dm_control's sum is rounded once.
        np.testing.assert_allclose(a.reward, b.reward, rtol=0, atol=2.5e-7)
        assert np.array_equal(a.is_first, b.is_first)
        assert np.array_equal(a.is_last, b.is_last)


@pytest.mark.parametrize("task", NAMES)
def test_equals_dm_control(task: str, monkeypatch: pytest.MonkeyPatch):
    """From the same states, with the same actions, in two episodes: the same observations and rewards."""
    with make(task, count=2, seed=3, backend="envpool") as env, reference(task, 2, 3, monkeypatch) as ref:
        assert (env.spaces, env.spaces.bounds) == (ref.spaces, ref.spaces.bounds)
        sequence = actions(env, 40)
        assert_equal(task, run(env, sequence), run(ref, sequence))
        env.reset()
        ref.reset()
        assert_equal(task, run(env, sequence[:10]), run(ref, sequence[:10]))


@pytest.mark.slow
@pytest.mark.parametrize("task", NAMES)
def test_equals_dm_control_for_whole_episodes(task: str, monkeypatch: pytest.MonkeyPatch):
    with make(task, count=1, seed=8, backend="envpool") as env, reference(task, 1, 8, monkeypatch) as ref:
        sequence = actions(env, 510)
        ours = run(env, sequence)
        assert ours[500].is_last.all()
        assert_equal(task, ours, run(ref, sequence))


def test_sparse_acrobot_pays_the_same(monkeypatch: pytest.MonkeyPatch):
    """From a start that is upright within the target: both pay, and stop paying together."""

    def distance(seed: int) -> float:
        shoulder, elbow = CxxRandom(stream_seed(seed, 0)).uniform(-np.pi, np.pi, 2)
        return abs(np.exp(1j * shoulder) + np.exp(1j * (shoulder + elbow)) - 2)  # of the tip, from upright

    paying = next(seed for seed in range(10_000) if distance(seed) < 0.1)
    task = "acrobot-swingup_sparse"
    with make(task, count=1, seed=paying) as env, reference(task, 1, paying, monkeypatch) as ref:
        still = np.zeros((60, 1, 1), np.float32)
        ours, theirs = run(env, still), run(ref, still)
    rewards = [float(step.reward[0]) for step in ours]
    assert rewards == [float(step.reward[0]) for step in theirs]
    assert rewards[:5] == [0, 2, 2, 2, 2]  # the first is the reset; then 1 for each of two frames
    assert rewards[-1] == 0  # it has fallen
    assert same(ours, theirs)


def test_episode_has_501_steps_and_no_terminal():
    with make("cartpole-swingup", count=2, seed=0, backend="envpool") as env:
        steps = run(env, actions(env, 503))
    first = [i for i, step in enumerate(steps) if step.is_first.any()]
    last = [i for i, step in enumerate(steps) if step.is_last.any()]
    assert (first, last) == ([0, 501], [500])
    assert not any(step.is_terminal.any() for step in steps)
    assert (steps[501].reward == 0).all()


@pytest.mark.parametrize("task", ["quadruped-walk", "cheetah-run", "reacher-hard"])
@pytest.mark.parametrize("saved_after", [0, 1, 23])
def test_restores_the_bits_in_any_number_of_threads(task: str, saved_after: int):
    def fresh(threads: int):
        return make(task, count=3, seed=5, backend="envpool", threads=threads)

    with fresh(1) as env, fresh(3) as again:
        sequence = actions(env, 60)
        run(env, sequence[:4])
        env.reset([1])  # streams at different times
        run(env, sequence[:saved_after])
        state = env.save()
        assert again.restore(state) == []
        assert same(run(env, sequence), run(again, sequence))
        env.reset()
        again.reset()
        assert same(run(env, sequence[:3]), run(again, sequence[:3]))


def test_restores_at_a_common_end_without_repeating_the_episode():
    with make("pendulum-swingup", count=2, seed=5, backend="envpool") as env:
        sequence = actions(env, 501)
        assert run(env, sequence)[-1].is_last.all()
        state = env.save()
        with make("pendulum-swingup", count=2, seed=5, backend="envpool") as again:
            assert again.restore(state) == []
            assert again._elapsed.tolist() == [0, 0]
            assert same(run(env, sequence[:20]), run(again, sequence[:20]))


def test_restore_says_which_streams_it_lost():
    with make("walker-walk", count=3, seed=1, backend="envpool") as env:
        run(env, actions(env, 5))
        env._last["velocity"][2] += 1  # as if this stream had not repeated itself
        state = env.save()
        with make("walker-walk", count=3, seed=1, backend="envpool") as again:
            assert again.restore(state) == [2]
            assert again.step(np.zeros((3, 6))).is_first.tolist() == [False, False, True]
        with (
            make("walker-walk", count=2, seed=1, backend="envpool") as other,
            pytest.raises(ValueError, match="3 streams"),
        ):
            other.restore(state)
