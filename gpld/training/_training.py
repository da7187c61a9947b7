"""Runs under way, in step by count and never by timing.

One iteration takes one agent step in every environment of every run:

    wait for the environments -> act and remember -> learn -> send the actions

The device is handed acting and learning together, and the actions go to the environments as soon as acting
is done. So the environments step while the device learns, and yet every action comes from all updates made
before it: the policy does not lag.

One run is a population of one: all arrays have a leading run axis.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32
from rich.console import Console

from gpld import config as options
from gpld.agent import AgentState
from gpld.config import Config
from gpld.envs import Fleet, Hosts, Step
from gpld.population import method_of
from gpld.replay import Record, join, split
from gpld.training import _devices, _program, milestones, provenance, warm_start
from gpld.training._plan import Group
from gpld.training._program import Keys
from gpld.training._recent import Recent
from gpld.training.checkpoints import Checkpoints, restore_all, save_all
from gpld.training.curve import title_of
from gpld.training.evaluation import Recording, Task, evaluate_all, make
from gpld.training.logs import METRICS, Logs
from gpld.training.progress import Progress
from gpld.training.saved import CHECKPOINTS, CONFIG, write_spaces
from gpld.types import Spaces

T = TypeVar("T")


class TrainingStopped(RuntimeError):  # noqa: N818
    """A run that cannot go on, in words for its user."""


class Training:
    """Runs under way. What they will do next depends on `config`, `live`, `env` and the counters alone."""

    def __init__(self, group: Group, shared: Config, *, task: Task | None = None, devices: int = 0):
        configs, self.members = [member.config for member in group.members], group.members
        self._task, self._mesh = task, _devices.mesh_for(len(configs), shared.replay.batch, devices)
        self.config = _devices.compiled_for(shared, self._mesh)
        seeds = self._on_devices([config.seed for config in configs])
        self.keys = _devices.place(Keys.of_all(seeds), self._mesh)
        with ExitStack() as stack:  # closes what was opened if something fails to open
            runs = []
            for config in configs:
                runs.append(make(config, config.env.count, task=task, share=len(configs)))
                stack.callback(runs[-1].close)
            self.env = Fleet(runs)
            self._hosts = [stack.enter_context(Hosts()) for _ in configs]
            """Processes that evaluations use one after the other."""
            self.iterations = 0
            """Agent steps taken in each environment."""
            self.updates = 0
            """Updates of each run."""
            self.recent = Recent.zeros(len(configs), shared.env.count)
            self._waiting = _blank_step(self.env.spaces, len(configs), shared.env.count)
            """What the environments gave last, if it has not been looked at yet."""
            self._phase: Literal["new", "stepping", "waiting"] = "new"
            keep, folders = shared.checkpoint.keep, [member.folder for member in group.members]
            self.checkpoints = [
                stack.enter_context(Checkpoints(folder / CHECKPOINTS, keep=keep)) for folder in folders
            ]
            messages = self._begin(group) if group.anew else self._restore(group)
            _devices.wait_for_others("restored")  # before one of them writes
            self.logs: list[Logs] = []
            for member in group.members if _devices.writes() else []:
                aside = milestones.set_aside(member.folder, after=self.env_steps)
                resume_at, all_options = self.env_steps or None, options.flat(member.config)
                logs = Logs(member.folder, member.config.log, all_options, resume_at=resume_at)
                self.logs.append(stack.enter_context(logs))
                messages += [f"set aside, because the run comes there again: {path}" for path in aside]
                messages += [f"{member.name}: {logs.undone}"] if logs.undone else []
                provenance.record(member.folder, self.env_steps)
                write_spaces(member.folder, self.env.spaces)
            self.progress = stack.enter_context(
                Progress(
                    shared.env_steps,
                    title_of(configs),
                    labels=[method_of(config) if len(configs) > 1 else "" for config in configs],
                    start=self.env_steps,
                    updates=self.updates,
                    console=Console(quiet=not _devices.writes()),
                )
            )
            for message in messages:
                self.progress.message(message)
            self._saved_at = time.monotonic()
            self._stack = stack.pop_all()

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    def _on_devices(self, runs: Sequence[T]) -> list[T]:
        """What belongs to each run, as often as the run is on the devices."""
        return [*runs, *[runs[-1]] * _devices.missing(len(runs), self._mesh)]

    @property
    def agent_steps(self) -> int:
        """Agent steps taken in all environments of a run."""
        return self.iterations * self.config.env.count

    @property
    def env_steps(self) -> int:
        """Env steps taken in all environments of a run."""
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
        step = _devices.filled(step, self._mesh)
        record = Record(**step._asdict(), action=self.live.carry.action, latent=self.live.carry.latent)
        self.live = _program.act(config, self.live, record, self.iterations, self.keys.act, self._mesh)
        action = self.live.carry.action
        before, self.iterations = self.agent_steps, self.iterations + 1
        due = config.updates_at(self.agent_steps) - self.updates
        if self.live.replay.host:  # from which learning waits for the device
            self._send(np.asarray(action))
        if due:
            self.live = _program.learn(config, self.live, due, self.keys.sample, self._mesh)
            self.updates += due
        if not self.live.replay.host:
            # Acting is done long before learning, so this does not wait for the updates just handed over.
            self._send(np.asarray(action))

        if due and _crossed(config.log.every, self.updates - due, self.updates):
            self._log()
        every = config.eval.every
        if every and (_crossed(every, before, self.agent_steps) or self.finished):
            self._evaluate()
        if config.checkpoint.milestones and _crossed(config.checkpoint.milestones, before, self.agent_steps):
            self._keep()
        self.progress.update(env_steps=self.env_steps, updates=self.updates)
        if not any(run.busy for run in self.checkpoints):  # else try after the next step, rather than wait
            for run in self.checkpoints:
                run.wait()  # raises what went wrong with the last one
            if time.monotonic() - self._saved_at > 60 * config.checkpoint.minutes:
                self.save()

    def _receive(self) -> Step:
        """The next step of the environments."""
        phase, self._phase = self._phase, "new"
        if phase == "waiting":
            return self._waiting
        if phase == "new":
            self.env.send(np.zeros((*self.recent.running.shape, self.env.spaces.actions), np.float32))
        before = self.env.faults
        step = self.env.recv()
        self.recent = self.recent.count_faults(self.env.faults - before)
        return step

    def _send(self, action: Float32[np.ndarray, "R N A"]) -> None:
        """Let the environments begin their next step; what is there again acts in none."""
        action = action[: len(self.members)]
        finite = np.isfinite(action).all(axis=(1, 2))
        if not finite.all():
            self._stop(
                int(np.argmin(finite)),
                f"the policy's actions are not finite after {self.updates:,} updates. Lower "
                "agent.optimizer.learning_rate",
            )
        self.env.send(action)
        self._phase = "stepping"

    def _stop(self, run: int, reason: str) -> NoReturn:
        """Give up because of one run."""
        others = ""
        if len(self.members) > 1:
            reason = f"{self.members[run].name}: {reason}"
            others = ". The other runs can go on without it, from the last checkpoint"
        raise TrainingStopped(f"{reason}; the metrics are in {self.members[run].folder / METRICS}{others}")

    def _log(self) -> None:
        """A line of metrics for each run: means over the updates since the last one."""
        sums, skipped, in_row = jax.device_get(
            (self.live.sums, self.live.agent.skipped, self.live.agent.skipped_in_row)
        )
        count = self.updates - int(self.recent.since[0])
        values = []
        for run, member in enumerate(self.members):
            own = _program.own_metrics(member.config, list(sums))
            means = {name: float(sums[name][run]) / count for name in own}
            values.append(means | self.recent.metrics(run) | {"updates/skipped": float(skipped[run])})
        self._show(values)
        self.recent = self.recent.restart(self.updates)
        self.live = self.live._replace(sums=jax.tree.map(jnp.zeros_like, self.live.sums))
        worst = int(np.argmax(in_row[: len(self.members)]))
        if in_row[worst] >= self.config.max_skipped:
            self._stop(
                worst,
                f"{in_row[worst]} updates in a row were skipped because a loss or gradient was not finite "
                f"(max_skipped is {self.config.max_skipped}). Lower agent.optimizer.learning_rate, or check "
                f"observations and rewards of {self.config.task}",
            )

    def _show(self, values: Sequence[dict[str, float]]) -> None:
        for logs, own in zip(self.logs, values, strict=_devices.writes()):
            logs.scalars(self.env_steps, self.updates, own)
        self.progress.update(env_steps=self.env_steps, updates=self.updates, values=values)

    def _evaluate(self) -> None:
        recording = Recording(self.env.spaces.images if self._filming else (), len(self.members))
        returns = evaluate_all(
            [member.config for member in self.members],
            self.live.agent.model,
            episodes=self.config.eval.episodes,
            number=self.agent_steps,
            keys=_program.fold_in(self.keys.evaluate, np.int32(self.agent_steps)),
            task=self._task,
            mesh=self._mesh,
            watch=recording,
            hosts=self._hosts,
        )
        self._show(
            [
                {
                    "eval/return": float(np.mean(own)),
                    "eval/return_std": float(np.std(own)),
                    "eval/episodes": float(len(own)),
                }
                for own in returns
            ]
        )
        for logs, seen in zip(self.logs, recording.images, strict=_devices.writes()):
            logs.films(self.env_steps, {f"films/{name}": pictures for name, pictures in seen.items()})

    @property
    def _filming(self) -> bool:
        """Whether an evaluation now is to be looked at: the first, the last, and some between them."""
        log, every = self.config.log, self.config.eval.every
        if not (log.tensorboard and log.films and every):
            return False
        return (self.agent_steps // every - 1) % log.films == 0 or self.finished

    def _keep(self) -> None:
        """Keep all models for good."""
        if _devices.writes():
            folders = [member.folder for member in self.members]
            models = _devices.local(self.live.agent.model)
            milestones.keep(folders, self.env_steps, models, updates=self.updates)

    def save(self) -> None:
        """Checkpoint everything. Nothing that happens later depends on when this was done."""
        self._waiting, self._phase = self._receive(), "waiting"
        self._saved_at = time.monotonic()
        if not _devices.writes():
            return
        for logs in self.logs:
            logs.flush()
        arrays, memory, sums = _devices.local((self._arrays(), self.live.replay, self.live.sums))
        sums = jax.device_get(sums)
        save_all(
            self.checkpoints,
            self.env_steps,
            arrays,
            memory,
            own=[self._own_sums(sums, run) for run in range(len(self.members))],
            blobs=[{"env": state} for state in self.env.save()],
            info={"iterations": self.iterations, "updates": self.updates},
        )

    def _arrays(self) -> dict[str, Any]:
        """What a checkpoint holds besides replay and sums, with a leading run axis."""
        live = self.live
        return {
            "agent": _without_hyper(live.agent),
            "carry": live.carry,
            "recent": self.recent,
            "waiting": self._waiting,
        }

    def _own_sums(self, sums: dict[str, np.ndarray], run: int) -> dict[str, Any]:
        """What a run alone would sum."""
        own = _program.own_metrics(self.members[run].config, list(sums))
        return {"sums": {name: sums[name][run] for name in own}}

    def _begin(self, group: Group) -> list[str]:
        """Begin all runs, and say so if they were begun before."""
        configs = self._on_devices([member.config for member in group.members])
        live = _program.init(self.config, self.env.spaces, group.storage, configs, self._mesh)
        self.live = live._replace(agent=warm_start.begin(self.config, live.agent))
        if not any((member.folder / CONFIG).exists() for member in group.members):
            return []
        which = "the run begins" if len(group.members) == 1 else "the runs begin"
        return [f"no checkpoint was written here yet: {which} from the start"]

    def _restore(self, group: Group) -> list[str]:
        """Go on from the newest checkpoint of all runs, and say so."""
        configs, spaces = [member.config for member in group.members], self.env.spaces
        shapes = jax.eval_shape(lambda: _program.init(self.config, spaces, "device", configs))
        alone = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)
        like = {"agent": _without_hyper(alone.agent), "carry": alone.carry}
        like |= jax.tree.map(lambda x: x[0], {"recent": self.recent, "waiting": self._waiting})
        own = [_program.own_metrics(config, list(alone.sums)) for config in configs]
        memory = _program.empty_replay(self.config, spaces, "host", len(configs))
        found = restore_all(
            self.checkpoints,
            [like | {"sums": {name: alone.sums[name] for name in names}} for names in own],
            split(memory),
        )
        assert found is not None, "there is a step that all have, or they would begin from the start"
        self.live = _program.resumed(
            self._on_devices(configs),
            self._on_devices([run.arrays for run in found]),
            _devices.filled(join(memory, [run.replay for run in found if run.replay]), self._mesh),
            list(alone.sums),
            group.storage,
            self._mesh,
        )
        self.recent, self._waiting = jax.tree.map(
            lambda *x: np.stack(x), *((run.arrays["recent"], run.arrays["waiting"]) for run in found)
        )
        self._phase = "waiting"
        self.iterations, self.updates = found[0].info["iterations"], found[0].info["updates"]
        messages = [f"resumed at {self.env_steps:,} env steps and {self.updates:,} updates"]
        lost = self.env.restore([run.blobs["env"] for run in found])
        for member, streams in zip(self.members, lost, strict=True):
            if streams:
                which = f"{member.name}: " if len(lost) > 1 else ""
                messages.append(
                    f"{which}environments {streams} could not go on where they were and begin new episodes"
                )
        return messages


def _without_hyper(state: AgentState) -> AgentState:
    """As checkpoints hold it: hyperparameters are those of the run's configuration."""
    return state._replace(hyper=None)


def _blank_step(spaces: Spaces, runs: int, count: int) -> Step:
    obs = {name: np.zeros((runs, count, *shape), spaces.dtype(name)) for name, shape in spaces.obs}
    flags = [np.zeros((runs, count), bool) for _ in range(3)]
    return Step(obs, np.zeros((runs, count), np.float32), *flags)


def _crossed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` was passed."""
    return before // every != now // every
