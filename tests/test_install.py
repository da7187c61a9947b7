"""The wheel in empty environments, by plain pip; the image; what is said where a simulator is missing."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpld import cli, envs, machine
from gpld.config import ConfigError
from gpld.machine import GL_PACKAGES, install
from tests import scripts
from tests.scripts import ROOT
from tests.training.helpers import lines

PENALTY = (
    "import jax; from gpld import penalty; "
    "found = penalty.exact(lambda u: jax.nn.softmax(u.reshape(2, 4)), jax.numpy.zeros(8)); "
    "print(round(float(found.mean()), 4))"
)
"""Each row of the softmax's Jacobian is (1 - 1/4)/4 once and -1/16 three times: 3/16 a distribution."""

TRAINING = (
    "{} --preset nano cpu --env-steps 2000 --replay.min-steps 200 --replay.train-ratio 32 "
    "--eval.every 0 --log.every 20 --out run"
)
"""800 agent steps after the first 200, and an update for each eight of them."""

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]

OWN = {
    "JAX_COMPILATION_CACHE_DIR",
    "PATH",
    "HOME",
    "PIP_CONFIG_FILE",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_CERT",
    "SSL_CERT_FILE",
}


def run(*words, folder):
    environment = {name: value for name, value in os.environ.items() if name in OWN}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    hatchling = shutil.which("hatchling", path=os.path.dirname(sys.executable))
    assert hatchling
    run(hatchling, "build", "-d", str(folder), folder=ROOT)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    return next(folder.glob("*.whl"))


def environment(folder, python, *packages):
    """A virtual environment in which plain pip installed packages; its programs."""
    run(python, "-m", "venv", str(folder), folder=folder.parent)
    run(str(folder / "bin/pip"), "install", "--quiet", *packages, folder=folder)
    return folder / "bin"


def interpreter(name):
    """A Python of this version that can make environments: of all in the path, for the first may not run."""
    for folder in os.environ["PATH"].split(os.pathsep):
        python = shutil.which(name, path=folder)
        if python and not subprocess.run([python, "-m", "venv", "--help"], capture_output=True).returncode:
            return python
    # pyenv's own programs run only the versions that are switched on, though others may be there.
    found = Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/python3")
    return str(next(found, "")) or pytest.skip(f"there is no {name} here")


def assert_it_trains(programs, task, folder):
    """What is installed finds no fault in this machine, and learns."""
    assert "STOPS" not in run(str(programs / "gpld"), "doctor", folder=folder)
    run(str(programs / "gpld"), "train", *TRAINING.format(task).split(), folder=folder)
    assert lines(folder / "run")[-1]["updates"] == 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_the_wheel_trains(wheel, version, tmp_path):
    programs = environment(tmp_path / "env", interpreter(version), f"{wheel}[suite]")
    assert_it_trains(programs, "cartpole-swingup", tmp_path)
    assert run(str(programs / "python"), "-c", PENALTY, folder=tmp_path) == "0.1875\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_core_trains_without_simulators(wheel, tmp_path):
    programs = environment(tmp_path / "env", sys.executable, str(wheel))
    assert_it_trains(programs, "jax:gpld.envs:CartPole", tmp_path)
    words = [str(programs / "gpld"), "train", "walker-walk"]
    refused = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "needs dm_control, which is not installed: pip install " in refused.stderr
    named = refused.stderr.replace("dm-control", "dm_control")
    assert all(f"{name}=={number}" in named for name, number in machine.SIMULATORS.items())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_uv_installs_the_wheel(wheel, tmp_path):
    uv = shutil.which("uv") or pytest.skip("there is no uv here")
    run(uv, "venv", "--quiet", "--python", sys.executable, "env", folder=tmp_path)
    python = str(tmp_path / "env/bin/python")
    run(uv, "pip", "install", "--quiet", "--python", python, f"{wheel}[suite]", folder=tmp_path)
    assert_it_trains(tmp_path / "env/bin", "cartpole-swingup", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_penalty_needs_jax_alone(wheel, tmp_path):
    programs = environment(tmp_path / "env", sys.executable, "jax>=0.10,<0.13", "numpy")
    run(str(programs / "pip"), "install", "--no-deps", str(wheel), folder=tmp_path)
    assert run(str(programs / "python"), "-c", PENALTY, folder=tmp_path) == "0.1875\n"


def test_the_penalty_imports_jax_and_numpy_alone():
    code = "import sys, jax, numpy; known = {*sys.modules, *sys.stdlib_module_names}; import gpld.penalty; "
    code += "print(*{name.split('.')[0] for name in sys.modules} - {name.split('.')[0] for name in known})"
    assert run(sys.executable, "-c", code, folder=ROOT).split() == ["gpld"]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_tested_simulators_are_those_of_the_lock(python, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (*map(int, python.split(".")), 0))
    tested = runpy.run_path(machine.__file__)["SIMULATORS"]
    locked = scripts.load("scripts/offline_bundle.py").pins(ROOT / "requirements.lock", python)
    assert tested == {name: locked[name.replace("_", "-")] for name in tested}


def missing(name):
    """In place of a function of importlib.metadata."""
    raise PackageNotFoundError(name)


@pytest.mark.parametrize("extra", ["cuda", "onnx", "ray", "slurm", "torch", "video", "wandb"])
def test_an_extra_is_named_by_its_packages(extra):
    pip, verb, *packages = shlex.split(install(extra))
    assert (pip, verb) == ("pip", "install")
    assert {*map(Requirement, packages)} == {*map(Requirement, EXTRAS[extra])}


@pytest.mark.parametrize("version", [(3, 11), (3, 13)])
def test_simulators_are_named_for_the_python_that_is_here(version, monkeypatch):
    simulators = [f"{name.replace('_', '-')}=={number}" for name, number in machine.SIMULATORS.items()]
    alone = f"pip install --no-deps dm_control=={machine.SIMULATORS['dm_control']}"
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.version", missing)
        assert {*simulators} <= {*shlex.split(install("suite").replace("dm_control", "dm-control"))}
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    assert (install("suite") == alone) == (version >= (3, 13))  # all else is installed
    monkeypatch.setattr("importlib.metadata.version", missing)
    assert install("suite").startswith("pip install ")
    assert install("suite").endswith(f", and for dm_control {alone}") == (version >= (3, 13))


def test_only_what_is_missing_is_named(monkeypatch):
    versions = {"onnx": "1.16.0", "onnxruntime": "1.20.1"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert install("onnx") == "pip install 'onnx>=1.17'"


def test_without_an_installation_an_extra_is_of_the_checkout(monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", missing)
    assert install("onnx") == "pip install '.[onnx]'"


def test_the_image_is_sent_what_it_copies():
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.M) for word in line.split()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    everything, *exceptions = (ROOT / ".dockerignore").read_text().split()
    assert everything == "*"
    assert {name[1:] for name in exceptions if name[0] == "!"} == set(copied)
    build = [PROJECT["project"]["readme"], PROJECT["tool"]["hatch"]["version"]["path"], "LICENSE"]
    assert {name.split("/")[0] for name in build} < set(copied)


def test_the_image_installs_extras_that_there_are():
    named = re.findall(r"EXTRAS=(\S+)", DOCKERFILE) + re.findall(r"\$EXTRAS,(\w+)", DOCKERFILE)
    assert named == ["suite,cuda", "suite", "video"]
    assert {*",".join(named).split(",")} <= {*EXTRAS}


def test_the_image_has_what_mujoco_draws_with():
    assert f"--no-install-recommends {GL_PACKAGES} " in DOCKERFILE


@pytest.mark.parametrize("page", ["Dockerfile", "docs/install.md"])
def test_what_the_image_is_run_with_is_understood(page):
    typed = re.findall(r"docker run .+ gpld train (.+)", (ROOT / page).read_text().replace("\\\n", ""))
    assert typed
    for arguments in typed:
        cli.parse_train(arguments.split())


def test_a_missing_simulator_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(ConfigError, match=r"task: 'fish-swim' needs dm_control, which is not inst") as shown:
        envs.make("fish-swim", count=1, seed=0)
    assert install("suite") in str(shown.value)
