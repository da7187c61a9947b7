"""Parameters under the names of the reference implementation, in and out.

`to_reference` and `from_reference` translate between our modules and flat dictionaries such as
`{"dyn/obs0/kernel": ..., ...}`; `read_checkpoint` gets such a dictionary out of a pickled checkpoint of
DreamerV3 or of the authors' code, without running anything that the pickle may contain.
"""

import io
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from gpld.agent import AgentState, Model
from gpld.behavior import Normalizer

# Paths through our modules, and what the reference calls them. `\1`, `\2` are the captured parts.
_MODULES = (
    (r"world\.encoder\.mlp\.layers\.(\d+)\.linear", r"enc/mlp\1"),
    (r"world\.encoder\.mlp\.layers\.(\d+)\.norm", r"enc/mlp\1norm"),
    (r"world\.encoder\.cnn\.layers\.(\d+)\.conv", r"enc/cnn\1"),
    (r"world\.encoder\.cnn\.layers\.(\d+)\.norm", r"enc/cnn\1norm"),
    (r"world\.dynamics\.inputs\.(\d+)\.linear", r"dyn/dynin\1"),
    (r"world\.dynamics\.inputs\.(\d+)\.norm", r"dyn/dynin\1norm"),
    (r"world\.dynamics\.hidden", r"dyn/dynhid0"),
    (r"world\.dynamics\.hidden_norm", r"dyn/dynhid0norm"),
    (r"world\.dynamics\.gates", r"dyn/dyngru"),
    (r"world\.dynamics\.posterior\.mlp\.layers\.(\d+)\.linear", r"dyn/obs\1"),
    (r"world\.dynamics\.posterior\.mlp\.layers\.(\d+)\.norm", r"dyn/obs\1norm"),
    (r"world\.dynamics\.posterior\.out", r"dyn/obslogit"),
    (r"world\.dynamics\.prior\.mlp\.layers\.(\d+)\.linear", r"dyn/prior\1"),
    (r"world\.dynamics\.prior\.mlp\.layers\.(\d+)\.norm", r"dyn/prior\1norm"),
    (r"world\.dynamics\.prior\.out", r"dyn/priorlogit"),
    (r"world\.decoder\.cnn\.h_in", r"dec/sp0"),
    (r"world\.decoder\.cnn\.z_in\.linear", r"dec/sp1"),
    (r"world\.decoder\.cnn\.z_in\.norm", r"dec/sp1norm"),
    (r"world\.decoder\.cnn\.z_out", r"dec/sp2"),
    (r"world\.decoder\.cnn\.norm", r"dec/spnorm"),
    (r"world\.decoder\.cnn\.layers\.(\d+)\.conv", r"dec/conv\1"),
    (r"world\.decoder\.cnn\.layers\.(\d+)\.norm", r"dec/conv\1norm"),
    (r"world\.decoder\.cnn\.out", r"dec/imgout"),
    (r"world\.decoder\.outputs\.(.+)", r"dec/vec/\1/pred"),
    (r"world\.cont\.out", r"con/head/logit"),
    (r"policy\.outputs\.(.+)", r"pol/head/action/\1"),
    (r"(.+)\.out", r"\1/head/logits"),
    (r"(.+)\.mlp\.layers\.(\d+)\.linear", r"\1/mlp/linear\2"),
    (r"(.+)\.mlp\.layers\.(\d+)\.norm", r"\1/mlp/norm\2"),
)
_ROOMS = {"world.decoder": "dec", "world.reward": "rew", "world.cont": "con", "policy": "pol", "value": "val"}
_NORMALIZER = ("retnorm/lo/value", "retnorm/hi/value")
_LEAVES = {"weight": "kernel", "bias": "bias", "scale": "scale"}


def _reference_name(path: tuple[Any, ...]) -> str:
    """The reference's name of the parameter at a pytree path of `Model`."""
    parts = [str(getattr(p, "name", getattr(p, "key", getattr(p, "idx", None)))) for p in path]
    module, leaf = ".".join(parts[:-1]), parts[-1]
    for pattern, replacement in _MODULES:
        if match := re.fullmatch(pattern, module):
            name = match.expand(replacement)
            room, slash, rest = name.partition("/")
            return f"{_ROOMS.get(room, room)}{slash}{rest}/{_LEAVES[leaf]}"
    raise KeyError(f"no reference name for parameter {module}.{leaf}")


def _named(model: Model) -> tuple[list[str], list[Any], PyTree]:
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    return [_reference_name(path) for path, _ in paths], [leaf for _, leaf in paths], structure


def to_reference(state: AgentState) -> dict[str, np.ndarray]:
    """Parameters, slow value and return normaliser by reference name."""
    names, leaves, _ = _named(state.model)
    arrays = dict(zip(names, map(np.asarray, leaves), strict=True))
    slow_names, slow_leaves, _ = _named(eqx.tree_at(lambda model: model.value, state.model, state.slow_value))
    slow = {
        f"slow{n}": np.asarray(a)
        for n, a in zip(slow_names, slow_leaves, strict=True)
        if n.startswith("val/")
    }
    return (
        arrays | slow | {name: np.asarray(a) for name, a in zip(_NORMALIZER, state.normalizer, strict=True)}
    )


def from_reference(state: AgentState, arrays: Mapping[str, Any], *, partial: bool = False) -> AgentState:
    """An agent with what `arrays` holds of parameters, slow value and return normaliser.

    Names that the agent does not have are ignored; the optimiser stays as it is. With `partial`, parameters
    missing from `arrays` are kept; otherwise they are an error, as is any other shape. A slow value or
    normaliser may always be missing: the first is then a copy of the value.
    """
    model = _replace(state.model, arrays, partial)
    slow = {name.removeprefix("slow"): a for name, a in arrays.items() if name.startswith("slowval/")}
    normalizer = Normalizer(
        *(jnp.float32(arrays.get(name, old)) for name, old in zip(_NORMALIZER, state.normalizer, strict=True))
    )
    return state._replace(
        model=model,
        slow_value=jax.tree.map(jnp.copy, _replace(model, slow, partial=True).value),
        normalizer=normalizer,
    )


def _replace(model: Model, arrays: Mapping[str, Any], partial: bool) -> Model:
    names, leaves, structure = _named(model)
    missing = [name for name in names if name not in arrays]
    if missing and not partial:
        raise ValueError(f"{len(missing)} parameters are missing: {_some(missing)}")
    wrong = [
        f"{name} is {np.shape(arrays[name])}, expected {np.shape(leaf)}"
        for name, leaf in zip(names, leaves, strict=True)
        if name in arrays and np.shape(arrays[name]) != np.shape(leaf)
    ]
    if wrong:
        raise ValueError(f"{len(wrong)} parameters have a different shape: {_some(wrong)}")
    new = [
        jnp.asarray(np.asarray(arrays[name], np.float32)) if name in arrays else leaf
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, new)


def _some(items: list[str], count: int = 8) -> str:
    more = f", and {len(items) - count} more" if len(items) > count else ""
    return ", ".join(items[:count]) + more


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays and plain containers; refuses everything else."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy._core.multiarray", "scalar"),
            ("numpy.core.numeric", "_frombuffer"),
            ("numpy._core.numeric", "_frombuffer"),
            ("ml_dtypes", "bfloat16"),
            ("collections", "OrderedDict"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(
                f"the checkpoint contains {module}.{name}; only numpy arrays and plain containers are loaded"
            )
        # Older files name numpy's private module as it was called before numpy 2.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_checkpoint(path: str | Path) -> dict[str, np.ndarray]:
    """Parameters by reference name from a pickled agent checkpoint (a file, or a folder with `agent.pkl`)."""
    path = Path(path)
    path = path / "agent.pkl" if path.is_dir() else path
    tree = _ArraysOnly(io.BytesIO(path.read_bytes())).load()
    arrays: dict[str, np.ndarray] = {}
    _collect(tree, (), arrays)
    return {name: array for name, array in arrays.items() if not name.startswith("opt/")}


def _collect(tree: Any, path: tuple[str, ...], into: dict[str, np.ndarray]) -> None:
    """Find parameters wherever they are nested, by the first part of a reference name in their path."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            _collect(value, (*path, *str(key).split("/")), into)
    elif isinstance(tree, np.ndarray | np.generic):
        starts = [i for i, part in enumerate(path) if part in _STARTS]
        if starts:
            into["/".join(path[starts[0] :])] = np.asarray(tree)


_STARTS = frozenset({"enc", "dyn", "dec", "rew", "con", "pol", "val", "slowval", "retnorm", "opt"})
