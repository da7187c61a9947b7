"""Layers for GPUs against the plain ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import fused, nets
from gpld.fused._layers import from_blocks, in_blocks, joint_linear, joint_products
from tests.fused.helpers import noisy


def test_joint_products_are_those_one_by_one():
    keys = jax.random.split(jax.random.key(0), 5)
    layers = [nets.Linear.init(7, n, key=k) for n, k in zip((2, 3, 4), keys, strict=False)]
    a, b = jax.random.normal(keys[3], (5, 3)), jax.random.normal(keys[4], (5, 4))
    x = jnp.concatenate([a, b], -1)
    products = joint_products([layer.weight for layer in layers], a, b)
    for y, out, layer in zip(products, joint_linear(layers, x), layers, strict=True):
        np.testing.assert_allclose(y, x @ layer.weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out, layer(x), rtol=1e-5, atol=1e-6)


def with_gradients(conv):
    """Values and both gradients of one run's convolution."""

    def run(maps, weight, by):
        y, back = jax.vjp(conv, maps, weight)
        return y, *back(by)

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_convolutions_of_runs_are_those_of_each(axes, dtype):
    def plain(maps, weight):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(maps, weight, (1, 1), "SAME", dimension_numbers=layout)

    shapes = ((4, 8, 6, 2), (5, 5, 2, 3), (4, 8, 6, 3))
    maps, weight, by = (
        jax.random.normal(key, (3, *shape) if axis == 0 else shape).astype(dtype)
        for key, shape, axis in zip(jax.random.split(jax.random.key(0), 3), shapes, (*axes, 0), strict=True)
    )
    found_of, expected_of = (
        jax.jit(jax.vmap(with_gradients(conv), (*axes, 0)))
        for conv in (lambda maps, weight: fused.Conv(weight, jnp.zeros(3, dtype))(maps), plain)
    )
    for found, expected in zip(found_of(maps, weight, by), expected_of(maps, weight, by), strict=True):
        assert found.dtype == expected.dtype == dtype
        scale = float(jnp.abs(expected).max())
        tolerance = scale * (1e-6 if dtype == "float32" else 1e-2)
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=tolerance)
    groups = [
        str(jax.make_jaxpr(f)(maps, weight, by)).count("group_count=3") for f in (found_of, expected_of)
    ]
    assert groups[0] == 0 or axes != (0, 0)
    assert groups[1] > 0


def test_convolutions_of_runs_of_runs():
    maps = jax.random.normal(jax.random.key(0), (2, 3, 1, 4, 4, 2))
    weights = jax.random.normal(jax.random.key(1), (2, 3, 3, 3, 2, 2))

    def run(weight, maps):
        return fused.Conv(weight, jnp.zeros(2))(maps)

    found = jax.jit(jax.vmap(jax.vmap(run)))(weights, maps)
    np.testing.assert_allclose(found[1, 2], run(weights[1, 2], maps[1, 2]), rtol=1e-6, atol=1e-6)


def test_blocks_are_2x2_places_and_give_back_their_maps():
    x = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    blocks = in_blocks(x)
    assert blocks.shape == (2, 2, 3, 2, 2, 3)
    np.testing.assert_array_equal(blocks[:, 1, 2, 0, 1], x[:, 2, 5])
    np.testing.assert_array_equal(from_blocks(blocks), x)


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_convolutions_by_blocks_are_those_by_places(size):
    plain = nets.Conv(nets.Conv.init(2, 3, size, key=jax.random.key(0)).weight, jnp.arange(3.0))
    layer = fused.Conv(plain.weight, plain.bias)
    x = jax.random.normal(jax.random.key(1), (2, 1, 4, 6, 2))
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(layer.of_doubled(x), plain.of_doubled(x))
    close(from_blocks(layer.of_blocks(in_blocks(x))), plain(x))


@pytest.mark.parametrize("channels", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_layers_of_maps_are_the_plain_ones(channels):
    plain = noisy(nets.ConvLayer.init(channels, 3, 5, key=jax.random.key(0)), jax.random.key(1))
    layer = fused.replaced(plain, fused.FOR_GPUS)
    assert type(layer) is fused.ConvLayer
    x = jax.random.normal(jax.random.key(2), (2, 4, 6, channels))
    for name in ("halve", "double"):

        def total(layer, x, name=name):
            return jnp.sum(jnp.sin(getattr(layer, name)(x)))

        found, expected = (jax.value_and_grad(total, (0, 1))(each, x) for each in (layer, plain))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_block_products_and_their_gradients():
    plain = noisy(nets.BlockLinear.init(12, 20, 4, key=jax.random.key(0)), jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (5, 3, 12))

    def total(layer, x):
        return jnp.sum(jnp.sin(layer(x)))

    twin = fused.replaced(plain, fused.FOR_GPUS)
    found, expected = (jax.value_and_grad(total, (0, 1))(each, x) for each in (twin, plain))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
