"""Build `offline/`: the environments and small packages for a machine that can install nothing.

A cluster node without a network often has JAX, Equinox, Optax, Orbax, Rich, Matplotlib and PyTorch, but no
simulators. There, `PYTHONPATH=offline:.` adds this folder. Its packages are the wheels that requirements.lock
pins, for Linux x86-64 and the node's Python, cut down to what the tasks of the benchmark need: EnvPool and
dm_control's suite from states (no dog, no rendering), Gymnasium, and the command line's parser. What EnvPool
needs of this machine, which a node may lack, is in its folder `lib/`.

    python scripts/offline_bundle.py --python 3.12

The runs of a study must have one physics, and Python 3.11 has older simulators than later Pythons. To go on
with a study of the older ones, which the committed results are of, take them along to the newer Python:

    python scripts/offline_bundle.py --python 3.12 --simulators-of 3.11

With --pixels, `offline-pixels/` has what draws in software instead of EnvPool: PyOpenGL, and in `lib/` this
machine's OSMesa with the libraries that it needs. They are large, so the folder is also packed into an
archive to travel in; what to type beside it is printed.

    python scripts/offline_bundle.py --python 3.12 --pixels
"""

import argparse
import fnmatch
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from gpld.machine import GL_PACKAGES

ROOT = Path(__file__).parent.parent

# Distribution -> patterns of the files kept ("!" drops again). Metadata and licences are always kept.
Patterns = dict[str, tuple[str, ...]]
STATES: Patterns = {
    "envpool": (
        "envpool/__init__.py",
        "envpool/registration.py",
        "envpool/python/*",
        "envpool/mujoco/__init__.py",
        "envpool/mujoco/dmc/*",
        "envpool/mujoco/mujoco_dmc_envpool.so",
        "envpool.libs/*",
        "!envpool.libs/libQt*",
    ),
    "envpool-assets": (
        "envpool_assets/__init__.py",
        "envpool_assets/mujoco/assets_dmc/*.xml",
        "!*/dog_assets/*",
    ),
    "optree": ("*",),
}
PIXELS: Patterns = {"pyopengl": ("OpenGL/*", "!OpenGL/DLLS/*")}
BOTH: Patterns = {
    "dm-control": (
        "dm_control/__init__.py",
        "dm_control/_render/*",
        "dm_control/mujoco/*",
        "dm_control/rl/*",
        "dm_control/suite/*",
        "dm_control/utils/*",
        "!*/dog_assets/*",
        "!*/demos/*",
        "!*/testing/*",
        "!*.png",
    ),
    "mujoco": (
        "mujoco/*",
        *(f"!mujoco/{name}/*" for name in ("experimental", "include", "introspect", "mjx")),
        *(f"!mujoco/{name}/*" for name in ("plugin", "sysid", "testdata", "usd")),
        "!mujoco/_simulate.*",
    ),
    "lxml": ("lxml/__init__.py", "lxml/etree.*.so", "lxml/_elementpath.*.so"),
    "gymnasium": ("gymnasium/*", "!*.png", "!*.xml"),
    **dict.fromkeys(
        (
            "cloudpickle",
            "dm-env",
            "docstring-parser",
            "farama-notifications",
            "tensorboardx",
            "typeguard",
            "typing-extensions",
            "tyro",
        ),
        ("*",),
    ),
}
TESTS: Patterns = dict.fromkeys(("beartype", "hypothesis", "pytest-timeout", "sortedcontainers"), ("*",))
SIMULATORS = ("dm-control", "envpool", "envpool-assets", "mujoco")
DROP = ("*_test.py", "*/tests/*", "*.pyx", "*.pxi", "*.pxd", "*.h", "*.pyi")

OSMESA = Path("/usr/lib/x86_64-linux-gnu/libOSMesa.so.8")
# Part of every Linux that runs JAX. Others' programs would get ours, which may be older than what they need.
THERE = ("ld-linux", "libc", "libdl", "libgcc_s", "liblzma", "libm", "libpthread", "librt", "libstdc++")
THERE += ("libtinfo", "libz", "libzstd")

# EnvPool's own entry point registers every suite; only this one is in the bundle.
ENTRY = '"""Registers the DeepMind Control tasks, the only ones in this bundle."""\n\n'
ENTRY += "import envpool.mujoco.dmc.registration  # noqa: F401\n"


def pins(lock: Path, python: str) -> dict[str, str]:
    """Version of every distribution in a lock file that holds for Linux x86-64 and this Python."""
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found = {}
    for line in lock.read_text().splitlines():
        if line and line[0].isalnum():
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(target):
                found[pin.name.lower()] = next(iter(pin.specifier)).version
    return found


def download(names: list[str], versions: dict[str, str], python: str, folder: Path) -> list[Path]:
    """Fetch the wheels of these distributions into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64", "any")
    command += [argument for name in platforms for argument in ("--platform", name)]
    subprocess.run([*command, *(f"{name}=={versions[name]}" for name in names)], check=True)
    return sorted(folder.glob("*.whl"))


def wanted(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file of a wheel belongs into the bundle."""
    if path.split("/")[0].endswith(".dist-info"):
        return True
    drop = DROP + tuple(p[1:] for p in patterns if p.startswith("!"))
    if any(fnmatch.fnmatch(path, p) for p in drop):
        return False
    return any(fnmatch.fnmatch(path, p) for p in patterns if not p.startswith("!"))


def unpack(wheel: Path, patterns: tuple[str, ...], output: Path) -> int:
    """Unpack the wanted files of a wheel; returns their bytes."""
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if not m.is_dir() and wanted(m.filename, patterns)]
        for member in members:
            archive.extract(member, output)
    return sum(member.file_size for member in members)


def needed(ldd: str) -> dict[str, Path]:
    """Name and file of the libraries that ldd names, but for those that are everywhere."""
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", ldd, re.M))
    return {name: Path(path) for name, path in found.items() if name.split(".so")[0] not in THERE}


def add_libraries(library: Path, output: Path) -> int:
    """Copy into lib/ what a library needs of this machine, and itself if it is of it; returns their bytes."""
    ldd = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    if missing := re.findall(r"^\s*(\S+) => not found", ldd, re.M):
        raise SystemExit(f"{library.name} needs {', '.join(missing)}; Debian: `apt install {GL_PACKAGES}`")
    copied = 0
    for name, path in {library.name: library, **needed(ldd)}.items():
        if not path.resolve().is_relative_to(output.resolve()):
            (output / "lib").mkdir(exist_ok=True)
            shutil.copy(path, output / "lib" / name)
            copied += path.stat().st_size
    return copied


def pack(folder: Path) -> Path:
    """Pack a folder into an archive beside it."""
    archive = folder.with_name(f"{folder.name}.tar.xz")
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(folder, folder.name)
    return archive


def show(size: int, what: str) -> None:
    """Print what something weighs."""
    print(f"{size / 2**20:8.2f} MiB  {what}", flush=True)


def build(keep: Patterns, versions: dict[str, str], python: str, output: Path) -> None:
    """Fill the folder with these distributions, in place of what is in it."""
    with tempfile.TemporaryDirectory() as folder:
        wheels = download(sorted(keep), versions, python, Path(folder))
        shutil.rmtree(output, ignore_errors=True)
        for wheel in wheels:
            name = wheel.name.split("-")[0].lower().replace("_", "-").replace(".", "-")
            show(unpack(wheel, keep[name], output), f"{name} {versions[name]}")
    if "envpool" in keep:
        (output / "envpool" / "entry.py").write_text(ENTRY)


def main() -> None:
    """Build the folder and print what it weighs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="Python version of the offline machine")
    parser.add_argument("--simulators-of", metavar="PYTHON", help="Python whose simulators to take")
    parser.add_argument("--pixels", action="store_true", help="draw images, without EnvPool; packed")
    parser.add_argument("--output", type=Path, help="folder to build; default: offline or offline-pixels")
    parser.add_argument("--tests", action="store_true", help="add what the tests need (9 MiB)")
    arguments = parser.parse_args()
    keep = BOTH | (PIXELS if arguments.pixels else STATES) | (TESTS if arguments.tests else {})
    output: Path = arguments.output or ROOT / ("offline-pixels" if arguments.pixels else "offline")
    if output.exists() and any(output.iterdir()) and not (output / "mujoco").is_dir():
        parser.error(f"--output {output} exists and is no offline bundle; name another folder")
    lock = ROOT / "requirements.lock"
    versions = pins(lock, arguments.python)
    others = pins(lock, arguments.simulators_of or arguments.python)
    versions |= {name: others[name] for name in SIMULATORS if name in others}
    if missing := sorted(set(keep) - set(versions)):
        parser.error(f"requirements.lock does not pin {', '.join(missing)}")
    if arguments.pixels and not OSMESA.exists():
        parser.error(f"--pixels: there is no {OSMESA}; Debian: `apt install libosmesa6`")
    build(keep, versions, arguments.python, output)
    library = OSMESA if arguments.pixels else output / "envpool/mujoco/mujoco_dmc_envpool.so"
    if copied := add_libraries(library, output):
        show(copied, f"lib: what {library.name} needs of this machine")
    total = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    show(total, f"{output} for Python {arguments.python}")
    drawing = ""
    if arguments.pixels:
        archive = pack(output)
        show(archive.stat().st_size, str(archive))
        drawing = " MUJOCO_GL=osmesa LP_NUM_THREADS=0"
    print("\nBeside it, there:\n")
    if arguments.pixels:
        print(f"    python -m tarfile -e {output.name}.tar.xz")
    print(f"    export PYTHONPATH={output.name}:.{drawing}")
    if copied:
        print(f"    export LD_LIBRARY_PATH=$PWD/{output.name}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}")


if __name__ == "__main__":
    main()
