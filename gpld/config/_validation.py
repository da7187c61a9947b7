"""The allowed values of every option, checked before anything is allocated."""

import re
from dataclasses import dataclass
from typing import Any

from gpld.config._options import AgentConfig, Config, ModelConfig, PenaltyConfig
from gpld.config._tree import ConfigError, flat
from gpld.tasks import GYM_PREFIX, JAX_PREFIX, POOL_PREFIX, SUITE, near, registered_tasks

COUNTER = 2**31 - 1
"""Steps and updates are counted in 32 bits."""

TINY, HUGE, CLOSE = 1e-37, 3e38, 1e-7
"""Round numbers for the smallest and largest float32, and its resolution near 1."""


@dataclass(frozen=True)
class Range:
    """Allowed values of a number: from `low` to `high`, the ends included by default."""

    low: int | float
    high: int | float
    above: bool = False
    """Whether `low` itself is excluded."""
    below: bool = False
    """Whether `high` itself is excluded."""
    natural: bool = True
    """Whether `high` follows from what the number means; else it is only more than anyone needs."""

    def __contains__(self, value: int | float) -> bool:
        low = self.low + (TINY if self.above else 0)
        return low <= value <= self.high - (CLOSE if self.below else 0)

    def __str__(self) -> str:
        if not self.natural:
            return f"{'above' if self.above else 'at least'} {self.low} and at most {self.high}"
        return f"in {'(' if self.above else '['}{self.low}, {self.high}{')' if self.below else ']'}"


def _upto(high: int | float, low: int | float = 1) -> Range:
    return Range(low, high, natural=False)


_COUNT = _upto(COUNTER, 0)
_STEPS = _upto(COUNTER)
_WIDTH = _upto(65_536)
_LAYERS = _upto(64)
_WEIGHT = _upto(HUGE, 0)
_POSITIVE = Range(0, HUGE, above=True, natural=False)
_MODERATE = Range(0, 1e6, above=True, natural=False)
_SHARE = Range(0, 1)
_FRACTION = Range(0, 1, above=True)
_DECAY = Range(0, 1, below=True)

EPISODES = _upto(10_000)
"""Episodes that are played side by side, each in an environment of its own."""


def _each(allowed: Range, group: str, *names: str) -> dict[str, Range]:
    return {f"{group}.{name}": allowed for name in names}


AGENT_RANGES = {
    **_each(_WIDTH, "model", "deter", "hidden", "stoch", "units", "depth", "blocks"),
    "model.classes": Range(2, 256),  # z is stored as one byte per variable
    **_each(_LAYERS, "model", "prior_layers", "posterior_layers", "encoder_layers", "decoder_layers"),
    **_each(_LAYERS, "model", "reward_layers", "continue_layers", "policy_layers", "value_layers"),
    "model.bins": _upto(65_535, 3),
    "model.unimix": _DECAY,
    **_each(_WEIGHT, "loss", "reconstruction", "reward", "cont", "dyn", "rep", "free_nats"),
    "behavior.horizon": _upto(1000),
    "behavior.discount_horizon": _upto(COUNTER, 2),
    "behavior.trace": _SHARE,
    **_each(_WEIGHT, "behavior", "entropy", "slow_weight", "replay_value"),
    **_each(_POSITIVE, "behavior", "min_std", "max_std", "return_limit"),
    **_each(_FRACTION, "behavior", "slow_rate", "return_rate"),
    **_each(Range(0, 100), "behavior", "return_low", "return_high"),
    **_each(_POSITIVE, "optimizer", "learning_rate", "behavior_rate", "clip", "clip_floor", "eps"),
    "optimizer.warmup": _COUNT,
    **_each(_DECAY, "optimizer", "beta1", "beta2"),
    **_each(_WEIGHT, "penalty", "posterior", "prior", "floor"),
    **_each(_FRACTION, "penalty", "rho", "step_factor"),
    "penalty.probes": _upto(4096),
    **_each(_COUNT, "penalty", "rows", "start"),
    "penalty.scale": _POSITIVE,
    **_each(_STEPS, "penalty", "decay_steps", "step_interval"),
    "unroll": _upto(1000),
}

RUN_RANGES = {
    "seed": Range(0, 2**32 - 1),
    "env_steps": _STEPS,
    "max_skipped": _STEPS,
    "env.count": _upto(4096),
    "env.action_repeat": _upto(1000),
    "env.threads": _upto(512, 0),
    "env.processes": _upto(512, 0),
    "env.restarts": _COUNT,
    "env.limit": _upto(COUNTER),
    "env.timeout": _MODERATE,
    "replay.capacity": _STEPS,
    "replay.batch": _upto(65_536),
    "replay.length": _upto(65_536, 2),
    "replay.min_steps": _STEPS,
    "replay.train_ratio": _MODERATE,
    "eval.every": _COUNT,
    "eval.episodes": EPISODES,
    "eval.limit": _STEPS,
    "checkpoint.minutes": _MODERATE,
    "checkpoint.keep": _upto(1000),
    "checkpoint.milestones": _COUNT,
    "log.every": _STEPS,
    "log.films": _COUNT,
}

COMMAND_RANGES = {
    "episodes": EPISODES,
    "steps": _COUNT,
    "seed": Range(0, 2**32 - 1),
    "seeds": _upto(10_000, 2),
    "films": _upto(1000, 0),
    "frames": _upto(10_000),
    "limit": _COUNT,
    "devices": _upto(65_536, 0),
    "runs": _upto(4096),
    "updates": _upto(1_000_000),
    "repeats": _upto(10_000, 2),
}
"""Numbers that commands take beside a configuration, by their names."""


def check_numbers(options: object, *names: str) -> None:
    """Raise a `ConfigError` that names the first of a command's numbers with an impossible value."""
    for name in names:
        if (value := getattr(options, name)) not in COMMAND_RANGES[name]:
            raise _refuse(name, value, str(COMMAND_RANGES[name]))


def learns_nothing(config: Config) -> str:
    """Why a run ends before its first update, or nothing if it does not."""
    if config.updates_at(config.agent_steps):
        return ""
    steps = f"{config.env_steps:,} env steps are {config.agent_steps:,} agent steps"
    start = f"replay.min_steps = {config.replay.min_steps:,} and a sequence of each environment"
    return f"no update will be made: {steps}, and training starts after {start}"


def evaluated_once(config: Config) -> str:
    """A word about a run so short that its learning curve is one point, or nothing."""
    every, steps = config.eval.every, config.agent_steps
    if not 0 < steps < 2 * every or not config.updates_at(steps):
        return ""
    often = max(1, steps // 10)
    return f"eval.every is {every:,} of {steps:,} agent steps; for a learning curve, --eval.every {often}"


def validate(config: Config | AgentConfig) -> None:
    """Raise a `ConfigError` that names the first option with an impossible value, and what is allowed."""
    if isinstance(config, AgentConfig):
        _validate_agent(config, "")
    else:
        _validate_agent(config.agent, "agent.")
        _validate_run(config)


def _validate_run(config: Config) -> None:
    _check_ranges(config, RUN_RANGES, "")
    _check_task(config)
    _check_kwargs(config)
    if config.init and not config.init_from:
        raise _refuse("init", config.init, "empty without init_from, which names the run to take them from")
    if config.init and not all(part.strip() for part in config.init.split(",")):
        raise _refuse("init", config.init, "names or patterns of parts, with commas between them")
    replay, env = config.replay, config.env
    sequences = env.count * (replay.length + 1)
    if config.agent_steps < sequences:
        reason = "a sequence of replay.length + 1 agent steps in each of env.count environments"
        raise _refuse("env_steps", config.env_steps, f"at least {sequences * env.action_repeat}: {reason}")
    needed = max(sequences, replay.min_steps)
    if replay.capacity < needed:
        reason = "replay.min_steps, and a sequence of each environment"
        raise _refuse("replay.capacity", replay.capacity, f"at least {needed}: {reason}")
    if (updates := config.updates_at(config.agent_steps)) > COUNTER:
        allowed = f"so low that there are at most {COUNTER} updates in env_steps, not {updates}"
        raise _refuse("replay.train_ratio", replay.train_ratio, allowed)
    if int(config.agent.penalty.rho * replay.batch * replay.length) < 1:
        states = replay.batch * replay.length
        allowed = f"at least 1 / (replay.batch * replay.length) = {1 / states:g}, or no state is sampled"
        raise _refuse("agent.penalty.rho", config.agent.penalty.rho, allowed)


def _validate_agent(agent: AgentConfig, prefix: str) -> None:
    _check_ranges(agent, AGENT_RANGES, prefix)
    _check_model(agent.model, f"{prefix}model.")
    _check_penalty(agent.penalty, agent.model, f"{prefix}penalty.")
    behavior = agent.behavior
    if behavior.max_std < behavior.min_std:
        raise _refuse(
            f"{prefix}behavior.max_std", behavior.max_std, f"at least min_std = {behavior.min_std:g}"
        )
    if behavior.return_high <= behavior.return_low:
        allowed = f"above return_low = {behavior.return_low:g}"
        raise _refuse(f"{prefix}behavior.return_high", behavior.return_high, allowed)


def _check_model(model: ModelConfig, prefix: str) -> None:
    if model.deter % model.blocks:
        allowed = f"a multiple of {prefix}blocks = {model.blocks}"
        raise _refuse(f"{prefix}deter", model.deter, allowed)
    if model.bins % 2 == 0:
        raise _refuse(f"{prefix}bins", model.bins, "odd, so that one bin is zero")


def _check_penalty(penalty: PenaltyConfig, model: ModelConfig, prefix: str) -> None:
    if penalty.rows > model.stoch:
        raise _refuse(f"{prefix}rows", penalty.rows, f"at most stoch = {model.stoch}, or 0 for all")
    if penalty.schedule == "custom" and not penalty.custom:
        raise _refuse(
            f"{prefix}custom", penalty.custom, "at least one (update, weight) pair for schedule = custom"
        )
    updates = [update for update, _ in penalty.custom]
    if updates != sorted(set(updates)) or any(update not in _COUNT for update in updates):
        raise _refuse(f"{prefix}custom", penalty.custom, f"pairs of increasing updates, from 0 to {COUNTER}")
    if any(weight not in _WEIGHT for _, weight in penalty.custom):
        raise _refuse(f"{prefix}custom", penalty.custom, f"pairs whose weights are {_WEIGHT}")
    if penalty.custom and penalty.schedule != "custom":
        allowed = f"empty without schedule = custom, which alone reads it; it is {penalty.schedule}"
        raise _refuse(f"{prefix}custom", penalty.custom, allowed)


ENGINES = {JAX_PREFIX: "auto", GYM_PREFIX: "auto or gymnasium", POOL_PREFIX: "auto or envpool"}
"""Backends that tasks of a prefix may have."""


def check_backend(task: str, backend: str) -> None:
    """Raise a `ConfigError` if a backend does not have the tasks of this kind."""
    prefix = next((prefix for prefix in ENGINES if task.startswith(prefix)), "")
    allowed = ENGINES.get(prefix, "auto, envpool or dm_control")
    if backend not in allowed.replace(",", "").split():
        raise _refuse("backend", backend, f"{allowed} for {task}")


def _check_task(config: Config) -> None:
    task, env = config.task, config.env
    prefix = next((p for p in ENGINES if task.startswith(p) and task != p), "")
    if task.startswith(JAX_PREFIX) and not re.fullmatch(r"[^:]+:[^:]+", task.removeprefix(JAX_PREFIX)):
        raise _refuse("task", task, f"{JAX_PREFIX}module:name for an environment written in JAX")
    if not prefix and task not in SUITE:
        names = near(task, (*SUITE, *registered_tasks()))
        meant = f"; did you mean {' or '.join(names)}?" if names else ""
        own = f"{GYM_PREFIX}Name-v0 for Gymnasium's, {POOL_PREFIX}Name-v0 for EnvPool's"
        own += f" or {JAX_PREFIX}module:name for one written in JAX"
        raise _refuse("task", task, f"a task of the DeepMind Control suite, {own}{meant}")
    if prefix and env.pixels:
        raise _refuse("env.pixels", True, f"off for {task}, which may give images as observations")
    if env.pixels and config.backend == "envpool":
        raise _refuse("backend", config.backend, "auto or dm_control with env.pixels")
    if prefix == POOL_PREFIX and env.threads:
        raise _refuse("env.threads", env.threads, f"0 for {task}: each of its environments has a thread")
    check_backend(task, config.backend)


def _check_kwargs(config: Config) -> None:
    kwargs = config.env.kwargs
    if kwargs and not config.task.startswith((GYM_PREFIX, POOL_PREFIX)):
        named = f"{GYM_PREFIX}Name-v0 and {POOL_PREFIX}Name-v0"
        raise _refuse("env.kwargs", kwargs, f"empty for {config.task}; it is for {named}")
    for word in kwargs:
        if not re.fullmatch(r"[^\W\d]\w*=.*", word, re.DOTALL):
            raise _refuse("env.kwargs", kwargs, "NAME=VALUE each, such as gravity=9.81")
    if len({word.partition("=")[0] for word in kwargs}) < len(kwargs):
        raise _refuse("env.kwargs", kwargs, "NAME=VALUE each, no NAME twice")


def _check_ranges(config: Any, ranges: dict[str, Range], prefix: str) -> None:
    values = flat(config)
    for path, allowed in ranges.items():
        if values[path] not in allowed:
            raise _refuse(prefix + path, values[path], str(allowed))


def _refuse(path: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{path}: {value!r} is not allowed; it must be {allowed}")
