"""A program kept on disk as it was compiled, so that the next process need not even trace it.

JAX's own cache is asked with a program's text, and to have that, Python traces and lowers it first: seven
seconds for what eight runs learn with on a GPU. Here the question is what the text follows from: our code,
the packages, the options, and the shapes of the arguments. What cannot be read is compiled as usual.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
from jax.experimental import serialize_executable
from jaxtyping import PyTree

import gpld

Shapes = dict[str, jax.ShapeDtypeStruct]


def folder() -> Path | None:
    """Where programs are kept: beside JAX's own, if it keeps any. Compiled for a CPU, they are its alone."""
    directory = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    here = directory and jax.default_backend() == "gpu" and jax.process_count() == 1
    return Path(directory) if here else None


class Kept:
    """A function on one device whose result has the structure of its first array argument, which it donates.

    Its first arguments, `static` of them, decide what is compiled, and their `repr` tells all about them.
    """

    def __init__(self, function: Callable[..., PyTree], *, static: int):
        self.jitted = jax.jit(function, static_argnums=tuple(range(static)), donate_argnums=static)
        """The same without being kept, on any devices."""
        self._function, self._static = function, static
        self._programs: dict[Hashable, Callable[..., Sequence[jax.Array]]] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> PyTree:
        if folder() is None:
            return self.jitted(*arguments)
        static, arrays = arguments[: self._static], arguments[self._static :]
        leaves, tree = jax.tree.flatten(arrays)
        kinds = tuple((x.shape, str(x.dtype), getattr(x, "weak_type", False)) for x in leaves)
        asked = (static, tree, kinds)
        if asked not in self._programs:
            self._programs[asked] = self._program(static, tree, leaves, repr(asked))
        return jax.tree.unflatten(jax.tree.structure(arrays[0]), self._programs[asked](*leaves))

    def _program(
        self, static: Sequence[Any], tree: Any, leaves: Sequence[jax.Array], asked: str
    ) -> Callable[..., Sequence[jax.Array]]:
        """From the disk, or compiled and kept there. It takes and gives leaves: trees cannot be kept."""
        results = jax.tree.structure(tree.unflatten(leaves)[0]).num_leaves
        path = _path(self._function.__name__, asked)
        try:
            if path.exists():
                trees = jax.tree.structure((tuple(leaves), {})), jax.tree.structure([0] * results)
                devices = list(leaves[0].devices())
                return serialize_executable.deserialize_and_load(
                    path.read_bytes(), *trees, execution_devices=devices
                )
        except Exception as error:  # of whatever kind: it is compiled instead
            warnings.warn(f"{path} cannot be used and is made anew: {error!r}", stacklevel=2)

        def by_leaves(*leaves: jax.Array) -> Sequence[jax.Array]:
            return jax.tree.leaves(self._function(*static, *tree.unflatten(leaves)))

        by_leaves.__name__ = self._function.__name__
        with _answers() as answers:
            program = jax.jit(by_leaves, donate_argnums=tuple(range(results))).lower(*leaves).compile()
        if not answers:  # what JAX has read from a disk cannot always be written again
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


def _circumstances() -> list[str]:
    """What decides, beside the question, what is compiled."""
    device = jax.local_devices()[0]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")]
    # Settings of caches and logs change nothing that is compiled.
    settings = {name: value for name, value in jax.config.values.items() if not _aside(name)}
    return [
        _code(),
        platform.python_version(),
        *(f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax")),
        f"{device.platform} {device.device_kind} {device.client.platform_version}",
        *flags,
        repr(sorted((name, str(value)) for name, value in settings.items())),
    ]


def _aside(setting: str) -> bool:
    return any(word in setting for word in ("cache", "log", "dump", "traceback"))


@functools.cache
def _code() -> str:
    """Of this package's code."""
    root = Path(gpld.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def _write(path: Path, content: Callable[[], bytes]) -> None:
    """All at once, or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content())
        partial.replace(path)
    except Exception as error:  # a full disk, or a JAX that cannot write programs down
        warnings.warn(f"{path} could not be written, and starts will take longer: {error!r}", stacklevel=2)
        with contextlib.suppress(OSError):
            partial.unlink()
