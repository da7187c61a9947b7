"""The offline bundle's choice of versions and files, without downloading anything."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "offline_bundle.py"


@pytest.fixture(scope="module")
def bundle():
    spec = importlib.util.spec_from_file_location("offline_bundle", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert not (bundle.KEEP | bundle.TESTS).keys() - versions.keys()
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
    ],
)
def test_files_wanted(bundle, distribution: str, path: str, kept: bool):
    assert bundle.wanted(path, bundle.KEEP[distribution]) == kept


def test_unpacks_what_is_wanted(bundle, tmp_path: Path):
    wheel = tmp_path / "lxml-6-cp312.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lxml/__init__.py", "# here")
        archive.writestr("lxml/html/__init__.py", "# not here")
    assert bundle.unpack(wheel, bundle.KEEP["lxml"], tmp_path / "out") == len("# here")
    assert [p.name for p in (tmp_path / "out").rglob("*.py")] == ["__init__.py"]
