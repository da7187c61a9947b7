import io
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gpld import cli, population
from gpld.config import Config, load, override
from gpld.display import summary
from gpld.population import Member
from gpld.training import logs
from tests.training.helpers import tiny


def shown(config, folder, arguments=("cartpole-balance",)):
    console = Console(record=True, width=80, file=io.StringIO())
    films = lambda run: ["no film", f"of {run.name}"]  # noqa: E731
    evaluations = logs.evaluations(folder)
    summary.show(Member(config, folder), evaluations, 12.5, list(arguments), console, films=films)
    return console.export_text()


def shown_all(members):
    console = Console(record=True, width=80, file=io.StringIO())
    summary.show_all(members, [logs.evaluations(member.folder) for member in members], 12.5, console)
    return console.export_text()


# The result


def test_the_result_is_the_mean_of_the_last_three_evaluations():
    returns = np.array([900.0, 100.0, 200.0, 300.0])
    line = "mean return of the last 3 evaluations (15 episodes): 200.0"
    assert summary.result(returns, 5, None) == line
    assert summary.result(returns, 5, 40.0) == f"{line}, 5.0 times as much (a random policy: 40.0)"
    assert summary.result(returns, 5, -40.0) == f"{line} (a random policy: -40.0)"
    assert summary.result(returns, 5, 400.0) == f"{line} (a random policy: 400.0)"


def test_the_result_of_one_evaluation():
    assert summary.result(np.array([7.0]), 2, None) == "mean return of the last evaluation (2 episodes): 7.0"


def test_the_evaluations_of_a_run(small_run):
    env_steps, returns = logs.evaluations(small_run)
    assert env_steps.tolist() == [200, 400]
    assert ((returns > 0) & (returns <= 1000)).all()


# The screen


def test_a_finished_run_shows_curve_result_and_next_commands(small_run):
    config = load(small_run / "config.json")
    text = shown(config, small_run)
    _, returns = logs.evaluations(small_run)
    assert "cartpole-balance, GPLD-DreamerV3, seed 3" in text
    assert "400 env steps" in text
    times = f"{returns.mean():.1f}, {returns.mean() / 12.5:.1f} times as much (a random policy: 12.5)"
    assert f"mean return of the last 2 evaluations (4 episodes): {times}" in text
    assert "random policy (╌) 12.5" in text
    assert "no film\nof cartpole-balance-seed3\n" in text
    assert "--episodes 20\n" in text  # what could not be filmed is not to be filmed again
    assert (small_run / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_evaluations_still_says_what_to_do(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 1, "updates": 1, "loss/total": 2.0}\n')
    text = shown(tiny(), tmp_path)
    assert "mean return" not in text
    assert text.index("no film") < text.index("What to try next") < text.index("gpld eval")


def test_a_picture_that_cannot_be_written_fails_nothing(small_run, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "curve.png")

    monkeypatch.setattr(summary, "save_curve", full)
    text = shown(load(small_run / "config.json"), small_run)
    assert "no picture of the curve: [Errno 28] No space left on device: 'curve.png'" in text
    assert "What to try next" in text


def write_evaluations(member, returns):
    member.folder.mkdir(parents=True)
    lines = [{"env_steps": 100 * i, "updates": i, "eval/return": x} for i, x in enumerate(returns, start=1)]
    (member.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_several_runs_show_a_curve_and_a_result_of_each_method(tmp_path):
    members = population.members(tiny(), [0, 1], ["gpld", "dreamerv3"], tmp_path)
    for member, returns in zip(members, ([1, 20, 40], [3, 40, 60], [0, 0, 10], [0, 0, 30]), strict=True):
        write_evaluations(member, returns)
    text = shown_all(members)
    assert text.index("GPLD-DreamerV3, seeds 0, 1") < text.index("cartpole-balance, DreamerV3, seeds 0, 1")
    line = "mean return of the last 3 evaluations (3 episodes each)"
    assert f"{line}: 27.3, std 7.0 over 2 seeds (20.3, 34.3)" in text
    assert f"{line}: 6.7, std 3.3 over 2 seeds (3.3, 10.0)" in text
    assert "last 50" in text  # of the mean curve
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert f"gpld eval {members[0].folder} --episodes 20 --video" in text
    assert text.endswith(f"gpld report {tmp_path}\n")


def test_several_runs_without_evaluations_still_say_what_to_do(tmp_path):
    members = population.members(tiny(), [0, 1], ["gpld"], tmp_path)
    for member in members:
        write_evaluations(member, [])
    assert "What to try next" in shown_all(members)
    assert not (tmp_path / "curve.png").exists()


# The next commands


def suggested(arguments):
    """The commands after a run of these arguments, as lists of words, and the run."""
    (member,) = cli.parse_train(arguments).members
    commands = summary.next_commands(*member, arguments)
    words = [shlex.split(command.line) for command in commands]
    assert all(Path(program).name == "gpld" for program, *_ in words)
    assert [word for _, word, *_ in words] == ["train", "eval", "report"]
    assert set(cli.COMMANDS) > {"train", "eval", "report"}
    return [rest for _, _, *rest in words], member


@pytest.mark.parametrize(
    ("more", "penalty"),
    [
        ("--preset nano cpu", {"posterior": 0.5, "prior": 0.0}),
        ("--agent.penalty.posterior 0.25 --agent.penalty.prior 0.1", {"posterior": 0.25, "prior": 0.1}),
        ("--agent.penalty.posterior=0", {"posterior": 0.5, "prior": 0.0}),
        ("--method dreamerv3", {"posterior": 0.5, "prior": 0.0}),
        ("--seeds 7 --devices 1", {"posterior": 0.5, "prior": 0.0}),
    ],
)
def test_the_comparison_is_the_same_run_with_and_without_the_penalty_over_seeds(more, penalty):
    seed = "" if "--seeds" in more else "--seed 7"
    (compare, _, _), (config, _) = suggested(f"walker-walk {seed} {more} --env-steps 5000".split())
    members = cli.parse_train(compare).members
    off = {"posterior": 0.0, "prior": 0.0}
    assert [member.config for member in members] == [
        override(config, {"seed": seed, "agent": {"penalty": own}})
        for own in (penalty, off)
        for seed in (0, 1, 2)
    ]
    assert cli.parse_train(compare).devices == (1 if "--devices" in more else 0)


def test_a_run_as_launched_is_compared_as_launched():
    (compare, _, _), (config, _) = suggested(["walker-walk", "--method", "gpld-launched", "--seed", "7"])
    launched, baseline = cli.parse_train(compare).members[::3]
    assert launched.config == override(config, {"seed": 0})
    assert (launched.config.agent.penalty.scaling, launched.config.agent.penalty.floor) == ("all", 0.1)
    assert baseline.name == "dreamerv3-seed0"


@pytest.mark.parametrize(
    ("out", "run", "runs"),
    [
        ("", "runs/walker-walk-seed0", "runs/walker-walk"),
        ("--seed 3", "runs/walker-walk-seed3", "runs/walker-walk"),
        ("--seed 3 --method dreamerv3", "runs/walker-walk/dreamerv3-seed3", "runs/walker-walk"),
        ("--seeds 3", "runs/walker-walk/gpld-seed3", "runs/walker-walk"),
        ("--seed 3 --out=my/walker-seed3", "my/walker-seed3", "my/walker"),
        ("--out my/walker", "my/walker", "my/walker-seeds"),
        ("--method gpld --out my/walker", "my/walker/gpld-seed0", "my/walker"),
    ],
)
def test_the_run_is_evaluated_and_the_report_is_about_the_comparison(out, run, runs):
    (compare, evaluate, report), member = suggested(["walker-walk", *out.split()])
    assert evaluate == [run, "--episodes", "20", "--video"]
    assert report == [runs]
    assert str(member.folder) == run
    assert {str(member.folder.parent) for member in cli.parse_train(compare).members} == {runs}


def test_one_of_several_processes_suggests_what_one_does_alone():
    commands, _ = suggested(["walker-walk", "--distributed", "host:1", "0", "2"])
    assert commands[0] == ["walker-walk", "--seeds", "0..2", "--method", "both"]


def test_programs_are_called_so_that_this_environments_are_found(monkeypatch, tmp_path):
    path = tmp_path / "my env" / "bin"
    monkeypatch.setattr(sys, "executable", str(path / "python"))
    monkeypatch.setattr(summary.shutil, "which", lambda name: f"/usr/bin/{name}")  # another installation
    assert summary.program("gpld") == shlex.quote(str(path / "gpld"))
    monkeypatch.chdir(tmp_path)
    assert summary.program("gpld") == "'my env/bin/gpld'"
    commands = summary.next_commands(Config("walker-walk"), Path("runs/a b"), ["walker-walk"])
    assert commands[1].line == "'my env/bin/gpld' eval 'runs/a b' --episodes 20 --video"
    monkeypatch.setattr(summary.shutil, "which", lambda name: str(path / name))
    assert summary.program("gpld") == "gpld"
