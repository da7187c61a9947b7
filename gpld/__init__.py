"""GPLD-DreamerV3: a world-model agent with smooth latent dynamics, in JAX.

Importing this package imports nothing else: JAX, environments and plotting come with the room that uses them.
`gpld.load(run)` is a trained agent to act with, `gpld.export(run)` writes one for other programs.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_DEPLOY = ("load", "export")


def __getattr__(name: str) -> Any:
    if name in _DEPLOY:
        return getattr(import_module("gpld.deploy"), name)
    raise AttributeError(f"module 'gpld' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name not in ("Any", "import_module")), *_DEPLOY})
