"""Compiles the persistent kernels for given sizes, and calls them from JAX.

On a CPU, where tests run, threads stand for warps.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Shape
from jaxtyping import Array, Float

from gpld.fused import _observe
from gpld.fused._observe import Inputs, Layers, Outputs, _Local

sys.path.append(str(Path(__file__).parents[1] / "cuda"))

import libraries

HERE = Path(__file__).parent


class Cut(NamedTuple):
    """How a kernel is spread."""

    ctas: int = 128
    """Thread blocks of one run, or of 16 of its rows."""
    cluster: int = 8
    """Of these, how many share small work through each other's memory."""
    warps: int = 16
    room: int = 227 * 1024
    """Bytes of shared memory that one may have."""
    ring: int = 0
    """Of these, those through which weights without room come ahead of time. 0: straight from L2."""


class Library(NamedTuple):
    """A compiled kernel."""

    target: str
    """What JAX calls it."""
    scratch: int
    """Bytes of global memory for 16 rows."""
    shared: int
    """Bytes of shared memory of a thread block."""
    streamed: int
    """Bytes of weights of a thread block that it reads from global memory in every step."""
    report: str
    """What the compiler says of registers and spills."""


@functools.cache
def library(name: str, sizes: tuple[int, ...], cut: Cut, gpu: bool, exact: bool) -> Library:
    """The kernel for sizes (deter, blocks, hidden, stoch, classes), which JAX then knows."""
    names = ("DETER", "BLOCKS", "HIDDEN", "STOCH", "CLASSES")
    names = (*names, "CTAS", "CLUSTER", "WARPS", "SHARED_LIMIT", "RING")
    macros = [f"{macro}={value}" for macro, value in zip(names, (*sizes, *cut), strict=True)]
    path, report = libraries.compiled(HERE / f"{name}.cu", [*macros, *(["EXACT"] if exact else [])], gpu)
    loaded = libraries.loaded(path, name, gpu)
    numbers = (getattr(loaded, f"{name}_{what}")() for what in ("scratch", "shared", "streamed"))
    return Library(path.stem, *numbers, report)


def sizes_of(layers: Layers) -> tuple[int, ...]:
    """What the kernels are compiled for."""
    (deter, hidden), blocks = layers.first.shape, layers.cell.own.shape[0]
    return deter, blocks, hidden, layers.stoch, layers.head.out.weight.shape[1] // layers.stoch


def call(
    name: str, layers: Layers, cut: Cut, keep: Float[Array, "T B 1"], arrays: Sequence[Array]
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """Both results of a kernel, which may be mapped over runs."""
    (steps, batch, _), dtype = keep.shape, layers.first.dtype
    sizes = sizes_of(layers)
    made = library(name, sizes, cut, jax.default_backend() == "gpu", dtype == jnp.float32)
    like = [Shape((steps, batch, width), dtype) for width in (sizes[0], sizes[3] * sizes[4])]
    scratch = Shape((batch // 16 * made.scratch,), jnp.uint8)
    kernel = jax.ffi.ffi_call(made.target, [*like, scratch], vmap_method="broadcast_all")
    numbers = {"unimix": np.float32(layers.unimix), "steps": np.int32(steps), "batch": np.int32(batch)}
    return tuple(kernel(*arrays, **numbers)[:2])


def run(
    layers: Layers, start: tuple[Array, Array], given: Inputs, *, cut: Cut
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """`gpld.fused._observe._run` in one kernel. The posterior has one hidden layer, B is a multiple of 16."""
    cell, head, (h, z) = layers.cell, layers.head, start
    (dense,) = head.mlp.layers
    inputs = (cell.h_in.linear.bias, cell.h_in.norm.scale, cell.z_in.linear.bias, cell.z_in.norm.scale)
    vectors = (*inputs, cell.norm.scale, cell.gates.bias, dense.norm.scale, head.out.bias)
    weights = (cell.own, cell.shared, cell.gates.weight, layers.first, cell.h_in.linear.weight)
    weights = (*weights, cell.z_in.linear.weight, head.out.weight)
    # z is one-hot in the kernel, but for the one it starts from.
    started = (h, z @ cell.z_in.linear.weight)
    vectors = tuple(x.astype(jnp.float32) for x in vectors)
    return call("observe", layers, cut, given.keep, (*started, *given, *weights, *vectors))


def run_back(
    layers: Layers, local: _Local, outer: Outputs, keep: Float[Array, "T B 1"], *, cut: Cut
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """`gpld.fused._observe._run_back` in one kernel, from gradients of zero after the last step."""
    cell, (posterior,), unit = layers.cell, local.posterior, local.norm.unit
    blocks = unit.reshape(*unit.shape[:-1], *cell.own.shape[:2])
    along = (
        jnp.einsum("tbgo,gio->tbgi", blocks, cell.own, preferred_element_type=jnp.float32),
        jnp.einsum("tbo,io->tbi", unit, cell.shared, preferred_element_type=jnp.float32),
    )
    slopes = (*local.norm, *posterior, *local.h_in, *local.z_in)
    given = (keep, *outer, local.probs, *local.gates, local.last, *slopes, along[0].reshape(unit.shape))
    weights = (layers.head.out.weight, layers.first, cell.gates.weight, cell.own, cell.shared)
    weights = (*weights, cell.h_in.linear.weight, cell.z_in.linear.weight)
    return call("observe_back", layers, cut, keep, (*given, along[1], *weights))


@contextmanager
def instead(cuts: Callable[[], tuple[Cut, Cut] | None]) -> Iterator[None]:
    """Both scans of whatever is traced meanwhile in one kernel each, where they would be in today's.

    `cuts`, forwards and backwards, are asked for when a scan is traced; None leaves it as it is.
    """
    today, today_back = _observe._fused_run, _observe._fused_run_back

    def observe(layers, start, given, *, unroll):
        if (chosen := cuts()) is None:
            return today(layers, start, given, unroll=unroll)
        return run(layers, start, given, cut=chosen[0])

    def observe_back(layers, local, outer, keep, zeros, *, unroll):
        if (chosen := cuts()) is None:
            return today_back(layers, local, outer, keep, zeros, unroll=unroll)
        return run_back(layers, local, outer, keep, cut=chosen[1])

    with patch.multiple(_observe, _fused_run=observe, _fused_run_back=observe_back):
        yield
