import os
import re
import subprocess
import sys
from shlex import split

import pytest

import gpld
from gpld import cli
from gpld.config import Config, ConfigError, diff, override, with_presets
from gpld.doctor import Finding
from gpld.tasks import DMC


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gpld", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def trained(monkeypatch):
    """Let `gpld train` parse and validate, and record what it would have trained."""
    calls = []

    def train(arguments):
        calls.append(cli.parse_train(arguments))
        return 0

    monkeypatch.setitem(cli.COMMANDS, "train", train)
    return calls


@pytest.fixture(scope="module")
def train_help():
    code = "from gpld.cli import parse_train; parse_train(['--help'])"
    environment = os.environ | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8", check=True
    ).stdout


# The command


def test_help_lists_every_command_with_its_line():
    shown = run("--help")
    assert shown.returncode == 0
    for name, command in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.__doc__.splitlines()[0])}$", shown.stdout, re.M)
    assert run().stdout == shown.stdout


def test_version():
    assert run("--version").stdout == f"gpld {gpld.__version__}\n"


def test_an_unknown_command_is_told_in_a_line():
    told = run("docter")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == "gpld: 'docter' is not a command; did you mean doctor?\n"


def test_tasks_are_listed(capsys):
    assert cli.main(["tasks"]) == 0
    listed = capsys.readouterr().out
    assert all(task in listed for task in DMC)


@pytest.mark.parametrize(("stops", "status"), [(False, 0), (True, 1)])
def test_doctor_fails_only_if_training_is_stopped(monkeypatch, capsys, stops, status):
    findings = [Finding("a", "fine"), Finding("b", "broken", "mend it", stops_training=stops)]
    monkeypatch.setattr("gpld.doctor.examine", lambda: findings)
    assert cli.main(["doctor"]) == status
    assert "mend it" in capsys.readouterr().out


# Training options


def test_presets_are_defaults_and_options_beside_them_win():
    arguments = split("walker-walk --preset nano gpu --agent.model.deter 256 --env-steps 5000 --seed 3")
    config, _ = cli.parse_train(arguments)
    options = {"agent": {"model": {"deter": 256}}, "env_steps": 5000, "seed": 3}
    assert config == override(with_presets(Config("walker-walk"), ["nano", "gpu"]), options)
    assert type(config) is Config


def test_without_options_the_defaults_are_the_configs_own():
    assert cli.parse_train(["walker-walk"])[0] == Config("walker-walk")


def test_the_penalty_can_be_set_by_path():
    config, _ = cli.parse_train(
        split(
            "walker-run --agent.penalty.posterior 0.25 --agent.penalty.schedule custom "
            "--agent.penalty.custom 0 1.0 500 0.1 --replay.no-online"
        )
    )
    assert diff(Config("walker-run"), config) == {
        "agent.penalty.posterior": (0.5, 0.25),
        "agent.penalty.schedule": ("sqrt", "custom"),
        "agent.penalty.custom": ((), ((0, 1.0), (500, 0.1))),
        "replay.online": (True, False),
    }


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["walker-walk"], "runs/walker-walk-seed0"),
        (["gym:ALE/Pong-v5", "--seed", "2"], "runs/gym-ALE-Pong-v5-seed2"),
        (["walker-walk", "--out", "elsewhere/here"], "elsewhere/here"),
    ],
)
def test_the_run_folder(arguments, folder):
    assert cli.parse_train(arguments)[1].as_posix() == folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["task: ''", "a task of the DeepMind Control suite"]),
        (["walker-wlak"], ["task: 'walker-wlak'", "did you mean walker-walk"]),
        (["walker-walk", "--agent.penalty.rho", "1.5"], ["agent.penalty.rho: 1.5", "in (0, 1]"]),
        (["walker-walk", "--preset", "12n"], ["preset: '12n'", "did you mean 12m"]),
    ],
)
def test_a_mistake_is_told_in_one_line_without_a_traceback(trained, capsys, arguments, words):
    assert cli.main(["train", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("gpld train: ")
    assert told.err.count("\n") == 1
    assert all(word in told.err for word in words)
    assert trained == []


@pytest.mark.parametrize(
    "arguments", [["walker-walk", "--agent.model.detr", "64"], ["walker-walk", "--seed", "x"]]
)
def test_arguments_that_do_not_parse_exit_with_status_2(trained, capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""


def test_help_explains_every_option_and_preset(train_help):
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", train_help).split())
    for name, preset in cli.PRESETS.items():
        assert f"{name} {preset.description}" in words
    options = re.findall(r"^│ --\S+.*\n((?:│ {6}.*\n)*)", train_help, re.M)
    assert len(options) > 80
    assert all(len(text.split()) > 3 for text in options)


def test_each_section_of_the_help_fits_a_screen(train_help):
    sections = train_help.split("╭─")
    assert len(sections) == 14
    for section in sections:
        assert section.count("\n") <= 50, section.splitlines()[0]
        assert max(map(len, section.splitlines())) <= 90


def test_interrupting_exits_with_the_shells_status(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", interrupted)
    assert cli.main(["doctor"]) == 130


def test_only_user_mistakes_are_shortened(monkeypatch):
    def broken(_):
        raise ValueError("a bug")

    monkeypatch.setitem(cli.COMMANDS, "doctor", broken)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["doctor"])
    assert issubclass(ConfigError, ValueError)
