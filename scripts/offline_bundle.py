"""Build `offline/`: the environments and small packages for a machine that can install nothing.

A cluster node without a network often has JAX, Equinox, Optax, Orbax, Rich, Matplotlib and PyTorch, but no
simulators. There, `PYTHONPATH=offline:.` adds this folder. Its packages are the wheels that requirements.lock
pins, for Linux x86-64 and the node's Python, cut down to what the tasks of the benchmark need: EnvPool and
dm_control's suite from states (no dog, no rendering), Gymnasium, and the command line's parser.

    python scripts/offline_bundle.py --python 3.12
"""

import argparse
import fnmatch
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent

# Distribution -> patterns of the files kept ("!" drops again). Metadata and licences are always kept.
KEEP: dict[str, tuple[str, ...]] = {
    "envpool": (
        "envpool/__init__.py",
        "envpool/registration.py",
        "envpool/python/*",
        "envpool/mujoco/__init__.py",
        "envpool/mujoco/dmc/*",
        "envpool/mujoco/mujoco_dmc_envpool.so",
        "envpool.libs/*",
    ),
    "envpool-assets": (
        "envpool_assets/__init__.py",
        "envpool_assets/mujoco/assets_dmc/*.xml",
        "!*/dog_assets/*",
    ),
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
        *(
            f"!mujoco/{name}/*"
            for name in ("include", "introspect", "mjx", "plugin", "sysid", "testdata", "usd")
        ),
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
            "optree",
            "tensorboardx",
            "typeguard",
            "typing-extensions",
            "tyro",
        ),
        ("*",),
    ),
}
TESTS = dict.fromkeys(("beartype", "hypothesis", "pytest-timeout", "sortedcontainers"), ("*",))
DROP = ("*_test.py", "*/tests/*", "*.pyx", "*.pxi", "*.pxd", "*.h", "*.pyi")

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


def main() -> None:
    """Build the folder and print what it weighs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="Python version of the offline machine")
    parser.add_argument("--output", type=Path, default=ROOT / "offline", help="folder to build")
    parser.add_argument("--tests", action="store_true", help="add what the tests need (9 MiB)")
    arguments = parser.parse_args()
    keep = KEEP | TESTS if arguments.tests else KEEP
    output: Path = arguments.output
    if output.exists() and any(output.iterdir()) and not (output / "envpool").is_dir():
        parser.error(f"--output {output} exists and is no offline bundle; name another folder")
    versions = pins(ROOT / "requirements.lock", arguments.python)
    if missing := sorted(set(keep) - set(versions)):
        parser.error(f"requirements.lock does not pin {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        wheels = download(sorted(keep), versions, arguments.python, Path(folder))
        shutil.rmtree(output, ignore_errors=True)
        for wheel in wheels:
            name = wheel.name.split("-")[0].lower().replace("_", "-").replace(".", "-")
            size = unpack(wheel, keep[name], output)
            print(f"{size / 2**20:8.2f} MiB  {name} {versions[name]}")
    (output / "envpool" / "entry.py").write_text(ENTRY)
    total = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    print(f"{total / 2**20:8.2f} MiB  {output} for Python {arguments.python}")


if __name__ == "__main__":
    main()
