import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld.nets import MLP, BlockLinear, Conv, ConvLayer, Linear, RMSNorm


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


def test_all_blocks_read_the_shared_input_after_their_own_slices():
    layer = BlockLinear.init(12 + 3 * 5, 6, 3, key=jax.random.key(0))
    x, shared = (jax.random.normal(jax.random.key(k), (7, 2, width)) for k, width in ((1, 12), (2, 5)))
    slices = [jnp.concatenate([own, shared], axis=-1) for own in jnp.split(x, 3, axis=-1)]
    expected = jnp.concatenate([part @ layer.weight[i] for i, part in enumerate(slices)], axis=-1)
    np.testing.assert_allclose(layer(x, shared), expected, rtol=1e-5, atol=1e-6)


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


def test_convolution_initialisation_follows_all_it_reads():
    layer = Conv.init(30, 50, 5, key=jax.random.key(0))
    assert layer.weight.shape == (5, 5, 30, 50)
    np.testing.assert_allclose(layer.weight.std(), 1 / np.sqrt(5 * 5 * 30), rtol=0.01)
    assert not layer.bias.any()


def test_convolution_reads_a_window_around_each_place():
    layer = Conv.init(2, 4, 3, key=jax.random.key(0))
    layer = Conv(layer.weight, jnp.arange(4.0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, 3, 4, 6, 2)))  # two leading axes
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("abrcikl,klio->abrco", windows, np.asarray(layer.weight)) + np.arange(4.0)
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)


def test_doubled_and_halved_maps():
    layer = ConvLayer.init(2, 3, 5, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 1, 4, 6, 2))
    double, half = layer.double(x), layer.halve(x)
    assert double.shape == (2, 1, 8, 12, 3)
    doubled = jnp.kron(x, jnp.ones((1, 1, 2, 2, 1)))
    np.testing.assert_allclose(double, jax.nn.silu(layer.norm(layer.conv(doubled))), rtol=1e-5, atol=1e-6)
    y = np.asarray(layer.conv(x))
    largest = np.maximum.reduce([y[..., i::2, j::2, :] for i in (0, 1) for j in (0, 1)])
    np.testing.assert_allclose(half, jax.nn.silu(layer.norm(jnp.asarray(largest))), rtol=1e-5, atol=1e-6)
