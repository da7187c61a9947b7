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
    bundled = bundle.STATES | bundle.PIXELS | bundle.BOTH | bundle.TESTS
    assert {*bundle.SIMULATORS} < {*bundled}
    for python, simulators in {
        "3.11": ["1.0.38", "1.2.5", "0.3.0", "3.6.0"],
        "3.12": ["1.0.44", "1.2.6", "0.4.1", "3.11.0"],
    }.items():
        versions = bundle.pins(bundle.ROOT / "requirements.lock", python)
        assert not bundled.keys() - versions.keys()
        assert [versions[name] for name in bundle.SIMULATORS] == simulators


@pytest.mark.parametrize(
    ("words", "mujoco", "python"),
    [
        ([], "3.11.0", "3.12"),
        (["--simulators-of", "3.11"], "3.6.0", "3.12"),
        (["--python", "3.11"], "3.6.0", "3.11"),
    ],
)
def test_simulators_of_another_python(bundle, words, mujoco, python, monkeypatch, tmp_path: Path):
    """Of a study that was begun with the older ones; everything else is as the node's Python has it."""
    built = {}

    def build(keep, versions, node, output):
        built.update(versions, node=node)
        output.mkdir()

    monkeypatch.setattr(bundle, "build", build)
    monkeypatch.setattr(bundle, "add_libraries", lambda library, output: 0)
    monkeypatch.setattr(sys, "argv", ["offline_bundle.py", "--output", str(tmp_path / "offline"), *words])
    bundle.main()
    assert (built["mujoco"], built["node"]) == (mujoco, python)
    assert built["jax"] == bundle.pins(bundle.ROOT / "requirements.lock", python)["jax"]


def test_libraries_of_this_machine_are_taken_along_and_others_left(bundle, monkeypatch, tmp_path: Path):
    theirs = tmp_path / "system" / "libEGL.so.1"
    ours = tmp_path / "offline" / "envpool.libs" / "libOpenGL.so.0"
    for library in (theirs, ours):
        library.parent.mkdir(parents=True)
        library.write_bytes(b"draws")
    ldd = f" libEGL.so.1 => {theirs} (0x0)\n libOpenGL.so.0 => {ours} (0x0)\n"
    monkeypatch.setattr(bundle.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, ldd))
    extension = tmp_path / "offline" / "envpool" / "mujoco_dmc_envpool.so"
    assert bundle.add_libraries(extension, tmp_path / "offline") == len(b"draws")
    assert [path.name for path in (tmp_path / "offline" / "lib").iterdir()] == ["libEGL.so.1"]


def test_a_library_that_is_missing_here_is_named(bundle, monkeypatch, tmp_path: Path):
    ldd = " libEGL.so.1 => not found\n libc.so.6 => /lib/libc.so.6 (0x0)\n"
    monkeypatch.setattr(bundle.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, ldd))
    with pytest.raises(SystemExit, match=r"a\.so needs libEGL\.so\.1; Debian: `apt install libopengl0"):
        bundle.add_libraries(tmp_path / "a.so", tmp_path)


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
        ("mujoco", "mujoco/experimental/studio/ux.py", False),
        ("envpool", "envpool.libs/libEGL.so.1", True),
        ("envpool", "envpool.libs/libQt6Core.so.6", False),
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
