"""This machine: cores, memory, a folder for compiled programs, signals."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GL_PACKAGES = "libopengl0 libegl1 libegl-mesa0 libgl1-mesa-dri"
"""Debian packages that let MuJoCo render without a screen."""

SIMULATORS = (
    {"mujoco": "3.11.0", "dm_control": "1.0.44", "envpool": "1.2.6"}
    if sys.version_info >= (3, 12)
    else {"mujoco": "3.6.0", "dm_control": "1.0.38", "envpool": "1.2.5"}
)
"""Simulators of the extra `suite`, in versions of one MuJoCo, as pyproject.toml pins them for this Python."""

_JAX_CACHES_FROM = 1.0
"""JAX's default for the seconds of compilation from which it caches a program."""


class Memory(NamedTuple):
    """Total and free bytes."""

    total: int
    free: int


def install(extra: str) -> str:
    """What to type for one of the extras in pyproject.toml, wherever this package was installed from.

    It names what is missing, or all of the extra if nothing is.
    """
    packages = [*_packages(extra)]
    missing = [package for package in packages if not _is_installed(package)]
    named = [str(package) for package in missing or packages] or [f".[{extra}]"]
    command = f"pip install {shlex.join(named)}"
    # From Python 3.13 on, labmaze, which only dm_control's mazes use, has no wheels.
    if extra == "suite" and sys.version_info >= (3, 13):
        alone = f"pip install --no-deps dm_control=={SIMULATORS['dm_control']}"
        command = alone if packages and not missing else f"{command}, and for dm_control {alone}"
    return command


def _is_installed(package: "Requirement") -> bool:
    """Whether a package is there, in a version that will do."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package.name) in package.specifier
    except PackageNotFoundError:
        return False


def _packages(extra: str) -> Iterator["Requirement"]:
    """What an extra adds here; nothing if this package is in the path without being installed."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    with suppress(PackageNotFoundError):
        for package in map(Requirement, requires("gpld") or ()):
            marker = package.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                package.marker = None
                yield package


def simulator_remedy(problem: str) -> str:
    """What to type if a simulator cannot be imported. From 1.2.6 on, EnvPool does not bring its libraries."""
    missing = "libEGL" in problem or "libOpenGL" in problem
    return f"Debian: `apt install {GL_PACKAGES}`" if missing else install("suite")


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
    stats = _device_statistics()
    if not stats:
        return host_memory()
    return Memory(stats["bytes_limit"], stats["bytes_limit"] - stats["bytes_in_use"])


def spare_device_memory() -> int:
    """Bytes of the first device that stay free while programs run; no limit where its memory is the host's.

    No program needs more for itself than the largest piece that was ever allocated.
    """
    stats = _device_statistics()
    if not stats:
        return sys.maxsize
    return stats["bytes_limit"] - stats["bytes_in_use"] - stats.get("largest_alloc_size", 0)


def _device_statistics() -> dict[str, int]:
    """What JAX knows of its first device's memory; nothing if that is the host's."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    return stats if "bytes_limit" in stats else {}


def leave_gpus() -> None:
    """Let JAX compute on the CPU here: it would take most of the GPUs' memory, which children need."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def compilation_cache() -> Path:
    """Folder for compiled programs: JAX's environment variable, or one in the user's cache folder."""
    if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(folder)
    return user_cache() / "jax"


def user_cache() -> Path:
    """This program's folder in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpld"


def use_compilation_cache() -> None:
    """Let JAX cache compiled programs on disk, in its configured folder or in `compilation_cache()`."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
    least = "jax_persistent_cache_min_compile_time_secs"
    if least.upper() not in os.environ and jax.config.values[least] == _JAX_CACHES_FROM:
        # Small programs too: a start compiles dozens of them, and each takes time on a GPU.
        jax.config.update(least, 0.0)


def forget_programs(most: int = 20_000) -> None:
    """Let JAX forget what it has compiled, if more than `most` pieces of memory are mapped.

    On a CPU a program takes thousands of them. Linux allows a process 65,530, beyond which JAX dies while it
    compiles, or hangs.
    """
    import jax

    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > most:
        jax.clear_caches()


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
def report_death(message: str) -> Iterator[None]:
    """Let a shell print `message` on standard error if this process dies inside the block.

    It may die without an error: an environment calls `os._exit`, C code crashes, or memory runs out.
    """
    script = 'read -r over || printf "%s\\n" "$1" >&2'
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", message], stdin=subprocess.PIPE, start_new_session=True
        )
    except OSError:  # no shell
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


@contextmanager
def interruptible() -> Iterator[Callable[[], int | None]]:
    """Catch Ctrl-C and SIGTERM: a function that returns which of them came. A second Ctrl-C is not caught.

    Whoever is told of a signal must stop. One that nobody was told of is raised again when the block ends.
    """
    received: list[int] = []
    told = False

    def interrupted() -> int | None:
        nonlocal told
        number = received[0] if received else None
        told = told or number is not None
        return number

    def note(number: int, _: Any) -> None:
        received.append(number)
        if number == signal.SIGINT:  # batch systems send SIGTERM to every process they find, some twice
            signal.signal(number, signal.SIG_DFL)

    if not _handles_signals():
        yield interrupted
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_acknowledge, args=(reader,), daemon=True).start()
    try:
        yield interrupted
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        for number, handler in before.items():
            signal.signal(number, handler)
        if received and not told:
            signal.raise_signal(received[0])


@contextmanager
def sigterm_raises(error: BaseException) -> Iterator[None]:
    """Raise `error` at the first SIGTERM in the block: batch systems send some twice."""

    def interrupt(number: int, _: Any) -> None:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which children would inherit
        raise error

    if not _handles_signals():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()  # Python lets no other


def _acknowledge(signals: int) -> None:
    """Answer Ctrl-C at once, also while the main thread compiles and hears nothing; end at the second one."""
    with open(signals, "rb", buffering=0) as numbers:
        pressed = 0
        while number := numbers.read(1):
            pressed += number[0] == signal.SIGINT
            if pressed > 1:
                os._exit(128 + signal.SIGINT)
            if number[0] == signal.SIGINT:
                print("stopping after this step; Ctrl-C again to quit now", file=sys.stderr, flush=True)


def log_plainly() -> None:
    """Print our warnings as plain lines, whatever logging a library has set up."""
    own, lines = logging.getLogger("gpld"), logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(message)s"))
    own.addHandler(lines)
    own.propagate = False
