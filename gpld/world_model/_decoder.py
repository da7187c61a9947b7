import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpld.config import ConfigError, ModelConfig
from gpld.distributions import symlog
from gpld.nets import MLP, BlockLinear, Conv, ConvLayer, Dense, Linear, RMSNorm
from gpld.types import Spaces
from gpld.world_model._encoder import KERNEL, STAGES, Shapes, flat, smallest_map


class Decoder(eqx.Module):
    """[z, h] to a prediction of every observation key: of a vector's symlog, of an image in [0, 1]."""

    mlp: MLP | None
    outputs: dict[str, Linear]
    cnn: "ImageDecoder | None"
    vectors: Shapes = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, spaces: Spaces, *, key: PRNGKeyArray) -> "Decoder":
        """A freshly initialised decoder for these observation keys."""
        vectors, images = spaces.vector_obs, spaces.image_obs
        mlp_key, *keys = jax.random.split(key, 1 + len(vectors))
        inputs = config.stoch * config.classes + config.deter
        outputs = {
            name: Linear.init(config.units, math.prod(shape), key=k)
            for (name, shape), k in zip(vectors, keys, strict=True)
        }
        mlp = MLP.init(inputs, config.units, config.decoder_layers, key=mlp_key) if vectors else None
        cnn = ImageDecoder.init(config, images, key=jax.random.fold_in(key, 1)) if images else None
        return cls(mlp, outputs, cnn, vectors)

    def __call__(self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"]) -> dict[str, Float[Array, "..."]]:
        """Predictions: of vectors in symlog space, flat, `[..., prod(shape)]`; of images in their shape."""
        return self.decode_vectors(h, z) | (self.cnn(h, z) if self.cnn else {})

    def decode_vectors(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"]
    ) -> dict[str, Float[Array, "*N width"]]:
        """Predictions of vectors alone."""
        if self.mlp is None:
            return {}
        x = self.mlp(jnp.concatenate([z, h], axis=-1))
        return {name: self.outputs[name](x).astype(jnp.float32) for name, _ in self.vectors}

    def loss(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"], obs: dict[str, Array]
    ) -> dict[str, Float[Array, "*N"]]:
        """Squared error to the symlog of a vector or to an image in [0, 1], summed over its dimensions."""
        predictions = self.decode_vectors(h, z)
        targets = flat(obs, self.vectors)
        losses = {
            name: jnp.sum(jnp.square(predictions[name] - symlog(target)), axis=-1)
            for (name, _), target in zip(self.vectors, targets, strict=True)
        }
        for name, image in self.cnn(h, z).items() if self.cnn else ():
            target = obs[name].astype(jnp.float32) / 255
            losses[name] = jnp.sum(jnp.square(image - target), axis=(-3, -2, -1))
        return losses


class ImageDecoder(eqx.Module):
    """h and z, each in its own way, to a small map, which is doubled and convolved four times."""

    h_in: BlockLinear
    z_in: Dense
    z_out: Linear
    norm: RMSNorm
    layers: tuple[ConvLayer, ...]
    """Numbered as the encoder's stages whose channels they give back: the last comes first."""
    out: Conv
    images: Shapes = eqx.field(static=True)

    @classmethod
    def init(cls, config: ModelConfig, images: Shapes, *, key: PRNGKeyArray) -> "ImageDecoder":
        """A freshly initialised decoder for these images."""
        channels = [config.depth * stage for stage in STAGES]
        if channels[-1] % config.blocks:
            allowed = f"such that {STAGES[-1]} times it is a multiple of agent.model.blocks = {config.blocks}"
            raise ConfigError(
                f"agent.model.depth: {config.depth} is not allowed; for images it must be {allowed}"
            )
        width = math.prod(smallest_map(images)) * channels[-1]
        h_key, z_key, out_key, last_key, *keys = jax.random.split(key, 3 + len(STAGES))
        return cls(
            h_in=BlockLinear.init(config.deter, width, config.blocks, key=h_key),
            z_in=Dense.init(config.stoch * config.classes, 2 * config.units, key=z_key),
            z_out=Linear.init(2 * config.units, width, key=out_key),
            norm=RMSNorm.init(channels[-1]),
            layers=tuple(
                ConvLayer.init(i, o, KERNEL, key=k)
                for o, i, k in zip(channels, channels[1:], keys, strict=False)
            ),
            out=Conv.init(channels[0], sum(shape[-1] for _, shape in images), KERNEL, key=last_key),
            images=images,
        )

    def __call__(
        self, h: Float[Array, "*N D"], z: Float[Array, "*N KC"]
    ) -> dict[str, Float[Array, "*N height width channels"]]:
        """Images in [0, 1]."""
        rows, columns = smallest_map(self.images)
        blocks = self.h_in.weight.shape[0]
        from_h = self.h_in(h).reshape(*h.shape[:-1], blocks, rows, columns, -1)
        # A block of h gives some channels of all places.
        from_h = jnp.moveaxis(from_h, -4, -2).reshape(*h.shape[:-1], rows, columns, -1)
        from_z = self.z_out(self.z_in(z)).reshape(from_h.shape)
        x = jax.nn.silu(self.norm(from_h + from_z))
        for layer in reversed(self.layers):
            x = layer.double(x)
        x = jax.nn.sigmoid(self.out.of_doubled(x).astype(jnp.float32))
        ends = [sum(shape[-1] for _, shape in self.images[: i + 1]) for i in range(len(self.images) - 1)]
        parts = jnp.split(x, ends, axis=-1)
        return {name: part for (name, _), part in zip(self.images, parts, strict=True)}
