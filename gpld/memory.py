"""How much memory a run needs, and whether a machine has it: told before anything is allocated."""

from dataclasses import dataclass, fields
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from gpld import agent, replay
from gpld.config import Config, ConfigError
from gpld.types import Spaces


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

    @property
    def training(self) -> int:
        """What must fit on the device wherever the replay is."""
        return self.parameters + self.optimizer + self.gradients + self.activations

    def __str__(self) -> str:
        parts = [(field.name, getattr(self, field.name)) for field in fields(self)]
        rows = [*parts, ("total", self.training + self.replay)]
        return "\n".join(f"{name:12} {_size(count):>10}" for name, count in rows)


def memory_estimate(config: Config, spaces: Spaces) -> MemoryEstimate:
    """What the run will need, from shapes alone."""
    state = jax.eval_shape(partial(agent.init, config.agent, spaces), jax.random.key(0))
    parameters = _nbytes(state.model)
    slots = replay.slots_for(
        config.replay.capacity, config.agent_steps, config.env.count, config.replay.length
    )
    model = config.agent.model
    return MemoryEstimate(
        parameters=parameters + _nbytes(state.slow_value),
        optimizer=_nbytes(state.optimizer),
        gradients=2 * parameters,
        activations=_activations(config),
        replay=replay.nbytes(spaces, config.env.count, slots, model.deter, model.stoch, config.agent.compute),
    )


def place_replay(
    config: Config, estimate: MemoryEstimate, device_bytes: int, host_bytes: int
) -> tuple[replay.Storage, str]:
    """Where the replay goes, and a line that says so; a `ConfigError` if the run cannot fit.

    `device_bytes` and `host_bytes` are what is free; where the device is the CPU, both are the same memory.
    """
    left = device_bytes - estimate.training
    if left < 0:
        raise ConfigError(
            f"agent.model: an update needs {_size(estimate.training)}, but the device has "
            f"{_size(device_bytes)} free; choose a smaller preset, or lower replay.batch, replay.length or "
            "agent.behavior.horizon"
        )
    storage = config.replay.storage
    if storage == "auto":
        try:
            return replay.choose_storage(estimate.replay, left, host_bytes)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    free = left if storage == "device" else host_bytes
    if estimate.replay > free:
        raise ConfigError(
            f"replay.storage: {storage!r} has {_size(free)} left, but the replay needs "
            f"{_size(estimate.replay)}; leave it at auto, or lower replay.capacity"
        )
    return storage, f"replay: {_size(estimate.replay)} on the {storage}, as asked"


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
    return observed * 25 * feature * item + imagined * (
        (feature + 4 * model.units * layers) * item + 6 * model.bins * 4
    )


def _nbytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"
