"""A record of all steps of a scan, written in place.

Rows are written where they belong, rather than stacked by the scan, whose order of axes would put the steps
before the runs and need a transpose. JAX's own rules for many runs would copy the record at its beginning and
make a scatter of every write, which reads what it overwrites.
"""

import jax
import jax.custom_batching
from jaxtyping import Array, Float

from gpld.fused.kernels._tiles import At


def empty_record(like: Float[Array, "N F"], length: int) -> Float[Array, "T N F"]:
    """A record of `length` steps, none of which is written."""

    @jax.custom_batching.custom_vmap
    def empty(like):
        return jax.lax.empty((length, *like.shape), like.dtype)

    @empty.def_vmap
    def empty_runs(size, batched, like):
        del batched
        return jax.lax.empty((size, length, *like.shape[1:]), like.dtype), True

    return empty(like)


def write(record: At, row: Float[Array, "N F"]) -> Float[Array, "T N F"]:
    """The record with this step."""
    return _write(record.array, row, record.step[0])


@jax.custom_batching.custom_vmap
def _write(rows: Array, row: Array, step: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(rows, row, step, 0)


@_write.def_vmap
def _write_runs(size: int, batched: list[bool], rows: Array, row: Array, step: Array) -> tuple[Array, bool]:
    assert batched == [True, True, False]
    return jax.lax.dynamic_update_index_in_dim(rows, row, step, 1), True
