"""Training: environments, replay and agent, in step by count and never by timing.

One iteration takes one agent step in every environment:

    wait for the environments -> act and remember -> learn -> send the actions

The device is handed acting and learning together, and the actions go to the environments as soon as acting is
done. So the environments step while the device learns, and yet every action comes from all updates made before
it: the policy does not lag.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpld import config as options
from gpld import envs, machine, memory, replay
from gpld.config import Config, ConfigError
from gpld.envs import Step, VectorEnv
from gpld.training import _program, provenance
from gpld.training._program import Keys, Live
from gpld.training.checkpoints import Checkpoints
from gpld.training.evaluation import evaluate
from gpld.training.logs import Logs
from gpld.training.progress import Progress
from gpld.training.saved import CHECKPOINTS, CONFIG, write_spaces
from gpld.types import Spaces

# What may change between two starts of a run, because no bit of training depends on it.
_FREE = ("checkpoint.", "log.", "env.threads", "env.timeout")


class TrainingStopped(RuntimeError):  # noqa: N818
    """A run that cannot go on, in words for its user."""


class Result(NamedTuple):
    """How a run ended."""

    folder: Path
    env_steps: int
    finished: bool
    """False if it was interrupted; the same command goes on with it."""
    signal: int | None = None
    """What interrupted it: SIGINT (Ctrl-C) or SIGTERM."""


def train(config: Config, folder: str | Path, *, task: Callable[[], Any] | None = None) -> Result:
    """Train, or go on with the run in `folder`. `task` makes Gymnasium environments of your own."""
    options.validate(config)
    folder = Path(folder)
    _claim(config, folder)
    machine.use_compilation_cache()
    with _interruptible() as interrupted, Run(config, folder, task) as run:
        while not run.finished and interrupted() is None:
            run.advance()
        run.save()
        return Result(folder, run.env_steps, run.finished, None if run.finished else interrupted())


def _claim(config: Config, folder: Path) -> None:
    """Make the folder this run's, or refuse one that holds another."""
    path = folder / CONFIG
    if path.exists():
        differences = {
            name: values
            for name, values in options.diff(options.load(path), config).items()
            if not name.startswith(_FREE) and not (name == "env_steps" and values[0] < values[1])
        }
        if differences:
            lines = [f"  {name}: {old!r} there, {new!r} now" for name, (old, new) in differences.items()]
            raise ConfigError(
                "\n".join([f"out: {folder} holds a run with other options; name another folder", *lines])
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        options.save(config, path)
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be written ({error.strerror})") from error


@contextmanager
def _interruptible() -> Iterator[Callable[[], int | None]]:
    """Turn Ctrl-C and SIGTERM into a question that is asked between iterations: which of them came?"""
    received: list[int] = []
    # A second Ctrl-C ends the process at once.
    handlers = {
        number: signal.signal(number, lambda n, _: received.append(n) or signal.signal(n, signal.SIG_DFL))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Run:
    """A run under way. What it will do next depends on `config`, `live`, `env` and the counters alone."""

    def __init__(self, config: Config, folder: Path, task: Callable[[], Any] | None = None):
        self.config, self.keys, self._task = config, Keys.of(config.seed), task
        with ExitStack() as stack:  # closes what was opened if something fails to open
            self.env = stack.enter_context(_make_env(config, task))
            spaces = self.env.spaces
            storage, placed = memory.place_replay(
                config,
                memory.memory_estimate(config, spaces),
                machine.device_memory().free,
                machine.host_memory().free,
            )
            self.live = _program.init(config, spaces, storage)
            self.iterations = 0
            """Agent steps taken in each environment."""
            self.updates = 0
            self.recent = _Recent.zeros(config.env.count)
            self._waiting = _blank_step(spaces, config.env.count)
            """What the environments gave last, if it has not been looked at yet."""
            self._phase: Literal["new", "stepping", "waiting"] = "new"
            self.checkpoints = stack.enter_context(
                Checkpoints(folder / CHECKPOINTS, keep=config.checkpoint.keep)
            )
            messages = [placed, *self._restore()]
            resume_at = self.env_steps if self.iterations else None
            self.logs = stack.enter_context(
                Logs(folder, config.log, options.flat(config), resume_at=resume_at)
            )
            provenance.record(folder, self.env_steps)
            write_spaces(folder, spaces)
            title = f"{config.task}, seed {config.seed}"
            self.progress = stack.enter_context(Progress(config.env_steps, title, start=self.env_steps))
            for message in messages:
                self.progress.message(message)
            self._saved_at = time.monotonic()
            self._stack = stack.pop_all()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    @property
    def agent_steps(self) -> int:
        """Agent steps taken in all environments."""
        return self.iterations * self.config.env.count

    @property
    def env_steps(self) -> int:
        """Env steps taken in all environments."""
        return self.agent_steps * self.config.env.action_repeat

    @property
    def finished(self) -> bool:
        """Whether the planned steps have been taken."""
        return self.agent_steps >= self.config.agent_steps

    def advance(self) -> None:
        """One agent step in every environment, and the updates that are due after it."""
        config = self.config
        step = self._receive()
        self.recent = self.recent.follow(step)
        record = replay.Record(**step._asdict(), action=self.live.carry.action, latent=self.live.carry.latent)
        self.live = _program.act(config, self.live, record, self.iterations, self.keys.act)
        action = self.live.carry.action
        before, self.iterations = self.agent_steps, self.iterations + 1
        due = config.updates_at(self.agent_steps) - self.updates
        if due:
            self.live = _program.learn(config, self.live, due, self.keys.sample)
            self.updates += due
        # Acting is done long before learning, so this does not wait for the updates just handed over.
        self.env.send(np.asarray(action))
        self._phase = "stepping"

        if due and _crossed(config.log.every, self.updates - due, self.updates):
            self._log()
        every = config.eval.every
        if every and (_crossed(every, before, self.agent_steps) or self.finished):
            self._evaluate()
        self.progress.update(env_steps=self.env_steps, updates=self.updates)
        if time.monotonic() - self._saved_at > 60 * config.checkpoint.minutes:
            self.save()

    def _receive(self) -> Step:
        """The next step of the environments."""
        phase, self._phase = self._phase, "new"
        if phase == "waiting":
            return self._waiting
        if phase == "stepping":
            return self.env.recv()
        return self.env.step(np.zeros((self.env.count, self.env.spaces.actions), np.float32))

    def _log(self) -> None:
        """A line of metrics: means over the updates since the last one."""
        sums = jax.device_get(self.live.sums)
        count = self.updates - int(self.recent.since)
        values = {name: float(total) / count for name, total in sums.items()} | self.recent.metrics()
        values |= {"updates/skipped": float(self.live.agent.skipped)}
        self._show(values)
        self.recent = self.recent.restart(self.updates)
        self.live = self.live._replace(sums=jax.tree.map(jnp.zeros_like, sums))
        in_row = int(self.live.agent.skipped_in_row)
        if in_row >= self.config.max_skipped:
            raise TrainingStopped(
                f"{in_row} updates in a row were skipped because a loss or gradient was not finite (max_skipped is "
                f"{self.config.max_skipped}). Lower agent.optimizer.learning_rate, or check the observations and "
                f"rewards of {self.config.task}; the metrics are in {self.logs.path}"
            )

    def _show(self, values: dict[str, float]) -> None:
        self.logs.scalars(self.env_steps, self.updates, values)
        self.progress.update(env_steps=self.env_steps, updates=self.updates, values=values)

    def _evaluate(self) -> None:
        returns = evaluate(
            self.config,
            self.live.agent.model,
            episodes=self.config.eval.episodes,
            number=self.agent_steps,
            key=jax.random.fold_in(self.keys.evaluate, self.agent_steps),
            task=self._task,
        )
        self._show(
            {
                "eval/return": float(np.mean(returns)),
                "eval/return_std": float(np.std(returns)),
                "eval/episodes": float(len(returns)),
            }
        )

    def save(self) -> None:
        """Checkpoint everything. Nothing that happens later depends on when this was done."""
        self._waiting, self._phase = self._receive(), "waiting"
        self.logs.flush()
        self.checkpoints.save(
            self.env_steps,
            self._arrays(),
            self.live.replay,
            blobs={"env": self.env.save()},
            info={"iterations": self.iterations, "updates": self.updates},
        )
        self._saved_at = time.monotonic()

    def _arrays(self) -> dict[str, Any]:
        live = self.live
        return {
            "agent": live.agent,
            "carry": live.carry,
            "sums": live.sums,
            "recent": self.recent,
            "waiting": self._waiting,
        }

    def _restore(self) -> list[str]:
        """Go on from the newest checkpoint, if there is one, and say so."""
        found = self.checkpoints.restore(self._arrays(), self.live.replay)
        if found is None:
            return []
        saved = found.arrays
        self.live = Live(saved["agent"], saved["carry"], found.replay, saved["sums"])
        self.recent, self._waiting, self._phase = saved["recent"], saved["waiting"], "waiting"
        self.iterations, self.updates = found.info["iterations"], found.info["updates"]
        restarted = self.env.restore(found.blobs["env"])
        messages = [f"resumed at {self.env_steps:,} env steps and {self.updates:,} updates"]
        if restarted:
            messages.append(
                f"environments {restarted} could not go on where they were and begin new episodes"
            )
        return messages


class _Recent(NamedTuple):
    """What happened since the last line of metrics."""

    running: np.ndarray
    """Return so far of every stream's episode."""
    total: np.ndarray
    """Sum of the returns of the episodes that ended."""
    episodes: np.ndarray
    since: np.ndarray
    """Updates made before the last line."""

    @classmethod
    def zeros(cls, streams: int) -> "_Recent":
        return cls(np.zeros(streams), np.zeros(()), np.zeros((), np.int64), np.zeros((), np.int64))

    def follow(self, step: Step) -> "_Recent":
        running = self.running + step.reward
        return self._replace(
            running=np.where(step.is_last, 0.0, running),
            total=self.total + running[step.is_last].sum(),
            episodes=self.episodes + step.is_last.sum(),
        )

    def metrics(self) -> dict[str, float]:
        if not self.episodes:
            return {}
        return {"train/return": float(self.total / self.episodes), "train/episodes": float(self.episodes)}

    def restart(self, updates: int) -> "_Recent":
        fresh = _Recent.zeros(len(self.running))
        return fresh._replace(running=self.running, since=np.array(updates, np.int64))


def _make_env(config: Config, task: Callable[[], Any] | None) -> VectorEnv:
    return envs.make(
        task or config.task,
        count=config.env.count,
        seed=config.seed,
        action_repeat=config.env.action_repeat,
        backend=config.backend,
        threads=config.env.threads,
        timeout=config.env.timeout,
        restart_limit=config.env.restarts,
    )


def _blank_step(spaces: Spaces, count: int) -> Step:
    obs = {name: np.zeros((count, *shape), np.float32) for name, shape in spaces.obs}
    flags = [np.zeros(count, bool) for _ in range(3)]
    return Step(obs, np.zeros(count, np.float32), *flags)


def _crossed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` was passed."""
    return before // every != now // every
