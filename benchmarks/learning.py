"""DreamerV3 and GPLD learn a task side by side, several seeds of both in one program: JSON and a picture.

    python benchmarks/learning.py --task cartpole-swingup --seeds 3 --preset 12m gpu --env-steps 100000

The runs are those of `gpld train TASK --seeds ... --method both`, in the same folders. Stopped at any time,
or by --seconds, they go on with the same command. The JSON is written anew all the time; the picture, with
published runs of DreamerV3 beside, at the end. With --name they are called otherwise than earlier results.

With the preset `pixels` they learn from images.

    python benchmarks/learning.py --task cartpole-swingup --seeds 1 --preset 12m gpu pixels
"""

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from gpld import population, results
from gpld.config import Config, ConfigError, override, with_presets
from gpld.population import TITLES, Member, method_of
from gpld.training import curve, logs, summary, train_all
from gpld.training.provenance import provenance

WRITE_SECONDS = 20.0
"""Between two writings of the JSON."""


@dataclasses.dataclass
class Options:
    """Options of the benchmark. The JSON has them without the folders, which `repr` leaves out."""

    task: str = "cartpole-swingup"
    """A task of the suite."""
    seeds: int = 3
    """Seeds of DreamerV3, and of GPLD."""
    gpld_seeds: int | None = None
    """Seeds of GPLD, if not as many."""
    preset: tuple[str, ...] = ("12m", "gpu")
    """Presets of the runs."""
    env_steps: int = 100_000
    """Env steps of each run."""
    horizon: int | None = None
    """Imagined steps, if not those of the presets."""
    gradient: Literal["reinforce", "dynamics"] | None = None
    """How the policy learns, if not as the presets have it."""
    learning_rate: tuple[float, ...] = ()
    """Learning rates, if not that of the presets: all seeds at each, in folders of their own if several."""
    envs: int | None = None
    """Environments of each run, if not those of the presets."""
    repeat: int | None = None
    """Env steps of each action, if not those of the presets."""
    train_ratio: float | None = None
    """Replayed steps trained on for each agent step, if not those of the presets."""
    eval_every: int | None = None
    """Agent steps between evaluations, if not those of the presets."""
    seconds: float = float("inf")
    """Stop after this time."""
    name: str = ""
    """File name of JSON and picture without suffix; by default learning-TASK, or learning-pixels-TASK."""
    runs: Path = dataclasses.field(default=Path("runs"), repr=False)
    """Folder of the runs, in one named by the task."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON and the picture."""


def curves(members: Sequence[Member]) -> list[dict]:
    """Method, seed and evaluations of each run.

    By env steps also the returns of its training episodes, and its squared Jacobian norm, if penalised.
    """
    found = []
    for member in members:
        metrics = logs.read(member.folder)
        env_steps, returns = summary.evaluations(member.folder)
        run = {"method": TITLES[method_of(member.config)], "seed": member.config.seed}
        run["learning_rate"] = member.config.agent.optimizer.learning_rate
        run |= {"env_steps": env_steps.tolist(), "returns": returns.tolist()}
        for name, column in (("training", "train/return"), ("jacobian", "loss/penalty_posterior")):
            if column in metrics:
                rows = metrics.dropna(subset=[column])
                values = rows[column].round(6)
                run[name] = dict(zip(rows["env_steps"].tolist(), values.tolist(), strict=True))
        if "updates/skipped" in metrics:
            run["skipped"] = int(metrics["updates/skipped"].max())
        found.append(run)
    return found


def updates_per_second(folder: Path) -> float | None:
    """Median between lines of metrics, which leaves out evaluations and checkpoints; None for one line."""
    timing = logs.read(folder, logs.TIMING)
    updates, seconds = np.diff(timing["updates"]), np.diff(timing["seconds"] if len(timing) else [])
    learned = (updates > 0) & (seconds > 0)  # time begins anew when a run goes on
    return float(np.median(updates[learned] / seconds[learned])) if learned.any() else None


def write(path: Path, about: dict, members: Sequence[Member]) -> list[dict]:
    """Write what the runs have logged so far, at once or not at all. Returns their curves."""
    metrics, runs = logs.read(members[0].folder), curves(members)
    record = {
        **about,
        "env_steps": max(metrics["env_steps"], default=0),
        "updates": max(metrics["updates"], default=0),
        "updates_per_second": updates_per_second(members[0].folder),
        "runs": runs,
    }
    unfinished = path.with_name(path.name + ".partial")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)
    return runs


def draw(path: Path, task: str, action_repeat: int, runs: Sequence[dict]) -> None:
    """Save the evaluations as a picture, beside the published runs of the task, if there are any.

    These are shown where they had taken as many agent steps: their actions were not repeated.
    """
    published = results.published()
    published["env_steps"] = published["agent_steps"] * action_repeat
    until = max(run["env_steps"][-1] for run in runs)
    published = published[(published["task"] == task) & (published["env_steps"] <= until)]
    several = len({run["learning_rate"] for run in runs}) > 1

    def label(run: dict) -> str:
        return f"{run['method']}, {run['learning_rate']:g}" if several else run["method"]

    lines = [(label(run), run["env_steps"], run["returns"]) for run in runs]
    lines += [("published", x["env_steps"], x["return"]) for _, x in published.groupby("seed")]
    curve.save_curve(path, lines, title=task)


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Send this process what a batch system sends when time is up."""
    stop = threading.Timer(min(seconds, threading.TIMEOUT_MAX), os.kill, (os.getpid(), signal.SIGTERM))
    stop.daemon = True
    stop.start()
    try:
        yield
    finally:
        stop.cancel()


@contextmanager
def repeatedly(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Do something again and again in the background."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def configured(options: Options) -> Config:
    """What all runs have in common."""
    config = with_presets(Config(task=options.task, env_steps=options.env_steps), options.preset)
    changes = {
        "agent": {"behavior": {"horizon": options.horizon, "gradient": options.gradient}},
        "env": {"count": options.envs, "action_repeat": options.repeat},
        "replay": {"train_ratio": options.train_ratio},
        "eval": {"every": options.eval_every},
    }
    return override(config, asked(changes))


def asked(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes that are not None."""
    return {
        name: asked(value) if isinstance(value, dict) else value
        for name, value in changes.items()
        if value is not None
    }


def members_of(config: Config, options: Options, folder: Path) -> list[Member]:
    """The runs, DreamerV3's first."""
    gpld_seeds = options.seeds if options.gpld_seeds is None else options.gpld_seeds
    for name, value in (("seeds", options.seeds), ("gpld_seeds", gpld_seeds)):
        if value < 0:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least 0")
    if not options.seeds and not gpld_seeds:
        raise ConfigError("seeds: 0 is not allowed; it must be at least 1 if gpld_seeds is not")
    rates = options.learning_rate or (config.agent.optimizer.learning_rate,)
    members = []
    for rate in rates:
        changed = override(config, {"agent": {"optimizer": {"learning_rate": rate}}})
        own = folder / f"{rate:g}" if len(rates) > 1 else folder
        members += population.members(changed, range(options.seeds), ("dreamerv3",), own)
        members += population.members(changed, range(gpld_seeds), ("gpld",), own)
    return members


def main(options: Options) -> None:
    """Train all runs, and write their curves."""
    if not options.seconds >= 0:
        raise ConfigError(f"seconds: {options.seconds:g} is not allowed; it must be at least 0")
    config = configured(options)
    task = f"pixels-{options.task}" if config.env.pixels else options.task
    about = {"task": options.task, "observations": "64x64 images" if config.env.pixels else "states"}
    about |= {"action_repeat": config.env.action_repeat, "options": str(options), "provenance": provenance()}
    members = members_of(config, options, options.runs / task)
    name = options.name or f"learning-{task}"
    path = options.out / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    save = partial(write, path, about, members)
    with stopped_after(options.seconds), repeatedly(save, WRITE_SECONDS):
        train_all(members)
    runs = save()
    if all(run["returns"] for run in runs):
        summary.show_all(members)
        draw(options.out / f"{name}.png", task, config.env.action_repeat, runs)
    print(f"written to {path}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"learning.py: {error}") from None
