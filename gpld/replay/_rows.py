"""A step as one row, observations, action, reward and flags side by side: one gather reads it all.

Rows are float32. If some observations are images, they are uint32 instead: four bytes of an image in a word,
and the bits of every other number in one. As floats, bytes could be numbers that are not, which need not keep
their bits.
"""

from itertools import accumulate
from math import prod
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, UInt8, UInt32

from gpld.types import Latent, Spaces


class Record(NamedTuple):
    """One agent step of all S streams: observation, action and latent state."""

    obs: dict[str, Float[Array | np.ndarray, "S ..."] | UInt8[Array | np.ndarray, "S ..."]]
    action: Float[Array | np.ndarray, "S A"]
    """The action taken after the observation (one-hot if discrete)."""
    reward: Float[Array | np.ndarray, "S"]
    """The reward that came with the observation."""
    is_first: Bool[Array | np.ndarray, "S"]
    is_last: Bool[Array | np.ndarray, "S"]
    is_terminal: Bool[Array | np.ndarray, "S"]
    latent: Latent
    """The latent state the policy acted from, `[S, ...]`."""


class Fields(NamedTuple):
    """The fields of rows; every array keeps the rows' leading axes."""

    obs: dict[str, Float[Array, "..."] | UInt8[Array, "..."]]
    action: Float[Array, "*N A"]
    reward: Float[Array, "*N"]
    is_first: Bool[Array, "*N"]
    is_last: Bool[Array, "*N"]
    is_terminal: Bool[Array, "*N"]


def _layout(spaces: Spaces) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every field, in the order of the row; observations come first."""
    flags = [("is_first", ()), ("is_last", ()), ("is_terminal", ())]
    return [*spaces.obs, ("action", (spaces.actions,)), ("reward", ()), *flags]


def _words(spaces: Spaces, name: str, shape: tuple[int, ...]) -> int:
    """Places that a field takes in a row."""
    if name not in spaces.images:
        return prod(shape)
    if prod(shape) % 4:
        raise ValueError(f"image {name!r} of shape {shape} has {prod(shape)} bytes, not a multiple of 4")
    return prod(shape) // 4


def width(spaces: Spaces) -> int:
    """F: places in a row."""
    return sum(_words(spaces, name, shape) for name, shape in _layout(spaces))


def row_type(spaces: Spaces) -> type[np.float32] | type[np.uint32]:
    """The type of rows."""
    return np.uint32 if spaces.images else np.float32


def pack(
    spaces: Spaces, record: Record, streams: int, host: bool
) -> Float32[Array | np.ndarray, "S F"] | UInt32[Array | np.ndarray, "S F"]:
    """One step of all streams as rows, made by numpy if `host`."""
    xp = np if host else jnp
    names = [name for name, _ in spaces.obs]
    if sorted(record.obs) != names:
        raise ValueError(f"record.obs has the keys {sorted(record.obs)}; allowed are {names}")
    values = [*(record.obs[name] for name in names), *record[1:-1]]
    columns = []
    for (name, shape), value in zip(_layout(spaces), values, strict=True):
        if value.shape != (streams, *shape):
            raise ValueError(f"record.{name} has shape {value.shape}; it must be {(streams, *shape)}")
        if name in spaces.images and value.dtype != np.uint8:
            raise ValueError(f"record.{name} is an image of {value.dtype}; it must be uint8")
        value = value.reshape(streams, -1)
        value = value if name in spaces.images else value.astype(np.float32)
        columns.append(value.view(row_type(spaces)))
    return xp.concatenate(columns, axis=1)


def unpack(spaces: Spaces, rows: Float32[Array, "*N F"] | UInt32[Array, "*N F"]) -> Fields:
    """The fields of rows with any leading axes."""
    layout = _layout(spaces)
    ends = list(accumulate(_words(spaces, name, shape) for name, shape in layout))
    values = [
        rows[..., begin:end].view(spaces.dtype(name)).reshape(*rows.shape[:-1], *shape)
        for begin, end, (name, shape) in zip([0, *ends], ends, layout, strict=False)
    ]
    count = len(spaces.obs)
    obs = {name: value for (name, _), value in zip(spaces.obs, values[:count], strict=True)}
    action, reward, *flags = values[count:]
    return Fields(obs, action, reward, *(flag != 0 for flag in flags))
