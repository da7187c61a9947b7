"""The offline bundle's choice of versions and files, without downloading anything."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import scripts


@pytest.fixture(scope="module")
def bundle():
    return scripts.load("scripts/offline_bundle.py")


def test_pins_are_those_of_the_target(bundle, tmp_path: Path):
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        "envpool==1.2.5 ; platform_machine == 'x86_64' and sys_platform == 'linux'\n"
        "    # via gpld\n"
        "colorama==0.4 ; sys_platform == 'win32'\n"
        "numpy==2.4.6 ; python_full_version < '3.12'\n"
        "numpy==2.5.4 ; python_full_version >= '3.12'\n"
    )
    assert bundle.pins(lock, "3.12") == {"envpool": "1.2.5", "numpy": "2.5.4"}
    assert bundle.pins(lock, "3.11")["numpy"] == "2.4.6"


def test_everything_bundled_is_pinned(bundle):
    versions = bundle.pins(bundle.ROOT / "requirements.lock", "3.12")
    bundled = bundle.STATES | bundle.PIXELS | bundle.BOTH | bundle.TESTS
    assert not bundled.keys() - versions.keys()
    assert (versions["dm-control"], versions["mujoco"], versions["envpool"]) == ("1.0.38", "3.6.0", "1.2.5")


@pytest.mark.parametrize(
    ("distribution", "path", "kept"),
    [
        ("envpool", "envpool/mujoco/mujoco_dmc_envpool.so", True),
        ("envpool", "envpool/mujoco/mujoco_gym_envpool.so", False),
        ("envpool", "envpool/entry.py", False),
        ("envpool", "envpool-1.2.5.dist-info/LICENSE", True),
        ("envpool-assets", "envpool_assets/mujoco/assets_dmc/common/skybox.xml", True),
        ("envpool-assets", "envpool_assets/atari/roms/pong.bin", False),
        ("dm-control", "dm_control/suite/walker.xml", True),
        ("dm-control", "dm_control/suite/dog_assets/skin.skn", False),
        ("dm-control", "dm_control/locomotion/__init__.py", False),
        ("mujoco", "mujoco/libmujoco.so.3.6.0", True),
        ("mujoco", "mujoco/bindings_test.py", False),
        ("pyopengl", "OpenGL/osmesa/__init__.py", True),
        ("pyopengl", "OpenGL/DLLS/freeglut64.vc14.dll", False),
    ],
)
def test_files_wanted(bundle, distribution: str, path: str, kept: bool):
    patterns = bundle.STATES | bundle.PIXELS | bundle.BOTH
    assert bundle.wanted(path, patterns[distribution]) == kept


def test_unpacks_what_is_wanted(bundle, tmp_path: Path):
    wheel = tmp_path / "lxml-6-cp312.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lxml/__init__.py", "# here")
        archive.writestr("lxml/html/__init__.py", "# not here")
    assert bundle.unpack(wheel, bundle.BOTH["lxml"], tmp_path / "out") == len("# here")
    assert [p.name for p in (tmp_path / "out").rglob("*.py")] == ["__init__.py"]


def test_libraries_that_are_everywhere_are_not_taken_along(bundle):
    ldd = """
        linux-vdso.so.1 (0x00007fb587215000)
        libglapi.so.0 => /lib/x86_64-linux-gnu/libglapi.so.0 (0x00007fb5871ca000)
        libLLVM-15.so.1 => /lib/x86_64-linux-gnu/libLLVM-15.so.1 (0x00007fb57f400000)
        libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007fb5871ab000)
        libz3.so.4 => /lib/x86_64-linux-gnu/libz3.so.4 (0x00007fb57d600000)
        libstdc++.so.6 => /lib/x86_64-linux-gnu/libstdc++.so.6 (0x00007fb57f000000)
        libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fb57ee1e000)
        /lib64/ld-linux-x86-64.so.2 (0x00007fb587217000)
    """
    folder = Path("/lib/x86_64-linux-gnu")
    expected = ("libglapi.so.0", "libLLVM-15.so.1", "libz3.so.4")
    assert bundle.needed(ldd) == {name: folder / name for name in expected}


def test_python_alone_unpacks_the_archive(bundle, tmp_path: Path):
    (tmp_path / "offline-pixels" / "lib").mkdir(parents=True)
    (tmp_path / "offline-pixels" / "lib" / "libOSMesa.so.8").write_bytes(b"draws")
    archive = bundle.pack(tmp_path / "offline-pixels")
    assert archive == tmp_path / "offline-pixels.tar.xz"
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run([sys.executable, "-m", "tarfile", "-e", archive], cwd=there, check=True)
    assert (there / "offline-pixels" / "lib" / "libOSMesa.so.8").read_bytes() == b"draws"
