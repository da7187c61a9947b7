"""States of environments as bytes: arrays, and JSON for the rest. Reading them runs no code.

The bytes are an .npz file of plain arrays. One of them, `tree`, is JSON: lists, objects, texts, numbers, and
for every other type an object with one key that names the type.
"""

import base64
import io
import json
import pickle
import zipfile
from typing import Any

import numpy as np

_TREE = "tree"


class NotPlainData(TypeError):  # noqa: N818
    """A state that holds more than arrays and JSON values."""


class UnreadableState(ValueError):  # noqa: N818
    """Bytes that are not a state, or a state of an older version, or one that must be unpickled."""


def dumps(state: Any, *, pickles: bool = False) -> bytes:
    """A state as bytes. With `pickles`, what is neither arrays nor JSON is pickled, else `NotPlainData`."""
    arrays: dict[str, np.ndarray] = {}
    tree = json.dumps(_encoded(state, arrays, pickles), allow_nan=True)
    file = io.BytesIO()
    content = {_TREE: np.frombuffer(tree.encode(), np.uint8), **arrays}
    np.savez(file, allow_pickle=False, **content)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def loads(data: bytes, *, pickles: bool = False) -> Any:
    """The state. `UnreadableState` for other bytes, or for a pickle if `pickles` is off."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise UnreadableState("it is compressed, and states never are")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _decoded(json.loads(arrays[_TREE].tobytes()), arrays, pickles)
    except UnreadableState:
        raise
    except Exception as error:  # of whatever kind: zipfile, numpy and json have many
        raise UnreadableState(
            f"it is not the state of environments ({type(error).__name__}: {error})"
        ) from error


def _encoded(value: Any, arrays: dict[str, np.ndarray], pickles: bool) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_encoded(item, arrays, pickles) for item in value]
    if type(value) is tuple:
        return {"tuple": _encoded(list(value), arrays, pickles)}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encoded(item, arrays, pickles) for key, item in value.items()}}
    if type(value) is bytes:
        return {"bytes": _encoded(np.frombuffer(value, np.uint8), arrays, pickles)}
    if isinstance(value, np.generic) and value.dtype.kind in "biufcSU":
        return {"scalar": _encoded(np.asarray(value), arrays, pickles)}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if type(value) is np.random.RandomState:
        return {"RandomState": _encoded(value.get_state(legacy=True), arrays, pickles)}
    if type(value) is np.random.Generator and type(value.bit_generator) is np.random.PCG64:
        return {"PCG64": _encoded(value.bit_generator.state, arrays, pickles)}
    if pickles:
        return {"pickle": base64.b64encode(pickle.dumps(value)).decode()}
    raise NotPlainData(
        f"{type(value).__module__}.{type(value).__qualname__} is neither an array nor a JSON value"
    )


def _decoded(value: Any, arrays: Any, pickles: bool) -> Any:
    if isinstance(value, list):
        return [_decoded(item, arrays, pickles) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dict":
        return {key: _decoded(item, arrays, pickles) for key, item in inner.items()}
    if kind == "array":
        return arrays[inner]
    if kind == "pickle":
        if not pickles:
            raise UnreadableState("it holds a pickle, which is not read unless env.pickle is on")
        return pickle.loads(base64.b64decode(inner))
    return _DECODERS[kind](_decoded(inner, arrays, pickles))


def _random_state(state: Any) -> np.random.RandomState:
    made = np.random.RandomState()
    made.set_state(state)
    return made


def _generator(state: Any) -> np.random.Generator:
    made = np.random.default_rng()
    made.bit_generator.state = state
    return made


_DECODERS = {
    "tuple": tuple,
    "bytes": lambda array: array.tobytes(),
    "scalar": lambda array: array[()],
    "RandomState": _random_state,
    "PCG64": _generator,
}
