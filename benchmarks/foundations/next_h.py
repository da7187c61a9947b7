"""The kernel of `next_h.cu`, called from JAX."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Shape
from jaxtyping import Array, Float

from gpld.fused.kernels import At

sys.path.append(str(Path(__file__).parents[1] / "cuda"))

import libraries

COLUMNS = 64
"""Columns of h that a thread block makes."""


def packed(weight: Float[Array, "G own wide"]) -> Float[Array, "G steps gates own"]:
    """The weights as thread blocks read them, outputs first: all three gates of 64 columns.

    Columns are in the order in which the matrix unit hands out sums, so that a thread's are neighbours in h.
    """
    blocks, own, _ = weight.shape
    columns = weight.reshape(blocks, own, 3, own // COLUMNS, 2, 4, 4, 2)
    return columns.transpose(0, 3, 2, 4, 6, 5, 7, 1).reshape(blocks, -1, 3 * COLUMNS, own)


@functools.cache
def _target(own: int, gpu: bool) -> str:
    path, _ = libraries.compiled(Path(__file__).with_suffix(".cu"), [f"OWN={own}"], gpu)
    libraries.loaded(path, "next_h", gpu)
    return path.stem


def next_h(
    x: Float[Array, "G N own"],
    weight: Float[Array, "G steps gates own"],
    bias: Float[Array, " gates"],
    h: Float[Array, "N D"],
    record: At,
    *,
    parts: int,
) -> tuple[Float[Array, "N D"], Float[Array, "G N own"], Float[Array, "T N F"]]:
    """The next h as rows, by blocks, and as first columns of a record, from `packed` weights.

    `parts` is how many thread blocks share the rows of one block's columns.
    """
    (blocks, count, own), (steps, _, width) = x.shape, record.array.shape
    call = jax.ffi.ffi_call(
        _target(own, jax.default_backend() == "gpu"),
        [Shape(a.shape, a.dtype) for a in (h, x, record.array)],
        vmap_method="expand_dims",  # no kernel copies the step, which is the same for all runs
        input_output_aliases={5: 2},
    )
    sizes = {"blocks": blocks, "count": count, "parts": parts, "steps": steps, "width": width}
    numbers = {name: np.int32(value) for name, value in sizes.items()}
    return tuple(call(x, weight, bias.astype(jnp.float32), h, record.step, record.array, **numbers))
