"""How arrays are placed on devices: runs are spread over them, or they share the batches of one run."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from gpld import config as options
from gpld.config import Config, ConfigError
from gpld.memory import spread
from gpld.types import Batch

RUN, BATCH = "run", "batch"
"""Axes of meshes."""

T = TypeVar("T")


def available(requested: int) -> int:
    """Local devices to use: `requested` of them, or all if that is 0."""
    found = jax.local_device_count()
    if requested > found:
        raise ConfigError(f"devices: {requested} is not allowed; JAX has {found} here")
    return requested or found


def mesh_for(runs: int, batch: int, requested: int) -> Mesh | None:
    """The mesh of devices to train on, or None for JAX's first device alone.

    Several runs are spread over all devices, unless fewer take no longer. One run shares its batches only on
    request, because devices then exchange gradients at every update: over `requested` devices, or over all
    processes, with the same number of devices in each.
    """
    processes = jax.process_count()
    if runs > 1:
        axis, devices = RUN, jax.local_devices()[: spread(runs, available(requested))[0]]
    elif processes == 1:
        axis, devices = BATCH, jax.local_devices()[: _dividing(batch, available(requested or 1))]
    else:
        if batch % processes:
            raise ConfigError(f"replay.batch: {batch} is not allowed; {processes} processes must divide it")
        each = _dividing(batch // processes, available(requested))
        by_process = [[d for d in jax.devices() if d.process_index == p][:each] for p in range(processes)]
        axis, devices = BATCH, [device for own in by_process for device in own]
    return Mesh(np.array(devices), (axis,)) if len(devices) > 1 else None


def _dividing(batch: int, devices: int) -> int:
    """The most of `devices` that divide a batch evenly."""
    return max(n for n in range(1, devices + 1) if batch % n == 0)


def independent(mesh: Mesh | None) -> bool:
    """Whether no device waits for another, so that threads may start programs in any order."""
    return mesh is None or RUN in mesh.axis_names


def padding(runs: int, mesh: Mesh | None) -> int:
    """How often the last run is repeated, so that every device has as many."""
    return -runs % mesh.shape[RUN] if mesh is not None and RUN in mesh.axis_names else 0


def padded(tree: T, mesh: Mesh | None) -> T:
    """Arrays in host memory with a leading run axis, with the last run repeated as `padding` says."""
    more = padding(len(jax.tree.leaves(tree)[0]), mesh)
    return jax.tree.map(lambda x: np.concatenate([x, *[x[-1:]] * more]), tree) if more else tree


def compiled_for(config: Config, mesh: Mesh | None) -> Config:
    """The options that programs are compiled with.

    XLA cannot partition the fused kernels, so devices that share a batch use XLA's.
    """
    if mesh is None or BATCH not in mesh.axis_names:
        return config
    if config.agent.kernels == "fused":
        raise ConfigError("agent.kernels: 'fused' is not allowed where devices share a batch; take 'auto'")
    return options.override(config, {"agent": {"kernels": "plain"}})


def place(tree: T, mesh: Mesh | None) -> T:
    """Arrays with a leading run axis, placed on the devices of a mesh."""
    if mesh is None:
        return tree
    if not mesh.is_multi_process:
        return jax.device_put(tree, sharding(mesh))
    return jax.tree.map(lambda x: _everywhere(x, mesh), tree)


def _everywhere(x: Any, mesh: Mesh) -> jax.Array:
    """An array that every process has, as one on all their devices."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _everywhere(jax.random.key_data(x), mesh)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding(mesh), lambda index: values[index])


@jax.jit
def copied(tree: T) -> T:
    """The same arrays in other memory of the same devices: nothing donates those."""
    return jax.tree.map(jnp.copy, tree)


def sharding(mesh: Mesh | None) -> NamedSharding | None:
    """Runs are spread; what belongs to one run is on all devices."""
    return mesh and NamedSharding(mesh, PartitionSpec(RUN if RUN in mesh.axis_names else None))


def each_run(function: Callable[..., Any], mesh: Mesh | None) -> Callable[..., Any]:
    """A function of one run as one of R runs: all its arguments and results have a leading run axis.

    A run that is alone on its device is computed without the axis, which is faster.
    """

    def here(*arguments: PyTree) -> PyTree:
        if len(jax.tree.leaves(arguments)[0]) > 1:
            return jax.vmap(function)(*arguments)
        alone = function(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], alone)

    if mesh is None or RUN not in mesh.axis_names:
        return here
    spec = PartitionSpec(RUN)
    return jax.shard_map(here, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def share_batch(batch: Batch, mesh: Mesh | None) -> Batch:
    """Give every device of a run its share of the sequences."""
    if mesh is None or BATCH not in mesh.axis_names:
        return batch
    by_time, by_sequence = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, BATCH), (BATCH,)))
    start = jax.lax.with_sharding_constraint(batch.start, by_sequence)
    rest = jax.lax.with_sharding_constraint(batch._replace(start=None), by_time)  # pyright: ignore
    return rest._replace(start=start)


def writes() -> bool:
    """Whether this process writes the files of the run, which only one of several does."""
    return jax.process_index() == 0


def wait_for_others(what: str) -> None:
    """Return when all processes of a run have come this far."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def agreed(number: int | None) -> int | None:
    """The number that the writing process has, in all of them."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number or 0))) or None


def local(tree: T) -> T:
    """This process's copy of arrays that several processes have."""

    def copy(x: Any) -> Any:
        return x if not isinstance(x, jax.Array) or x.is_fully_addressable else x.addressable_data(0)

    return jax.tree.map(copy, tree)


def on_all(tree: T, mesh: Mesh | None) -> T:
    """Give every device of a run all of these arrays."""
    if mesh is None or BATCH not in mesh.axis_names:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))
