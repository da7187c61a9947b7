"""Environments that raise, hang or give NaN: reported, restarted, marked, and in the end given up."""

import logging
import threading
import time

import numpy as np
import pytest

from gpld.envs import EnvironmentFailure, make
from tests.envs.custom import Counter, FailsToStart, GivesNaN, Hangs, Raises
from tests.envs.helpers import actions, leaves, run, same


def broken(kind: type[Raises], sound_from: int = 1, **options):
    """Two streams of which the first `sound_from` instances made are broken; frames 1 to 7, one a step."""
    fresh = type(kind.__name__, (kind,), {"made": 0, "sound_from": sound_from})
    return make(fresh, count=2, seed=0, action_repeat=1, check=False, **options)


@pytest.mark.parametrize(
    ("kind", "reason", "timeout"),
    [
        (Raises, "RuntimeError: the belt slipped", 60.0),
        (GivesNaN, "ValueError: observation where is not finite: [", 60.0),
        (Hangs, "no answer within 1 s", 1.0),
    ],
)
def test_a_fault_ends_the_episode_and_the_stream_goes_on(kind, reason, timeout, caplog):
    with broken(kind, timeout=timeout) as env, make(Counter, count=2, seed=0, action_repeat=1) as sound:
        sequence = actions(env, 8)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING):
            steps = run(env, sequence)
        assert time.monotonic() - began < 8  # did not wait for the one that hangs
        expected = run(sound, sequence)

        (fault,) = env.faults
        assert (fault.stream, fault.step) == (0, 4)
        assert fault.action == tuple(sequence[4, 0].tolist())
        assert fault.reason.startswith(reason)
        assert str(fault) in caplog.text
        assert "stream 0, step 4, action [" in str(fault)

        end = steps[4]
        assert (end.is_last[0], end.is_terminal[0], end.reward[0]) == (True, False, 0)
        assert np.array_equal(end.obs["where"][0], steps[3].obs["where"][0])  # the last good one
        assert steps[5].is_first.tolist() == [True, False]
        assert not np.array_equal(steps[5].obs["where"][0], steps[0].obs["where"][0])  # another seed
        assert steps[7].reward[0] == 2
        for ours, theirs in zip(steps, expected, strict=True):  # the other stream did not notice
            assert all(np.array_equal(a[1], b[1]) for a, b in zip(leaves(ours), leaves(theirs), strict=True))


def test_a_fault_at_the_start_is_tried_again_at_once():
    with broken(FailsToStart, sound_from=2) as env:
        steps = run(env, actions(env, 3))
        assert [step.is_first.tolist() for step in steps] == [[True, True], [False, False], [False, False]]
        assert [(fault.stream, fault.reason) for fault in env.faults] == [
            (0, "OSError: no such device"),
            (1, "OSError: no such device"),
        ]


def test_two_streams_that_hang_in_one_step():
    with broken(Hangs, sound_from=2, timeout=1.0) as env:
        steps = run(env, actions(env, 6))
        assert steps[4].is_last.all()
        assert steps[5].is_first.all()
        assert [fault.stream for fault in env.faults] == [0, 1]


def test_too_many_faults_are_a_failure_that_names_the_last():
    with broken(Raises, sound_from=1000, restart_limit=3) as env:
        sequence = actions(env, 20)
        with pytest.raises(
            EnvironmentFailure, match=r"failed 4 times, more than the 3 restarts allowed; .*stream 1, step 9"
        ) as failure:
            run(env, sequence)
        assert isinstance(failure.value.__cause__, RuntimeError)


def test_restarts_survive_a_saved_state():
    def fresh():
        return broken(Raises)

    with fresh() as env, fresh() as again:
        sequence = actions(env, 20)
        run(env, sequence[:4])
        for more in (1, 1, 3):  # at the fault, at the new episode's start, within it
            run(env, sequence[:more])
            state = env.save()
        assert again.restore(state) == []
        assert again._restarts.tolist() == [1, 0]  # they count towards the limit
        assert same(run(env, sequence), run(again, sequence))


def test_threads_end_with_their_environments():
    before = set(threading.enumerate())
    closed, dropped = make(Counter, count=1, seed=0), make(Counter, count=1, seed=0)
    run(closed, actions(closed, 2))
    threads = set(threading.enumerate()) - before
    assert len(threads) >= 2
    closed.close()
    del dropped  # never closed
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_wrong_reward_or_shape_is_a_fault():
    class WrongReward(Counter):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, np.inf, *rest

    class WrongShape(Counter):
        def step(self, action):
            obs, *rest = super().step(action)
            return obs | {"where": np.zeros(3)}, *rest

    for kind, reason in (
        (WrongReward, "reward is inf"),
        (WrongShape, r"observation has keys and shapes .*\(3,\)"),
    ):
        env = make(kind, count=1, seed=0, check=False, restart_limit=0)
        with env, pytest.raises(EnvironmentFailure, match=reason):
            run(env, actions(env, 2))


def noting(kind: type[Raises], sound_from: int = 1) -> type[Raises]:
    """A kind of environment that knows which of its instances are open, and how many were at once."""

    class Noting(kind):
        made, opened, most = 0, set(), 0

        def __init__(self):
            super().__init__()
            self.opened.add(self.number)
            Noting.most = max(Noting.most, len(self.opened))

        def close(self):
            self.opened.discard(self.number)
            if self.number == 0:
                raise RuntimeError("it does not close either")

    Noting.sound_from = sound_from
    return Noting


@pytest.mark.parametrize(
    ("kind", "sound_from", "left"),
    [(Raises, 1, {1, 2}), (GivesNaN, 1, {1, 2}), (FailsToStart, 3, {3, 4}), (Hangs, 1, {0, 1, 2})],
)
def test_what_breaks_is_closed_before_another_takes_its_place(kind, sound_from, left):
    """Also one that nobody had yet; but what hangs is left alone."""
    noted = noting(kind, sound_from)
    with make(noted, count=2, seed=0, action_repeat=1, check=False, timeout=1.0) as env:
        run(env, actions(env, 8))
        assert noted.opened == left
        assert noted.most == len(left)
    assert noted.opened == left & {0}


def test_what_broke_last_is_closed_with_the_rest():
    noted = noting(Raises)
    with make(noted, count=2, seed=0, action_repeat=1, check=False, restart_limit=0) as env:
        with pytest.raises(EnvironmentFailure, match="the belt slipped"):
            run(env, actions(env, 8))
        assert noted.opened == {0, 1}
    assert noted.opened == set()


def test_what_does_not_close_in_time_is_a_fault_of_its_own_stream():
    class Stays(Raises):
        made, sound_from = 1, 3  # of the numbers 1 and 2, the second stream's breaks

        def broken(self):
            return super().broken() and self.number == 2

        def close(self):
            time.sleep(3.0 if self.broken() else 0.0)

    with make(Stays, count=2, seed=0, action_repeat=1, check=False, timeout=0.5) as env:
        steps = run(env, actions(env, 7))
        assert [(fault.stream, fault.reason) for fault in env.faults] == [
            (1, "RuntimeError: the belt slipped"),
            (1, "no answer within 0.5 s"),
        ]
        assert [step.is_first.tolist() for step in steps[4:]] == [
            [False, False],
            [False, True],
            [False, False],
        ]


def test_what_a_saved_state_replaces_is_closed():
    with broken(Raises) as env:
        run(env, actions(env, 6))
        state = env.save()
    noted = noting(Raises)
    with make(noted, count=2, seed=0, action_repeat=1, check=False) as again:
        assert again.restore(state) == []
        assert noted.opened == {1, 2}
        assert noted.most == 2
    assert noted.opened == set()


def test_what_was_made_is_closed_if_the_next_cannot_be():
    class Scarce(noting(Raises)):
        def __init__(self):
            super().__init__()
            if self.number == 2:
                raise OSError("no licence is left")

    with pytest.raises(EnvironmentFailure, match="cannot be made here: OSError: no licence is left"):
        make(Scarce, count=4, seed=0, check=False)
    assert Scarce.opened == {2}  # it was never anybody's


def test_dm_control_is_watched_too():
    with make("walker-walk", count=2, seed=0, backend="dm_control") as env:
        sequence = actions(env, 4)
        run(env, sequence[:2])
        env._streams[1]._env.physics.data.qpos[0] = np.nan
        step = env.step(sequence[2])
        assert step.is_last.tolist() == [False, True]
        assert env.faults[0].stream == 1
        assert env.step(sequence[3]).is_first.tolist() == [False, True]
