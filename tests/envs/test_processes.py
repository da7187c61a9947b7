"""dm_control in processes of its own: the same bits as in this one, and faults that go no further."""

import gc
import os
import signal
import sys
import time

import numpy as np
import pytest

from gpld.envs import Hosts, make
from gpld.envs._base import Stream
from gpld.envs._process import Host
from gpld.envs._serial import SerialEnv
from gpld.types import Spaces
from tests.envs.helpers import actions, run, same


class Clock(Stream):
    """Counts its steps; does what it is asked to when the count is reached."""

    def __init__(self, name: int, at: int = 0, fault: str = ""):
        self.spaces = Spaces.of({"who": (2,)}, 1)
        self.name, self.time, self.at, self.fault = name, 0, at, fault

    def _observe(self):
        return {"who": np.array([self.name, self.time], np.float32)}

    def reset(self):
        self.time = 0
        return self._observe()

    def frame(self, action):
        self.time += 1
        if self.time == self.at:
            if self.fault == "raise":
                raise Odd("the belt", "slipped")
            if self.fault == "die":
                os._exit(7)
            time.sleep(60)
        return self._observe(), float(action[0]), False, self.time == 20

    def save(self):
        return self.time

    def restore(self, state):
        self.time = state
        return True

    def render(self, height, width):
        print("engines may print")
        return np.full((height, width, 3), self.name, np.uint8)

    def close(self):
        pass


class Odd(Exception):  # noqa: N818
    """Cannot be pickled: it is made of two things and remembers one."""

    def __init__(self, one: str, two: str):
        super().__init__(f"{one} {two}")


class MakeClock:
    """Stream 1's first instance is the one with a fault."""

    def __init__(self, index: int, restart: int, fault: str):
        self.arguments = (index + 10 * restart, 3 * (index == 1 and restart == 0), fault)

    def __call__(self):
        return Clock(*self.arguments)


def clocks(hosts: list[Host], fault: str = "", **options) -> SerialEnv:
    """Four streams in two processes: 0 and 2, 1 and 3."""

    def make_stream(index: int, restart: int) -> Stream:
        return hosts[index % len(hosts)].stream(index, MakeClock(index, restart, fault))

    return SerialEnv(make_stream, count=4, action_repeat=1, hosts=hosts, **options)


@pytest.fixture(scope="module")
def hosts():
    made = [Host(), Host()]
    yield made
    for host in made:
        host.end()


def in_use(hosts: list[Host]) -> list[int]:
    return [host._process._python.pid for host in hosts]


def test_processes_give_the_bits_of_one():
    one, two = (make("walker-walk", count=3, seed=5, backend="dm_control", processes=n) for n in (1, 2))
    with one, two:
        sequence = actions(one, 12)
        assert same(run(one, sequence[:6]), run(two, sequence[:6]))
        two.reset([1])
        run(two, sequence[:2])
        assert two.restore(one.save()) == []  # a run may go on with another number of them
        state = two.save()
        assert same(run(one, sequence[6:]), run(two, sequence[6:]))
        assert one.restore(state) == []
        assert two.restore(state) == []
        assert same(run(one, sequence), run(two, sequence))


def test_an_error_is_that_streams_alone(hosts):
    env = clocks(hosts, "raise")
    before = in_use(hosts)
    steps = [env.step(np.zeros((4, 1))) for _ in range(6)]
    (fault,) = env.faults
    assert (fault.stream, fault.step, fault.reason) == (1, 3, "RuntimeError: Odd: the belt slipped")
    assert steps[3].is_last.tolist() == [False, True, False, False]
    assert steps[4].is_first.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(steps[5].obs["who"], [[0, 5], [11, 1], [2, 5], [3, 5]])
    assert env.render(2, height=2, width=3).tolist() == np.full((2, 3, 3), 2).tolist()
    assert in_use(hosts) == before


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("die", "ProcessEnded: its process ended with status 7"),
        # As long as a new process may take to start on a busy machine.
        pytest.param("hang", "no answer within 10 s", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_or_hangs_takes_its_streams_and_no_others(hosts, fault, reason):
    env = clocks(hosts, fault, timeout=10.0, restart_limit=1)  # the two restarts count as one
    before = in_use(hosts)
    steps = [env.step(np.ones((4, 1))) for _ in range(7)]
    assert [(f.stream, f.step) for f in env.faults] == [(1, 3), (3, 3)]
    assert env.faults[0].reason == reason
    assert env.faults[1].reason.startswith("ProcessEnded: its process ended with status")
    assert steps[3].is_last.tolist() == [False, True, False, True]
    assert steps[3].reward.tolist() == [1, 0, 1, 0]
    assert not steps[3].is_terminal.any()
    np.testing.assert_array_equal(steps[3].obs["who"], [[0, 3], [1, 2], [2, 3], [3, 2]])
    assert steps[4].is_first.tolist() == [False, True, False, True]
    np.testing.assert_array_equal(steps[6].obs["who"], [[0, 6], [11, 2], [2, 6], [13, 2]])
    assert [pid == old for pid, old in zip(in_use(hosts), before, strict=True)] == [True, False]


def test_a_process_killed_between_steps(hosts):
    env = clocks(hosts, restart_limit=1)
    env.step(np.zeros((4, 1)))
    pid = in_use(hosts)[1]
    assert os.getsid(pid) == pid  # a terminal's Ctrl-C does not reach it
    os.kill(pid, signal.SIGTERM)  # a cluster's does; only the training heeds it
    env.step(np.zeros((4, 1)))
    os.kill(pid, signal.SIGKILL)
    state = env.save()
    assert env.step(np.zeros((4, 1))).is_last.tolist() == [False, True, False, True]
    assert env.restore(state) == [1, 3]  # what was lost begins new episodes
    assert env.step(np.zeros((4, 1))).is_first.tolist() == [False, True, False, True]


@pytest.mark.slow
def test_kept_processes_give_the_bits_of_new_environments_and_end_at_last():
    how = {"count": 3, "backend": "dm_control"}
    with Hosts() as kept:
        used = []
        for seed in (5, 6, 5):
            again = make("walker-walk", **how, seed=seed, processes=2, hosts=kept)
            with again, make("walker-walk", **how, seed=seed) as new:
                sequence = actions(new, 4)
                assert same(run(again, sequence), run(new, sequence))
            used.append([host._process._python for host in kept.take(2)])
            if seed == 6:
                used[-1][1].kill()
                used[-1][1].wait()
        assert used[0] == used[1]
        assert [one is two for one, two in zip(used[1], used[2], strict=True)] == [True, False]
        assert [python.poll() for python in used[2]] == [None, None]
    assert None not in [python.poll() for python in used[2]]


def test_errors_of_making_come_here_and_processes_end_with_their_owner():
    host = Host()
    with pytest.raises(ZeroDivisionError):
        host.stream(0, _Fails())
    python = host._process._python
    assert python.poll() is None
    del host
    gc.collect()
    assert python.poll() is not None
    with pytest.raises(ValueError, match="processes must be at least 0, not -1"):
        make("walker-walk", count=1, seed=0, processes=-1)


class _Fails:
    def __call__(self):
        return sys.maxsize // 0
