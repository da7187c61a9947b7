"""LaProp with adaptive gradient clipping, as optax transformations.

The order is the point: clip each tensor, divide by the root mean square, and only then take the momentum.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from gpld.config import OptimizerConfig
from gpld.types import Number

_PARTS = 128


def tensor_norms(*trees: PyTree) -> Float[Array, "trees leaves"]:
    """The Euclidean norm of every tensor of several trees of one structure, in one array.

    Vectors of one width are reduced together, larger tensors in parts with their twins, and the parts of all
    together: a kernel for each of the many small sums would cost a GPU more than the large ones do.
    """
    twins = [jnp.stack(leaves) for leaves in zip(*map(jax.tree.leaves, trees), strict=True)]
    together: dict[tuple[int, ...], list[int]] = {}
    for i, leaf in enumerate(twins):
        together.setdefault(leaf.shape[1:] if leaf.ndim == 2 else (), []).append(i)
    squares = [
        jnp.sum(jnp.stack([twins[i] ** 2 if shape else _square_sums(twins[i]) for i in group]), axis=2)
        for shape, group in together.items()
    ]
    order = [i for group in together.values() for i in group]
    return jnp.sqrt(jnp.concatenate(squares)[np.argsort(order)]).T


def _square_sums(x: Float[Array, "trees ..."]) -> Float[Array, "trees parts"]:
    """Sums of the squares of equal parts of tensors, and zeros where they cannot be cut into so many."""
    parts = math.gcd(x[0].size, _PARTS)
    sums = jnp.sum(jnp.square(x.reshape(len(x), parts, -1)), axis=2)
    return jnp.pad(sums, ((0, 0), (0, _PARTS - parts)))


def clip_by_tensor_norm(clip: Number, floor: Number) -> optax.GradientTransformation:
    """Limit each tensor's gradient norm to `clip` times the tensor's own norm (at least `floor`)."""

    def update(grads, state, params=None):
        own, norms = tensor_norms(params, grads)
        limits = clip * jnp.maximum(floor, own)
        factors = 1 / jnp.maximum(1.0, norms / limits)
        leaves, structure = jax.tree.flatten(grads)
        return structure.unflatten([factors[i] * g for i, g in enumerate(leaves)]), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class AverageState(NamedTuple):
    """A running average and the number of updates in it."""

    count: Int[Array, ""]
    average: PyTree


def _zeros(params: PyTree) -> AverageState:
    return AverageState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))


def _follow(state: AverageState, values: PyTree, decay: float) -> tuple[AverageState, Float[Array, ""]]:
    """The average after one more value, and the factor that corrects its start at zero."""
    count = state.count + 1
    average = jax.tree.map(lambda a, v: decay * a + (1 - decay) * v, state.average, values)
    return AverageState(count, average), 1 / (1 - decay ** count.astype(jnp.float32))


def scale_by_rms(decay: float, eps: Number) -> optax.GradientTransformation:
    """Divide by the bias-corrected running root mean square."""

    def update(grads, state, params=None):
        state, correction = _follow(state, jax.tree.map(jnp.square, grads), decay)
        scaled = jax.tree.map(lambda g, nu: g / (jnp.sqrt(nu * correction) + eps), grads, state.average)
        return scaled, state

    return optax.GradientTransformation(_zeros, update)


def scale_by_momentum(decay: float) -> optax.GradientTransformation:
    """Replace by the bias-corrected running mean."""

    def update(grads, state, params=None):
        state, correction = _follow(state, grads, decay)
        return jax.tree.map(lambda mu: mu * correction, state.average), state

    return optax.GradientTransformation(_zeros, update)


class WarmupState(NamedTuple):
    """Number of updates made."""

    count: Int[Array, ""]


def scale_by_warmup(learning_rate: Number, warmup: Number) -> optax.GradientTransformation:
    """Multiply by `-learning_rate`, rising linearly from exactly 0 over the first `warmup` updates."""

    def update(grads, state, params=None):
        length = jnp.float32(warmup)
        ramp = jnp.minimum(1.0, state.count.astype(jnp.float32) / jnp.maximum(length, 1.0))
        rate = learning_rate * jnp.where(length > 0, ramp, 1.0)
        return jax.tree.map(lambda g: -rate * g, grads), WarmupState(state.count + 1)

    return optax.GradientTransformation(lambda params: WarmupState(jnp.zeros((), jnp.int32)), update)


def laprop(config: OptimizerConfig) -> optax.GradientTransformation:
    """The one optimiser of all modules."""
    return optax.chain(
        clip_by_tensor_norm(config.clip, config.clip_floor),
        scale_by_rms(config.beta2, config.eps),
        scale_by_momentum(config.beta1),
        scale_by_warmup(config.learning_rate, config.warmup),
    )
