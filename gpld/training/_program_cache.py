"""A cache of compiled programs on disk, so that the next process need not even trace them.

The key of JAX's own cache is a program's text, and to have that, Python traces and lowers it first: seven
seconds for what eight runs learn with on a GPU. Here the key is what the text follows from: the code of this
package, the versions of others, the options, and the shapes of the arguments. What cannot be read is
compiled as usual. Only a process that has compiled a program writes it. Patches at run time are not noticed.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import threading
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
from gpld import agent, files

Shapes = dict[str, jax.ShapeDtypeStruct]


def cache_folder() -> Path | None:
    """The folder of JAX's own cache, if it has one; None on CPUs, whose programs fit one machine alone."""
    settings = jax.config.values
    directory = settings["jax_enable_compilation_cache"] and settings["jax_compilation_cache_dir"]
    if not directory or "://" in directory or jax.default_backend() != "gpu" or jax.process_count() > 1:
        return None
    return Path(directory)


class CachedProgram:
    """A function on one device whose result has the structure of its first array argument, which it donates.

    Its first arguments, `static` of them, decide what is compiled, and their `repr` describes them fully.
    """

    def __init__(self, function: Callable[..., PyTree], *, static: int):
        self.jitted = jax.jit(function, static_argnums=tuple(range(static)), donate_argnums=static)
        """The same without this cache, on any devices."""
        self._function, self._static = function, static
        self._programs: dict[Hashable, Callable[..., Sequence[jax.Array]]] = {}
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments: Any) -> PyTree:
        if cache_folder() is None:
            return self.jitted(*arguments)
        static, arrays = arguments[: self._static], arguments[self._static :]
        leaves, tree = jax.tree.flatten(arrays)
        kinds = tuple((x.shape, str(x.dtype), getattr(x, "weak_type", False)) for x in leaves)
        signature, device = (static, tree, kinds), leaves[0].device
        key = (signature, device, _build())
        if key not in self._programs:
            self._programs[key] = self._load(static, tree, leaves, _path(self.__name__, repr(signature)))
        return jax.tree.unflatten(jax.tree.structure(arrays[0]), self._programs[key](*leaves))

    def _load(
        self, static: Sequence[Any], tree: Any, leaves: Sequence[jax.Array], path: Path
    ) -> Callable[..., Sequence[jax.Array]]:
        """The program from disk, or compiled and written there. It takes and returns leaves, not trees."""
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
        with _jax_cache_hits() as hits:
            program = lowered.compile()
        # A program that JAX has read from its own cache cannot be written again everywhere: on CPUs it then
        # lacks its functions when it is executed.
        if not hits:
            _write(path, lambda: serialize_executable.serialize(program)[0])
        return program


def cached_shapes(function: Callable[..., Shapes], *arguments: Any) -> Shapes:
    """`function(*arguments)`, which traces something. The `repr` of the arguments describes them fully."""
    if cache_folder() is None:
        return function(*arguments)
    path = _path(function.__name__, repr(arguments))
    try:
        values = json.loads(files.read_text(path))
        return {name: jax.ShapeDtypeStruct(shape, np.dtype(kind)) for name, (shape, kind) in values.items()}
    except (OSError, ValueError, TypeError):
        found = function(*arguments)
        values = {name: (x.shape, x.dtype.name) for name, x in found.items()}
        _write(path, lambda: json.dumps(values).encode())
        return found


@contextlib.contextmanager
def _jax_cache_hits() -> Iterator[list[str]]:
    """The hits of JAX's own cache meanwhile, in this thread: an evaluation compiles in another."""
    hits, here = [], threading.get_ident()

    def note(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits" and threading.get_ident() == here:
            hits.append(event)

    jax.monitoring.register_event_listener(note)
    try:
        yield hits
    finally:
        jax.monitoring.unregister_event_listener(note)


def _path(name: str, signature: str) -> Path:
    folder = cache_folder()
    assert folder is not None
    digest = hashlib.sha256("\n".join([*_build(), signature]).encode()).hexdigest()
    return folder / f"gpld-{name.strip('_')}-{digest[:32]}"


def _build() -> tuple[str, ...]:
    """Code, versions, device and settings, which decide with the signature what is compiled."""
    device = jax.local_devices()[0]
    # Settings of caches and logs change nothing that is compiled.
    settings = {name: str(x) for name, x in jax.config.values.items() if not re.search(_IRRELEVANT, name)}
    return (
        _CODE,
        *_packages(),
        f"{device.platform} {device.device_kind} {device.client.platform_version}",
        f"kernels: {agent.has_kernels()}",
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")),
        repr(sorted(settings.items())),
    )


_IRRELEVANT = "cache|log|dump|traceback"


def _digest(package: Path) -> str:
    code = (str(path.relative_to(package)).encode() + path.read_bytes() for path in package.rglob("*.py"))
    return hashlib.sha256(b"".join(sorted(code))).hexdigest()


_CODE = _digest(Path(gpld.__file__).parent)
"""The hash of the code as it was imported."""


@functools.cache
def _packages() -> tuple[str, ...]:
    """Versions of what traces, lowers and compiles: JAX, its plugins, and NVIDIA's libraries."""
    names = {(str(x.name).lower(), x.version) for x in distributions()}
    used = sorted(x for x in names if x[0].startswith(("jax", "nvidia", "equinox", "optax")))
    return (platform.python_version(), *(f"{name} {version}" for name, version in used))


def _is_own(path: Path) -> bool:
    """Whether this user has written the file. JAX unpickles programs, so no other user's is read."""
    return files.is_file(path) and path.lstat().st_uid == os.getuid()


def _write(path: Path, content: Callable[[], bytes]) -> None:
    """All at once, or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, content())
    except Exception as error:  # a full disk, or a JAX that cannot write programs down
        warnings.warn(f"{path} could not be written, and starts will take longer: {error!r}", stacklevel=2)
