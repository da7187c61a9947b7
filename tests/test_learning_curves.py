"""What benchmarks/learning.py writes about runs, on made-up metrics."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from gpld.config import Config, ConfigError, with_presets
from gpld.population import Member
from tests import scripts


@pytest.fixture(scope="module")
def learning():
    return scripts.load("benchmarks/learning.py")


def log(path: Path, *rows: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_what_was_asked_for_is_changed_and_nothing_else(learning):
    options = learning.Options(
        preset=("nano", "pixels"),
        horizon=5,
        gradient="dynamics",
        envs=3,
        repeat=1,
        train_ratio=64.0,
        eval_every=7,
    )
    config = learning.configured(options)
    assert config.env.pixels
    assert (config.agent.behavior.horizon, config.eval.every) == (5, 7)
    assert config.agent.behavior.gradient == "dynamics"
    assert (config.env.count, config.env.action_repeat, config.replay.train_ratio) == (3, 1, 64)
    unchanged = learning.configured(learning.Options(task="cheetah-run", env_steps=4, preset=options.preset))
    assert unchanged == with_presets(Config("cheetah-run", env_steps=4), options.preset)


def test_each_method_has_its_own_number_of_seeds(learning, tmp_path: Path):
    def names(**seeds: int) -> list[str]:
        options = learning.Options(**seeds)
        return [
            member.name for member in learning.members_of(learning.configured(options), options, tmp_path)
        ]

    assert names(seeds=1) == ["dreamerv3-seed0", "gpld-seed0"]
    assert names(seeds=2, gpld_seeds=0) == ["dreamerv3-seed0", "dreamerv3-seed1"]
    assert names(seeds=0, gpld_seeds=1) == ["gpld-seed0"]


def test_all_seeds_learn_at_each_rate(learning, tmp_path: Path):
    def rates(*learning_rate: float) -> dict[str, float]:
        options = learning.Options(seeds=1, learning_rate=learning_rate)
        return {
            str(member.folder.relative_to(tmp_path)): member.config.agent.optimizer.learning_rate
            for member in learning.members_of(learning.configured(options), options, tmp_path)
        }

    assert rates() == {"dreamerv3-seed0": 4e-5, "gpld-seed0": 4e-5}
    assert rates(0.25) == {"dreamerv3-seed0": 0.25, "gpld-seed0": 0.25}
    assert rates(0.25, 2e-4) == {
        "0.25/dreamerv3-seed0": 0.25,
        "0.25/gpld-seed0": 0.25,
        "0.0002/dreamerv3-seed0": 2e-4,
        "0.0002/gpld-seed0": 2e-4,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds: 0 is not allowed; it must be at least 1 if gpld_seeds is not"),
        (
            {"seeds": 0, "gpld_seeds": 0},
            "seeds: 0 is not allowed; it must be at least 1 if gpld_seeds is not",
        ),
        ({"seeds": -1}, "seeds: -1 is not allowed; it must be at least 0"),
        ({"gpld_seeds": -2}, "gpld_seeds: -2 is not allowed; it must be at least 0"),
        ({"seconds": -0.5}, "seconds: -0.5 is not allowed; it must be at least 0"),
        ({"env_steps": -4}, "env_steps: -4 is not allowed"),
        ({"horizon": -1}, "agent.behavior.horizon: -1 is not allowed"),
        ({"learning_rate": (2e-4, -1.0)}, "agent.optimizer.learning_rate: -1.0 is not allowed"),
        ({"envs": 0}, "env.count: 0 is not allowed"),
        ({"repeat": 0}, "env.action_repeat: 0 is not allowed"),
        ({"train_ratio": 0.0}, "replay.train_ratio: 0.0 is not allowed"),
        ({"eval_every": -1}, "eval.every: -1 is not allowed"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_written(learning, tmp_path, changes, message):
    options = learning.Options(runs=tmp_path / "runs", out=tmp_path / "results", **changes)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        learning.main(options)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_updates_per_second_leave_out_evaluations_and_new_starts(learning, tmp_path: Path):
    assert learning.updates_per_second(tmp_path) is None
    seconds = [(0, 10.0), (100, 20.0), (200, 30.0), (200, 90.0), (300, 100.0), (300, 5.0), (400, 7.0)]
    rows = [{"env_steps": 4 * updates, "updates": updates, "seconds": s} for updates, s in seconds]
    log(tmp_path / "timing.jsonl", *rows)
    assert learning.updates_per_second(tmp_path) == pytest.approx(10.0)  # of 10, 10, 10 and 50


def test_writes_what_is_logged(learning, tmp_path: Path):
    members = [
        Member(Config(task="cartpole-swingup", seed=3), tmp_path / "gpld-seed3"),
        Member(Config(task="cartpole-swingup"), tmp_path / "not-begun"),
    ]
    path = tmp_path / "learning.json"
    learning.write(path, {"task": "cartpole-swingup"}, members)
    assert json.loads(path.read_text())["env_steps"] == 0
    log(
        members[0].folder / "metrics.jsonl",
        {"env_steps": 400, "updates": 100, "train/return": 20.0, "loss/penalty_posterior": 0.25},
        {"env_steps": 800, "updates": 200, "eval/return": 30.5},
    )
    returned = learning.write(path, {"task": "cartpole-swingup"}, members)
    written = json.loads(path.read_text())
    assert (written["env_steps"], written["updates"], written["updates_per_second"]) == (800, 200, None)
    run, other = written["runs"]
    assert run == {
        "method": "GPLD-DreamerV3",
        "seed": 3,
        "learning_rate": 4e-5,
        "env_steps": [800],
        "returns": [30.5],
        "training": {"400": 20.0},
        "jacobian": {"400": 0.25},
    }
    assert other["returns"] == []
    assert [run["returns"] for run in returned] == [[30.5], []]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("asked", "name"), [({}, "learning-walker-walk"), ({"name": "walker-2.5"}, "walker-2.5")]
)
def test_json_and_picture_are_named_as_asked(learning, tmp_path: Path, monkeypatch, asked, name):
    def train_all(members):
        for member in members:
            log(member.folder / "metrics.jsonl", {"env_steps": 400, "updates": 100, "eval/return": 30.5})

    monkeypatch.setattr(learning, "train_all", train_all)
    monkeypatch.setattr(learning.summary, "show_all", lambda members: None)
    runs, out = tmp_path / "runs", tmp_path / "results"
    learning.main(learning.Options(task="walker-walk", seeds=1, runs=runs, out=out, **asked))
    assert {path.name for path in out.iterdir()} == {f"{name}.json", f"{name}.png"}
    written = json.loads((out / f"{name}.json").read_text())
    assert "task='walker-walk', seeds=1" in written["options"]
    assert str(tmp_path) not in written["options"]


def test_draws_published_runs_beside_ours(learning, tmp_path: Path, monkeypatch):
    run = {"method": "DreamerV3", "learning_rate": 0.5, "env_steps": [10_000, 30_000], "returns": [1.0, 2.0]}
    learning.draw(tmp_path / "walker.png", "walker-walk", 2, [run])
    assert (tmp_path / "walker.png").read_bytes().startswith(b"\x89PNG")
    drawn = []
    monkeypatch.setattr(learning.curve, "save_curve", lambda path, lines, title: drawn.append(lines))
    learning.draw(tmp_path / "walker.png", "walker-walk", 2, [run])
    learning.draw(tmp_path / "pixels.png", "pixels-walker-walk", 2, [run])
    learning.draw(tmp_path / "once.png", "walker-walk", 1, [run])
    learning.draw(tmp_path / "two.png", "other-task", 2, [run, run | {"learning_rate": 1e-4}])
    (ours, *published), alone, (_, *by_agent_steps), two = drawn
    assert ours == ("DreamerV3", [10_000, 30_000], [1.0, 2.0]) == alone[0]
    assert len(alone) == 1
    assert [label for label, *_ in two] == ["DreamerV3, 0.5", "DreamerV3, 0.0001"]
    assert len(published) == 5
    assert {label for label, *_ in published} == {"published"}
    assert list(published[0][1]) == [10_000, 20_000, 30_000]
    assert list(by_agent_steps[0][1]) == [5_000, 10_000, 15_000, 20_000, 25_000, 30_000]
    assert list(by_agent_steps[0][2][:3]) == list(published[0][2])


def test_time_runs_out(learning):
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    counted: list[float] = []
    try:
        with learning.stopped_after(0.05), learning.repeatedly(lambda: counted.append(0.0), 0.02):
            time.sleep(0.3)
        assert received == [signal.SIGTERM]
        assert len(counted) >= 2
        with learning.stopped_after(0.05):
            pass
        time.sleep(0.1)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
