"""Training the runs of a sweep, in as few programs as their options allow, with successive halving."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpld.config import Config, ConfigError
from gpld.display.progress import print_line
from gpld.population import Member, programs
from gpld.sweeps import show
from gpld.sweeps.definition import Sweep, members, read, write
from gpld.training import Result, TrainingStopped, refuse_other_options, train_all
from gpld.training.evaluation import EnvFactory


def run(
    config: Config, sweep: Sweep, out: str | Path, *, task: EnvFactory | None = None, devices: int = 0
) -> list[Result]:
    """Train or resume the runs of a sweep over `config` in the folder `out`; how each ended.

    Runs that differ in `config.PER_RUN` alone are trained in one program, the others in turn. A setting with
    a run that cannot go on is stopped, and the rest goes on without it; runs of stopped settings are kept,
    and are not `finished`. Ctrl-C and SIGTERM let runs save, and the same call resumes them.

    `gpld.sweeps.show` says what was found: `tables(out)`, `scores(out)`, `best(scores(out))`, `save(out)`.
    """
    out = Path(out)
    found = members(config, sweep, out)
    for member in itertools.chain(*found.values()):  # before the folder's definition is changed
        refuse_other_options(member.config, member.folder)
    sweep = _opened(sweep, out)
    runs = [member.folder for own in found.values() for member in own]
    results = {folder: Result(folder, 0, finished=False) for folder in runs}
    for until in (*sweep.halve_at, None):
        if until in sweep.halved:
            continue
        for program in programs([m for name, own in found.items() if name not in sweep.stopped for m in own]):
            sweep, ended = _train(program, sweep, out, until, task, devices)
            results |= ended
            if any(result.signal for result in ended.values()):
                return list(results.values())
        if until is not None:
            sweep = _halve(sweep, out, until)
    return list(results.values())


def _opened(sweep: Sweep, out: Path) -> Sweep:
    """The sweep with what was decided in its folder before; it may have grown, unless it is halved."""
    before = read(out)
    if before is not None:
        if not _continues(sweep, before):
            halved = bool(sweep.halve_at or before.halve_at)
            more = "; values and seeds may be added unless it is halved" if halved else ""
            raise ConfigError(f"out: {out} holds another sweep; name another folder{more}")
        sweep = replace(sweep, halved=before.halved, stopped=before.stopped)
    write(sweep, out)
    return sweep


def _continues(sweep: Sweep, before: Sweep) -> bool:
    """Whether it is the same sweep, or one with more values or seeds whose settings have not been halved."""
    names, others = ([setting.name for setting in each.settings] for each in (sweep, before))
    if sweep.halve_at or before.halve_at:
        same = [(each.seeds, each.halve_at, each.tasks) for each in (sweep, before)]
        return names == others and same[0] == same[1]
    return {*others} <= {*names} and {*before.seeds} <= {*sweep.seeds} and {*before.tasks} <= {*sweep.tasks}


def _train(
    program: Sequence[Member],
    sweep: Sweep,
    out: Path,
    until: int | None,
    task: EnvFactory | None,
    devices: int,
) -> tuple[Sweep, dict[Path, Result]]:
    """Train the runs of a program, without those of settings with a run that cannot go on."""
    while program := [member for member in program if member.label not in sweep.stopped]:
        try:
            ended = train_all(program, task=task, devices=devices, until=until)
            return sweep, {result.folder: result for result in ended}
        except TrainingStopped as error:
            if error.member is None or len(sweep.stopped) + 1 == len(sweep.settings):
                raise
            failed = error.member.label
            sweep = replace(sweep, stopped={**sweep.stopped, failed: str(error)})
            write(sweep, out)
            print_line(f"the setting {failed} is stopped, and the others go on without it: {error}")
    return sweep, {}


def _halve(sweep: Sweep, out: Path, until: int) -> Sweep:
    """Stop the worse half of the settings, by their areas under the curve up to `until` env steps."""
    areas = show.summarise(show.scores(out, [until]), until)["area"].fillna(-math.inf)
    left = [setting.name for setting in sweep.settings if setting.name not in sweep.stopped]
    ranked = sorted(left, key=lambda name: -areas[name])  # stable: of equals, the first goes on
    kept = ranked[: (len(ranked) + 1) // 2]
    worse = {name: f"stopped at {until:,}" for name in left if name not in kept}
    sweep = replace(sweep, halved=(*sweep.halved, until), stopped={**sweep.stopped, **worse})
    write(sweep, out)
    print_line(f"at {until:,} env steps {len(kept)} of {len(left)} settings go on: {', '.join(kept)}")
    return sweep
