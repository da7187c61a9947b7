"""Sweeps are trained in few programs, resumed as they were, halved by what was seen, and compared."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from gpld import cli, config as options, files
from gpld.analysis import statistics
from gpld.config import ConfigError, override
from gpld.files import DamagedFile
from gpld.population import Member, programs
from gpld.studies import write_report
from gpld.sweeps import definition, show
from gpld.sweeps.definition import SWEEP, Sweep
from gpld.sweeps.training import _halve, run
from gpld.training import logs, train_all
from gpld.training.logs import Logs
from tests.docs.pages import DOCS, text_of
from tests.training.helpers import Pole, arguments, arrays_of, differing, metrics, newest_checkpoint, tiny
from tests.training.test_loop import OFTEN, Calls, pole

QUIET = {"replay": {"train_ratio": 0.001}, "eval": {"every": 100}}
"""No update, so that none is compiled. Evaluated every 200 env steps."""
TRACES = {"agent.behavior.trace": [0.95, 0.5]}


def all_of(config, sweep, out):
    return [member for own in definition.members(config, sweep, out).values() for member in own]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Two settings of two seeds that nothing happened to."""
    out, sweep = tmp_path_factory.mktemp("sweep"), Sweep(TRACES, (0, 1))
    results = run(pole(), sweep, out, task=Pole)
    assert [(result.env_steps, result.finished) for result in results] == [(1200, True)] * 4
    return all_of(pole(), sweep, out)


def test_runs_are_those_of_a_population_of_the_same_shape(straight, tmp_path):
    """Bit for bit, and the value of each is its own."""
    again = [Member(member.config, tmp_path / member.name) for member in straight]
    assert len(programs(again)) == 1
    train_all(again, task=Pole)
    assert differing(arrays_of(straight, Pole), arrays_of(again, Pole)) == []
    assert [m.config.agent.behavior.trace for m in straight] == [0.95, 0.95, 0.5, 0.5]
    same_seed = [metrics(member.folder) for member in (straight[0], straight[2])]
    assert same_seed[0] != same_seed[1]
    for member in straight:
        assert options.load(member.folder / "config.json") == member.config


@pytest.mark.slow
def test_interrupted_and_resumed_it_is_the_same(straight, tmp_path):
    def stop(env):
        os.kill(os.getpid(), signal.SIGTERM)

    sweep, config = Sweep(TRACES, (0, 1)), pole(checkpoint=OFTEN)
    results = run(config, sweep, tmp_path, task=Calls(2500, stop))
    assert {result.signal for result in results} == {signal.SIGTERM}
    reached = {newest_checkpoint(member.folder) for member in all_of(config, sweep, tmp_path)}
    assert len(reached) == 1
    assert 0 < reached.pop() < 1200
    assert all(result.finished for result in run(config, sweep, tmp_path, task=Pole))
    again = all_of(config, sweep, tmp_path)
    assert differing(arrays_of(straight, Pole), arrays_of(again, Pole)) == []
    for one, two in zip(straight, again, strict=True):
        assert metrics(one.folder) == metrics(two.folder)


def test_values_may_be_added_and_nothing_else_changed(straight, tmp_path, monkeypatch):
    out = straight[0].folder.parent
    trained = []
    monkeypatch.setattr("gpld.sweeps.training.train_all", lambda runs, **_: trained.extend(runs) or [])
    before = (out / SWEEP).read_bytes()
    for other in (Sweep({"agent.loss.dyn": [1, 2]}, (0, 1)), Sweep(TRACES), Sweep(TRACES, (0, 1), (400,))):
        with pytest.raises(ConfigError, match="holds another sweep; name another folder"):
            run(pole(), other, out, task=Pole)
    more = Sweep({"agent.behavior.trace": [0.95, 0.5, 0.7]}, (0, 1, 2))
    with pytest.raises(ConfigError, match="holds a run with other options; name another folder"):
        run(override(pole(), {"agent": {"loss": {"dyn": 2.0}}}), more, out, task=Pole)
    assert (out / SWEEP).read_bytes() == before
    run(pole(), more, out, task=Pole)
    assert len(trained) == 9
    (out / SWEEP).write_bytes(before)


def test_nothing_may_be_added_to_a_sweep_that_is_halved(tmp_path):
    definition.write(Sweep(TRACES, (0, 1), (400,)), tmp_path)
    more = {"agent.behavior.trace": [0.95, 0.5, 0.7]}
    message = "another sweep; name another folder; values and seeds may be added unless it is halved$"
    for other in (Sweep(more, (0, 1), (400,)), Sweep(TRACES, (0, 1, 2), (400,)), Sweep(TRACES, (0, 1))):
        with pytest.raises(ConfigError, match=message):
            run(pole(), other, tmp_path, task=Pole)
    assert definition.read(tmp_path) == Sweep(TRACES, (0, 1), (400,))


# Programs and halving


def halving(seeds=(0, 1)):
    return Sweep({"eval.episodes": [1, 2], "agent.loss.dyn": [1.0, 2.0]}, seeds, halve_at=(400, 800))


@pytest.mark.slow
def test_half_of_the_settings_are_stopped_at_each_rung(tmp_path, capsys):
    config, sweep = pole(**QUIET), halving()
    assert [len(own) for own in programs(all_of(config, sweep, tmp_path))] == [4, 4]
    results = run(config, sweep, tmp_path, task=Pole)
    first, second = (areas(config, sweep, tmp_path, step) for step in (400, 800))
    names = [setting.name for setting in sweep.settings]
    kept = sorted(names, key=lambda name: -first[name])[:2]
    winner = max(kept, key=lambda name: second[name])
    assert len({*first.values()}) == 2  # by episodes; of equals, the first goes on
    state = definition.read(tmp_path)
    assert state.halved == (400, 800)
    assert state.stopped == {
        name: "stopped at 400" if name not in kept else "stopped at 800" for name in names if name != winner
    }
    steps = {
        name: {newest_checkpoint(m.folder) for m in own}
        for name, own in definition.members(config, sweep, tmp_path).items()
    }
    assert steps == {name: {1200 if name == winner else 800 if name in kept else 400} for name in names}
    assert [result.finished for result in results] == [winner == name for name in names for _ in range(2)]
    # The options of all are those of the whole length, and nothing is left to do.
    assert all(
        options.load(m.folder / "config.json").env_steps == 1200 for m in all_of(config, sweep, tmp_path)
    )
    capsys.readouterr()
    files_before = {m.folder: metrics(m.folder) for m in all_of(config, sweep, tmp_path)}
    run(config, sweep, tmp_path, task=Pole)
    assert "go on" not in capsys.readouterr().out
    assert files_before == {m.folder: metrics(m.folder) for m in all_of(config, sweep, tmp_path)}
    table = show.tables(tmp_path)[0]
    assert {row[0]: row[-1] for row in table.rows} == {**state.stopped, winner: "best"}
    assert show.best(show.scores(tmp_path)) == winner


def areas(config, sweep, out, until):
    """By hand: the mean over seeds of the area under the evaluations up to some env steps."""
    found = {}
    for name, own in definition.members(config, sweep, out).items():
        each = []
        for member in own:
            x, y = logs.evaluations(member.folder)
            if x[-1] >= until:
                x, y = x[x <= until].astype(float), y[x <= until]
                each.append(sum((y[1:] + y[:-1]) / 2 * np.diff(x)) / (x[-1] - x[0]))
        found[name] = np.mean(each) if each else -np.inf
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [700, 2000])
def test_a_halved_sweep_that_is_interrupted_decides_the_same(tmp_path, number):
    config = pole(**QUIET)
    run(config, halving((0,)), tmp_path / "a", task=Pole)
    results = run(
        config, halving((0,)), tmp_path / "b", task=Calls(number, lambda env: os.kill(os.getpid(), 15))
    )
    assert any(result.signal for result in results)
    run(config, halving((0,)), tmp_path / "b", task=Pole)
    assert files.read_json(tmp_path / "a" / SWEEP) == files.read_json(tmp_path / "b" / SWEEP)
    for one, two in zip(*(all_of(config, halving((0,)), tmp_path / x) for x in "ab"), strict=True):
        assert metrics(one.folder) == metrics(two.folder)


@pytest.mark.slow
def test_a_setting_that_diverges_is_stopped_and_the_others_go_on(tmp_path, capsys):
    config = pole(max_skipped=15)
    sweep = Sweep({"agent.behavior.entropy": [3e-4, 3e38]})
    results = run(config, sweep, tmp_path, task=Pole)
    assert [result.finished for result in results] == [True, False]
    assert "updates in a row were skipped" in definition.read(tmp_path).stopped["entropy=3e38"]
    assert "the setting entropy=3e38 is stopped" in capsys.readouterr().out
    assert show.best(show.scores(tmp_path)) == "entropy=0.0003"


# What is shown


def pretend(config, sweep, out, returns):
    """Leave behind evaluations of runs, as if they had been trained."""
    definition.write(sweep, out)
    for member in all_of(config, sweep, out):
        with Logs(member.folder, member.config.log, {}) as logs:
            for step, value in returns(member).items():
                logs.scalars(step, step, {"eval/return": value, "eval/return_std": 0.0, "eval/episodes": 1})
        options.save(member.config, member.folder / "config.json")


def test_numbers_of_every_run_and_setting(tmp_path):
    """Evaluated every 400 env steps. The third setting was stopped at 800."""
    sweep = Sweep({"agent.loss.dyn": [1, 2, 3]}, (0, 1), sweep_at=(800, 1200), stopped={"dyn=3": "why"})

    def returns(member):
        dyn, seed = member.config.agent.loss.dyn, member.config.seed
        whole = {400: 10 * dyn + seed, 800: 20 * dyn + seed, 1200: 60 * dyn + seed}
        return {step: value for step, value in whole.items() if dyn < 3 or step <= 800}

    pretend(pole(), sweep, tmp_path, returns)
    found = show.scores(tmp_path)
    second = found.loc[(found["setting"] == "dyn=2") & (found["seed"] == 1)]
    assert second["return"].tolist() == [41, 121]
    assert second["area"].tolist() == [31, (31 + 81) / 2]
    early, late = show.summarise(found, 800), show.summarise(found, 1200)
    assert early["area"].tolist() == [15.5, 30.5, 45.5]
    assert late["return"].tolist()[:2] == [60.5, 120.5]
    assert late.loc["dyn=3"].isna().tolist() == [False, False, *[True] * 6]
    ends = statistics.interval(statistics.mean, np.array([[30.0], [31.0]]))
    assert tuple(early.loc["dyn=2", ["area_low", "area_high"]]) == pytest.approx(ends)
    assert show.best(found) == "dyn=2"
    (table,) = show.tables(tmp_path)
    steps = [f"{x} at {step}" for step in ("800", "1,200") for x in ("return", "area")]
    assert table.header == ("setting", *steps, "runs", "")
    assert table.rows[2] == ("dyn=3", "60.5 [60.0, 61.0]", "45.5 [45.0, 46.0]", "-", "-", "2", "why")
    assert [row[-1] for row in table.rows] == ["", "best", "why"]
    written = show.save(tmp_path)
    assert [path.name for path in written] == ["sweep.csv", "sweep.png", "sweep-curves.png"]
    pd.testing.assert_frame_equal(pd.read_csv(written[0]), found, check_dtype=False)
    assert all(path.read_bytes()[1:4] == b"PNG" for path in written[1:])


def test_several_options_and_tasks_are_shown_by_value(tmp_path):
    tasks = ["walker-run", "hopper-stand"]
    sweep = Sweep({"task": tasks, "agent.loss.dyn": [1, 2], "agent.loss.rep": [0.2, 0.4]}, halve_at=(800,))
    config = options.override(pole(), {"task": "walker-run"})

    def returns(member):
        value = member.config.agent.loss.dyn * (10 if member.config.task == "walker-run" else 30)
        return {400: value, 800: value + member.config.agent.loss.rep}

    pretend(config, sweep, tmp_path, returns)
    assert (tmp_path / "hopper-stand" / "dyn=2,rep=0.4-seed0" / "config.json").exists()
    whole, by_value = show.tables(tmp_path)
    assert whole.rows[1][:3] == ("dyn=1,rep=0.4", "20.4", "20.2")
    means = {row[0]: float(row[1].split()[0]) for row in by_value.rows}
    assert means == {
        "agent.loss.dyn=1": 20.3,
        "agent.loss.dyn=2": 40.3,
        "agent.loss.rep=0.2": 30.2,
        "agent.loss.rep=0.4": 30.4,
        "task=walker-run": 15.3,
        "task=hopper-stand": 45.3,
    }
    page = write_report(tmp_path).read_text()
    assert all(cell in page for row in (*whole.rows, *by_value.rows) for cell in row)
    assert '"method": "dyn=1,rep=0.4"' in page  # a curve of each setting
    # The better half, by the mean over tasks.
    state = _halve(sweep, tmp_path, 800)
    assert state.stopped == dict.fromkeys(["dyn=1,rep=0.2", "dyn=1,rep=0.4"], "stopped at 800")
    assert definition.read(tmp_path).stopped == state.stopped


def test_runs_that_were_not_made_longer_are_not_compared_at_the_new_end(tmp_path):
    """As a sweep leaves them that is extended from 1200 to 2400, or whose second program is still to be."""
    sweep = Sweep({"agent.loss.dyn": [1, 2], "agent.model.units": [8, 16]}, halve_at=(800,))
    longer, stopped = pole(env_steps=2400), "dyn=2,units=16"

    def returns(member):
        if member.label == stopped:
            return {400: 9.0, 800: 9.0, 1200: 9.0}
        return {400: 1.0, 800: 2.0, 1200: 3.0, 2400: 4.0}

    pretend(longer, sweep, tmp_path, returns)
    options.save(override(longer, {"env_steps": 1200}), tmp_path / f"{stopped}-seed0" / "config.json")
    found = show.scores(tmp_path)
    assert found["env_steps"].tolist() == [800, 2400] * 4
    missing = found.loc[found["return"].isna()]
    assert missing[["setting", "env_steps"]].to_numpy().tolist() == [[stopped, 2400]]
    assert show.best(found) == "dyn=1,units=8"
    whole, by_value = show.tables(tmp_path)
    assert whole.rows[3] == (stopped, "9.0", "9.0", "-", "-", "1", "")
    assert by_value.notes[0].startswith("at 800 env steps, which all reached")
    assert len(show.save(tmp_path)) == 3
    assert "dyn=2,units=16" in write_report(tmp_path).read_text()


def test_an_end_that_is_no_multiple_of_the_action_repeat_is_reached(tmp_path):
    """1203 env steps are 601 agent steps, after which a run is at 1202, and the 602nd would be evaluated."""
    config = pole(env_steps=1203, env={"count": 1}, eval={"every": 301})
    pretend(config, Sweep(TRACES), tmp_path, lambda member: {602: 1.0, 1202: 2.0})
    found = show.scores(tmp_path)
    assert found[["env_steps", "return", "area"]].to_numpy().tolist() == [[1203, 2.0, 1.5]] * 2
    assert show.best(found) == "trace=0.95"


def test_halving_stops_a_setting_without_an_area_first(tmp_path):
    sweep = Sweep({"agent.loss.dyn": [1, 2, 3, 4]}, halve_at=(800,))
    values = {1: np.nan, 2: 5.0, 3: np.nan, 4: 9.0}
    pretend(pole(), sweep, tmp_path, lambda member: {800: values[member.config.agent.loss.dyn]})
    assert _halve(sweep, tmp_path, 800).stopped == dict.fromkeys(["dyn=1", "dyn=3"], "stopped at 800")


def test_tasks_weigh_the_same_whatever_the_number_of_their_runs():
    rows = [("a", "t1", 0, 10.0), ("a", "t1", 1, 20.0), ("a", "t2", 0, 45.0), ("b", "t1", 0, 30.0)]
    rows += [("b", "t2", 0, np.nan)]
    columns = ["setting", "task", "seed", "return"]
    found = pd.DataFrame(rows, columns=columns).assign(env_steps=5, area=lambda x: x["return"])
    summary = show.summarise(found, 5)
    assert summary.loc["a", "return"] == 30.0
    assert summary["return"].isna().tolist() == [False, True]
    assert show.best(found) == "a"


def test_a_damaged_definition_is_named(tmp_path):
    assert definition.read(tmp_path) is None
    definition.write(Sweep(TRACES), tmp_path)
    text = (tmp_path / SWEEP).read_text()
    for damaged in (text.replace("0.95", "0.96"), "[]", "{", '{"values": {}}'):
        (tmp_path / SWEEP).write_text(damaged)
        with pytest.raises(DamagedFile, match=r"sweep\.json: not the definition of a sweep"):
            definition.read(tmp_path)


# The command

LINE = ["cartpole-balance", "--preset", "nano", "cpu", "--env-steps", "800", "--eval.every", "200"]


def test_the_command_trains_compares_and_says_where(tmp_path, capsys):
    out, config = tmp_path / "here", tiny(env_steps=800, eval={"every": 200}, replay={"train_ratio": 0.001})
    swept = ["--sweep", "agent.loss.dyn=1,2", "eval.limit=99,999", "--seeds", "0..1", "--out", str(out)]
    assert cli.main(["train", *arguments(config), "--preset", "cpu", *swept]) == 0
    said = capsys.readouterr().out
    assert "4 settings, 8 runs, 2 programs" in said
    assert "dyn=1,limit=999" in said
    assert "best" in said
    assert f"{out}/sweep.png" in said
    assert len(list(out.glob("*-seed?/config.json"))) == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sweep", "sweep: nothing is named; it takes OPTION=VALUE,VALUE, one or more"),
        (
            "--sweep agent.loss.dyn=1,2 --halve-at",
            "halve_at: nothing is named; it takes ENV-STEPS, one",
        ),
        (
            "--sweep agent.loss.dyn=1,2 --sweep_at",
            "sweep_at: nothing is named; it takes ENV-STEPS, one",
        ),
        (
            "--sweep agent.loss.dyn=1,2 --sweep agent.loss.rep=1,2",
            "sweep: it is given twice; name all after one --sweep",
        ),
        (
            "--sweep agent.loss.dyn=1,2 --halve-at 400 --halve_at 600",
            "halve_at: it is given twice; name all after one --halve-at",
        ),
        ("--halve-at 400", "halve_at: (400,) is not allowed without sweep"),
        ("--sweep agent.loss.dyn=1,-2", "sweep: dyn=-2: agent.loss.dyn: -2.0 is not allowed; it must be"),
        (
            "--sweep agent.loss.dyn=1,2 --agent.loss.dyn 3",
            "sweep: agent.loss.dyn is swept, and --agent.loss.dyn sets it too",
        ),
        (
            "--sweep replay.online=true,false --replay.no-online",
            "sweep: replay.online is swept, and --replay.online sets it too",
        ),
        (
            "--sweep preset=1m,12m --agent.model.deter=512",
            "sweep: agent.model.deter is swept, and --agent.model.deter sets it too",
        ),
        (
            "--sweep agent.loss.dyn=1,2 --halve-at 800",
            "halve_at: (800,) is not allowed; it must be increasing env steps from 400, where all have been",
        ),
        ("--sweep agent.loss.dyn=1,2 --sweep-at 600 400", "sweep_at: (600, 400) is not allowed; it must be"),
        (
            "--sweep agent.loss.dyn=1,2 --halve-at 400 --eval.every 2000",
            "halve_at: (400,) is not allowed: no evaluation is due before 4000 env steps, and these runs",
        ),
        (
            "--sweep task=walker-run agent.loss.dyn=1,2",
            "sweep: task: cartpole-balance is named first, and must be among the values",
        ),
        ("--sweep preset=1m,bogus", "sweep: preset: 'bogus' is not a preset; allowed are "),
        (
            "--sweep task=cartpole-balance,walker-run",
            "sweep: only task is named; an option, preset or method",
        ),
        ("--sweep env_steps=400,800", "sweep: env_steps is swept, and --env-steps sets it too"),
        ("--sweep agent.loss.dyn=1,2 --seeds 1 1", "seeds: (1, 1) is not allowed"),
        ("--sweep method=gpld --method gpld", "sweep: method is swept, and --method names some too"),
        ("--sweep agent.loss.dyn=1,2 --distributed h:1 0 2", "distributed: not allowed with --sweep"),
    ],
)
def test_mistakes_are_refused_before_anything_is_loaded(capsys, words, message):
    assert cli.main(["train", *LINE, *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"gpld train: {message}")


def test_whole_numbers_of_a_list_may_be_written_with_an_exponent():
    words = ["--sweep", "agent.loss.dyn=1,2", "--halve-at", "4e2", "6e2", "--sweep_at=4e2"]
    options = cli.parse_train([*LINE, *words])
    assert (options.halve_at, options.sweep_at) == ((400, 600), (400,))
    options = cli.parse_train([*LINE, *words[:-1], "--sweep-at", "500", "8e2", "--eval.every=2e2"])
    assert (options.sweep_at, options.eval.every) == ((500, 800), 200)


def test_settings_are_validated_and_not_what_they_share():
    """The page's own row: the schedule is nothing without a table. And 3 blocks do not divide the default."""
    row = next(
        line for line in text_of(DOCS / "many_runs.md").splitlines() if "agent.penalty.custom=" in line
    )
    settings = cli.parse_train([*LINE, *row.split("`")[1].split()]).settings
    penalties = [own[0].config.agent.penalty for own in settings.values()]
    assert [penalty.schedule for penalty in penalties] == ["custom", "custom"]
    assert [penalty.custom for penalty in penalties] == [((0, 1.0),), ((0, 0.5), (500, 0.1))]
    words = "--agent.model.blocks 3 --sweep agent.model.deter=300,600"
    assert list(cli.parse_train([*LINE, *words.split()]).settings) == ["deter=300", "deter=600"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "agent.penalty.custom=[[0,1]]",
            "custom=-0,1.0: agent.penalty.custom: ((0, 1.0),) is not allowed",
        ),
        ("agent.loss.dyn=1 --agent.loss.rep -1", "dyn=1: agent.loss.rep: -1.0 is not allowed; it must be"),
    ],
)
def test_what_settings_share_is_refused_with_them(capsys, words, message):
    assert cli.main(["train", *LINE, "--sweep", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"gpld train: sweep: {message}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_six_values_killed_and_resumed_lose_and_repeat_no_run(tmp_path):
    """Six values of two seeds with nano, killed twice, in a process of its own."""
    values = "agent.optimizer.learning_rate=3e-4,1e-3,3e-3 agent.penalty.posterior=0,0.5"
    line = "train cartpole-swingup --preset nano --env-steps 4000 --eval.every 500 --checkpoint.minutes 0.05"
    line += f" --replay.train-ratio 32 --seeds 0..1 --sweep {values} --out {tmp_path / 'sweep'}"
    command = [sys.executable, "-m", "gpld", *line.split()]
    rates, weights = ("0.0003", "0.001", "0.003"), ("0", "0.5")
    names = [f"learning_rate={a},posterior={b}-seed{c}" for a in rates for b in weights for c in (0, 1)]
    runs = [tmp_path / "sweep" / name for name in names]
    for until in (1000, 2500):
        with (
            (tmp_path / "log").open("a") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            deadline = time.monotonic() + 400
            while process.poll() is None and min(map(newest_checkpoint, runs)) < until:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.1)
            process.kill()
        assert min(map(newest_checkpoint, runs)) >= until
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "6 settings, 12 runs, 1 programs" in said
    assert sorted(path.name for path in (tmp_path / "sweep").glob("*-seed*")) == sorted(names)
    for path in runs:
        x, _ = logs.evaluations(path)
        assert x.tolist() == [1000, 2000, 3000, 4000]
    assert (tmp_path / "sweep" / "sweep.csv").read_text().count("\n") == 13
