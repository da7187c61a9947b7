"""The expected time of runs on a CPU."""

import importlib.util

import jax
import pytest

from gpld import cli
from gpld.config import Config, ConfigError, with_presets
from gpld.population import Member
from gpld.training import _groups, duration


def test_the_arithmetic_is_near_to_what_was_counted():
    """Of the 12M agent 0.66 TFLOP were counted on a GPU."""
    published = with_presets(Config("walker-walk"), ["12m"])
    assert duration.update_flops(published) == pytest.approx(0.66e12, rel=0.25)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (89.0, "89 seconds"),
        (700.0, "12 minutes"),
        (5400.0, "2 hours"),
        (86400.0, "24 hours"),
        (2e6, "23 days"),
    ],
)
def test_words(seconds, words):
    assert duration.in_words(seconds) == words


def test_short_runs_are_not_announced_and_hopeless_ones_have_an_alternative():
    config = Config("walker-walk")
    assert duration.duration_lines(599.0, config) == []
    assert duration.duration_lines(7200.0, config) == ["expected time: about 2 hours on this CPU"]
    lines = duration.duration_lines(2e6, config)
    assert lines[0] == "expected time: about 23 days on this CPU"
    assert lines[-1].strip() == "gpld train walker-walk --preset nano --env-steps 26000"
    *_, small = duration.duration_lines(2e6, with_presets(config, ["pixels"]))
    assert small.strip() == "gpld train walker-walk --env.pixels --preset nano --env-steps 26000"


def test_small_agents_use_less_of_a_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(duration, "product_rate", lambda: 1e11)
    for preset, share in (("nano", 0.12), ("1m", 0.25)):
        config = with_presets(Config("walker-walk"), [preset])
        updates = config.updates_at(config.agent_steps)
        expected = updates * duration.update_flops(config) / (share * 1e11)
        assert duration.expected_seconds([Member(config, tmp_path)]) == pytest.approx(expected)


def test_what_is_done_does_not_count(monkeypatch, tmp_path):
    monkeypatch.setattr(duration, "product_rate", lambda: 1e11)
    config = with_presets(Config("walker-walk"), ["nano"])
    runs = [Member(config, tmp_path / "a"), Member(config, tmp_path / "b")]
    one, both = (duration.expected_seconds(some) for some in (runs[:1], runs))
    assert both == pytest.approx(2 * one)
    steps = {tmp_path / "a" / "checkpoints": [500, config.env_steps], tmp_path / "b" / "checkpoints": []}
    monkeypatch.setattr(_groups, "saved_steps", steps.__getitem__)
    assert duration.expected_seconds(runs) == pytest.approx(one)
    assert duration.expected_seconds(runs[:1]) == 0


def test_a_product_is_timed():
    assert 1e8 < duration.product_rate(64, 2) < 1e15
    assert jax.default_backend() == "cpu"


@pytest.mark.parametrize("task", ["gym:Pendulm-v1", "jax:gpld.envs:CartPol"])
def test_a_task_that_cannot_be_found_is_told_before_its_time(monkeypatch, capsys, tmp_path, task):
    monkeypatch.setattr(duration, "product_rate", lambda: 1e11)
    with pytest.raises(ConfigError, match=r"Pendulm|CartPol"):
        cli._accepts_duration([Member(Config(task), tmp_path)], False)
    assert capsys.readouterr().out == ""


def test_a_missing_simulator_is_told_before_the_time(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(duration, "product_rate", lambda: 1e11)
    find = importlib.util.find_spec
    simulators = {"envpool", "dm_control"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in simulators else find(name))
    with pytest.raises(ConfigError, match="task: 'walker-walk' needs dm_control, which is not inst"):
        cli._accepts_duration([Member(Config("walker-walk"), tmp_path)], False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("answer", "yes", "terminal", "begins"),
    [("y", False, True, True), ("", False, True, False), ("", True, True, True), ("", False, False, True)],
)
def test_a_hopeless_run_is_asked_about_where_somebody_can_answer(
    monkeypatch, capsys, tmp_path, answer, yes, terminal, begins
):
    monkeypatch.setattr(duration, "product_rate", lambda: 1e11)
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    members = [Member(Config("walker-walk"), tmp_path)]
    assert cli._accepts_duration(members, yes) == begins
    printed = capsys.readouterr().out
    assert "days on this CPU" in printed
    assert "gpld train walker-walk --preset nano" in printed
