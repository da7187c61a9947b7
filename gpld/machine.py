"""What this machine offers: cores, memory, and a place for compiled programs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

GL_PACKAGES = "libegl1 libegl-mesa0 libgl1-mesa-dri libosmesa6"
"""Debian packages that let MuJoCo draw without a screen."""


_JAX_KEEPS_FROM = 1.0
"""Seconds of compilation from which JAX keeps a program unless it is told otherwise."""


class Memory(NamedTuple):
    """Bytes in all, and bytes that can still be had."""

    total: int
    free: int


def cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_memory() -> Memory:
    """Main memory, within the limit of a container or batch job where there is one."""
    import psutil

    system = psutil.virtual_memory()
    limits = [Memory(system.total, system.available), *_group_limits(Path("/sys/fs/cgroup"))]
    return Memory(min(m.total for m in limits), min(m.free for m in limits))


def device_memory() -> Memory:
    """Memory of JAX's first device of this process; that of the host if the device is the CPU."""
    import jax

    stats = jax.local_devices()[0].memory_stats()
    if not stats or "bytes_limit" not in stats:
        return host_memory()
    return Memory(stats["bytes_limit"], stats["bytes_limit"] - stats["bytes_in_use"])


def compilation_cache() -> Path:
    """Folder that keeps compiled programs: where JAX is told to, or one in the user's cache folder."""
    if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(folder)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "gpld" / "jax"


def use_compilation_cache() -> None:
    """Let JAX keep compiled programs between processes, unless it was told where already."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
    least = "jax_persistent_cache_min_compile_time_secs"
    if least.upper() not in os.environ and jax.config.values[least] == _JAX_KEEPS_FROM:
        # The small programs too: a start has dozens of them, and a GPU's compiler takes its time for each.
        jax.config.update(least, 0.0)


def _group_limits(root: Path, membership: Path = Path("/proc/self/cgroup")) -> list[Memory]:
    """Memory limits of the control groups (version 2) this process is in, innermost first."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    groups = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    limits = []
    for group in groups:
        inside = root / group
        for folder in (inside, *inside.parents):
            limit, used = folder / "memory.max", folder / "memory.current"
            if folder.is_relative_to(root) and limit.exists() and used.exists():
                total = limit.read_text().strip()
                if total != "max":
                    limits.append(Memory(int(total), max(0, int(total) - int(used.read_text()))))
    return limits


@contextmanager
def witnessed(words: str) -> Iterator[None]:
    """Let a shell say `words` on standard error if this process is gone before the block has ended.

    Nobody else could: an environment that calls `os._exit`, a crash in C, the system when memory is short.
    """
    script = 'read -r over || printf "%s\\n" "$1" >&2'
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", words], stdin=subprocess.PIPE, start_new_session=True
        )
    except OSError:  # no shell, no words
        yield
        return
    assert shell.stdin is not None
    try:
        yield
    finally:
        with suppress(OSError):
            shell.stdin.write(b"over\n")
            shell.stdin.close()
        shell.wait()
