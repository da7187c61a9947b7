"""The checks of `gpld doctor`: a list of findings, each with a remedy where something is wrong."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpld.machine import (
    GL_PACKAGES,
    SIMULATORS,
    compilation_cache,
    cores,
    host_memory,
    install,
    simulator_remedy,
)

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "orbax-checkpoint", "gymnasium", *SIMULATORS)
"""Packages whose versions decide whether and how training runs."""

GL_BACKENDS = ("egl", "osmesa", "glfw")
"""MuJoCo's renderers, by preference on a machine without a screen."""

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    detail: str
    remedy: str = ""
    """The remedy; empty if all is well."""
    stops_training: bool = False
    """Whether an agent cannot be trained from states until this is fixed."""


def examine() -> list[Finding]:
    """Check versions, devices, memory, environments, rendering and caches. Takes some seconds."""
    probes = {"device": {}, "dm_control": {"MUJOCO_GL": "disable"}, "envpool": {}}
    chosen = _chosen_backend()
    backends = list(dict.fromkeys([*GL_BACKENDS, *([chosen] if chosen else [])]))
    probes |= {f"gl {backend}": {"MUJOCO_GL": backend} for backend in backends}
    with ThreadPoolExecutor(max_workers=max(1, cores())) as pool:
        results = dict(zip(probes, pool.map(_probe, probes, probes.values()), strict=True))
    total, free = host_memory()
    return [
        Finding("python", f"{platform.python_version()} at {sys.executable}"),
        *map(_package, PACKAGES),
        Finding("host", f"{cores()} cores, {_gib(total)} of memory, {_gib(free)} free"),
        _device(results["device"]),
        *_engines(results["envpool"], results["dm_control"]),
        *_rendering({backend: results[f"gl {backend}"] for backend in backends}),
        _cache(compilation_cache()),
    ]


def report(findings: Iterable[Finding]) -> str:
    """The findings as lines of text, problems with what to do about them."""
    lines = []
    for finding in findings:
        sign = "ok" if not finding.remedy else "STOPS TRAINING" if finding.stops_training else "note"
        lines.append(f"{sign:>14}  {finding.subject}: {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':>14}  -> {finding.remedy}")
    return "\n".join(lines)


@dataclass(frozen=True)
class _ProbeResult:
    """The output of a probe, or the last line of its error."""

    ok: bool
    text: str


def _probe(name: str, environment: dict[str, str]) -> _ProbeResult:
    """Run one function of `_probes`; `name` may carry a word after it that only distinguishes."""
    command = [sys.executable, "-W", "ignore", "-m", "gpld.doctor._probes", name.split()[0]]
    # Beside a training run: do not take the whole device.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | environment
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return _ProbeResult(False, f"no answer in {PROBE_SECONDS:.0f} s")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return _ProbeResult(done.returncode == 0, lines[-1] if lines else f"ended with status {done.returncode}")


def _package(name: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        if name in SIMULATORS:
            return Finding(name, "not installed", f"for tasks of the suite: {install('suite')}")
        return Finding(name, "not installed", "install gpld again, with what it needs", stops_training=True)
    if found != SIMULATORS.get(name, found):
        return Finding(name, found, f"tested is {SIMULATORS[name]}: {install('suite')}")
    return Finding(name, found)


def _device(result: _ProbeResult) -> Finding:
    if not result.ok:
        remedy = (
            "JAX cannot use this machine's device: reinstall it, or set JAX_PLATFORMS=cpu to train on the CPU"
        )
        return Finding("device", result.text, remedy, stops_training=True)
    found = json.loads(result.text)
    memory = f", {_gib(found['memory'])} each" if found["memory"] else ""
    detail = f"{found['count']} x {found['kind']} ({found['platform']}){memory}"
    if found["platform"] == "cpu" and Path("/proc/driver/nvidia/version").exists():
        remedy = "there is an NVIDIA driver, but JAX has no CUDA: `pip install 'jax[cuda13]<0.13'`"
        return Finding("device", detail, remedy)
    return Finding("device", detail)


def _engines(envpool: _ProbeResult, dm_control: _ProbeResult) -> Iterator[Finding]:
    """One engine is enough to train from states, and other environments need neither.

    So only those that are installed and do not run are a fault.
    """
    works = envpool.ok or dm_control.ok
    others = "gym:Name-v0 and jax:module:name train without it"
    instead = "the other one takes its place where it can" if works else others
    for name, result in (("envpool", envpool), ("dm_control", dm_control)):
        remedy = "" if result.ok else f"{simulator_remedy(result.text)}; {instead}"
        yield Finding(f"{name} engine", result.text, remedy, not works and not _is_missing(name, result))


def _is_missing(package: str, result: _ProbeResult) -> bool:
    """Whether a probe failed because a package is not installed."""
    return not result.ok and f"No module named '{package}'" in result.text


def _chosen_backend() -> str:
    """The value of MUJOCO_GL, which may be no backend."""
    return os.environ.get("MUJOCO_GL", "").strip().lower()


def _rendering(results: dict[str, _ProbeResult]) -> Iterator[Finding]:
    """One backend is enough to render, and none is needed to train from states.

    `results` are of all backends, and of the one that MUJOCO_GL names.
    """
    works, chosen = [backend for backend, result in results.items() if result.ok], _chosen_backend()
    if chosen in results and chosen not in works:
        remedy = f"unset MUJOCO_GL{f', or set it to {works[0]}' if works else ''}"
        yield Finding(
            "rendering", f"MUJOCO_GL={chosen} is set but does not work: {results[chosen].text}", remedy
        )
    if works:
        unused = [f"{backend} fails" for backend in results if backend not in (*works, chosen)]
        detail = f"{', '.join(works)} works" + (f" ({', '.join(unused)})" if unused else "")
        yield Finding("rendering", f"{detail}; MUJOCO_GL={works[0]}")
        return
    if all(_is_missing("dm_control", result) for result in results.values()):
        remedy = f"needed for pixels and films only: {install('suite')}"
        yield Finding("rendering", "dm_control, which draws, is not installed", remedy)
        return
    remedy = f"needed for pixels and films only. Debian: `apt install {GL_PACKAGES}`"
    for backend, result in results.items():
        yield Finding(f"rendering with {backend}", result.text, remedy)


def _cache(folder: Path) -> Finding:
    existing = next(f for f in (folder, *folder.parents) if f.exists())
    if not os.access(existing, os.W_OK):
        remedy = "every start compiles again: make it writable or set JAX_COMPILATION_CACHE_DIR"
        return Finding("compilation cache", f"{folder} cannot be written", remedy)
    size = sum(f.stat().st_size for f in folder.glob("**/*") if f.is_file())
    return Finding("compilation cache", f"{folder} ({size / 2**20:.0f} MiB)")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
