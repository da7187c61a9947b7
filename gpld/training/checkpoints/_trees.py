"""Trees of arrays as named arrays, in files written by Orbax, and back, to the bit."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from gpld.training._devices import copied
from gpld.training.checkpoints._copies import Copied, Room


class CopiedTree(NamedTuple):
    """A copy of a tree. Leaves go by their paths: "agent.model.policy..."."""

    values: dict[str, Copied]
    """Leaves; of random keys, their data."""
    specs: dict[str, str]
    """Type and shape of each leaf."""
    keys: dict[str, str]
    """The generator of each leaf that holds random keys."""

    def split(self, runs: int) -> list["CopiedTree"]:
        """The tree of each run, of one whose leaves have a leading run axis; in the same memory."""
        specs = {name: re.sub(r"\[\d+(, )?", "[", spec, count=1) for name, spec in self.specs.items()}
        return [
            CopiedTree({name: x.of(run) for name, x in self.values.items()}, specs, self.keys)
            for run in range(runs)
        ]

    def joined(self, other: "CopiedTree") -> "CopiedTree":
        """This tree and another one beside it."""
        return CopiedTree(*(one | two for one, two in zip(self, other, strict=True)))


def copy(tree: PyTree, room: Room) -> CopiedTree:
    """Copy all leaves, JAX's and numpy's: the originals may change or be donated afterwards."""
    leaves = named_leaves(tree)
    for name, leaf in leaves.items():
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            raise TypeError(f"{name} is {leaf!r}; only arrays can be saved as arrays")
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in leaves.items() if _is_key(leaf)}
    data = {name: jax.random.key_data(leaf) if name in keys else leaf for name, leaf in leaves.items()}
    there = copied({name: leaf for name, leaf in data.items() if isinstance(leaf, jax.Array)})
    here = {name: np.array(leaf) for name, leaf in data.items() if name not in there}
    values = {name: room.keep((there | here)[name]) for name in data}
    return CopiedTree(values, {name: _spec(leaf) for name, leaf in leaves.items()}, keys)


def differences(like: PyTree, specs: dict[str, str], *, part: bool = False) -> list[str]:
    """Differences that prevent a saved tree, or a part of it, from being read as one like `like`."""
    expected = {name: _spec(leaf) for name, leaf in named_leaves(like).items()}
    return [
        f"{name} is {specs.get(name, 'not')} there, {expected.get(name, 'not')} here"
        for name in dict.fromkeys([*expected, *([] if part else specs)])
        if specs.get(name) != expected.get(name)
    ]


def write(folder: Path, values: dict[str, np.ndarray]) -> None:
    """Write named arrays to a new folder."""
    import orbax.checkpoint as ocp

    # Noise does not compress, and Orbax refuses empty arrays.
    with _checkpointer(use_compression=False) as checkpointer:
        filled = {name: value for name, value in values.items() if value.size}
        checkpointer.save(folder, args=ocp.args.PyTreeSave(filled))


def read(folder: Path, like: PyTree, keys: dict[str, str]) -> PyTree:
    """The saved tree, or the part that `like` has, on its devices. A `ValueError` names a bad array."""
    leaves = named_leaves(like)
    values = _read_arrays(folder, {name: leaf for name, leaf in leaves.items() if leaf.size})

    def place(name: str, example: Any) -> Any:
        value = values[name] if name in values else np.empty(example.shape, example.dtype)
        if isinstance(example, np.ndarray | np.generic):
            return value
        value = jnp.array(value)
        if name in keys:
            value = jax.random.wrap_key_data(value, impl=keys[name])
        chosen = getattr(example, "committed", True) and example.sharding is not None
        return jax.device_put(value, example.sharding) if chosen else value

    placed = [place(name, example) for name, example in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(like), placed)


def _read_arrays(folder: Path, like: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays that Orbax has written, read by TensorStore, as Orbax does.

    Orbax itself stops at the first error, while its threads continue with the other arrays and report to an
    event loop that is closed: each prints a traceback. Here all arrays are waited for.
    """
    import tensorstore as ts

    base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    context = ts.Context()
    opening = {
        name: ts.open({"driver": "zarr", "kvstore": {**base, "path": f"{name}/"}}, open=True, context=context)
        for name in like
    }
    reading = {name: store.read() for name, store in _results(opening).items()}
    values = {name: np.asarray(value) for name, value in _results(reading).items()}
    for name, value in values.items():
        example = jax.eval_shape(jax.random.key_data, like[name]) if _is_key(like[name]) else like[name]
        if _spec(value) != _spec(example):
            raise ValueError(f"{name} is {_spec(value)} there, {_spec(example)} here")
    return values


def _results(futures: dict[str, Any]) -> dict[str, Any]:
    """The results of futures, when all of them are done. A `ValueError` for the first that failed."""
    found, errors = {}, []
    for name, future in futures.items():
        try:
            found[name] = future.result()
        except Exception as error:  # of whatever kind: what is on the disk may be anything
            errors.append(ValueError(f"{name}: {error}"))
    if errors:
        raise errors[0]
    return found


def _checkpointer(**options: Any) -> Any:
    """Orbax's checkpointer, without waiting for other processes: each writes and reads on its own."""
    import orbax.checkpoint as ocp

    own: dict[str, Any] = {}
    if jax.process_count() > 1:
        index = jax.process_index()
        own["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"process{index}"
        )
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options, **own), **own)


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by their dotted paths, of which no two may be the same."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError("two leaves of the tree have the same name")
    return named


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _spec(leaf: Any) -> str:
    return f"{'key' if _is_key(leaf) else leaf.dtype}{list(leaf.shape)}"
