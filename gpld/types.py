"""The few values that cross rooms: what an environment offers, a latent state, a batch.

Symbols used in every shape of this package:

    B batch, T sequence length, H imagination horizon, N any number of states,
    D deter (width of h), K categorical variables of C classes (z), E encoder width (e), A actions.

Sequences are time-major: `[T, B, ...]`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from jaxtyping import Array, Bool, Float, Integer, UInt8

Number = Float[Array, ""] | float | int
"""An option that may be an array of the program, where its runs differ in it."""


@dataclass(frozen=True)
class Spaces:
    """Observations and actions of an environment. Hashable, so that programs can be compiled for it."""

    obs: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of every observation key, sorted by name; scalars have shape ()."""
    actions: int
    """Width of the action vector, or number of discrete actions."""
    discrete: bool = False
    """Whether an action is one of `actions` choices (given to the agent one-hot) or a vector in [-1, 1]."""
    images: tuple[str, ...] = ()
    """Observation keys that are images: uint8 of shape (height, width, channels). All others are float32."""
    # The agent's actions are in [-1, 1] all the same, so programs for different bounds are the same.
    bounds: tuple[tuple[float, float], ...] = field(default=(), compare=False, repr=False)
    """Low and high of each number of the environment's own actions; nothing if unknown, or if discrete."""

    @classmethod
    def of(
        cls,
        obs: dict[str, tuple[int, ...]],
        actions: int,
        discrete: bool = False,
        images: Iterable[str] = (),
        bounds: Iterable[Sequence[float]] = (),
    ) -> "Spaces":
        """Spaces from a dictionary of observation shapes, and the names of those that are images."""
        if unknown := sorted(set(images) - set(obs)):
            raise ValueError(f"images: {unknown} are no observation keys; allowed are {sorted(obs)}")
        shapes = tuple(sorted((k, tuple(s)) for k, s in obs.items()))
        pairs = tuple((float(low), float(high)) for low, high in bounds)
        if len(pairs) not in (0, actions):
            raise ValueError(f"bounds: there are {len(pairs)} for {actions} actions")
        return cls(shapes, actions, discrete, tuple(sorted(images)), pairs)

    @property
    def vector_obs(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every key that is not an image."""
        return tuple((name, shape) for name, shape in self.obs if name not in self.images)

    @property
    def image_obs(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every image."""
        return tuple((name, shape) for name, shape in self.obs if name in self.images)

    def dtype(self, name: str) -> Literal["uint8", "float32"]:
        """The type of an observation key."""
        return "uint8" if name in self.images else "float32"


class Latent(NamedTuple):
    """A latent state as it is stored and carried: h in the compute type, z as class indices."""

    h: Float[Array, "*N D"]
    z: Integer[Array, "*N K"]


class Batch(NamedTuple):
    """B sequences of T steps, and the latent state that precedes each of them."""

    obs: dict[str, Float[Array, "T B ..."] | UInt8[Array, "T B ..."]]
    """Vectors, and images as uint8."""
    prev_action: Float[Array, "T B A"]
    """The action that led to each observation (one-hot if discrete)."""
    reward: Float[Array, "T B"]
    """The reward that came with each observation."""
    is_first: Bool[Array, "T B"]
    is_last: Bool[Array, "T B"]
    is_terminal: Bool[Array, "T B"]
    start: Latent
    """Stored latent state of the step before the first, `[B, ...]`."""
