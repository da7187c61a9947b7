import io
import sys

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from gpld.display.progress import PLAIN_SECONDS, Count, Progress, Speed


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain():
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def lines(console):
    return console.file.getvalue().splitlines()


def test_speed_and_time_left_are_those_of_the_clock(clock, plain):
    progress = Progress(10_000, "title", console=plain, clock=clock)
    for i in range(11):
        progress.update(env_steps=40 * i, updates=5 * i)
        clock.now += 2.0
    facts = progress.facts()
    assert facts["speed"] == "20 env steps/s, 2.5 updates/s"
    assert facts["time"] == "0:00:22 passed, 0:08:00 left"  # 9,600 env steps at 20 a second
    assert facts["env steps"] == "400 of 10,000 (4%)"
    assert facts["updates"] == "50"


def test_time_left_ignores_what_was_done_before_a_resume(clock, plain):
    progress = Progress(10_000, "title", start=9000, console=plain, clock=clock)
    assert progress.facts()["env steps"] == "9,000 of 10,000 (90%)"
    clock.now += 500  # loading and compiling
    progress.update(env_steps=9000, updates=4000)
    assert "speed" not in progress.facts()
    clock.now += 10
    progress.update(env_steps=9100, updates=4040)
    assert progress.facts()["speed"] == "10 env steps/s, 4 updates/s"
    assert progress.facts()["time"] == "0:08:30 passed, 0:01:30 left"


def test_a_run_that_stands_still_or_is_done_does_not_break_the_time_left(clock, plain):
    progress = Progress(100, "title", console=plain, clock=clock)
    for env_steps, expected in (
        (50, "0:00:00 passed"),
        (50, "0:00:01 passed"),
        (300, "0:00:02 passed, 0:00:00 left"),
    ):
        progress.update(env_steps=env_steps, updates=1)
        assert progress.facts()["time"] == expected
        clock.now += 1


def test_speed_is_that_of_the_last_minute():
    speed = Speed(window=60.0)
    for second in range(200):
        speed.add(Count(float(second), min(second, 100) * 1000.0, second * 2.0))
    assert speed.per_second() == Count(1.0, 0.0, 2.0)
    for second in range(200, 231):
        speed.add(Count(float(second), 100_000.0 + (second - 199) * 60.0, second * 2.0))
    assert speed.per_second() == Count(1.0, 31.0, 2.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-4, 30.0), min_size=2, max_size=300), st.floats(0.1, 1e4))
def test_a_constant_speed_is_found_however_the_updates_come(gaps, rate):
    speed, now = Speed(window=60.0), 0.0
    for gap in gaps:
        speed.add(Count(now, rate * now, 2 * rate * now))
        now += gap
    found = speed.per_second()
    assert found.env_steps == pytest.approx(rate, rel=1e-6)
    assert found.updates == pytest.approx(2 * rate, rel=1e-6)


def test_a_fast_loop_leaves_few_counts():
    speed = Speed(window=60.0)
    for i in range(100_000):
        speed.add(Count(i / 1000, float(i), 0.0))
    assert len(speed._counts) <= 125
    assert speed.per_second().env_steps == pytest.approx(1000.0)


def test_without_a_terminal_there_is_a_line_now_and_then(clock, plain):
    with Progress(6000, "walker-walk, seed 3", console=plain, clock=clock) as progress:
        for i in range(601):
            progress.update(env_steps=10 * i, updates=3 * i, values=[{"train/return": float(i)}])
            clock.now += 0.1
    start, *written = lines(plain)
    assert start == "walker-walk, seed 3"
    assert len(written) == 2  # one after 30 of 60 seconds, one at the end, none wrapped
    assert written[0] == (
        "env steps 3,000 of 6,000 (50%); updates 900; time 0:00:30 passed, 0:00:30 left; "
        "speed 100 env steps/s, 30 updates/s; training return 300.0"
    )
    assert written[1].startswith("env steps 6,000 of 6,000 (100%); updates 1,800;")
    assert PLAIN_SECONDS == 30.0


def test_the_latest_of_every_value_is_shown(clock, plain):
    progress = Progress(100, "title", console=plain, clock=clock)
    progress.update(env_steps=1, updates=1, values=[{"eval/return": 212.44, "eval/episodes": 3.0}])
    progress.update(
        env_steps=2, updates=2, values=[{"train/return": 7.0, "loss/total": 123.456, "loss/value": 1e-4}]
    )
    progress.update(env_steps=3, updates=3, values=[{"loss/total": 12345.6, "updates/skipped": 0.0}])
    facts = progress.facts()
    assert facts["evaluation return"] == "212.4 (mean of 3 episodes)"
    assert facts["training return"] == "7.0"
    assert facts["losses"] == "total 12,346, value 0.0001"
    assert "skipped updates" not in facts
    progress.update(env_steps=3, updates=3, values=[{"updates/skipped": 2.0, "loss/total": float("nan")}])
    assert progress.facts()["skipped updates"] == "2 (not finite)"
    assert progress.facts()["losses"] == "total nan, value 0.0001"


def test_messages_are_printed_as_they_are(plain, clock):
    with Progress(100, "title", console=plain, clock=clock) as progress:
        progress.message(
            "replay [bold]is[/bold] on the device, and this line is longer than the terminal is wide"
        )
    assert lines(plain)[1] == (
        "replay [bold]is[/bold] on the device, and this line is longer than the terminal is wide"
    )


def test_a_terminal_shows_everything_and_keeps_messages(clock):
    screen = Console(
        file=io.StringIO(), force_terminal=True, width=100, color_system=None, _environ={"TERM": "xterm"}
    )
    with Progress(1000, "walker-walk, seed 3", console=screen, clock=clock) as progress:
        progress.update(env_steps=0, updates=0)
        clock.now += 5
        progress.message("resumed")
        progress.update(env_steps=250, updates=20, values=[{"eval/return": 50.0, "eval/episodes": 3.0}])
    shown, last = screen.file.getvalue().rsplit("walker-walk, seed 3", 1)
    bar, *facts = [line.strip() for line in last.splitlines()[1:]]
    assert set(bar) <= set("━╸╺")
    assert [" ".join(fact.split()) for fact in facts[:5]] == [
        "env steps 250 of 1,000 (25%)",
        "updates 20",
        "time 0:00:05 passed, 0:00:15 left",
        "speed 50 env steps/s, 4 updates/s",
        "evaluation return 50.0 (mean of 3 episodes)",
    ]
    assert "resumed" in shown


def test_the_end_of_a_run_gives_the_terminal_back(clock):
    before = sys.stdout
    screen = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    with pytest.raises(KeyboardInterrupt), Progress(1000, "title", console=screen, clock=clock):
        raise KeyboardInterrupt
    assert sys.stdout is before
    assert screen.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is visible again


def test_a_population_shows_its_methods_and_the_speed_of_all(clock, plain):
    labels = ["gpld", "gpld", "dreamerv3"]
    progress = Progress(10_000, "title", labels=labels, start=100, updates=7, console=plain, clock=clock)
    assert progress.facts()["updates"] == "7 in each of 3 runs"
    for i in range(11):
        values = [
            {"eval/return": 10.0 * run + i, "eval/episodes": 3.0, "loss/total": 1.0} for run in range(3)
        ]
        values[1]["updates/skipped"] = 2.0
        progress.update(env_steps=100 + 40 * i, updates=7 + 5 * i, values=values)
        clock.now += 2.0
    facts = progress.facts()
    assert facts["env steps"] == "500 of 10,000 (5%) in each of 3 runs"
    assert facts["speed"] == "60 env steps/s, 7.5 updates/s of all runs"
    assert facts["time"] == "0:00:22 passed, 0:07:55 left"
    assert facts["evaluation return"] == "gpld 15.0 (10.0 to 20.0), dreamerv3 30.0 (mean of 3 episodes)"
    assert facts["skipped updates"] == "2 (not finite)"
    assert "losses" not in facts
    assert "training return" not in facts
