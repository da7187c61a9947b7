"""Modules that tasks name, `gym:MODULE:NAME` or `jax:MODULE:NAME`: importing one runs its code.

Who types such a task has asked for it. Who opens a folder that names one may not know.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from gpld.config import ConfigError
from gpld.tasks import GYM_PREFIX, JAX_PREFIX

PACKAGES = {
    "ale_py": "'gymnasium[atari]'",
    "brax": "brax",
    "gymnax": "gymnax",
    "mujoco_playground": "playground",
}
"""What to install for modules that tasks often name."""

_announce: ContextVar[Callable[[str, str], None]] = ContextVar("announce", default=lambda task, module: None)


@contextmanager
def opening(folder: Path | str, *, imports: bool = True) -> Iterator[None]:
    """While tasks come from a folder: print which module is imported, or refuse to import it."""
    announced: set[str] = set()

    def announce(task: str, module: str) -> None:
        if not imports:
            named = f"the task of {folder} is {task}, which imports the module {module}"
            raise ConfigError(f"import: {named}, which --no-import forbids")
        if module not in announced:
            announced.add(module)
            named = f"the module {module}, which {folder} names"
            print(f"importing {named}; this runs its code (--no-import forbids it)")

    token = _announce.set(announce)
    try:
        yield
    finally:
        _announce.reset(token)


def announce(task: str) -> str:
    """The module that a task names, or nothing. It is about to be imported, here or by another process."""
    prefix = next((own for own in (GYM_PREFIX, JAX_PREFIX) if task.startswith(own)), None)
    module = task.removeprefix(prefix).rpartition(":")[0] if prefix else ""
    if module and not all(module.split(".")):
        raise ConfigError(
            f"task: {task!r} is not allowed; its module must be named in full, as package.module"
        )
    if module:
        _announce.get()(task, module)
    return module


def import_remedy(error: Exception, module: str) -> str:
    """What to do where the module that a task names is not there, as the end of a message, or nothing."""
    package = module.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != package:
        return ""
    if package in PACKAGES:
        return f"; pip install {PACKAGES[package]}"
    return f"; is {module} installed, or its folder in PYTHONPATH?"


def import_for(task: str) -> None:
    """Import the module that a task names, if it names one: the only place where that is done."""
    if module := announce(task):
        importlib.import_module(module)
