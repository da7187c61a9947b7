"""One kernel of a dream step on each foundation that kernels could stand on, timed side by side on a GPU.

    python benchmarks/foundations/compare.py --runs 1 8

It makes the next h of the block GRU from the activated hidden layer: a product with a block-diagonal matrix,
and all gates. `xla` leaves all to XLA. `today` is a product by cuBLAS and a kernel of Pallas through Triton,
as in training. The others are one kernel: in Pallas through Triton, in Triton itself through jax-triton, and
in Pallas through Mosaic GPU, and in CUDA. Some keep their weights and stream rows past them, as do those of
Mosaic GPU and CUDA. Those that are not installed, or do not compile, are left out by name. Writes
`foundations.json` as it measures, when all of so many runs are compiled.
"""

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tyro
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float

from gpld.config import ConfigError
from gpld.fused import kernels
from gpld.fused.kernels._step import follow
from gpld.fused.kernels._tiles import At, Tile, call, dot, products
from gpld.training.provenance import provenance

sys.path.append(str(Path(__file__).parent))

import next_h


class Inputs(NamedTuple):
    """Of one run."""

    x: Float[Array, "G N own"]
    weight: Float[Array, "G own wide"]
    bias: Float[Array, " gates"]
    h: Float[Array, "N D"]


Outputs = tuple[Float[Array, "N D"], Float[Array, "G N own"]]
"""The next h, as rows and by blocks."""


def xla(x: Array, weight: Array, bias: Array, h: Array) -> Outputs:
    """All by XLA."""
    blocks, count, own = x.shape
    gates = jax.lax.dot_general(x, weight, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)
    gates = gates + bias.reshape(blocks, 1, -1)
    before = h.reshape(count, blocks, own).swapaxes(0, 1).astype(jnp.float32)
    reset, candidate, update = jnp.split(gates, 3, axis=-1)
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1)
    after = (update * candidate + (1 - update) * before).astype(h.dtype)
    return after.swapaxes(0, 1).reshape(h.shape), after


def today(x: Array, weight: Array, bias: Array, h: Array) -> Outputs:
    """The product by cuBLAS, the rest in a kernel."""
    gates = jax.lax.dot_general(x, weight, (((2,), (1,)), ((0,), (0,))))
    record = At(kernels.empty_record(h, 1), jnp.zeros(1, jnp.int32))
    rows, blocks, _ = kernels.gru_blocks(gates, bias, h, record)
    return rows, blocks


def cuda(x: Array, weight: Array, bias: Array, h: Array, *, parts: int) -> Outputs:
    """One kernel in CUDA, with weights as it packs them."""
    record = At(kernels.empty_record(h, 1), jnp.zeros(1, jnp.int32))
    rows, blocks, _ = next_h.next_h(x, weight, bias, h, record, parts=parts)
    return rows, blocks


def gates(weight: Array, bias: Array, columns: int) -> tuple[list, list]:
    """Weights and biases of all three gates for some columns of a block, as kernels are given them."""
    own = weight.shape[1]
    steps = own // columns
    return (
        [
            (weight, BlockSpec((None, own, columns), lambda n, g, j, i=i: (g, 0, i * steps + j)))
            for i in range(3)
        ],
        [(bias, BlockSpec((columns,), lambda n, g, j, i=i: ((3 * g + i) * steps + j,))) for i in range(3)],
    )


def pallas_triton(x: Array, weight: Array, bias: Array, h: Array, *, tile: Tile) -> Outputs:
    """One kernel of Pallas through Triton."""
    (blocks, count, own), (rows, columns) = x.shape, tile[:2]
    steps = own // columns

    def kernel(x, weights, biases, h, out, by_block):
        sums = products(lambda at: x[:, at], weights, tile)
        opened = (y + b[...][None] for y, b in zip(sums, biases, strict=True))
        after = follow(*opened, h[...].astype(jnp.float32)).astype(out.dtype)
        out[...] = after
        by_block[...] = after

    row = BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    block = BlockSpec((None, rows, columns), lambda n, g, j: (g, n, j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (x, BlockSpec((None, rows, own), lambda n, g, j: (g, n, 0))),
            *gates(weight, bias, columns),
            (h, row),
        ],
        ((Shape(h.shape, h.dtype), row), (Shape(x.shape, h.dtype), block)),
        tile,
    )


def pallas_triton_kept(x: Array, weight: Array, bias: Array, h: Array, *, tile: Tile, parts: int) -> Outputs:
    """One kernel of Pallas through Triton: weights stay, and rows are streamed past."""
    (blocks, count, own), (rows, columns) = x.shape, tile[:2]
    steps, part = own // columns, count // parts

    def kernel(x, weights, biases, h, out, by_block):
        stay, shifts = [w[...] for w in weights], [b[...][None] for b in biases]

        def pass_by(i, _):
            at = pl.ds(i * rows, rows)
            loaded = x[at, :]
            opened = (dot(loaded, w) + b for w, b in zip(stay, shifts, strict=True))
            after = follow(*opened, h[at, :].astype(jnp.float32)).astype(out.dtype)
            out[at, :] = after
            by_block[at, :] = after

        jax.lax.fori_loop(0, part // rows, pass_by, None)

    row = BlockSpec((part, columns), lambda n, g, j: (n, g * steps + j))
    block = BlockSpec((None, part, columns), lambda n, g, j: (g, n, j))
    return call(
        kernel,
        (parts, blocks, steps),
        [
            (x, BlockSpec((None, part, own), lambda n, g, j: (g, n, 0))),
            *gates(weight, bias, columns),
            (h, row),
        ],
        ((Shape(h.shape, h.dtype), row), (Shape(x.shape, h.dtype), block)),
        tile,
    )


def mosaic_gpu(
    x: Array, weight: Array, bias: Array, h: Array, *, rows: int = 64, columns: int = 64, parts: int = 4
) -> Outputs:
    """One kernel of Pallas through Mosaic GPU: weights stay in shared memory, and rows are streamed past."""
    from jax.experimental.pallas import mosaic_gpu as gpu

    blocks, count, own = x.shape
    steps, tiles = own // columns, count // parts // rows
    tiled, layout = (gpu.TilingTransform((8, 64)), gpu.SwizzleTransform(128)), gpu.Layout.WGMMA

    def sigmoid(x):
        return 1 / (1 + jnp.exp(-x))

    def kernel(x, weight, bias, h, out, by_block, kept, loaded):
        part, g, j = (jax.lax.axis_index(name) for name in ("part", "block", "column"))
        for i in range(3):
            columns_of = pl.ds(i * own + j * columns, columns)
            gpu.copy_gmem_to_smem(weight.at[g, :, columns_of], kept.at[i], loaded)
        gpu.barrier_wait(loaded)

        def shift(i):
            at = pl.ds((3 * g + i) * own + j * columns, columns)
            values = gpu.load(bias, at, layout=layout.reduce(0), optimized=False)
            return jax.lax.broadcast_in_dim(values, (rows, columns), (1,))

        def tile(_, x, before, out, by_block):
            def product(*sums):
                for i, total in enumerate(sums):
                    gpu.wgmma(total, x, kept.at[i])
                gpu.wgmma_wait(0)
                return [total[...] for total in sums]

            sums = pl.run_scoped(product, *[gpu.ACC((rows, columns), jnp.float32)] * 3)
            reset, candidate, update = (y + shift(i) for i, y in enumerate(sums))
            candidate = 2 * sigmoid(2 * sigmoid(reset) * candidate) - 1
            update = sigmoid(update - 1)
            h = gpu.load(before, (), layout=layout).astype(jnp.float32)
            after = (update * candidate + (1 - update) * h).astype(out.dtype)
            out[...] = after
            by_block[...] = after

        row = gpu.BlockSpec((rows, columns), lambda n: (part * tiles + n, g * steps + j), transforms=tiled)
        block = gpu.BlockSpec((rows, columns), lambda n: (part * tiles + n, j), transforms=tiled)
        whole = gpu.BlockSpec((rows, own), lambda n: (part * tiles + n, 0), transforms=tiled)
        pipeline = gpu.emit_pipeline(
            tile, grid=(tiles,), max_concurrent_steps=2, in_specs=[whole, row], out_specs=[row, block]
        )
        pipeline(x.at[g], h, out, by_block.at[g])

    return gpu.kernel(
        kernel,
        out_type=[Shape(h.shape, h.dtype), Shape(x.shape, h.dtype)],
        grid=(parts, blocks, steps),
        grid_names=("part", "block", "column"),
        scratch_types=[gpu.SMEM((3, own, columns), x.dtype, transforms=tiled), gpu.Barrier(num_arrivals=3)],
        compiler_params=gpu.CompilerParams(approx_math=True),
    )(x, weight, bias, h)


def jax_triton_kept(x: Array, weight: Array, bias: Array, h: Array, *, tile: Tile, parts: int) -> Outputs:
    """The same as `pallas_triton_kept` in Triton itself."""
    import jax_triton
    import kernel_in_triton

    runs, blocks, count, own = x.shape
    return jax_triton.triton_call(
        *(x, weight, bias, h, count, blocks),
        kernel=kernel_in_triton.next_h_kept,
        out_shape=[Shape(h.shape, h.dtype), Shape(x.shape, h.dtype)],
        grid=(parts, blocks * (own // tile.columns), runs),
        num_warps=tile.warps,
        num_stages=tile.stages,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        TILES=count // parts // tile.rows,
        STAGES=tile.stages,
        OWN=own,
    )


def jax_triton(x: Array, weight: Array, bias: Array, h: Array, *, tile: Tile) -> Outputs:
    """One kernel of Triton itself, of arrays with a leading axis of runs: it cannot be mapped over."""
    import jax_triton
    import kernel_in_triton

    runs, blocks, count, own = x.shape
    return jax_triton.triton_call(
        *(x, weight, bias, h, count, blocks),
        kernel=kernel_in_triton.next_h,
        out_shape=[Shape(h.shape, h.dtype), Shape(x.shape, h.dtype)],
        grid=(count // tile.rows, blocks * (own // tile.columns), runs),
        num_warps=tile.warps,
        num_stages=tile.stages,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        OWN=own,
    )


TILES = (
    Tile(rows=128, columns=64, depth=64, warps=8, stages=3),
    Tile(rows=64, columns=64, depth=64, warps=4, stages=3),
    Tile(rows=128, columns=32, depth=64, warps=4, stages=4),
    Tile(rows=64, columns=128, depth=64, warps=8, stages=3),
)

KEPT = (
    (Tile(rows=64, columns=64, warps=8, stages=3), 1),
    (Tile(rows=64, columns=64, warps=8, stages=2), 2),
    (Tile(rows=64, columns=32, warps=4, stages=2), 1),
)
"""Tiles of kernels that keep their weights, and how many parts the rows are cut into."""


PARTS = (1, 2, 4, 8)
"""Thread blocks in CUDA that share the rows of a block's columns."""


def packed(variant: str, inputs: Inputs) -> Inputs:
    """The same with weights as a variant wants them, which training would do once for all steps."""
    if not variant.startswith("CUDA"):
        return inputs
    return inputs._replace(weight=jax.jit(jax.vmap(next_h.packed))(inputs.weight))


def variants() -> dict[str, Callable[..., Outputs]]:
    """All that are timed, of arrays with a leading axis of runs."""
    found: dict[str, Callable[..., Outputs]] = {"xla": jax.vmap(xla), "today": jax.vmap(today)}
    for parts in PARTS:
        found[f"CUDA, {parts} parts"] = jax.vmap(partial(cuda, parts=parts))
    for tile in TILES:
        name = f"{tile.rows}x{tile.columns}, {tile.warps} warps"
        found[f"Pallas, Triton, {name}"] = jax.vmap(partial(pallas_triton, tile=tile))
        found[f"jax-triton, {name}"] = partial(jax_triton, tile=tile)
    for tile, parts in KEPT:
        name = f"kept {tile.rows}x{tile.columns}, {parts} parts, {tile.warps} warps, {tile.stages} stages"
        found[f"Pallas, Triton, {name}"] = jax.vmap(partial(pallas_triton_kept, tile=tile, parts=parts))
        found[f"jax-triton, {name}"] = partial(jax_triton_kept, tile=tile, parts=parts)
    for parts in (2, 4, 8):
        found[f"Pallas, Mosaic GPU, {parts} parts"] = jax.vmap(partial(mosaic_gpu, parts=parts))
    return found


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    rows: int = 1024
    """States of each."""
    deter: int = 2048
    """Size of h."""
    blocks: int = 8
    """Its blocks."""
    only: tuple[str, ...] = tuple(variants())
    """Variants that are timed."""
    steps: int = 50
    """Steps in one timed call."""
    repeats: int = 9
    """Timed calls; their median is reported."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON."""


def random_inputs(options: Options, runs: int) -> Inputs:
    """Numbers of the sizes that a trained agent has."""
    own = options.deter // options.blocks
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (
        (runs, options.blocks, options.rows, own),
        (runs, options.blocks, own, 3 * own),
        (runs, 3 * options.deter),
        (runs, options.rows, options.deter),
    )
    x, weight, bias, h = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    half = jnp.bfloat16
    return Inputs(x.astype(half), (weight / own**0.5).astype(half), bias, jnp.tanh(h).astype(half))


def compiled(name: str, inputs: Inputs, options: Options) -> tuple[Any, Any, Inputs]:
    """A step, many steps, and what both take."""
    step, given = variants()[name], packed(name, inputs)

    def steps(inputs: Inputs) -> Outputs:
        def one(_: int, carry: Outputs) -> Outputs:
            return tuple(step(*inputs[:3], carry[0]))

        return jax.lax.fori_loop(0, options.steps, one, (inputs.h, jnp.zeros_like(inputs.x)))

    return jax.jit(step).lower(*given).compile(), jax.jit(steps).lower(given).compile(), given


def measure(step: Any, steps: Any, given: Inputs, exact: Outputs, options: Options) -> dict[str, float]:
    """Microseconds of a step, and how far its result is from that of float32."""
    far = [jnp.abs(a - b.astype(jnp.float32)).max() for a, b in zip(exact, step(*given), strict=True)]
    if not jnp.isfinite(jnp.array(far)).all():
        raise FloatingPointError("not all numbers are finite")
    jax.block_until_ready(steps(given))
    times = []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        jax.block_until_ready(steps(given))
        times.append((time.perf_counter() - begin) / options.steps * 1e6)
    return {"us": statistics.median(times), "spread": max(times) - min(times), "error": float(max(far))}


def main(options: Options) -> list[dict]:
    """Measure, print and write."""
    if unknown := set(options.only) - set(variants()):
        raise ConfigError(f"only: {min(unknown)!r} is no variant; allowed are {', '.join(variants())}")
    rows: list[dict] = []
    record = {"provenance": provenance(), "options": str(options), "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    for runs in options.runs:
        inputs = random_inputs(options, runs)
        exact = jax.jit(jax.vmap(xla))(*(x.astype(jnp.float32) for x in inputs))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = {name: pool.submit(compiled, name, inputs, options) for name in options.only}
        for name, programs in made.items():
            try:
                found = measure(*programs.result(), exact, options)
            except Exception as error:  # of whatever kind: the others are timed
                found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
            rows.append({"runs": runs, "variant": name, **found})
            print(json.dumps(rows[-1]), flush=True)
            (options.out / "foundations.json").write_text(json.dumps(record, indent=2) + "\n")
            if "failed" in found:
                next_h.libraries.stop_if_dead(name)
    return rows


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"compare.py: {error}") from None
