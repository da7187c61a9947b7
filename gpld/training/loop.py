"""Training: environments, replay and agent, in step by count and never by timing.

One iteration takes one agent step in every environment:

    wait for the environments -> act and remember -> learn -> send the actions

The device is handed acting and learning together, and the actions go to the environments as soon as acting
is done. So the environments step while the device learns, and yet every action comes from all updates made
before it: the policy does not lag.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from gpld import config as options
from gpld import envs, machine, memory, replay
from gpld.config import Config
from gpld.envs import Step, VectorEnv
from gpld.training import _program, provenance
from gpld.training._claim import claimed
from gpld.training._program import Keys, Live
from gpld.training.checkpoints import Checkpoints
from gpld.training.evaluation import evaluate
from gpld.training.logs import Logs
from gpld.training.progress import Progress
from gpld.training.saved import CHECKPOINTS, CONFIG, write_spaces
from gpld.types import Spaces


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
    """Train, or go on with the run in `folder`. `task` makes Gymnasium environments of your own.

    Ctrl-C and SIGTERM let it save and return. A second Ctrl-C ends the process at once.
    """
    options.validate(config)
    folder = Path(folder)
    machine.use_compilation_cache()
    try:
        with claimed(config, folder), _interruptible() as interrupted, Run(config, folder, task) as run:
            # Not earlier: options that a run could not even start with shall not bind the next attempt.
            options.save(config, folder / CONFIG)
            while not run.finished and interrupted() is None:
                run.advance()
            if not run.finished:
                run.progress.message(f"interrupted at {run.env_steps:,} env steps; the same command goes on")
            run.save()
            return Result(folder, run.env_steps, run.finished, None if run.finished else interrupted())
    except BrokenPipeError:  # whoever looked at the output has gone
        raise
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror or error}"
        raise TrainingStopped(
            f"{reason}. When that is mended, the same command goes on from the last checkpoint"
        ) from error


@contextmanager
def _interruptible() -> Iterator[Callable[[], int | None]]:
    """Turn Ctrl-C and SIGTERM into a question that is asked between iterations: which of them came?"""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)
        if number == signal.SIGINT:  # batch systems send SIGTERM to every process they find, some twice
            signal.signal(number, signal.SIG_DFL)

    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody handle signals
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Run:
    """A run under way. What it will do next depends on `config`, `live`, `env` and the counters alone."""

    def __init__(self, config: Config, folder: Path, task: Callable[[], Any] | None = None):
        self.config, self.keys = config, Keys.of(config.seed)
        self._folder, self._task = folder, task
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
        self._send(np.asarray(action))

        if due and _crossed(config.log.every, self.updates - due, self.updates):
            self._log()
        every = config.eval.every
        if every and (_crossed(every, before, self.agent_steps) or self.finished):
            self._evaluate()
        self.progress.update(env_steps=self.env_steps, updates=self.updates)
        if not self.checkpoints.busy:  # else try again after the next step, rather than wait
            self.checkpoints.wait()  # raises what went wrong with the last one
            if time.monotonic() - self._saved_at > 60 * config.checkpoint.minutes:
                self.save()

    def _receive(self) -> Step:
        """The next step of the environments."""
        phase, self._phase = self._phase, "new"
        if phase == "waiting":
            return self._waiting
        if phase == "new":
            self.env.send(np.zeros((self.env.count, self.env.spaces.actions), np.float32))
        before = len(self.env.faults)
        step = self.env.recv()
        self.recent = self.recent.count_faults(len(self.env.faults) - before)
        return step

    def _send(self, action: Float32[np.ndarray, "N A"]) -> None:
        """Let the environments begin their next step."""
        if not np.isfinite(action).all():
            raise TrainingStopped(
                f"the policy's actions are not finite after {self.updates:,} updates. Lower "
                f"agent.optimizer.learning_rate; the metrics are in {self.logs.path}"
            )
        self.env.send(action)
        self._phase = "stepping"

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
                f"{in_row} updates in a row were skipped because a loss or gradient was not finite "
                f"(max_skipped is {self.config.max_skipped}). Lower agent.optimizer.learning_rate, or check "
                f"observations and rewards of {self.config.task}; the metrics are in {self.logs.path}"
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
            earlier = (self._folder / CONFIG).exists()
            return ["no checkpoint was written here yet: the run begins anew"] if earlier else []
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
    faults: np.ndarray
    """Environments that broke and were restarted."""
    since: np.ndarray
    """Updates made before the last line."""

    @classmethod
    def zeros(cls, streams: int) -> "_Recent":
        counts = [np.zeros((), np.int64) for _ in range(3)]
        return cls(np.zeros(streams), np.zeros(()), *counts)

    def count_faults(self, new: int) -> "_Recent":
        return self._replace(faults=self.faults + new)

    def follow(self, step: Step) -> "_Recent":
        running = self.running + step.reward
        return self._replace(
            running=np.where(step.is_last, 0.0, running),
            total=self.total + running[step.is_last].sum(),
            episodes=self.episodes + step.is_last.sum(),
        )

    def metrics(self) -> dict[str, float]:
        values = {"train/faults": float(self.faults)} if self.faults else {}
        if self.episodes:
            values["train/return"] = float(self.total / self.episodes)
            values["train/episodes"] = float(self.episodes)
        return values

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
