"""What the tests of fused functions share."""

import jax
import jax.numpy as jnp

from gpld.config import AgentConfig, BehaviorConfig, ModelConfig

SIZES = ModelConfig(deter=64, blocks=2, hidden=32, stoch=4, classes=16, units=32, bins=31)
CONFIG = AgentConfig(model=SIZES, behavior=BehaviorConfig(horizon=3))


def noisy(tree, key):
    """Biases and scales that are not zero and one."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten(
        [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


def assert_same(actual, expected, tolerance=1e-5):
    """Largest difference of every array, relative to the largest entry of the expected one."""
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = max(float(jnp.abs(want).max()), 1e-6)
        assert float(jnp.abs(got - want).max()) / scale < tolerance
