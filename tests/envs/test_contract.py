"""What every backend must do, whatever is behind it."""

import itertools
from functools import partial

import numpy as np
import pytest

from gpld.envs import VectorEnv, make
from tests.envs.custom import Counter
from tests.envs.helpers import actions, leaves, need, run, same

BACKENDS = {
    "envpool": partial(make, "cartpole-swingup", backend="envpool"),
    "dm_control": partial(make, "cartpole-swingup", backend="dm_control"),
    "gymnasium": partial(make, "gym:Pendulum-v1"),
    "discrete": partial(make, "gym:CartPole-v1"),
    "factory": partial(make, Counter),
    "jax": partial(make, "jax:gpld.envs:CartPole"),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest):
    """A function that makes environments of one backend."""
    need(request.param)
    return BACKENDS[request.param]


def check_step(env: VectorEnv, step) -> None:
    assert list(step.obs) == [key for key, _ in env.spaces.obs] == sorted(step.obs)
    for key, shape in env.spaces.obs:
        assert step.obs[key].shape == (env.count, *shape)
        assert step.obs[key].dtype == np.float32
        assert np.isfinite(step.obs[key]).all()
    assert step.reward.dtype == np.float32
    for value in step[1:]:
        assert value.shape == (env.count,)
    for flag in step[2:]:
        assert flag.dtype == bool


def test_steps_have_the_promised_shapes_and_the_first_begins(backend):
    with backend(count=3, seed=0) as env:
        steps = run(env, actions(env, 12))
        for step in steps:
            check_step(env, step)
        assert steps[0].is_first.all()
        assert (steps[0].reward == 0).all()
        for before, after in itertools.pairwise(steps):
            assert np.array_equal(before.is_last, after.is_first)
            assert not (after.is_terminal & ~after.is_last).any()
            assert (after.reward[after.is_first] == 0).all()


def test_a_new_episode_ignores_its_action(backend):
    with backend(count=2, seed=0) as one, backend(count=2, seed=0) as two:
        sequence = actions(one, 2)
        assert same([one.step(sequence[0])], [two.step(sequence[1])])


def test_same_seed_same_bits_and_other_seeds_differ(backend):
    with backend(count=2, seed=1) as env:
        sequence = actions(env, 30)
        trace = run(env, sequence)
    with backend(count=2, seed=1) as again:
        assert same(trace, run(again, sequence))
    start = trace[0].obs[env.spaces.obs[-1][0]]
    assert not np.array_equal(start[0], start[1])  # streams differ
    for other in (backend(count=2, seed=2), backend(count=2, seed=1, evaluation=True)):
        with other:
            key, _ = env.spaces.obs[-1]
            assert not np.isin(other.step(sequence[0]).obs[key], start).any()


def test_more_streams_do_not_change_the_first(backend, request):
    near = request.node.callspec.id == "jax"  # another program, which may round otherwise
    with backend(count=1, seed=4) as one, backend(count=3, seed=4) as three:
        sequence = actions(three, 20)
        alone, together = run(one, sequence[:, :1]), run(three, sequence)
        for a, b in zip(alone, together, strict=True):
            for x, y in zip(leaves(a), leaves(b), strict=True):
                np.testing.assert_allclose(x, y[:1], rtol=0, atol=1e-5 if near else 0)


def test_reset_by_index(backend):
    with backend(count=3, seed=0) as env:
        sequence = actions(env, 3)
        run(env, sequence[:2])
        env.reset([2, 0])
        assert env.step(sequence[2]).is_first.tolist() == [True, False, True]
        env.reset()
        assert env.step(sequence[2]).is_first.all()


def test_saved_state_goes_on_bit_for_bit(backend):
    with backend(count=3, seed=0) as env, backend(count=3, seed=0) as again:
        sequence = actions(env, 40)
        for start, end in ((0, 0), (0, 9), (9, 16)):  # before the first step, within episodes, after ends
            run(env, sequence[start:end])
            assert again.restore(env.save()) == []
        assert same(run(env, sequence[16:]), run(again, sequence[16:]))


def test_send_and_recv_are_step(backend):
    with backend(count=2, seed=0) as one, backend(count=2, seed=0) as two:
        sequence = actions(one, 6)
        trace = []
        for action in sequence:
            one.send(action)
            action[:] = 0  # the environment has its own copy
            trace.append(one.recv())
        assert same(trace, run(two, actions(two, 6)))


def test_steps_are_not_overwritten_by_later_ones(backend):
    with backend(count=2, seed=0) as env:
        sequence = actions(env, 4)
        first = env.step(sequence[0])
        kept = [value.copy() for value in leaves(first)]
        run(env, sequence[1:])
        assert all(np.array_equal(a, b) for a, b in zip(leaves(first), kept, strict=True))


def test_wrong_calls_are_refused(backend):
    with backend(count=2, seed=0) as env:
        width = env.spaces.actions
        with pytest.raises(ValueError, match=rf"shape \(2, {width}\), one row a stream, not \(1, {width}\)"):
            env.step(np.zeros((1, width)))
        bad = np.zeros((2, width))
        bad[1, 0] = np.nan
        with pytest.raises(ValueError, match="action of stream 1 is not finite"):
            env.step(bad)
        with pytest.raises(RuntimeError, match="recv was called without send"):
            env.recv()
        env.send(np.zeros((2, width)))
        with pytest.raises(RuntimeError, match="send was called twice"):
            env.send(np.zeros((2, width)))


@pytest.mark.parametrize("repeat", [1, 3])
def test_action_repeat_sums_rewards_and_stops_at_ends(repeat: int):
    """Counter pays 1, 2, ... 7 and ends at 7 frames."""
    with make(Counter, count=2, seed=0, action_repeat=repeat) as env:
        frames = list(range(1, 8))
        expected = [0.0] + [float(sum(frames[i : i + repeat])) for i in range(0, 7, repeat)]
        steps = run(env, actions(env, len(expected) + 1))
        assert [step.reward[0] for step in steps] == [*expected, 0.0]
        assert [step.is_last[0] for step in steps] == [False] * (len(expected) - 1) + [True, False]
        assert steps[len(expected) - 1].obs["time.now"][0] == 7


@pytest.mark.parametrize("name", ["envpool", "dm_control"])
def test_action_repeat_that_does_not_divide_the_episode(name):
    need(name)
    with make("pendulum-swingup", count=1, seed=0, backend=name, action_repeat=300) as env:
        assert [step.is_last[0] for step in run(env, actions(env, 6))] == [False] * 4 + [True, False]
