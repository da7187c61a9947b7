"""How much memory a run needs, and whether a machine has it, before anything is allocated."""

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from gpld import agent, replay, world_model
from gpld.config import Config, ConfigError
from gpld.penalty import sampled_count
from gpld.types import Spaces

ENVIRONMENT = 14 * 2**20
"""Bytes of an environment: most of what tasks of the suite took on EnvPool and on dm_control."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a run's parts. All but the activations are exact."""

    parameters: int
    """Trained parameters and the slow value."""
    optimizer: int
    """Running averages of the optimiser."""
    gradients: int
    """Gradients and the steps made of them, during an update."""
    activations: int
    """Everything else that lives during an update; a rough figure."""
    replay: int
    """The replay, on the device or in host memory."""
    played: int = 0
    """The copy of the parameters that an evaluation plays with."""
    evaluation: int = 0
    """Environments of an evaluation, in host memory; a rough figure."""

    @property
    def training(self) -> int:
        """What must fit on the device wherever the replay is."""
        return self.parameters + self.optimizer + self.gradients + self.activations + self.played

    def __str__(self) -> str:
        parts = [(field.name, getattr(self, field.name)) for field in fields(self)]
        rows = [*parts, ("total", self.training + self.replay + self.evaluation)]
        return "\n".join(f"{name:12} {_size(count):>10}" for name, count in rows)


def memory_estimate(config: Config, spaces: Spaces) -> MemoryEstimate:
    """What the run will need, from shapes alone."""
    state = jax.eval_shape(partial(agent.init, config.agent, spaces), jax.random.key(0))
    parameters = _nbytes(state.model)
    return MemoryEstimate(
        parameters=parameters + _nbytes(state.slow_value),
        optimizer=_nbytes(state.optimizer),
        gradients=2 * parameters,
        activations=_activations(config)
        + _image_activations(config, spaces)
        + _product_activations(config, state.model.world.dynamics),
        replay=_nbytes(jax.eval_shape(partial(replay.for_run, config, spaces))),
        played=parameters if config.eval.every else 0,
        evaluation=ENVIRONMENT * config.eval.episodes if config.eval.every else 0,
    )


def check_evaluation(episodes: int, host_bytes: int, name: str = "episodes") -> None:
    """A `ConfigError` if so many environments do not fit into `host_bytes`, which are free."""
    if (need := ENVIRONMENT * episodes) > host_bytes:
        raise ConfigError(
            f"{name}: {episodes} is not allowed here; so many environments need about {_size(need)}, but the "
            f"host has {_size(host_bytes)} free: at most {host_bytes // ENVIRONMENT}"
        )


class Fit(NamedTuple):
    """How runs fit into memory."""

    groups: list[int]
    """Runs that are trained together; one group after the other."""
    storage: replay.Storage
    message: str
    """The arithmetic, in words."""


def fit(
    config: Config, estimate: MemoryEstimate, runs: int, devices: int, device_bytes: int, host_bytes: int
) -> Fit:
    """As few groups as fit, and where their replays go; a `ConfigError` if not even one run fits.

    `device_bytes` of each of `devices` and `host_bytes` are what is free; where the device is the CPU, both
    are the same memory. Replays go to host memory only if the device has no room for that of a single run.
    """
    training, memory, asked = estimate.training, estimate.replay, config.replay.storage
    if estimate.evaluation:
        check_evaluation(config.eval.episodes, host_bytes, "eval.episodes")
    if training > device_bytes:
        raise ConfigError(
            f"agent.model: an update needs {_size(training)}, but the device has {_size(device_bytes)} free; "
            "choose a smaller preset, or lower replay.batch, replay.length or agent.behavior.horizon"
        )
    on_device = training + memory <= device_bytes
    if memory > host_bytes and (asked == "host" or (asked == "auto" and not on_device)):
        raise _no_room(asked, memory, device_bytes - training, host_bytes)
    if asked == "device" and not on_device:
        raise _no_room(asked, memory, device_bytes - training, host_bytes)
    storage: replay.Storage = "device" if asked == "device" or (asked == "auto" and on_device) else "host"

    def fits(size: int) -> bool:
        used, each = spread(size, devices)
        if storage == "device":
            return each * (training + memory) <= device_bytes
        return each * training <= device_bytes and used * each * memory <= host_bytes

    number = next(n for n in range(1, runs + 1) if all(map(fits, _balanced(runs, n))))
    groups = _balanced(runs, number)
    return Fit(groups, storage, _message(estimate, groups, storage, devices, device_bytes, host_bytes))


def spread(runs: int, devices: int) -> tuple[int, int]:
    """How many devices take runs, and how many each takes: no fewer devices could do with as many each.

    Where they are more than the runs, the last device has the last run several times.
    """
    each = -(-runs // devices)
    return -(-runs // each), each


def _balanced(runs: int, groups: int) -> list[int]:
    return [runs // groups + (i < runs % groups) for i in range(groups)]


def _no_room(asked: str, memory: int, device_left: int, host_bytes: int) -> ConfigError:
    need, device, host = map(_size, (memory, device_left, host_bytes))
    if asked == "auto":
        return ConfigError(
            f"replay.capacity: the replay needs {need}, but the device has {device} and the host {host} free "
            "for it; lower replay.capacity, train for fewer steps, or choose a smaller model"
        )
    return ConfigError(
        f"replay.storage: {asked!r} has {device if asked == 'device' else host} left, but the replay needs "
        f"{need}; leave it at auto, or lower replay.capacity"
    )


def _message(
    estimate: MemoryEstimate,
    groups: list[int],
    storage: replay.Storage,
    devices: int,
    device_bytes: int,
    host_bytes: int,
) -> str:
    used, each = spread(max(groups), devices)
    here = storage == "device"
    on_device = each * (estimate.training + (estimate.replay if here else 0))
    where = "the device" if used == 1 else f"each of {used} devices"
    count = f"{each} x " if each > 1 else ""
    parts = [f"{count}{_size(estimate.training)} for training"]
    if here:
        parts.append(f"{count}{_size(estimate.replay)} for the replay")
    text = f"memory: {' and '.join(parts)} on {where}, {_size(on_device)} of {_size(device_bytes)} free"
    if not here:
        text += (
            f"; replays of {_size(used * each * estimate.replay)} in host memory, {_size(host_bytes)} free: "
            "updates wait for copies, so training is slower"
        )
    if len(groups) > 1:
        sizes = ", ".join(map(str, groups))
        text += f"\n{sum(groups)} runs do not fit at once: they train in groups of {sizes}, in turn"
    return text


def _activations(config: Config) -> int:
    """Bytes of an update's intermediate arrays.

    The factors count arrays of each width: 25 for an observed state, forwards and backwards, 4 for a hidden
    layer of a head, 6 for a two-hot distribution. They were fitted to what XLA plans on a CPU in float32 for
    the presets nano, 1m and 12m, and differ from it by less than a tenth.
    """
    model, behavior = config.agent.model, config.agent.behavior
    feature = model.deter + model.stoch * model.classes
    layers = model.policy_layers + 2 * model.value_layers + model.reward_layers + model.continue_layers
    item = jnp.dtype(config.agent.compute).itemsize
    observed = config.replay.batch * config.replay.length
    imagined = observed * (behavior.horizon + 1)
    total = observed * 25 * feature * item + imagined * (
        (feature + 4 * model.units * layers) * item + 6 * model.bins * 4
    )
    return total


def _image_activations(config: Config, spaces: Spaces) -> int:
    """Bytes of the maps between images and latents, during an update.

    Five arrays of each that the encoder halves and three of each that the decoder makes, which is what XLA
    plans on a CPU in float32 for nano and 1m, up to a tenth.
    """
    places = sum(math.prod(shape[:2]) for _, shape in spaces.image_obs[:1])
    channels = sum(shape[-1] for _, shape in spaces.image_obs)
    depths = [config.agent.model.depth * stage for stage in world_model.STAGES]
    # Stage s has a fourth of the places of the one before it. The encoder convolves before it halves.
    encoder = sum(places // 4**s * depth for s, depth in enumerate(depths))
    decoder = places * channels + sum(places // 4 ** (s + 1) * d for s, d in enumerate(depths[:-1]))
    states = config.replay.batch * config.replay.length
    return states * (5 * encoder + 3 * decoder) * jnp.dtype(config.agent.compute).itemsize


def _product_activations(config: Config, dynamics: world_model.RSSM) -> int:
    """Bytes of the penalty by vector-Jacobian products; in closed form it takes next to nothing.

    Three arrays of the width of a head's input and ten of its output for every row and probe at each sampled
    state, which is what XLA plans on a CPU for nano and 1m, up to a tenth, and less if both heads have one.
    """
    penalty, model = config.agent.penalty, config.agent.model
    if penalty.estimator != "vjp":
        return 0
    states = sampled_count(config.replay.batch * config.replay.length, penalty.rho)
    vectors = states * (penalty.rows or model.stoch) * penalty.probes
    heads = {"posterior": dynamics.posterior, "prior": dynamics.prior}
    widths = [
        3 * head.mlp.layers[0].linear.weight.shape[0] + 10 * head.out.weight.shape[1]
        for name, head in heads.items()
        if getattr(penalty, name) > 0
    ]
    return 4 * vectors * sum(widths)


def _nbytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"
