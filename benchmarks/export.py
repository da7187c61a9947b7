"""Time of one exported step on one core, and the returns of an exported agent beside its original's.

    python benchmarks/export.py --out results
    python benchmarks/export.py --run RUN --episodes 20 --out results

Steps are of fresh agents on walker's observations, timed by the clock. Episodes of both agents
begin in the same states; what they draw is their own.
"""

import dataclasses
import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import onnxruntime
import tyro
from rich.console import Console
from rich.table import Table

from gpld import agent, deploy
from gpld.config import Config, ConfigError, check_numbers, with_presets
from gpld.envs import make
from gpld.training import evaluation, saved, score
from gpld.training.provenance import provenance


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    presets: tuple[str, ...] = ("nano", "1m", "12m")
    """Sizes of the agents that are timed."""
    steps: int = 2000
    """Steps to time of each, after a tenth as many that are not."""
    run: Path | None = None
    """A run whose agent plays, instead of timing steps."""
    episodes: int = 20
    """Episodes that it plays, before and after it is exported."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for export.json, or for export-returns.json."""


def opened(folder: Path) -> onnxruntime.InferenceSession:
    """An exported step, on one core."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(folder / "policy.onnx", settings, providers=["CPUExecutionProvider"])


def noise(about: dict, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random numbers for one step."""
    wanted = {name: x for name, x in about["inputs"].items() if name.startswith("noise.")}
    draw = {name: rng.random if x.get("high") else rng.standard_normal for name, x in wanted.items()}
    return {name: np.asarray(draw[name](x["shape"]), np.float32) for name, x in wanted.items()}


def timed(preset: str, steps: int) -> dict[str, float | str]:
    """Percentiles of a step's time by the clock: let nothing else run on its core."""
    config = with_presets(Config("walker-walk"), [preset])
    with make(config.task, count=1, seed=0) as env:
        spaces = env.spaces
    model = jax.jit(agent.init, static_argnums=(0, 1))(config.agent, spaces, jax.random.key(0)).model
    with TemporaryDirectory() as folder:
        found = deploy.export(saved.Trained(Path(folder), config, spaces, model, 0, 0))
        step, about = opened(found.path.parent), json.loads(found.description.read_text())
        size = found.path.stat().st_size
    rng, seconds = np.random.default_rng(0), []
    state = np.zeros(about["inputs"]["state"]["shape"], np.float32)
    for _ in range(steps + steps // 10):
        obs = {f"obs.{name}": rng.normal(size=shape).astype(np.float32) for name, shape in spaces.obs}
        given = obs | noise(about, rng) | {"state": state}
        begin = time.perf_counter()
        _, state = step.run(None, given)
        seconds.append(time.perf_counter() - begin)
    p50, p99 = 1000 * np.percentile(seconds[steps // 10 :], [50, 99])
    return {"preset": preset, "p50_ms": p50, "p99_ms": p99, "megabytes": size / 1e6}


def returns(run: Path, episodes: int) -> dict[str, float | str | list[float]]:
    """Of the original agent and of the exported one."""
    trained = saved.load(run)
    before = score.score(trained, episodes=episodes)
    with TemporaryDirectory() as folder:
        found = deploy.export(run, out=folder)
        step, about = opened(found.path.parent), json.loads(found.description.read_text())
    rng, after, done = np.random.default_rng(0), np.zeros(episodes), np.zeros(episodes, bool)
    states = np.zeros((episodes, *about["inputs"]["state"]["shape"]), np.float32)
    with evaluation.make_env(trained.config, episodes, number=0) as env:
        actions = np.zeros((episodes, env.spaces.actions), np.float32)
        while not done.all():
            seen = env.step(actions)
            after += np.where(done, 0, seen.reward)
            done |= seen.is_last
            for i in range(episodes):
                obs = {f"obs.{name}": x[i] for name, x in seen.obs.items()}
                action, states[i] = step.run(None, {**obs, **noise(about, rng), "state": states[i]})
                actions[i] = np.eye(env.spaces.actions)[action] if env.spaces.discrete else action
    interval = 1.96 * before.std / (episodes - 1) ** 0.5
    return {
        "task": trained.config.task,
        "env_steps": trained.env_steps,
        "original": before.returns,
        "exported": after.tolist(),
        "original_mean": before.mean,
        "original_95": [before.mean - interval, before.mean + interval],
        "exported_mean": float(after.mean()),
    }


def main(options: Options) -> list[dict]:
    """Measure, print and write."""
    check_numbers(options, "episodes")
    if options.run:
        rows = [returns(options.run, options.episodes)]
    else:
        with_presets(Config(""), options.presets)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        rows = [timed(preset, options.steps) for preset in options.presets]
    versions = {name: version(name) for name in ("onnx", "onnxruntime")}
    record = {"provenance": provenance(), "versions": versions, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("export-returns.json" if options.run else "export.json")
    path.write_text(json.dumps(record, indent=2) + "\n")
    shown = [{name: x for name, x in row.items() if not isinstance(x, list)} for row in rows]
    table = Table(*shown[0])
    for row in shown:
        table.add_row(*(f"{x:.3f}" if isinstance(x, float) else str(x) for x in row.values()))
    Console().print(table)
    return rows


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"export.py: {error}") from None
