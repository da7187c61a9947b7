"""What an H200 would run for an update, on a machine without a GPU: kernels, by part of the agent.

    pip install --no-deps jax-cuda12-plugin==VERSION jax-cuda12-pjrt==VERSION    # of the installed JAX
    python benchmarks/gpu_program.py --preset 12m gpu --runs 1 8 --estimators probes vjp

One run waits for its kernels one after the other, so their number says more about its time than their work
does. It also shows that a change compiles for a GPU at all. Only a GPU can choose the best algorithm for each
product: here all are left to cuBLAS.
"""

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import jax
import tyro
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding
from jaxtyping import PyTree
from rich.console import Console
from rich.table import Table

from gpld import agent
from gpld.analysis.cost import WALKER
from gpld.config import Config, ConfigError, override, with_presets
from gpld.fused import _choice
from gpld.fused.kernels import _tiles
from gpld.profiling import ELSEWHERE, random_batch, source_parts

H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132  clock_rate_ghz: 1.98  fpus_per_core: 128
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  l2_cache_size: 52428800  memory_bandwidth: 4800000000000  device_memory_size: 150000000000
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H200"
"""
NO_KERNEL = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    preset: tuple[str, ...] = ("12m", "gpu")
    """Presets of the agent."""
    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    estimators: tuple[str, ...] = ("probes",)
    """Of the penalty, each in a program of its own: probes, exact, vjp."""
    rows: int = 12
    """Parts of the agent that are listed."""


class Kernels(NamedTuple):
    """Those that one line of a program's text stands for."""

    name: str
    times: int
    """How often it runs in an update."""
    in_scan: bool


def kernels(program: str) -> Iterator[Kernels]:
    """All kernels of a compiled program's text, those of loops as often as these go round."""
    lines: dict[str, list[str]] = {}
    entry = current = ""
    for line in program.splitlines():
        if begin := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            current = begin[2]
            entry = current if begin[1] else entry
            lines[current] = []
        elif line.startswith("  "):
            lines.setdefault(current, []).append(line.strip())

    def walk(computation: str, times: int, in_scan: bool) -> Iterator[Kernels]:
        for line in lines[computation]:
            found = re.match(r"(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\(", line)
            if not found or found[2] in NO_KERNEL or '"AllocateBuffer"' in line:
                continue
            inside = re.search(r"(?:body|to_apply)=%?([\w.\-]+)", line)
            if found[2] in ("while", "call") and inside:
                rounds = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
                yield from walk(
                    inside[1], times * int(rounds[1] if rounds else 1), found[2] == "while" or in_scan
                )
            else:
                yield Kernels(found[1], times, in_scan)

    yield from walk(entry, 1, False)


@contextmanager
def as_on_a_gpu() -> Iterator[SingleDeviceSharding]:
    """Where arrays lie that programs are compiled for. JAX must not have started yet."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    flags = ("--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])
    try:
        topology = topologies.get_topology_desc("", platform="cuda", target_config=H200, topology="1x1x1")
    except NotImplementedError:
        names = " ".join(f"jax-cuda12-{part}=={jax.__version__}" for part in ("plugin", "pjrt"))
        raise SystemExit(f"XLA's compiler for GPUs is missing; pip install --no-deps {names}") from None
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="cuda")
    with ExitStack() as stack:
        for module in (_choice, _tiles):
            stack.enter_context(patch.object(module, "interpreted", lambda: False))
        stack.enter_context(patch.object(_choice, "work_here", lambda: True))
        stack.enter_context(jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)))
        yield SingleDeviceSharding(topology.devices[0])


def compiled(config: Config, runs: int, where: SingleDeviceSharding) -> str:
    """The text of the program that updates so many runs."""

    def shapes(function, *arguments) -> PyTree:
        found = jax.eval_shape(jax.vmap(function), *arguments)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), found)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), runs))
    state = shapes(partial(agent.init, config.agent, WALKER), keys)
    batch = shapes(partial(random_batch, config, WALKER), keys)
    update = jax.jit(jax.vmap(partial(agent.update, config.agent)), donate_argnums=0)
    return update.lower(state, batch).compile().as_text() or ""


def main(options: Options) -> None:
    """Compile, and print a table for each program."""
    for name, value in (("runs", min(options.runs)), ("rows", options.rows)):
        if value < 1:
            raise ConfigError(f"{name}: {value} is not allowed; it must be at least 1")
    config = with_presets(Config(task="walker-walk"), options.preset)
    chosen = {
        name: override(config, {"agent": {"penalty": {"estimator": name}}}) for name in options.estimators
    }
    with as_on_a_gpu() as where:
        for name, own in chosen.items():
            for runs in options.runs:
                show(compiled(own, runs, where), f"{name}, runs in one program: {runs}", options.rows)


def show(program: str, title: str, rows: int) -> None:
    """Print a table of a program's kernels."""
    parts, counts = source_parts(program), Counter[tuple[str, bool]]()
    for name, times, in_scan in kernels(program):
        counts[parts.get(name, ELSEWHERE), in_scan] += times
    table = Table("", title=f"Kernels of an update, {title}", title_justify="left", show_footer=True)
    table.columns[0].footer = "all"
    for in_scan, name in ((True, "in scans"), (False, "elsewhere")):
        total = sum(count for (_, where), count in counts.items() if where == in_scan)
        table.add_column(name, f"{total:,}", justify="right")
    names = Counter[str]()
    for (part, _), count in counts.items():
        names[part] += count
    for part, _ in names.most_common(rows):
        table.add_row(part, f"{counts[part, True]:,}", f"{counts[part, False]:,}")
    Console().print(table)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"gpu_program.py: {error}") from None
