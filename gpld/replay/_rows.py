"""A step as one float32 row, observations, action, reward and flags side by side: one gather reads it all."""

from itertools import accumulate
from math import prod
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gpld.types import Latent, Spaces


class Record(NamedTuple):
    """One agent step of all S streams: what was observed, and what the policy made of it."""

    obs: dict[str, Float[Array | np.ndarray, "S ..."]]
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
    """Rows taken apart; every array keeps the rows' leading axes."""

    obs: dict[str, Float[Array, "..."]]
    action: Float[Array, "*N A"]
    reward: Float[Array, "*N"]
    is_first: Bool[Array, "*N"]
    is_last: Bool[Array, "*N"]
    is_terminal: Bool[Array, "*N"]


def _layout(spaces: Spaces) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every field, in the order of the row; observations come first."""
    flags = [("is_first", ()), ("is_last", ()), ("is_terminal", ())]
    return [*spaces.obs, ("action", (spaces.actions,)), ("reward", ()), *flags]


def width(spaces: Spaces) -> int:
    """F: floats in a row."""
    return sum(prod(shape) for _, shape in _layout(spaces))


def pack(spaces: Spaces, record: Record, streams: int, host: bool) -> Float[Array | np.ndarray, "S F"]:
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
        columns.append(value.reshape(streams, -1).astype(np.float32))
    return xp.concatenate(columns, axis=1)


def unpack(spaces: Spaces, rows: Float[Array, "*N F"]) -> Fields:
    """The fields of rows with any leading axes."""
    layout = _layout(spaces)
    ends = list(accumulate(prod(shape) for _, shape in layout))
    values = [
        rows[..., begin:end].reshape(*rows.shape[:-1], *shape)
        for begin, end, (_, shape) in zip([0, *ends], ends, layout, strict=False)
    ]
    count = len(spaces.obs)
    obs = {name: value for (name, _), value in zip(spaces.obs, values[:count], strict=True)}
    action, reward, *flags = values[count:]
    return Fields(obs, action, reward, *(flag != 0 for flag in flags))
