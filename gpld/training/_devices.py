"""How the arrays of a training lie on devices: runs spread over them, or the batches of one run shared."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from gpld.config import ConfigError
from gpld.memory import devices_used
from gpld.types import Batch

RUN, BATCH = "run", "batch"
"""Axes of meshes."""

T = TypeVar("T")


def available(asked: int) -> int:
    """Local devices to use: those asked for, all if that is 0."""
    found = jax.local_device_count()
    if asked > found:
        raise ConfigError(f"devices: {asked} is not allowed; JAX has {found} here")
    return asked or found


def mesh_for(runs: int, batch: int, asked: int) -> Mesh | None:
    """The devices of a training, or None if JAX's first does all.

    Several runs are spread over as many devices as divide them evenly: no device waits for another. One run
    shares its batches only if it is asked to, because devices then exchange gradients at every update.
    """
    if runs > 1:
        axis, count = RUN, devices_used(runs, available(asked))
    else:
        axis, count = BATCH, devices_used(batch, available(asked) if asked else 1)
    return Mesh(np.array(jax.local_devices()[:count]), (axis,)) if count > 1 else None


def place(tree: T, mesh: Mesh | None) -> T:
    """Arrays with a leading run axis, where a training wants them."""
    return tree if mesh is None else jax.device_put(tree, sharding(mesh))


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
    """Let every device of a run have its share of the sequences."""
    if mesh is None or BATCH not in mesh.axis_names:
        return batch
    by_time, by_sequence = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, BATCH), (BATCH,)))
    start = jax.lax.with_sharding_constraint(batch.start, by_sequence)
    rest = jax.lax.with_sharding_constraint(batch._replace(start=None), by_time)  # pyright: ignore
    return rest._replace(start=start)


def on_all(tree: T, mesh: Mesh | None) -> T:
    """Let every device of a run have all of these arrays."""
    if mesh is None or BATCH not in mesh.axis_names:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))
