"""A program kept on disk as it was compiled, so that the next process need not even trace it.

JAX's own cache is asked with a program's text, and to have that, Python traces and lowers it first: seven
seconds for what eight runs learn with on a GPU. Here the question is what the text follows from: our code,
the packages, the options, and the shapes of the arguments. What cannot be read is compiled as usual. Only a
process that has really compiled a program keeps it, and code that is patched at run time is not noticed.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
from jax.experimental import serialize_executable
from jaxtyping import PyTree

import gpld
from gpld import files, kernels

Shapes = dict[str, jax.ShapeDtypeStruct]


def folder() -> Path | None:
    """Where programs are kept: beside JAX's own, if it keeps any. Compiled for a CPU, they are its alone."""
    settings = jax.config.values
    directory = settings["jax_enable_compilation_cache"] and settings["jax_compilation_cache_dir"]
    if not directory or "://" in directory or jax.default_backend() != "gpu" or jax.process_count() > 1:
        return None
    return Path(directory)


class Kept:
    """A function on one device whose result has the structure of its first array argument, which it donates.

    Its first arguments, `static` of them, decide what is compiled, and their `repr` tells all about them.
    """

    def __init__(self, function: Callable[..., PyTree], *, static: int):
        self.jitted = jax.jit(function, static_argnums=tuple(range(static)), donate_argnums=static)
        """The same without being kept, on any devices."""
        self._function, self._static = function, static
        self._programs: dict[Hashable, Callable[..., Sequence[jax.Array]]] = {}
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments: Any) -> PyTree:
        if folder() is None:
            return self.jitted(*arguments)
        static, arrays = arguments[: self._static], arguments[self._static :]
        leaves, tree = jax.tree.flatten(arrays)
        kinds = tuple((x.shape, str(x.dtype), getattr(x, "weak_type", False)) for x in leaves)
        asked, device = (static, tree, kinds), leaves[0].device
        known = (asked, device, _circumstances())
        if known not in self._programs:
            self._programs[known] = self._program(static, tree, leaves, _path(self.__name__, repr(asked)))
        return jax.tree.unflatten(jax.tree.structure(arrays[0]), self._programs[known](*leaves))

    def _program(
        self, static: Sequence[Any], tree: Any, leaves: Sequence[jax.Array], path: Path
    ) -> Callable[..., Sequence[jax.Array]]:
        """From the disk, or compiled and kept there. It takes and gives leaves: trees cannot be kept."""
        results = jax.tree.structure(tree.unflatten(leaves)[0]).num_leaves
        try:
            if _is_own(path):
                trees = jax.tree.structure((tuple(leaves), {})), jax.tree.structure([0] * results)
                return serialize_executable.deserialize_and_load(
                    files.read_bytes(path), *trees, execution_devices=[leaves[0].device]
                )
        except Exception as error:  # of whatever kind: it is compiled instead
            warnings.warn(f"{path} cannot be used and is removed: {error!r}", stacklevel=2)
            with contextlib.suppress(OSError):
                path.unlink()

        def by_leaves(*leaves: jax.Array) -> Sequence[jax.Array]:
            return jax.tree.leaves(self._function(*static, *tree.unflatten(leaves)))

        by_leaves.__name__ = self.__name__
        lowered = jax.jit(by_leaves, donate_argnums=tuple(range(results))).lower(*leaves)
        with _answers() as answers:
            program = lowered.compile()
        # A program that JAX has read from its own cache cannot be written again everywhere: on CPUs it is
        # then found to lack its functions when it is executed.
        if not answers:
            _write(path, lambda: serialize_executable.serialize(program)[0])
        return program


def shapes(function: Callable[..., Shapes], *arguments: Any) -> Shapes:
    """`function(*arguments)`, which traces something. The `repr` of the arguments tells all about them."""
    if folder() is None:
        return function(*arguments)
    path = _path(function.__name__, repr(arguments))
    try:
        known = json.loads(path.read_text())
        return {name: jax.ShapeDtypeStruct(shape, np.dtype(kind)) for name, (shape, kind) in known.items()}
    except (OSError, ValueError, TypeError):
        found = function(*arguments)
        told = {name: (x.shape, x.dtype.name) for name, x in found.items()}
        _write(path, lambda: json.dumps(told).encode())
        return found


@contextlib.contextmanager
def _answers() -> Iterator[list[str]]:
    """What JAX's own cache is asked for with success meanwhile."""
    found = []

    def note(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            found.append(event)

    jax.monitoring.register_event_listener(note)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_listener(note)


def _path(name: str, asked: str) -> Path:
    directory = folder()
    assert directory is not None
    digest = hashlib.sha256("\n".join([*_circumstances(), asked]).encode()).hexdigest()
    return directory / f"gpld-{name.strip('_')}-{digest[:32]}"


def _circumstances() -> tuple[str, ...]:
    """What decides, beside the question, what is compiled."""
    device = jax.local_devices()[0]
    # Settings of caches and logs change nothing that is compiled.
    settings = {name: str(value) for name, value in jax.config.values.items() if not _aside(name)}
    return (
        _CODE,
        *_packages(),
        f"{device.platform} {device.device_kind} {device.client.platform_version}",
        f"our kernels: {kernels.work_here()}",
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")),
        repr(sorted(settings.items())),
    )


def _aside(setting: str) -> bool:
    return any(word in setting for word in ("cache", "log", "dump", "traceback"))


def _digest(package: Path) -> str:
    """Of a package's code."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


_CODE = _digest(Path(gpld.__file__).parent)
"""Of the code as it was when it was imported."""


@functools.cache
def _packages() -> tuple[str, ...]:
    """What traces, lowers and compiles, with versions: JAX, its plugins, and NVIDIA's libraries."""
    names = {(str(x.name).lower(), x.version) for x in distributions()}
    ours = sorted(x for x in names if x[0].startswith(("jax", "nvidia", "equinox", "optax")))
    return (platform.python_version(), *(f"{name} {version}" for name, version in ours))


def _is_own(path: Path) -> bool:
    """Whether there is a file that this user has written. JAX unpickles programs, so no other's is read."""
    return files.is_file(path) and path.lstat().st_uid == os.getuid()


def _write(path: Path, content: Callable[[], bytes]) -> None:
    """All at once, or not at all."""
    partial = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content())
        partial.replace(path)
    except Exception as error:  # a full disk, or a JAX that cannot write programs down
        warnings.warn(f"{path} could not be written, and starts will take longer: {error!r}", stacklevel=2)
        with contextlib.suppress(OSError):
            partial.unlink()
