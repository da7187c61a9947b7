"""What the tests of training share: a tiny run, its command, and what is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.spaces import Box, Dict

from gpld import config as options, population
from gpld.config import Config
from gpld.population import Member
from gpld.training import saved
from gpld.training._groups import RunGroup
from gpld.training.loop import Training

ROOT = Path(__file__).parents[2]

TINY = {
    "env_steps": 4000,
    "agent": {
        "model": {
            "deter": 16,
            "hidden": 8,
            "stoch": 3,
            "classes": 4,
            "units": 8,
            "blocks": 4,
            "prior_layers": 1,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "policy_layers": 1,
            "value_layers": 1,
            "bins": 15,
        },
        "behavior": {"horizon": 3},
        "optimizer": {"learning_rate": 1e-2, "warmup": 0},
    },
    "env": {"count": 4},
    # Three updates for each four steps of all environments: never two at once, which would be compiled again.
    # So would be a replay of another size: it is smaller than any of the runs.
    "replay": {
        "capacity": 400,
        "batch": 4,
        "length": 8,
        "min_steps": 64,
        "train_ratio": 6.0,
        "storage": "device",
    },
    "eval": {"every": 750, "episodes": 1},
    "log": {"every": 20, "tensorboard": False},
}
"""2,000 agent steps and 363 updates of an agent that learns nothing useful, but learns."""


def tiny(task: str = "cartpole-balance", **changes: Any) -> Config:
    """The tiny run with some options changed, which are given as to `options.override`."""
    return options.override(options.override(Config(task), TINY), changes)


class Pole(gymnasium.Env):
    """Has the spaces of the suite's cartpole, so that it shares compiled programs, and short episodes.

    `before_step(env)` is called before each frame; it may do anything to `env`, or raise.
    """

    def __init__(self, before_step: Callable[["Pole"], None] = lambda env: None, end: int = 50):
        self._before_step, self._end = before_step, end
        boxes = {name: Box(-np.inf, np.inf, (size,), np.float32) for name, size in OBSERVATIONS.items()}
        self.observation_space = Dict(boxes)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self):
        parts = np.split(self.state.astype(np.float32), np.cumsum([*OBSERVATIONS.values()])[:-1])
        return dict(zip(OBSERVATIONS, parts, strict=True))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.state = 0, self.np_random.normal(size=sum(OBSERVATIONS.values()))
        return self._observe(), {}

    def step(self, action):
        self._before_step(self)
        self.time += 1
        self.state = 0.9 * np.roll(self.state, 1) + 0.1 * action + 0.1 * self.np_random.normal()
        return self._observe(), float(np.cos(self.state[0])), self.time == self._end, False, {}


OBSERVATIONS = {"position": 3, "velocity": 2}


@contextmanager
def opened(config: Config, folder: Path, task: Callable[[], Any] | None = None) -> Iterator[Training]:
    """A run under way."""
    member = Member(config, folder)
    fresh = newest_checkpoint(folder) < 0
    with Training(RunGroup([member], fresh, config.replay.storage), config, task=task) as training:
        if fresh:
            options.save(config, folder / saved.CONFIG)
        yield training


def contents(config: Config, folder: Path, task: Callable[[], Any] | None = None) -> dict[str, np.ndarray]:
    """All arrays of a run, as one that goes on with it finds them, by their paths; counters included."""
    return arrays_of([Member(config, folder)], task)


def arrays_of(members: Sequence[Member], task: Callable[[], Any] | None = None) -> dict[str, np.ndarray]:
    """`contents` of runs that were trained together, with their leading axis."""
    config = population.shared(members)
    group = RunGroup(
        list(members), False, "device" if config.replay.storage == "auto" else config.replay.storage
    )
    with Training(group, config, task=task) as run:
        live = {"arrays": run._arrays(), "sums": run.state.sums, "replay": run.state.replay}
        leaves = jax.tree_util.tree_leaves_with_path((live, (run.iterations, run.updates)))
    return {jax.tree_util.keystr(path): _plain(leaf) for path, leaf in leaves}


def _plain(leaf: Any) -> np.ndarray:
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def differing(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> list[str]:
    """Paths of the arrays that are not the same to the bit."""
    assert one.keys() == two.keys()
    return [path for path in one if one[path].dtype != two[path].dtype or not _same(one[path], two[path])]


def _same(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape == two.shape and one.tobytes() == two.tobytes()


def metrics(folder: Path) -> bytes:
    """The file of metrics."""
    return (folder / "metrics.jsonl").read_bytes()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics, without their checksums."""
    rows = [json.loads(line) for line in metrics(folder).splitlines()]
    return [{name: value for name, value in row.items() if name != "crc"} for row in rows]


# Runs in processes of their own


def arguments(config: Config) -> list[str]:
    """What to give to `gpld train` for a configuration."""
    flags = [config.task]
    for path, (_, value) in options.diff(Config(config.task), config).items():
        *groups, name = path.replace("_", "-").split(".")
        if isinstance(value, bool):
            flags.append("--" + ".".join([*groups, name if value else f"no-{name}"]))
        else:
            flags += ["--" + ".".join([*groups, name]), str(value)]
    return flags


TRAIN_ONLY = (
    "import sys; from gpld.cli import parse_train; from gpld.training import train_all; "
    "train_all(parse_train(sys.argv[1:]).members)"
)
"""`gpld train` without the summary and the film that it ends with."""


@contextmanager
def started(
    config: Config, folder: Path, *program: str, more: Sequence[str] = ()
) -> Iterator[subprocess.Popen]:
    """A run under way in a process of its own; what it says is in `output(folder)`."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    program = program or ("-c", TRAIN_ONLY)
    command = [sys.executable, *program, *arguments(config), *more, "--out", str(folder)]
    with output(folder).open("a") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def output(folder: Path) -> Path:
    """Where the processes of a run write what they have to say."""
    return folder.with_name(f"{folder.name}.output")


def finish(config: Config, folder: Path, *, within: float = 300.0) -> None:
    """Let the command run to its end."""
    with started(config, folder) as process:
        assert process.wait(within) == 0, output(folder).read_text()


def newest_checkpoint(folder: Path) -> int:
    """Env steps of the newest checkpoint, or -1."""
    return max((int(name) for name in _names(folder / "checkpoints") if name.isdigit()), default=-1)


def being_written(folder: Path) -> bool:
    """Whether a checkpoint has been begun and not completed."""
    names = _names(folder / "checkpoints") + _names(folder / "checkpoints" / "steps")
    return any(name.startswith(".tmp-") for name in names)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, *, within: float = 120.0) -> None:
    """Return when the condition holds or the process has ended."""
    deadline = time.monotonic() + within
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.001)


def interrupt(process: subprocess.Popen, number: signal.Signals, *, within: float = 120.0) -> int:
    """Send a signal and return the exit status."""
    process.send_signal(number)
    return process.wait(within)
