"""Learning from host memory: the next batch is read while the device updates, and is the same batch."""

import pytest

from gpld import replay
from gpld.training import _program
from tests.training.test_program import CONFIG, KEYS, after, copied, same


@pytest.mark.slow
def test_batches_read_ahead_are_those_read_in_time():
    ahead = after(40, "host")
    in_time = copied(ahead)
    for _ in range(3):
        in_time = _program.learn(CONFIG, in_time, 1, KEYS.sample)
    ahead = _program.learn(CONFIG, ahead, 3, KEYS.sample)
    assert int(ahead.agent.updates[0]) == 3
    assert same(ahead.agent, in_time.agent)
    assert same(ahead.replay, in_time.replay)
    assert same(ahead.sums, in_time.sums)


def test_a_batch_is_read_after_the_update_before_it_was_begun_and_before_it_is_waited_for(monkeypatch):
    order = []

    def noted(owner, name):
        function = getattr(owner, name)

        def call(*arguments):
            order.append(name.strip("_"))
            return function(*arguments)

        monkeypatch.setattr(owner, name, call)

    noted(replay, "read")
    noted(replay, "complete")
    noted(replay, "write_back")
    noted(_program, "_update_all")
    _program.learn(CONFIG, after(40, "host"), 3, KEYS.sample)
    update = ["complete", "update_all"]
    assert order == [
        "read",
        *update,
        "read",
        "write_back",
        *update,
        "read",
        "write_back",
        *update,
        "write_back",
    ]
