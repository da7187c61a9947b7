import json
import os
import re
import signal
import socket
import subprocess
import sys
from shlex import split

import pytest

import gpld
from gpld import cli, machine
from gpld.config import (
    OTHER_NAMES,
    Config,
    ConfigError,
    diff,
    evaluated_once,
    flat,
    learns_nothing,
    load,
    override,
    with_presets,
)
from gpld.display import summary
from gpld.doctor import Finding
from gpld.envs import EnvironmentFailure
from gpld.population import METHODS
from gpld.profiling import Operation, Profile
from gpld.tasks import DMC
from gpld.training import CheckpointError, Result, TrainingStopped
from tests.training import helpers


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
    output = run("docter")
    assert (output.returncode, output.stdout) == (2, "")
    assert output.stderr == "gpld: 'docter' is not a command; did you mean doctor?\n"


def test_tasks_are_listed(capsys):
    assert cli.main(["tasks"]) == 0
    listed = capsys.readouterr().out
    assert all(task in listed for task in DMC)


@pytest.mark.parametrize(("stops", "status"), [(False, 0), (True, 1)])
def test_doctor_fails_only_if_training_is_stopped(monkeypatch, capsys, stops, status):
    findings = [Finding("a", "fine"), Finding("b", "broken", "fix it", stops_training=stops)]
    monkeypatch.setattr("gpld.doctor.examine", lambda: findings)
    assert cli.main(["doctor"]) == status
    assert "fix it" in capsys.readouterr().out


# Training options


def test_presets_are_defaults_and_options_beside_them_win():
    arguments = split("walker-walk --preset nano gpu --agent.model.deter 256 --env-steps 5000 --seed 3")
    config = cli.parse_train(arguments).config
    options = {"agent": {"model": {"deter": 256}}, "env_steps": 5000, "seed": 3}
    assert config == override(with_presets(Config("walker-walk"), ["nano", "gpu"]), options)
    assert type(config) is Config


def test_a_file_of_options_lies_beneath_presets_and_options(tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.json"
    path.write_text(
        '{"task": "walker-run", "seed": 7, "env": {"count": 2}, "agent": {"compute": "bfloat16"}}'
    )
    arguments = ["--config", str(path), "--preset", "nano", "--env-steps", "5000"]
    stored = {"seed": 7, "agent": {"compute": "bfloat16"}, "env_steps": 5000}
    expected = override(with_presets(Config("walker-run"), ["nano"]), stored)
    options = cli.parse_train(arguments)
    assert options.config == expected
    monkeypatch.setattr("jax.devices", lambda: [Device("gpu", "H200")])
    assert cli.fit_device(options, arguments).config == override(expected, {"agent": {"unroll": 8}})
    assert cli.parse_train(["walker-walk", f"--config={path}"]).config.task == "walker-walk"
    path.write_text('{"agent": {"unroll": 2, "compute": "float32"}}')  # a task beside it, and nothing to fit
    capsys.readouterr()
    options = cli.parse_train(["walker-walk", *arguments])
    assert cli.fit_device(options, arguments) == options
    assert capsys.readouterr().out == ""


def test_without_options_the_defaults_are_the_configs_own():
    assert cli.parse_train(["walker-walk"]).config == Config("walker-walk")


def test_the_penalty_can_be_set_by_path():
    config = cli.parse_train(
        split(
            "walker-run --agent.penalty.posterior 0.25 --agent.penalty.schedule custom "
            "--agent.penalty.custom 0 1.0 500 0.1 --replay.no-online"
        )
    ).config
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
    ((_, found),) = cli.parse_train(arguments).members
    assert found.as_posix() == folder


@pytest.mark.parametrize(
    ("arguments", "folders"),
    [
        ("--seeds 0..2", ["gpld-seed0", "gpld-seed1", "gpld-seed2"]),
        ("--seeds 0 3 7..8", ["gpld-seed0", "gpld-seed3", "gpld-seed7", "gpld-seed8"]),
        ("--seeds 4 5 --method both", ["gpld-seed4", "gpld-seed5", "dreamerv3-seed4", "dreamerv3-seed5"]),
        ("--method dreamerv3 --seed 2", ["dreamerv3-seed2"]),
        ("--seed 1 --method gpld dreamerv3", ["gpld-seed1", "dreamerv3-seed1"]),
        ("--agent.penalty.posterior 0 --seeds 0 1", ["dreamerv3-seed0", "dreamerv3-seed1"]),
    ],
)
def test_runs_of_several_seeds_and_methods(arguments, folders):
    members = cli.parse_train(["walker-run", *split(arguments)]).members
    assert [member.folder.as_posix() for member in members] == [f"runs/walker-run/{x}" for x in folders]
    for member in members:
        method, seed = member.name.split("-seed")
        penalty = {"posterior": 0.5 if method == "gpld" else 0.0}
        expected = override(Config("walker-run"), {"seed": int(seed), "agent": {"penalty": penalty}})
        assert member.config == expected


@pytest.mark.parametrize(("pixels", "floor"), [("", 0.1), ("--env.pixels", 0.01)])
def test_the_penalty_as_launched_is_a_method_beside_others(pixels, floor):
    arguments = split(f"walker-run {pixels} --method both gpld-launched --agent.penalty.prior 0.25")
    members = cli.parse_train(arguments).members
    assert [member.name for member in members] == ["gpld-seed0", "dreamerv3-seed0", "gpld-launched-seed0"]
    penalties = [member.config.agent.penalty for member in members]
    assert [(p.posterior, p.prior) for p in penalties] == [(0.5, 0.25), (0.0, 0.0), (0.5, 0.25)]
    assert [(p.scaling, p.floor) for p in penalties] == [("sampled", 0.001)] * 2 + [("all", floor)]


def test_a_files_seed_gives_way_to_those_that_are_named(tmp_path):
    (tmp_path / "mine.json").write_text('{"seed": 5}')
    line = ["walker-run", "--config", str(tmp_path / "mine.json")]
    named = [*line, "--seeds", "0..1"]
    assert [member.config.seed for member in cli.parse_train(named).members] == [0, 1]
    ((config, folder),) = cli.parse_train(line).members
    compare = split(summary.next_commands(config, folder, line)[0].line)[2:]  # suggested after such a run
    assert [member.config.seed for member in cli.parse_train(compare).members] == [0, 1, 2] * 2
    swept = cli.parse_train([*named, "--sweep", "agent.loss.dyn=1,2"]).settings
    assert [member.config.seed for own in swept.values() for member in own] == [0, 1] * 2


def test_several_runs_are_beside_each_other_in_the_folder_named():
    members = cli.parse_train(split("walker-run --seeds 1 2 --out here/there")).members
    assert [member.folder.as_posix() for member in members] == [
        "here/there/gpld-seed1",
        "here/there/gpld-seed2",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--seeds 0-4",
            "seeds: '0-4' is not allowed; it must be numbers, or ranges such as 0..4 of at most 4096",
        ),
        (
            "--seeds 4..0",
            "seeds: '4..0' is not allowed; it must be numbers, or ranges such as 0..4 of at most 4096",
        ),
        ("--seeds 0..4 2", "seeds: 2 is named twice"),
        ("--seeds", "seeds: nothing is named; it takes SEED, one or more"),
        ("--method --seeds 0 1", "method: nothing is named; it takes NAME, one or more"),
        ("--seeds 0 --seeds=1", "seeds: it is given twice; name all after one --seeds"),
        ("--method gpld --method dreamerv3", "method: it is given twice; name all after one --method"),
        ("--seeds 1 --seed 2", "seed: 2 is not allowed with --seeds; add it to them"),
        ("--seed 0 --seeds 1 2", "seed: 0 is not allowed with --seeds; add it to them"),
        ("--seeds 5000000000", "seed: 5000000000 is not allowed; it must be in [0, 4294967295]"),
        ("--method GPLD", "method: 'GPLD' is not a method; allowed are gpld, dreamerv3, gpld-launched"),
        ("--method both gpld", "method: gpld is named twice"),
        ("--devices -1", "devices: -1 is not allowed; it must be at least 0 and at most 65536"),
        (
            "--distributed host:1 2 2",
            "distributed: ('host:1', 2, 2) is not allowed; INDEX must be in [0, COUNT)",
        ),
        (
            "--distributed host 0 2",
            "distributed: 'host' is not allowed; it must be HOST:PORT, such as localhost:1234",
        ),
        (
            "--method both --agent.penalty.posterior 0",
            "agent.penalty.posterior: 0.0 is not allowed with method gpld; it or agent.penalty.prior must be "
            "above 0",
        ),
    ],
)
def test_mistakes_in_several_runs(trained, capsys, arguments, message):
    assert cli.main(["train", "walker-run", *split(arguments)]) == 2
    assert capsys.readouterr().err == f"gpld train: {message}\n"
    assert trained == []


def test_several_runs_are_trained_together_and_summed_up(monkeypatch, capsys, tmp_path):
    asked = []

    def train_all(members, *, devices):
        asked.append((members, devices))
        return [Result(member.folder, 100, finished=True) for member in members]

    monkeypatch.setattr("gpld.training.train_all", train_all)
    monkeypatch.setattr("gpld.display.summary.show_all", lambda members, *_: asked.append(members))
    arguments = ["walker-walk", "--preset", "cpu", "--seeds", "0", "1", "--devices", "2"]
    assert cli.main(["train", *arguments, "--out", str(tmp_path)]) == 0
    (members, devices), shown = asked
    assert ([member.name for member in members], devices) == (["gpld-seed0", "gpld-seed1"], 2)
    assert shown == members


# Several processes


@pytest.fixture
def calls(monkeypatch):
    """What `gpld train` asks JAX and the training for, in their order."""
    found = []

    def train_all(members, *, devices):
        found.append(("train", *[member.name for member in members]))
        return [Result(member.folder, 100, finished=True) for member in members]

    def devices():
        found.append(("devices",))
        return [Device("cpu", "cpu")]

    monkeypatch.setattr("jax.distributed.initialize", lambda *where: found.append(("initialize", *where)))
    monkeypatch.setattr("jax.devices", devices)
    monkeypatch.setattr("gpld.training.train_all", train_all)
    monkeypatch.setattr("gpld.display.summary.show", lambda *_, films: found.append(("show",)))
    monkeypatch.setattr("gpld.display.summary.show_all", lambda members, *_: found.append(("show", *members)))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_processes_train_each_of_several_runs_once_and_never_talk(calls, count):
    arguments = ["train", *split("walker-run --seeds 0..2 --method both --distributed host:1")]
    shares = []
    for index in range(count):
        assert cli.main([*arguments, str(index), str(count)]) == 0
        shares += [call[1:] for call in calls if call[0] == "train"]
        assert "initialize" not in [call[0] for call in calls]
        calls.clear()
    names = [f"{method}-seed{seed}" for method in ("gpld", "dreamerv3") for seed in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert len(shares) == min(count, len(names))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_share_a_run_meet_before_they_look_at_devices(calls, index):
    assert cli.main(["train", *split(f"walker-run --seed 3 --distributed host:1 {index} 2")]) == 0
    shown = [("show",)] if index == 0 else []
    meeting = ("initialize", "host:1", 2, index)
    assert calls == [meeting, ("devices",), ("train", "walker-run-seed3"), *shown]


def test_a_mistake_is_told_before_processes_meet(calls, capsys):
    assert cli.main(["train", *split("walker-run --agent.penalty.rho 2 --distributed host:1 0 2")]) == 2
    assert "agent.penalty.rho" in capsys.readouterr().err
    assert calls == []


SAY_WHO = """
import sys, jax
from gpld import cli, training
from gpld.display import summary

def train_all(members, *, devices):
    print(jax.process_index(), "of", jax.process_count(), [member.name for member in members])
    return [training.Result(member.folder, 100, finished=True) for member in members]

training.train_all = train_all
summary.show = lambda *run, films: None
sys.exit(cli.main(["train", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_processes_really_meet():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        where = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-c", SAY_WHO, "walker-run", "--distributed", where]
    processes = [
        subprocess.Popen([*command, str(index), "2"], stdout=subprocess.PIPE, text=True) for index in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[0].splitlines()[-1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == [f"{index} of 2 ['walker-run-seed0']" for index in range(2)]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["walker-wlak"], ["task: 'walker-wlak'", "did you mean walker-walk"]),
        (["walker-walk", "--agent.penalty.rho", "1.5"], ["agent.penalty.rho: 1.5", "in (0, 1]"]),
        (["walker-walk", "--preset", "12n"], ["preset: '12n'", "did you mean 12m"]),
        (["--config", "nothing.json"], ["config: nothing.json: cannot be read"]),
        (["walker-walk", "--config", "nothing.json"], ["config: nothing.json: cannot be read"]),
        (
            ["walker-walk", "--preset", "nano", "--preset", "cpu"],
            ["preset: it is given twice; name all"],
        ),
        (
            ["gym:A-v0", "--env.kwargs", "g=3", "--env.kwargs=h=3"],
            ["env.kwargs: it is given twice; name"],
        ),
        (["walker-walk", "--env.kwargs", "g=3"], ["env.kwargs: ('g=3',) is not allowed", "walker-walk"]),
    ],
)
def test_a_mistake_is_told_in_one_line_without_a_traceback(trained, capsys, arguments, words):
    assert cli.main(["train", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("gpld train: ")
    assert output.err.count("\n") == 1
    assert all(word in output.err for word in words)
    assert trained == []


def test_a_list_is_not_given_twice_to_other_commands_either(capsys):
    assert cli.main(["study", "run", "smoke", "--tasks", "walker-walk", "--tasks=walker-run"]) == 2
    assert capsys.readouterr().err == "gpld study: tasks: it is given twice; name all after one --tasks\n"


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
    for name, method in METHODS.items():
        assert f"{name} {method.description}" in words
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


@pytest.mark.parametrize("bug", [ValueError("a bug"), RuntimeError("a bug"), OSError("a bug")])
def test_bugs_are_not_shortened(monkeypatch, bug):
    monkeypatch.setitem(cli.COMMANDS, "doctor", raising(bug))
    with pytest.raises(type(bug), match="a bug"):
        cli.main(["doctor"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("out: no"), 2),
        (TrainingStopped("out: no"), 1),
        (CheckpointError("out: no"), 1),
        (EnvironmentFailure("out: no"), 1),
    ],
)
def test_errors_for_users_have_a_status_and_no_traceback(monkeypatch, capsys, error, status):
    monkeypatch.setitem(cli.COMMANDS, "doctor", raising(error))
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().err == "gpld doctor: out: no\n"


def test_a_file_that_the_system_refuses_is_named(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "doctor", raising(PermissionError(13, "Permission denied", "/x/y")))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "gpld doctor: [Errno 13] Permission denied: '/x/y'\n"


def raising(error):
    def command(_):
        raise error

    return command


# The preset of the device


class Device:
    def __init__(self, platform, kind):
        self.platform, self.device_kind = platform, kind


@pytest.mark.parametrize(
    ("device", "preset"),
    [(Device("cpu", "cpu"), "cpu"), (Device("gpu", "NVIDIA H200"), "gpu"), (Device("tpu", "TPU v5"), "gpu")],
)
def test_the_devices_preset_lies_beneath_the_others(monkeypatch, capsys, device, preset):
    monkeypatch.setattr("jax.devices", lambda: [device])
    arguments = ["walker-walk", "--preset", "nano", "--agent.unroll", "3"]
    config = cli.fit_device(cli.parse_train(arguments), arguments).config
    assert capsys.readouterr().out == (
        f"preset {preset}, which fits this machine's device ({device.device_kind})\n"
    )
    expected = with_presets(Config("walker-walk"), [preset, "nano"])
    assert config == override(expected, {"agent": {"unroll": 3}})


@pytest.mark.parametrize("named", ["--preset nano gpu", "--preset cpu"])
def test_a_named_preset_of_a_device_stands(monkeypatch, capsys, named):
    monkeypatch.setattr("jax.devices", raising(AssertionError("must not be asked")))
    arguments = ["walker-walk", *named.split()]
    options = cli.parse_train(arguments)
    assert cli.fit_device(options, arguments) == options
    assert capsys.readouterr().out == ""


def test_a_device_that_jax_cannot_use_is_told(monkeypatch, capsys):
    def devices():
        raise RuntimeError("no driver")

    monkeypatch.setattr("jax.devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert cli.main(["train", "walker-walk"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("gpld train: JAX_PLATFORMS=cuda: JAX cannot use this machine's device")
    assert "gpld doctor" in output
    assert "no driver" in output


# Training


def test_a_finished_run_is_left_as_it_is_and_summed_up(small_run, monkeypatch, capsys):
    monkeypatch.setattr("gpld.films.film_finished", lambda folder: [f"no film of {folder.name}"])
    monkeypatch.setattr("gpld.training.evaluation.random_return", lambda config: None)
    before = (small_run / "metrics.jsonl").read_bytes()
    arguments = [*helpers.arguments(load(small_run / "config.json")), "--out", str(small_run)]
    assert cli.main(["train", *arguments]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("preset cpu, which fits this machine's device")
    assert "cartpole-balance-seed3 was finished at 400 env steps" in shown
    assert "mean return of the last 2 evaluations (4 episodes): " in shown
    assert "no film of cartpole-balance-seed3" in shown
    assert "What to try next" in shown
    assert (small_run / "metrics.jsonl").read_bytes() == before


def test_other_options_for_a_runs_folder_are_refused_by_name(small_run, capsys):
    arguments = [*helpers.arguments(load(small_run / "config.json")), "--agent.loss.rep", "0.2"]
    assert cli.main(["train", *arguments, "--out", str(small_run)]) == 2
    assert "agent.loss.rep: 0.1 there, 0.2 now" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_has_the_signals_status_and_says_how_to_go_on(
    monkeypatch, capsys, tmp_path, number, status
):
    def train_all(members, *, devices):
        return [Result(member.folder, 100, finished=False, signal=int(number)) for member in members]

    monkeypatch.setattr("gpld.training.train_all", train_all)
    arguments = ["walker-walk", "--preset", "cpu", "--out", str(tmp_path / "my run")]
    assert cli.main(["train", *arguments]) == status
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("resume with: ")
    program, command, *rest = split(line.removeprefix("resume with: "))
    assert (os.path.basename(program), command, rest) == ("gpld", "train", arguments)


@pytest.fixture
def heeds_ctrl_c():
    """As at a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["training", "sweeps.training"])
def test_a_signal_that_a_run_did_not_need_ends_the_command(
    monkeypatch, capsys, tmp_path, number, status, module
):
    """Also a sweep, whose next program must not begin."""
    trained = []

    def train_all(members, **_):
        with machine.interruptible():
            os.kill(os.getpid(), number)
            trained.append(len(members))
        return [Result(member.folder, 100, finished=True) for member in members]

    monkeypatch.setattr(f"gpld.{module}.train_all", train_all)
    sweep = ["--sweep", "eval.episodes=1,2"] if module == "sweeps.training" else []
    arguments = ["walker-walk", "--preset", "nano", "cpu", "--out", str(tmp_path / "my run"), *sweep]
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ended = cli.main(["train", *arguments])
    except SystemExit as error:
        ended = error.code
    assert ended == status
    assert trained == [1]
    *_, line = capsys.readouterr().out.splitlines()
    assert split(line.removeprefix("resume with: "))[2:] == arguments
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gym:NoSuchThing-v0"], ["gym:NoSuchThing-v0", "is not known"]),
        (["fish-swim", "--backend", "envpool"], ["'envpool' has no task 'fish-swim'"]),
    ],
)
def test_a_task_that_no_engine_has_is_a_mistake(tmp_path, capsys, arguments, words):
    assert cli.main(["train", *arguments, "--preset", "nano", "cpu", "--out", str(tmp_path / "run")]) == 2
    output = capsys.readouterr().err
    assert all(word in output for word in words)


# Evaluation


def test_eval_prints_and_writes_the_returns(small_run, tmp_path, capsys):
    out = tmp_path / "elsewhere"
    assert cli.main(["eval", str(small_run), "--episodes", "2", "--seed", "4", "--out", str(out)]) == 0
    values = json.loads((out / "evaluation.json").read_text())
    assert (len(values["returns"]), values["seed"], values["env_steps"]) == (2, 4, 400)
    shown = capsys.readouterr().out
    assert shown.startswith("cartpole-balance, after 400 env steps and 0 updates\n")
    for number in (*values["returns"], values["mean"], values["std"]):
        assert f"{number:.1f} │" in shown
    assert f"written to {out / 'evaluation.json'}" in shown
    assert [path.name for path in out.iterdir()] == ["evaluation.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "--episodes", "0"], "episodes: 0 is not allowed; it must be at least 1 and at most 10000"),
        (["RUN", "--seed", "-1"], "seed: -1 is not allowed; it must be in [0, 4294967295]"),
        (["nowhere"], "run: 'nowhere' is not the folder of a run (it has no config.json)"),
    ],
)
def test_mistakes_in_evaluation(small_run, capsys, arguments, message):
    arguments = [str(small_run) if word == "RUN" else word for word in arguments]
    assert cli.main(["eval", *arguments]) == 2
    assert capsys.readouterr().err == f"gpld eval: {message}\n"


# Profiling


def test_profile_shows_tables_and_where_the_trace_is(monkeypatch, capsys, tmp_path):
    asked = []

    def profile(config, spaces, folder, *, runs, updates):
        asked.append((config, spaces, folder, runs, updates))
        parts = [Operation("imagine", 8, 0.004), Operation("predict", 4, 0.001)]
        return Profile(updates, 0.0123, parts, parts, folder / "x.trace.json.gz")

    monkeypatch.setattr("gpld.profiling.profile", profile)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    options = "--preset nano cpu --runs 2 --updates 4 --replay.batch 3 --out"
    arguments = [*options.split(), str(tmp_path)]
    assert cli.main(["profile", "walker-walk", *arguments]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"imagine +│ +2 │ +1.000 │ 80.0%", shown)
    assert "12.300 ms per update of 2 runs, timed without" in shown
    assert f"trace: {tmp_path / 'x.trace.json.gz'}" in shown
    ((config, spaces, folder, runs, updates),) = asked
    nano = with_presets(Config("walker-walk"), ["nano", "cpu"])
    assert config == override(nano, {"replay": {"batch": 3}})
    assert dict(spaces.obs) == {"height": (), "orientations": (14,), "velocity": (9,)}
    assert (folder, runs, updates) == (tmp_path, 2, 4)
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=true --xla_gpu_enable_command_buffer="


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "runs: 0 is not allowed; it must be at least 1 and at most 4096"),
        (["--updates", "0"], "updates: 0 is not allowed; it must be at least 1 and at most 1000000"),
        (["--replay.batch", "0"], "replay.batch: 0 is not allowed; it must be at least 1 and at most 65536"),
    ],
)
def test_mistakes_in_profiling(capsys, arguments, message):
    assert cli.main(["profile", "walker-walk", *arguments]) == 2
    assert capsys.readouterr().err == f"gpld profile: {message}\n"


@pytest.mark.parametrize("command", ["eval", "profile"])
def test_help_of_the_other_commands(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: gpld {command}" in shown
    assert "--out FOLDER" in shown


@pytest.mark.parametrize(
    ("given", "env_steps"), [("1e6", 10**6), ("2.5e3", 2500), ("1_000_000", 10**6), ("5E+5", 5 * 10**5)]
)
@pytest.mark.parametrize("form", ["--env-steps {}", "--env-steps={}", "--env_steps {}"])
def test_whole_numbers_may_be_written_with_an_exponent(form, given, env_steps):
    options = cli.parse_train(["walker-walk", *form.format(given).split()])
    assert options.env_steps == env_steps


@pytest.mark.parametrize("given", ["1.5", "1e-3", "2.55e1", "1e400", "e6"])
def test_what_is_no_whole_number_is_refused(given, capsys):
    with pytest.raises(SystemExit):
        cli.parse_train(["walker-walk", "--env-steps", given])
    assert "--env-steps" in capsys.readouterr().err


def test_numbers_that_are_not_whole_stay_as_they_are():
    assert (
        cli.parse_train(
            ["walker-walk", "--agent.optimizer.learning-rate", "3e-4"]
        ).agent.optimizer.learning_rate
        == 3e-4
    )


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_that_other_programs_have_are_told(name, capsys):
    ours = OTHER_NAMES[name]
    assert cli.main(["train", "walker-walk", name, "3"]) == 2
    assert (
        capsys.readouterr().err == f"gpld train: {name}: there is no such option; here it is called {ours}\n"
    )
    assert ours.removeprefix("--").replace("-", "_") in flat(Config(""))


def test_a_run_without_an_update_is_warned_of(capsys, monkeypatch, tmp_path):
    steps = "2,000 env steps are 1,000 agent steps"
    output = f"no update will be made: {steps}, and training starts after replay.min_steps = 1,024 and"
    config = Config("walker-walk")
    assert learns_nothing(override(config, {"env_steps": 2000})).startswith(output)
    assert learns_nothing(config) == ""
    monkeypatch.setattr(
        "gpld.training.train_all", lambda *_, **__: pytest.fail("begun") if not warned() else []
    )

    def warned():
        return f"warning: {output}" in capsys.readouterr().err

    monkeypatch.setattr("gpld.display.summary.show", lambda *_, **__: None)
    few = ["--env-steps", "2000", "--replay.min-steps", "1024", "--out", str(tmp_path)]
    assert cli.main(["train", "walker-walk", "--preset", "nano", "cpu", *few]) == 0


def test_our_warnings_are_plain_lines_whatever_libraries_do_to_the_log():
    code = (
        "import logging, sys; logging.basicConfig(); sys.argv = ['gpld', '--version']; from gpld import cli; "
    )
    code += "cli.main(); logging.getLogger('gpld.envs').warning('a warning')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "a warning\n"


def test_the_package_lists_what_it_offers():
    assert {"load", "__version__"} <= {*dir(gpld)}
    assert "import_module" not in dir(gpld)


def test_listing_studies_has_help(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["study", "list", "--help"])
    assert left.value.code == 0
    assert "List the studies." in capsys.readouterr().out


def test_a_run_with_one_evaluation_is_told_how_to_get_a_curve():
    config = with_presets(Config("walker-walk"), ["nano", "cpu"])
    short = override(config, {"env_steps": 12_000})
    every, steps = config.eval.every, short.agent_steps
    assert evaluated_once(short) == (
        f"eval.every is {every:,} of {steps:,} agent steps; for a learning curve, --eval.every {steps // 10}"
    )
    assert evaluated_once(config) == ""
    assert evaluated_once(override(short, {"eval": {"every": 1000}})) == ""
    assert evaluated_once(override(short, {"env_steps": 200})) == ""  # told that it learns nothing


@pytest.mark.parametrize("command", ["train", "profile"])
def test_a_command_without_a_task_says_how_to_name_one(command, capsys):
    assert cli.main([command]) == 2
    message = (
        f"gpld {command}: task: name one, such as `gpld {command} walker-walk`; `gpld tasks` lists them\n"
    )
    assert capsys.readouterr().err == message
