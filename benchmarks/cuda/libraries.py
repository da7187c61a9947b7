"""CUDA sources as libraries: by nvcc for a GPU, and by a C++ compiler for a CPU, which is for tests."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "cuda"
NVCC = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-diag-suppress", "940,2473")
# The short form, -arch=sm_90a, does not reach all of nvcc's passes. Unique symbols, as static variables
# of templates are, would be one for all libraries of a process, though each is for other sizes.
HOPPER = (
    "-gencode=arch=compute_90a,code=sm_90a",
    "-Xcompiler",
    "-fPIC,-fno-gnu-unique",
    "-Xptxas",
    "-v",
)
CPP = ("-x", "c++", "-std=c++20", "-O1", "-fPIC", "-pthread", "-Wno-unknown-pragmas")

_LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_LOADED: dict[str, ctypes.CDLL] = {}


def compiler(gpu: bool) -> str | None:
    """The compiler's path, if there is one."""
    names = ("nvcc", "/usr/local/cuda/bin/nvcc") if gpu else (os.environ.get("CXX", "g++"), "clang++")
    return next(filter(None, map(shutil.which, names)), None)


def compiled(source: Path, macros: Sequence[str], gpu: bool) -> tuple[Path, str]:
    """The library made of a source, and what the compiler said; from the cache if it is there."""
    found = compiler(gpu)
    if found is None:
        raise FileNotFoundError("nvcc" if gpu else "a C++ compiler")
    options = [
        *(NVCC + HOPPER if gpu else CPP),
        "-shared",
        "-isystem",
        jax.ffi.include_dir(),
        "-I",
        str(HERE),
    ]
    command = [found, *options, *(f"-D{macro}" for macro in macros)]
    headers = (*sorted(HERE.glob("*.h")), *sorted(source.parent.glob("*.h")))
    sources = b"".join(file.read_bytes() for file in (*headers, source))
    digest = hashlib.sha256(sources + repr(command).encode()).hexdigest()[:16]
    path, said = (CACHE / f"{source.stem}-{digest}{suffix}" for suffix in (".so", ".txt"))
    with _LOCKS[path.stem]:
        if not path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            # Under a name of its own until it is whole: other processes may compile the same.
            fresh = path.with_suffix(f".{os.getpid()}")
            command += [str(source), "-o", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
                raise RuntimeError(f"{source.name} does not compile: {first}")
            said.write_text(done.stderr)
            fresh.replace(path)
        return path, said.read_text()


def loaded(path: Path, name: str, gpu: bool) -> ctypes.CDLL:
    """A library whose handler JAX then calls by the name of the file."""
    with _LOCKS[path.stem]:
        if path.stem not in _LOADED:
            library = ctypes.CDLL(str(path))
            prepare = getattr(library, f"{name}_prepare")
            prepare.restype = ctypes.c_char_p
            if error := prepare():
                raise RuntimeError(f"{name} cannot run on this GPU: {error.decode()}")
            handler = jax.ffi.pycapsule(getattr(library, f"{name}_handler"))
            jax.ffi.register_ffi_target(path.stem, handler, platform="CUDA" if gpu else "cpu")
            _LOADED[path.stem] = library
        return _LOADED[path.stem]


def stop_if_dead(name: str) -> None:
    """After some errors nothing more is computed in a process, and nothing is to be waited for."""
    try:
        jax.block_until_ready(jnp.ones(8) + 1)
    except Exception as error:  # of whatever kind
        raise SystemExit(f"the GPU computes no more after {name!r}: start again, and leave it out") from error
