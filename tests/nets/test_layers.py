from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.nets import MLP, BlockLinear, Conv, Linear, RMSNorm, from_blocks, in_blocks, joint_linear


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_linear_initialisation(scale):
    layer = Linear.init(400, 300, scale=scale, key=jax.random.key(0))
    expected = scale / np.sqrt(400)
    np.testing.assert_allclose(layer.weight.std(), expected, rtol=0.01)
    np.testing.assert_allclose(layer.weight.mean(), 0, atol=0.02 * expected)
    # A truncated normal: nothing beyond two standard deviations of the normal that was cut.
    assert jnp.abs(layer.weight).max() <= 2 * 1.1368 * expected
    assert jnp.abs(layer.weight).max() > 1.9 * 1.1368 * expected
    assert not layer.bias.any()


def test_block_linear_initialisation_follows_the_whole_input_width():
    layer = BlockLinear.init(800, 1600, 8, key=jax.random.key(0))
    assert layer.weight.shape == (8, 100, 200)
    np.testing.assert_allclose(layer.weight.std(), 1 / np.sqrt(800), rtol=0.01)
    assert not layer.bias.any()


def test_scale_zero_starts_at_exactly_zero():
    assert not Linear.init(5, 7, scale=0.0, key=jax.random.key(0)).weight.any()


def test_block_linear_is_a_block_diagonal_matrix():
    layer = BlockLinear.init(12, 6, 3, key=jax.random.key(0))
    full = np.zeros((12, 6))
    for g in range(3):
        full[4 * g : 4 * g + 4, 2 * g : 2 * g + 2] = layer.weight[g]
    x = jax.random.normal(jax.random.key(1), (5, 12))
    np.testing.assert_allclose(layer(x), np.asarray(x) @ full, rtol=1e-5, atol=1e-6)


def test_block_linear_gradients_are_those_of_its_blocks():
    layer = BlockLinear.init(12, 6, 3, key=jax.random.key(0))
    x, weights = (jax.random.normal(jax.random.key(k), (5, 2, width)) for k, width in ((1, 12), (2, 6)))

    def by_block(weight, x):
        parts = [part @ weight[i] for i, part in enumerate(jnp.split(x, 3, axis=-1))]
        return jnp.sum(weights * jnp.concatenate(parts, axis=-1))

    found = jax.grad(lambda layer, x: jnp.sum(weights * layer(x)), (0, 1))(layer, x)
    expected = jax.grad(by_block, (0, 1))(layer.weight, x)
    np.testing.assert_allclose(found[0].weight, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


def test_rms_norm():
    x = jax.random.normal(jax.random.key(0), (3, 8))
    layer = RMSNorm(jnp.arange(8.0))
    expected = np.asarray(x) / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-4) * np.arange(8)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)


def test_layers_compute_in_the_type_of_their_input():
    mlp = MLP.init(8, 8, 2, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 8))
    low = mlp(x.astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(jnp.float32), mlp(x), atol=0.05)


def test_joint_linear_equals_the_layers_one_by_one():
    keys = jax.random.split(jax.random.key(0), 5)
    layers = [Linear.init(7, n, key=k) for n, k in zip((2, 3, 4), keys, strict=False)]
    a, b = jax.random.normal(keys[3], (5, 3)), jax.random.normal(keys[4], (5, 4))
    for got, layer in zip(joint_linear(layers, a, b), layers, strict=True):
        np.testing.assert_allclose(got, layer(jnp.concatenate([a, b], -1)), rtol=1e-5, atol=1e-6)


def test_convolution_initialisation_follows_all_it_reads():
    layer = Conv.init(30, 50, 5, key=jax.random.key(0))
    assert layer.weight.shape == (5, 5, 30, 50)
    np.testing.assert_allclose(layer.weight.std(), 1 / np.sqrt(5 * 5 * 30), rtol=0.01)
    assert not layer.bias.any()


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
    ours, theirs = (
        jax.jit(jax.vmap(with_gradients(conv), (*axes, 0)))
        for conv in (lambda maps, weight: Conv(weight, jnp.zeros(3, dtype))(maps), plain)
    )
    for found, expected in zip(ours(maps, weight, by), theirs(maps, weight, by), strict=True):
        assert found.dtype == expected.dtype == dtype
        scale = float(jnp.abs(expected).max())
        tolerance = scale * (1e-6 if dtype == "float32" else 1e-2)
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=tolerance)
    groups = [str(jax.make_jaxpr(f)(maps, weight, by)).count("group_count=3") for f in (ours, theirs)]
    assert groups[0] == 0 or axes != (0, 0)
    assert groups[1] > 0


def test_convolutions_of_runs_of_runs():
    maps = jax.random.normal(jax.random.key(0), (2, 3, 1, 4, 4, 2))
    weights = jax.random.normal(jax.random.key(1), (2, 3, 3, 3, 2, 2))

    def run(weight, maps):
        return Conv(weight, jnp.zeros(2))(maps)

    found = jax.jit(jax.vmap(jax.vmap(run)))(weights, maps)
    np.testing.assert_allclose(found[1, 2], run(weights[1, 2], maps[1, 2]), rtol=1e-6, atol=1e-6)


def test_convolution_reads_a_window_around_each_place():
    layer = Conv.init(2, 4, 3, key=jax.random.key(0))
    layer = Conv(layer.weight, jnp.arange(4.0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, 3, 4, 6, 2)))  # two leading axes
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("abrcikl,klio->abrco", windows, np.asarray(layer.weight)) + np.arange(4.0)
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)


def test_blocks_are_2x2_places_and_give_back_their_maps():
    x = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    blocks = in_blocks(x)
    assert blocks.shape == (2, 2, 3, 2, 2, 3)
    np.testing.assert_array_equal(blocks[:, 1, 2, 0, 1], x[:, 2, 5])
    np.testing.assert_array_equal(from_blocks(blocks), x)


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_convolutions_by_blocks_are_those_by_places(size):
    layer = Conv.init(2, 3, size, key=jax.random.key(0))
    layer = Conv(layer.weight, jnp.arange(3.0))
    x = jax.random.normal(jax.random.key(1), (2, 1, 4, 6, 2))
    doubled = x.repeat(2, axis=-3).repeat(2, axis=-2)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(from_blocks(layer.of_doubled(x)), layer(doubled))
    close(from_blocks(layer.of_blocks(in_blocks(x))), layer(x))
