import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import ModelConfig
from gpld.distributions import symlog
from gpld.nets import MLP, ConvLayer
from gpld.types import Spaces

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of observations."""

STAGES = (2, 3, 4, 4)
"""Channels after each halving of an image, as multiples of the depth."""
KERNEL = 5
"""Width of all convolutions."""


class Encoder(eqx.Module):
    """Observations to e: what an MLP makes of the vectors, then what convolutions make of the images.

    Vectors are taken by their symlog, concatenated by name.
    """

    mlp: MLP | None
    cnn: "ImageEncoder | None"
    vectors: Shapes = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "Encoder":
        """A freshly initialised encoder for these observation keys."""
        vectors, images = spaces.vector_obs, spaces.image_obs
        width = sum(math.prod(shape) for _, shape in vectors)
        mlp = MLP.init(width, config.units, config.encoder_layers, key=key) if vectors else None
        cnn = ImageEncoder.init(config, images, key=jax.random.fold_in(key, 1)) if images else None
        return cls(mlp, cnn, vectors)

    @property
    def width(self) -> int:
        """E."""
        vectors = self.mlp.layers[-1].norm.scale.shape[0] if self.mlp else 0
        return vectors + (self.cnn.width if self.cnn else 0)

    def __call__(self, obs: dict[str, Array], dtype: jnp.dtype) -> Float[Array, "*N E"]:
        parts = []
        if self.mlp:
            vectors = jnp.concatenate([symlog(x) for x in flat(obs, self.vectors)], axis=-1)
            parts.append(self.mlp(vectors.astype(dtype)))
        if self.cnn:
            parts.append(self.cnn(obs, dtype))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


class ImageEncoder(eqx.Module):
    """Images, their channels stacked by name, halved four times: convolution, pooling, norm, SiLU."""

    layers: tuple[ConvLayer, ...]
    images: Shapes = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, images: Shapes, *, key: PRNGKeyArray) -> "ImageEncoder":
        """A freshly initialised encoder for these images, which must have the same height and width."""
        smallest_map(images)
        channels = [sum(shape[-1] for _, shape in images), *(config.depth * stage for stage in STAGES)]
        keys = jax.random.split(key, len(STAGES))
        layers = [
            ConvLayer.init(i, o, KERNEL, key=k) for i, o, k in zip(channels, channels[1:], keys, strict=False)
        ]
        return cls(tuple(layers), images)

    @property
    def width(self) -> int:
        """Numbers that the images become."""
        return math.prod(smallest_map(self.images)) * self.layers[-1].norm.scale.shape[0]

    def __call__(self, obs: dict[str, Array], dtype: jnp.dtype) -> Float[Array, "*N width"]:
        x = jnp.concatenate([obs[name] for name, _ in self.images], axis=-1).astype(dtype) / 255 - 0.5
        for layer in self.layers:
            x = layer.halve(x)
        return x.reshape(*x.shape[:-3], -1)


def smallest_map(images: Shapes) -> tuple[int, int]:
    """Height and width of images after all halvings."""
    factor = 2 ** len(STAGES)
    for name, shape in images:
        if len(shape) != 3 or shape[0] % factor or shape[1] % factor:
            allowed = f"(height, width, channels), both sides multiples of {factor}"
            raise ValueError(f"image {name!r} has shape {shape}; it must be {allowed}")
    sizes = {shape[:2] for _, shape in images}
    if len(sizes) > 1:
        raise ValueError(f"images must have one height and width; these have {dict(images)}")
    height, width = sizes.pop()
    return height // factor, width // factor


def flat(obs: dict[str, Array], keys: Shapes) -> list[Float[Array, "*N width"]]:
    """Every observation key as a vector, in the order of `keys`."""
    return [obs[name].reshape(*obs[name].shape[: obs[name].ndim - len(shape)], -1) for name, shape in keys]
