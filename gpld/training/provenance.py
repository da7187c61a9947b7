"""The provenance of a run: code, versions, device and command of its every start, in `run.json`."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpld
from gpld import files

RUN = "run.json"
"""The file in a run folder, with the list `starts`: one entry when the run began, one for each resume."""

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "orbax-checkpoint", "mujoco", "envpool", "dm_control")
"""Packages whose versions can change what a run computes."""


def provenance() -> dict[str, Any]:
    """Everything about this process that can change a run's numbers; None for what is not known."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "gpld": gpld.__version__,
        "git": _git(Path(gpld.__file__).parent.parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": _device(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def record(folder: Path, env_steps: int) -> None:
    """Add this start of the run, at `env_steps`, to the folder's `run.json`, in one move."""
    every = [*starts(folder), {"env_steps": env_steps, **provenance()}]
    files.write_json(folder / RUN, {"starts": every})


def starts(folder: Path) -> list[dict[str, Any]]:
    """All starts of the run in a folder, the first one first; none if there is no `run.json`."""
    return files.read_list(folder / RUN, "starts")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(root: Path) -> dict[str, Any] | None:
    """Commit of the checkout at `root`, and whether tracked files differ from it."""
    # An installed package may lie inside another project's checkout, whose commit says nothing about it.
    if not (root / ".git").exists():
        return None
    try:
        commit = _ask_git(root, "rev-parse", "HEAD")
        changes = _ask_git(root, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _ask_git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _device() -> dict[str, Any] | None:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError:
        return None
    return {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}
