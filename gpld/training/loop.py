"""The training loop: one run or many, from the start or from checkpoints, until finished or interrupted.

Runs advance by counts and never by timing. One iteration takes one agent step in every environment of every
run:

    wait for the environments -> act and append to the replay -> learn -> send the actions

The device is handed acting and learning together, and the actions go to the environments as soon as acting
is done. So the environments step while the device learns, and yet every action comes from all updates made
before it: the policy does not lag.

Environments written in JAX are stepped on the device, by the program that acts. Then nothing waits for
anything: the host hands out programs, and takes in returns of episodes some steps later.

An evaluation plays with a copy of the model in a thread, while training goes on. Lines of metrics that come
after it wait for it, so their order does not depend on timing. The loop waits only before the next evaluation
and at the end. A checkpoint keeps the copy and the lines of an evaluation that is under way.

One run is a population of one: all arrays have a leading run axis.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool
from rich.console import Console

from gpld import config as options, machine, population
from gpld.agent import AgentState
from gpld.config import Config
from gpld.display.curve import title_of
from gpld.display.progress import Progress, print_line
from gpld.envs import Fleet, JaxEnv, Step
from gpld.population import Member
from gpld.replay import join, split
from gpld.training import _devices, _pending, _program, provenance, warm_start
from gpld.training._episodes import EpisodeStatistics
from gpld.training._groups import POSTPONED, RunGroup, finished_at, newest, plan
from gpld.training._lock import locked
from gpld.training._pending import EVALUATION, Line, Pending
from gpld.training._program import RandomKeys, Seen
from gpld.training.checkpoints import Blob, Checkpoints, milestones, restore_all, save_all
from gpld.training.evaluation import EnvFactory, Evaluator, make_env
from gpld.training.logs import MARK, METRICS, Logs
from gpld.training.saved import CHECKPOINTS, CONFIG, write_spaces
from gpld.types import Spaces

T = TypeVar("T")

AHEAD = 16
"""Iterations that may be handed to the device before the host looks at the first of them."""
CHECKED = 100
"""Updates after which it is asked whether they are skipped, also where lines of metrics are rarer."""


class TrainingStopped(RuntimeError):  # noqa: N818
    """A run that cannot continue, with a message for its user."""

    member: Member | None = None
    """The run, if others could go on without it."""


class Result(NamedTuple):
    """How a run ended."""

    folder: Path
    env_steps: int
    finished: bool
    """False if it was interrupted; the same command resumes it."""
    signal: int | None = None
    """The signal that interrupted it: SIGINT (Ctrl-C) or SIGTERM."""


def train(config: Config, folder: str | Path, *, task: EnvFactory | None = None, devices: int = 0) -> Result:
    """Train, or resume the run in `folder`. `task` makes Gymnasium environments of your own.

    Ctrl-C and SIGTERM let it save and return. If one comes too late to stop it, the run is finished, and then
    the signal is raised again. A second Ctrl-C ends the process at once. With `devices`, so many of JAX's
    devices share every batch.
    """
    return train_all([Member(config, Path(folder))], task=task, devices=devices)[0]


def train_all(
    members: Sequence[Member],
    *,
    task: EnvFactory | None = None,
    devices: int = 0,
    until: int | None = None,
) -> list[Result]:
    """Train several runs in one program, or resume them: `population` says which can be together.

    Each is what it would be alone, in its own folder. Finished runs are left as they are. Runs that do not
    fit into memory together, or that are at different steps, are trained in groups, one after the other.
    They are spread over `devices`, or all of JAX's on this machine if that is 0. With `until`, they are saved
    after so many env steps, at which they can be resumed.
    """
    for member in members:
        options.validate(member.config)
    shared = population.shared(members)
    machine.use_compilation_cache()
    results: dict[Path, Result] = {}
    try:
        with ExitStack() as stack:
            for member in members if _devices.writes() else []:
                stack.enter_context(locked(member.config, member.folder))
            interrupted = stack.enter_context(machine.interruptible())
            unfinished = []
            for member in members:
                if (steps := finished_at(member)) is not None:
                    _announce(f"{member.name} was finished at {steps:,} env steps")
                    results[member.folder] = Result(member.folder, steps, finished=True)
                elif until and (steps := finished_at(member, until)) is not None:
                    results[member.folder] = Result(member.folder, steps, finished=False)
                else:
                    unfinished.append(member)
            if unfinished:
                for group in _planned(unfinished, shared, task, devices):
                    results |= _train_group(group, task, devices, interrupted, until)
    except BrokenPipeError:  # the reader of the output has gone
        raise
    except OSError as error:
        reason = f"{error.filename or members[0].folder}: {error.strerror or error}"
        reason = f"{reason}. When that is fixed, the same command resumes from the last checkpoint"
        raise TrainingStopped(reason) from error
    return [results[member.folder] for member in members]


def _announce(text: str) -> None:
    if _devices.writes():
        print_line(text)


def _planned(members: list[Member], shared: Config, task: EnvFactory | None, devices: int) -> list[RunGroup]:
    """Groups of runs, checked and announced before anything is allocated."""
    with make_env(shared, 1, task=task, check=True) as env:
        spaces = env.spaces
    groups, messages = plan(members, shared, spaces, _devices.available(devices) if len(members) > 1 else 1)
    if any(group.fresh for group in groups):  # resumed runs need their source no more
        warm_start.check(shared, spaces)
    for message in messages:
        _announce(message)
    return groups


def _train_group(
    group: RunGroup,
    task: EnvFactory | None,
    devices: int,
    interrupted: Callable[[], int | None],
    until: int | None,
) -> dict[Path, Result]:
    """Train runs to their end, until some env steps, or until a signal."""
    if interrupted() is not None:  # while another group was trained
        stopped = [Result(m.folder, newest(m), finished=False, signal=interrupted()) for m in group.members]
        return {result.folder: result for result in stopped}
    machine.forget_programs()  # of earlier runs
    # Shared by this group, which may be of baselines alone: then nothing is compiled that they do not need.
    with Training(group, population.shared(group.members), task=task, devices=devices) as training:
        # Not earlier: options that a run could not start with must not bind the next attempt.
        for member in group.members if _devices.writes() else []:
            options.save(member.config, member.folder / CONFIG)
        if jax.process_count() == 1:  # several would have to agree at every step
            training.interrupted = interrupted
        stop = None
        while not training.reached(until) and stop is None:
            training.advance()
            if training.reached(until):
                break  # a signal that it does not need is left to its caller
            if jax.process_count() == 1:
                stop = interrupted()
            elif training.iterations % 100 == 0:  # rarely: processes wait for each other to agree
                stop = _devices.agreed(interrupted())
        training.end_evaluation()
        over = training.reached(until) and not training.evaluating
        if not over:
            reached = f"{training.env_steps:,} env steps"
            training.progress.message(f"interrupted at {reached}; the same command resumes")
        training.save()
        # Also one that came too late to stop it before `until`: whoever would go on from there must hear it.
        why = None if training.finished else stop or interrupted()
        return {m.folder: Result(m.folder, training.env_steps, training.finished, why) for m in group.members}


class Training:
    """Runs in training. What they do next depends on `config`, `state`, `env` and the counters alone."""

    def __init__(self, group: RunGroup, shared: Config, *, task: EnvFactory | None = None, devices: int = 0):
        configs, self.members = [member.config for member in group.members], group.members
        self._task, self._mesh = task, _devices.mesh_for(len(configs), shared.replay.batch, devices)
        self.config = _devices.compiled_for(shared, self._mesh)
        seeds = self._on_devices([config.seed for config in configs])
        self.keys = _devices.place(RandomKeys.of_all(seeds), self._mesh)
        with ExitStack() as stack:  # closes what was opened if something fails to open
            runs = []
            for config in configs:
                runs.append(make_env(config, config.env.count, task=task, share=len(configs)))
                stack.callback(runs[-1].close)
            self.env = Fleet(runs)
            self.iterations = 0
            """Agent steps taken in each environment."""
            self.updates = 0
            """Updates of each run."""
            self.interrupted: Callable[[], int | None] = lambda: None
            """Called during evaluations, which it ends: the signal that came, if one did."""
            self._pending: Pending | None = None
            """The evaluation under way, or ended by a signal."""
            self._held: list[Line] = []
            """Lines of metrics that come after it."""
            self.episodes = EpisodeStatistics.zeros(len(configs), shared.env.count)
            self._waiting = _blank_step(self.env.spaces, len(configs), shared.env.count)
            """The environments' last step, if it has not been used yet."""
            self._phase: Literal["new", "stepping", "waiting"] = "new"
            self._unseen: deque[Seen] = deque()
            """Of environments on the device: steps that the host has not been told of yet, oldest first."""
            self._faults = np.zeros(len(configs), np.int64)
            """Their faults that it has been told of."""
            self._compiled = False
            """Whether this process has compiled the update."""
            keep, folders = shared.checkpoint.keep, [member.folder for member in group.members]
            self.checkpoints = [
                stack.enter_context(Checkpoints(folder / CHECKPOINTS, keep=keep)) for folder in folders
            ]
            self._marks = [b""] * len(group.members)
            """Marks of the metrics of each run in its checkpoint."""
            messages = self._start(group) if group.fresh else self._restore(group)
            self._to_device()
            _devices.wait_for_others("restored")  # before one of them writes
            self.logs: list[Logs] = []
            messages += self._open_logs(stack) if _devices.writes() else []
            self.progress = stack.enter_context(self._progress())
            for message in messages:
                self.progress.message(message)
            self._saved_at = time.monotonic()
            self._evaluator = stack.enter_context(
                Evaluator(configs, task, self._mesh, lambda: self.interrupted() is not None)
            )
            if self._pending:  # when the checkpoint was written
                self._play()
            self._stack = stack.pop_all()

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    def _progress(self) -> Progress:
        configs = [member.config for member in self.members]
        return Progress(
            self.config.env_steps,
            title_of(configs),
            labels=[member.label if len(configs) > 1 else "" for member in self.members],
            start=self.env_steps,
            updates=self.updates,
            console=Console(quiet=not _devices.writes()),
        )

    def _open_logs(self, stack: ExitStack) -> list[str]:
        """Begin to write to the folder of each run; messages about what is there."""
        messages = []
        for member, mark in zip(self.members, self._marks, strict=True):
            aside = milestones.set_aside(member.folder, after=self.env_steps)
            resume_at, all_options = self.env_steps or None, options.flat(member.config)
            logs = Logs(member.folder, member.config.log, all_options, resume_at=resume_at, mark=mark)
            self.logs.append(stack.enter_context(logs))
            messages += [f"set aside, because the run repeats it: {path}" for path in aside]
            messages += [f"{member.name}: {logs.undone}"] if logs.undone else []
            provenance.record(member.folder, self.env_steps)
            write_spaces(member.folder, self.env.spaces)
        return messages

    def _on_devices(self, runs: Sequence[T]) -> list[T]:
        """One item for each run on the devices: the last run's is repeated to fill them."""
        return [*runs, *[runs[-1]] * _devices.padding(len(runs), self._mesh)]

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
        """Whether the planned steps have been taken, and evaluated."""
        return self.reached() and not self.evaluating

    def reached(self, until: int | None = None) -> bool:
        """Whether the planned steps have been taken, or `until` env steps."""
        return self.agent_steps >= self.config.agent_steps or self.env_steps >= (until or math.inf)

    @property
    def evaluating(self) -> bool:
        """Whether the result of an evaluation is missing: it is under way, or a signal has ended it."""
        return self._pending is not None

    def advance(self) -> None:
        """One agent step in every environment and the updates that are due.

        Or none, if the planned steps have been taken, or a signal ends an evaluation that it waits for.
        """
        config = self.config
        following = self.agent_steps + config.env.count
        if self._pending and (self.reached() or self._evaluates(following)):
            self.end_evaluation()
            if self._pending or self.reached():
                return
        self._act()
        before, self.iterations = self.agent_steps, self.iterations + 1
        due = config.updates_at(self.agent_steps) - self.updates
        if self.state.replay.host:  # reading batches from it waits for the device
            self._send()
        if due:
            with self.progress.compiling() if not self._compiled else nullcontext():
                self.state = _program.learn(config, self.state, due, self.keys.sample, self._mesh)
            self.updates, self._compiled = self.updates + due, True
        if not self.state.replay.host:
            self._send()

        if _crossed(config.log.every, self.updates - due, self.updates):
            self._log()
        elif self.reached() or _crossed(CHECKED, self.updates - due, self.updates):
            self._check_skipped()
        if not self._evaluator.busy:
            self.end_evaluation()
        if self._evaluates(self.agent_steps):
            self._evaluate()
        if config.checkpoint.milestones and _crossed(config.checkpoint.milestones, before, self.agent_steps):
            self._save_milestones()
        self.progress.update(env_steps=self.env_steps, updates=self.updates)
        if not any(run.busy for run in self.checkpoints):  # else try after the next step, rather than wait
            for run in self.checkpoints:
                run.wait()  # raises what went wrong with the last one
            overdue = time.monotonic() - self._saved_at > 60 * config.checkpoint.minutes
            if overdue and not self.reached():  # else it is saved when the last evaluation is there
                self.save()

    def _act(self) -> None:
        """Take the environments' next step, choose actions, and append both to the replay."""
        where = self.iterations, self.keys.act, self._mesh
        if self.state.envs is None:
            step = self._receive()
            self.episodes = self.episodes.add_step(step)
            self.state = _program.act(self.config, self.state, _devices.padded(step, self._mesh), *where)
            return
        self.state, seen = _program.step_and_act(self.config, self.state, self._jax_envs[0].task, *where)
        jax.tree.map(lambda x: x.copy_to_host_async(), seen)
        self._unseen.append(seen)
        self._look(leave=AHEAD)

    def _look(self, leave: int = 0) -> None:
        """Take in what the host has not been told of yet, but for the last few steps."""
        while len(self._unseen) > leave:
            seen = jax.tree.map(np.asarray, _devices.local(self._unseen.popleft()))
            seen = jax.tree.map(lambda x: x[: len(self.members)], seen)
            self._check_finite(seen.finite)
            self.episodes = self.episodes.add_faults(seen.faults - self._faults).add_step(seen)
            self._faults = seen.faults.astype(np.int64)
            for env, faults in zip(self._jax_envs, seen.faults.tolist(), strict=True):
                env.check_faults(faults)

    @property
    def _jax_envs(self) -> list[JaxEnv]:
        return [env for env in self.env.runs if isinstance(env, JaxEnv)]

    def _to_device(self) -> None:
        """Put the states of environments written in JAX beside the agents."""
        if envs := self._jax_envs:
            states = jax.tree.map(lambda *x: np.stack(x), *(env.state for env in envs))
            self._faults = states.faults.sum(axis=1).astype(np.int64)
            states = _devices.place(_devices.padded(states, self._mesh), self._mesh)
            self.state = self.state._replace(envs=jax.tree.map(jnp.asarray, states))

    def _from_device(self) -> None:
        """Give each of them its state back, to be saved."""
        states = jax.tree.map(np.asarray, _devices.local(self.state.envs))
        for run, env in enumerate(self._jax_envs):
            env.state = jax.tree.map(lambda x, run=run: x[run], states)

    def _receive(self) -> Step:
        """The next step of the environments."""
        phase, self._phase = self._phase, "new"
        if phase == "waiting":
            return self._waiting
        if phase == "new":
            self.env.send(np.zeros((*self.episodes.running.shape, self.env.spaces.actions), np.float32))
        before = self.env.faults
        step = self.env.recv()
        self.episodes = self.episodes.add_faults(self.env.faults - before)
        return step

    def _send(self) -> None:
        """Let the environments begin their next step; repeated runs have no environments."""
        if self.state.envs is not None:
            return
        # Acting is done long before learning, so this does not wait for updates just dispatched.
        action = np.asarray(self.state.carry.action)[: len(self.members)]
        self._check_finite(np.isfinite(action).all(axis=(1, 2)))
        self.env.send(action)
        self._phase = "stepping"

    def _check_finite(self, finite: Bool[np.ndarray, "R"]) -> None:
        if not finite.all():
            self._stop(
                int(np.argmin(finite)),
                f"the policy's actions are not finite after {self.updates:,} updates. Lower "
                "agent.optimizer.learning_rate",
            )

    def _stop(self, run: int, reason: str) -> NoReturn:
        """End training because of one run."""
        self._write_lines()  # an evaluation before them is made again, and so are they
        others = ""
        if len(self.members) > 1:
            reason = f"{self.members[run].name}: {reason}"
            others = ". The other runs can be resumed without it, from the last checkpoint"
        error = TrainingStopped(f"{reason}; the metrics are in {self.members[run].folder / METRICS}{others}")
        error.member = self.members[run]
        raise error

    def _log(self) -> None:
        """A line of metrics for each run: means over the updates since the last one."""
        self._look()
        sums, skipped = jax.device_get((self.state.sums, self.state.agent.skipped))
        count = self.updates - int(self.episodes.since[0])
        values = []
        for run, member in enumerate(self.members):
            own = _program.own_metrics(member.config, list(sums))
            means = {name: float(sums[name][run]) / count for name in own}
            values.append(means | self.episodes.metrics(run) | {"updates/skipped": float(skipped[run])})
        self._show(values)
        self.episodes = self.episodes.reset(self.updates)
        self.state = self.state._replace(sums=jax.tree.map(jnp.zeros_like, self.state.sums))
        self._check_skipped()

    def _check_skipped(self) -> None:
        """Stop if a run skips its updates. This waits for the device, as a line of metrics does."""
        in_row = jax.device_get(self.state.agent.skipped_in_row)
        worst = int(np.argmax(in_row[: len(self.members)]))
        if in_row[worst] >= self.config.max_skipped:
            self._stop(
                worst,
                f"{in_row[worst]} updates in a row were skipped because a loss or gradient was not finite "
                f"(max_skipped is {self.config.max_skipped}). Lower agent.optimizer.learning_rate, or check "
                f"observations and rewards of {self.config.task}",
            )

    def _show(self, values: list[dict[str, float]]) -> None:
        """Show a line of metrics of each run, and write it when all before it are written."""
        self.progress.update(env_steps=self.env_steps, updates=self.updates, values=values)
        self._held.append(Line(self.env_steps, self.updates, values, time.monotonic()))
        if not self._pending:
            self._write_lines()

    def _write_lines(self) -> None:
        """Write the lines that were held back."""
        for line in self._held:
            for logs, own in zip(self.logs, line.values, strict=_devices.writes()):
                logs.scalars(line.env_steps, line.updates, own, clock=line.clock)
        self._held = []

    def _evaluates(self, agent_steps: int) -> bool:
        """Whether an evaluation is due after so many agent steps."""
        every, before = self.config.eval.every, agent_steps - self.config.env.count
        return bool(every) and (
            _crossed(every, before, agent_steps) or agent_steps >= self.config.agent_steps
        )

    def _evaluate(self) -> None:
        """Begin to evaluate the model as it is now."""
        model = _devices.copied(self.state.agent.model)  # the next update donates it
        self._pending = Pending(self.agent_steps, self.updates, model, time.monotonic())
        self._play()
        if not _devices.independent(self._mesh):
            self.end_evaluation()

    def _play(self) -> None:
        asked = self._pending
        assert asked is not None
        keys = _program.fold_in(self.keys.evaluate, np.int32(asked.agent_steps))
        images = self.env.spaces.images if self._films(asked.agent_steps) else ()
        self._evaluator.begin(asked.model, asked.agent_steps, keys, images)

    def end_evaluation(self) -> None:
        """Wait for the evaluation under way, if there is one. A signal ends it, and it stays to be made."""
        if self._pending and (found := self._evaluator.result()):
            asked, later, self._pending = self._pending, self._held, None
            names = ("eval/return", "eval/return_std", "eval/episodes")
            numbers = [(float(np.mean(own)), float(np.std(own)), float(len(own))) for own in found.returns]
            values = [dict(zip(names, own, strict=True)) for own in numbers]
            env_steps = asked.agent_steps * self.config.env.action_repeat
            self._held = [Line(env_steps, asked.updates, values, asked.clock), *later]
            self._write_lines()
            self.progress.update(env_steps=self.env_steps, updates=self.updates, values=values)
            for logs, seen in zip(self.logs, found.images, strict=_devices.writes()):
                logs.films(env_steps, {f"films/{name}": pictures for name, pictures in seen.items()})

    def _films(self, agent_steps: int) -> bool:
        """Whether to film the evaluation at a step: the first, the last, and every `log.films`-th."""
        log, every = self.config.log, self.config.eval.every
        if not (log.tensorboard and log.films and every):
            return False
        return (agent_steps // every - 1) % log.films == 0 or agent_steps >= self.config.agent_steps

    def _save_milestones(self) -> None:
        """Keep all models for good."""
        if _devices.writes():
            folders = [member.folder for member in self.members]
            models = _devices.local(self.state.agent.model)
            milestones.save(folders, self.env_steps, models, updates=self.updates)

    def save(self) -> None:
        """Checkpoint everything. Nothing that happens later depends on when this is done."""
        if self.state.envs is None:
            self._waiting, self._phase = self._receive(), "waiting"
        else:
            self._look()
            self._from_device()
        self._saved_at = time.monotonic()
        if not _devices.writes():
            return
        for logs in self.logs:
            logs.flush()
        arrays, memory, sums = _devices.local((self._arrays(), self.state.replay, self.state.sums))
        sums = jax.device_get(sums)
        names = [_program.own_metrics(member.config, list(sums)) for member in self.members]
        save_all(
            self.checkpoints,
            self.env_steps,
            arrays,
            memory,
            # The sums that each run would have if it were alone.
            own=[{"sums": {name: sums[name][run] for name in own}} for run, own in enumerate(names)],
            blobs=[
                {"env": state, MARK: logs.mark()} | self._pending_blob(run)
                for run, (state, logs) in enumerate(zip(self.env.save(), self.logs, strict=True))
            ],
            info={"iterations": self.iterations, "updates": self.updates, POSTPONED: self.evaluating},
        )

    def _pending_blob(self, run: int) -> dict[str, Blob]:
        """The evaluation under way, if there is one, of one run, for its checkpoint."""
        if not self._pending:
            return {}
        return {EVALUATION: partial(_pending.dumps, self._pending, [*self._held], run)}

    def _arrays(self) -> dict[str, Any]:
        """All arrays of the runs but replay and sums, by their names in checkpoints."""
        return {
            "agent": _without_hyper(self.state.agent),
            "carry": self.state.carry,
            "recent": self.episodes,
            "waiting": self._waiting,
        }

    def _start(self, group: RunGroup) -> list[str]:
        """Start all runs; a message if they had started before."""
        configs = self._on_devices([member.config for member in group.members])
        state = _program.init(self.config, self.env.spaces, group.storage, configs, self._mesh)
        self.state = state._replace(agent=warm_start.initialize(self.config, state.agent))
        if not any((member.folder / CONFIG).exists() for member in group.members):
            return []
        which = "the run starts" if len(group.members) == 1 else "the runs start"
        return [f"no checkpoint was written here yet: {which} from the beginning"]

    def _restore(self, group: RunGroup) -> list[str]:
        """Resume from the newest checkpoint of all runs; messages about it."""
        configs, spaces = [member.config for member in group.members], self.env.spaces
        shapes = jax.eval_shape(lambda: _program.init(self.config, spaces, "device", configs))
        alone = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)
        like = {"agent": _without_hyper(alone.agent), "carry": alone.carry}
        like |= jax.tree.map(lambda x: x[0], {"recent": self.episodes, "waiting": self._waiting})
        own = [_program.own_metrics(config, list(alone.sums)) for config in configs]
        memory = _program.empty_replay(self.config, spaces, "host", len(configs))
        found = restore_all(
            self.checkpoints,
            [like | {"sums": {name: alone.sums[name] for name in names}} for names in own],
            split(memory),
        )
        assert found is not None, "there is a step that all have, or the group would be fresh"
        self.state = _program.restore(
            self._on_devices(configs),
            self._on_devices([run.arrays for run in found]),
            _devices.padded(join(memory, [run.replay for run in found if run.replay]), self._mesh),
            list(alone.sums),
            group.storage,
            self._mesh,
        )
        self.episodes, self._waiting = jax.tree.map(
            lambda *x: np.stack(x), *((run.arrays["recent"], run.arrays["waiting"]) for run in found)
        )
        self._phase = "waiting"
        self.iterations, self.updates = found[0].info["iterations"], found[0].info["updates"]
        if found[0].info.get(POSTPONED):
            self._restore_pending([run.blobs.get(EVALUATION, b"") for run in found])
        self._marks = [run.blobs.get(MARK, b"") for run in found]  # older checkpoints have none
        messages = [f"resumed at {self.env_steps:,} env steps and {self.updates:,} updates"]
        lost = self.env.restore([run.blobs["env"] for run in found])
        for member, streams in zip(self.members, lost, strict=True):
            if streams:
                which = f"{member.name}: " if len(lost) > 1 else ""
                messages.append(f"{which}environments {streams} could not be restored and begin new episodes")
        return messages

    def _restore_pending(self, blobs: list[bytes]) -> None:
        """The evaluation that was under way at the checkpoint, and the lines that came after it."""
        model = self.state.agent.model
        if not all(blobs):  # older checkpoints have none: nothing had changed since it began
            self._pending = Pending(self.agent_steps, self.updates, _devices.copied(model), time.monotonic())
            return
        pending, self._held = _pending.loads(blobs, model)
        models = _devices.place(_devices.padded(pending.model, self._mesh), self._mesh)
        self._pending = pending._replace(model=_devices.copied(models))


def _without_hyper(state: AgentState) -> AgentState:
    """As in checkpoints: hyperparameters are those of the run's configuration."""
    return state._replace(hyper=None)


def _blank_step(spaces: Spaces, runs: int, count: int) -> Step:
    obs = {name: np.zeros((runs, count, *shape), spaces.dtype(name)) for name, shape in spaces.obs}
    flags = [np.zeros((runs, count), bool) for _ in range(3)]
    return Step(obs, np.zeros((runs, count), np.float32), *flags)


def _crossed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` was passed."""
    return before // every != now // every
