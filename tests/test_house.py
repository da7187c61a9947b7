"""The house rules that a machine can hold: see CONTRIBUTING.md."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gpld

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpld"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYOUT = (ROOT / "docs" / "layout.md").read_text()
ROWS = re.findall(r"^\| (\S*`.*?) \| ", LAYOUT, re.M)
ROOMS = (*re.findall(r"`(\w+)`", " ".join(ROWS)), "__main__")
"""From the foundation up: a room imports only itself and those before it."""


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path, source=None):
    """Dotted names that a module imports from our package, names after `from gpld.x import` included."""
    package = dotted(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in ast.walk(ast.parse(source or path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "gpld")


def misplaced(room, name):
    """Why a module of a room may not import this name, or nothing."""
    parts = name.split(".")[1:]
    if not parts or parts[0] == room or parts[0].startswith("__version"):
        return None
    if parts[0] not in ROOMS:
        return f"{name} is in no known room"
    if room == "penalty" or ROOMS.index(parts[0]) > ROOMS.index(room):
        return f"{room} must not import {name}"
    if any(part.startswith("_") for part in parts[1:]):
        return f"{name} is private to {parts[0]}"
    return None


def public_definitions(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, kinds) and node.name[0] != "_"]


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_room_imports_only_rooms_below_it(path):
    module = dotted(path)
    if module == "gpld":
        assert list(imported(path)) == []
        return
    room = module.split(".")[1]
    assert room in ROOMS, f"{room} is not in the plan of the house"
    assert [why for name in imported(path) if (why := misplaced(room, name))] == []


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("nets/_mlp.py", "from gpld.config import ModelConfig", True),
        ("nets/_mlp.py", "from gpld.nets._linear import Linear", True),
        ("nets/_mlp.py", "from ._linear import Linear", True),
        ("nets/_mlp.py", "from ..agent import update", False),
        ("nets/_mlp.py", "def f():\n    from gpld import agent", False),
        ("nets/_mlp.py", "import gpld.training.loop", False),
        ("nets/_mlp.py", "from gpld.config._options import ModelConfig", False),
        ("penalty/_exact.py", "from gpld.types import Latent", False),
        ("penalty/_exact.py", "import jax", True),
    ],
)
def test_the_import_rule_itself(module, source, allowed):
    names = imported(PACKAGE / module, source)
    assert all(misplaced(module.split("/")[0], name) is None for name in names) == allowed


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_functions_are_short_and_public_names_explained(path):
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert [f.name for f in functions if (f.end_lineno or f.lineno) - f.lineno + 1 > 60] == []
    assert ast.get_docstring(tree) or path.name.startswith("_")
    assert [d.name for d in public_definitions(tree) if not ast.get_docstring(d)] == []


def test_no_two_classes_have_the_same_name():
    homes = {}
    for path in MODULES:
        # These have the names of what they stand for: the penalty for PyTorch, and modules for GPUs.
        if path == PACKAGE / "penalty" / "torch.py" or path.is_relative_to(PACKAGE / "fused"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(dotted(path))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_every_room_is_in_the_plan_and_the_tours_are_short():
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert sorted(ROOMS) == sorted(found)
    for title in ("One batch", "One command"):
        section = LAYOUT.split(f"## {title}")[1].split("\n## ")[0]
        assert len(re.findall(r"^\d+\. ", section, re.M)) <= 15


def test_importing_the_package_imports_nothing_heavy():
    heavy = (
        "jax",
        "numpy",
        "mujoco",
        "dm_control",
        "envpool",
        "gymnasium",
        "matplotlib",
        "pandas",
        "rich",
        "tyro",
    )
    code = f"import gpld, sys; print(*(name for name in {heavy} if name in sys.modules))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == []


def test_the_version_is_one_of_a_release():
    assert [part.isdigit() for part in gpld.__version__.split(".")] == [True] * 3
    assert f"## {gpld.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S))
def test_the_readmes_python_runs(code, tmp_path, monkeypatch):
    if "torch" in code:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_is_short_and_its_pictures_are_small():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(pictures) >= 2
    for name in pictures:
        assert 0 < (ROOT / name).stat().st_size < 2_000_000


def test_pictures_of_the_documentation_are_small():
    pictures = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".png", ".gif", ".svg")]
    assert len(pictures) >= 8
    assert [path.name for path in pictures if not 0 < path.stat().st_size < 2_000_000] == []


def test_the_readme_links_to_what_exists():
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_holds_what_the_project_asks_for(python):
    def on_linux(names):
        target = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
        listed = map(Requirement, names)
        return [one for one in listed if one.marker is None or one.marker.evaluate(target)]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = on_linux(project["dependencies"] + extras["dev"] + extras["suite"])
    asked = [requirement for requirement in listed if requirement.name != "gpld"]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = on_linux(line for line in lines if line and not line.lstrip().startswith("#"))
    for requirement in asked:
        pins = [pin for pin in locked if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
        assert len(pins) == 1, f"{requirement.name} is not in requirements.lock once: make lock"
        version = str(pins[0].specifier).removeprefix("==")
        assert requirement.specifier.contains(version), f"{pins[0]} against {requirement}: make lock"


KERNEL_WORDS = re.compile(r"\b(fused|pallas|triton|Part\(|At\(|known=|custom_vmap)", re.I)
"""How code speaks of GPU kernels."""


def test_nothing_but_the_agent_knows_of_fused_modules():
    """The option `agent.kernels` is named where options are; everything else is in the room `fused`."""
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in ("fused", "agent"):
            assert [name for name in imported(path) if name.startswith("gpld.fused")] == [], path
        if room in ("nets", "distributions", "optimizer", "world_model", "behavior"):
            assert KERNEL_WORDS.findall(path.read_text()) == [], path
    agent = (PACKAGE / "agent.py").read_text()
    # Imported, chosen from, and asked whether it works here.
    assert len(re.findall(r"\bfused\b", agent)) == 3


def test_the_algorithm_is_short():
    def lines(*names):
        return sum(len((PACKAGE / name).read_text().splitlines()) for name in names)

    assert lines("agent.py") <= 250
    world, behavior = ("_rssm.py", "_loss.py"), ("_losses.py", "_returns.py")
    files = [f"world_model/{name}" for name in world] + [f"behavior/{name}" for name in behavior]
    assert lines(*files) <= 600
