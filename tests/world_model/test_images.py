"""Convolutional encoder and decoder against the reference's arrays, and an agent that learns from images."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import agent, interop, penalty, replay
from gpld.config import AgentConfig, BehaviorConfig, ConfigError, ModelConfig, OptimizerConfig, PenaltyConfig
from gpld.types import Latent, Spaces
from gpld.world_model import Decoder, Encoder, draw_penalty_noise, penalties, predict
from tests.golden_files import Golden, assert_close

F32 = jnp.dtype("float32")
G = Golden("image")
SIZES = ModelConfig(
    deter=G.scalar("cfg/deter"),
    hidden=8,
    stoch=G.scalar("cfg/stoch"),
    classes=G.scalar("cfg/classes"),
    units=G.scalar("cfg/units"),
    depth=G.scalar("cfg/depth"),
    blocks=G.scalar("cfg/bspace"),
    encoder_layers=G.scalar("cfg/layers"),
    decoder_layers=G.scalar("cfg/layers"),
    policy_layers=1,
    value_layers=1,
    bins=15,
)
SHAPES = {name: x.shape[2:] for name, x in G.under("obs").items()}
PIXELS = Spaces.of({"image": SHAPES["image"]}, 3, images=["image"])
MIXED = Spaces.of(SHAPES, 3, images=["image"])
fresh = jax.jit(agent.init, static_argnums=(0, 1))
H, Z = G["feat/deter"], G["feat/stoch"].reshape(*G["feat/stoch"].shape[:-2], -1)


def golden_agent(spaces, sizes=SIZES, arrays=None):
    """An agent with the file's parameters, or with `arrays`."""
    state = fresh(AgentConfig(model=sizes), spaces, jax.random.key(0))
    return interop.from_reference(state, G.under("param") if arrays is None else arrays, partial=True)


@pytest.fixture(scope="module")
def world():
    return golden_agent(PIXELS).model.world


def assert_gradients(module, room, prefix):
    """Every gradient of the file is one of the module's, and all of the module's are in the file."""
    state = golden_agent(PIXELS)
    model = eqx.tree_at(lambda model: getattr(model.world, room), state.model, module)
    ours = interop.to_reference(state._replace(model=model))
    expected = G.under(prefix)
    assert expected.keys() == {
        name for name in ours if name.startswith({"encoder": "enc/"}.get(room, "dec/"))
    }
    for name, gradient in expected.items():
        assert_close(ours[name], gradient, 2e-5, name)


def test_golden_encoder(world):
    def score(encoder):
        tokens = encoder(G.under("obs"), F32)
        return jnp.sum(G["tokens_weight"] * tokens), tokens

    (_, tokens), gradient = jax.jit(jax.value_and_grad(score, has_aux=True))(world.encoder)
    assert world.encoder.width == tokens.shape[-1] == 64 * SIZES.depth
    assert_close(tokens, G["tokens"], 1e-5)
    assert_gradients(gradient, "encoder", "tokens_grad")


def test_golden_decoder(world):
    def score(decoder, h, z):
        losses = decoder.loss(h, z, G.under("obs"))
        return losses["image"].mean(), (losses, decoder(h, z))

    graded = jax.jit(jax.value_and_grad(score, argnums=(0, 1, 2), has_aux=True))
    (_, (losses, images)), (gradient, by_h, by_z) = graded(world.decoder, H, Z)
    assert losses.keys() == images.keys() == {"image"}
    assert_close(images["image"], G["recon"], 1e-5, "image")
    assert_close(losses["image"], G["loss"], 1e-5, "loss")
    assert_gradients(gradient, "decoder", "grad")
    assert_close(by_h, G["grad_feat/deter"], 2e-5, "by h")
    assert_close(by_z.reshape(G["grad_feat/stoch"].shape), G["grad_feat/stoch"], 2e-5, "by z")


def test_golden_vectors_beside_an_image():
    state = golden_agent(MIXED)
    world = state.model.world
    tokens = jax.jit(lambda encoder, obs: encoder(obs, F32))(world.encoder, G.under("obs"))
    assert_close(tokens, G["mixed/tokens"], 1e-5, "tokens")
    assert world.encoder.width == tokens.shape[-1]
    assert world.dynamics.posterior.mlp.layers[0].linear.weight.shape[0] == SIZES.deter + tokens.shape[-1]
    predictions = jax.jit(type(world.decoder).__call__)(world.decoder, H, Z)
    assert sorted(predictions) == sorted(G["mixed/output_order"])
    assert_close(predictions.pop("image"), G["recon"], 1e-5, "image")
    for name, expected in G.under("mixed/dec_pred").items():
        assert_close(predictions[name].reshape(expected.shape), expected, 1e-5, name)
    losses = jax.jit(type(world.decoder).loss)(world.decoder, H, Z, G.under("obs"))
    for name, expected in G.under("mixed/dec_loss").items():
        assert_close(losses[name], expected, 1e-5, name)
    # Every parameter of the file has its place in the agent.
    assert G.under("param").keys() <= interop.to_reference(state).keys()


def test_golden_channels_of_a_block():
    sizes = dataclasses.replace(SIZES, blocks=G.scalar("alt/bspace"))
    decoder = golden_agent(PIXELS, sizes, G.under("param") | G.under("alt/param")).model.world.decoder
    h, z, obs = H[:1, :1], Z[:1, :1], {"image": G["obs/image"][:1, :1]}
    images, losses = jax.jit(lambda decoder: (decoder(h, z), decoder.loss(h, z, obs)))(decoder)
    assert_close(images["image"], G["alt/recon"], 1e-5)
    assert_close(losses["image"], G["alt/loss"], 1e-5)


def test_half_precision_stays_near(world):
    tokens = jax.jit(lambda encoder, obs: encoder(obs, jnp.dtype("bfloat16")))(world.encoder, G.under("obs"))
    assert tokens.dtype == jnp.bfloat16
    assert_close(tokens, G["tokens"], 0.1)
    halves = (x.astype(jnp.bfloat16) for x in (H, Z))
    images = jax.jit(type(world.decoder).__call__)(world.decoder, *halves)["image"]
    assert images.dtype == jnp.float32
    assert_close(images, G["recon"], 0.1)


def test_several_images_are_stacked_and_split_by_name():
    spaces = Spaces.of({"right": (16, 32, 1), "left": (16, 32, 3)}, 2, images=["right", "left"])
    sizes = dataclasses.replace(SIZES, blocks=4)
    encoder = Encoder.init(sizes, spaces, key=jax.random.key(0))
    assert encoder.width == 1 * 2 * 4 * sizes.depth
    obs = {name: jnp.full((5, *shape), 100 + shape[-1], jnp.uint8) for name, shape in spaces.obs}
    # Without the weights of the first three channels, which are those of "left", only "right" is seen.
    right_only = eqx.tree_at(
        lambda encoder: encoder.cnn.layers[0].conv.weight, encoder, replace_fn=lambda w: w.at[:, :, :3].set(0)
    )
    darker = obs | {"left": obs["left"] // 2}
    see = jax.jit(lambda encoder, obs: encoder(obs, F32))
    np.testing.assert_array_equal(see(right_only, obs), see(right_only, darker))
    assert jnp.abs(see(encoder, obs) - see(encoder, darker)).max() > 1e-3
    decoder = Decoder.init(sizes, spaces, key=jax.random.key(1))
    images = jax.jit(lambda decoder: decoder(H[0], Z[0]))(decoder)
    assert {name: image.shape for name, image in images.items()} == {
        "left": (2, 16, 32, 3),
        "right": (2, 16, 32, 1),
    }


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (64, 60, 3)}, r"'a' has shape \(64, 60, 3\).*multiples of 16"),
        ({"a": (64, 64)}, r"'a' has shape \(64, 64\)"),
        ({"a": (64, 64, 3), "b": (32, 32, 3)}, "one height and width"),
    ],
)
def test_impossible_images_are_named(shapes, message):
    with pytest.raises(ValueError, match=message):
        Encoder.init(SIZES, Spaces.of(shapes, 2, images=shapes), key=jax.random.key(0))


def test_a_depth_that_the_blocks_do_not_divide_is_refused():
    sizes = dataclasses.replace(SIZES, depth=3)
    with pytest.raises(ConfigError, match=r"model.depth: 3 .* 4 times it is a multiple of .*blocks = 8"):
        Decoder.init(sizes, PIXELS, key=jax.random.key(0))
    Decoder.init(sizes, Spaces.of({"x": (3,)}, 2), key=jax.random.key(0))


# A bright square on a dark ground, somewhere else in every step.
SMALL = Spaces.of({"view": (32, 32, 3)}, 2, images=["view"])
TINY = AgentConfig(
    model=ModelConfig(
        deter=32,
        hidden=16,
        stoch=4,
        classes=4,
        units=16,
        depth=2,
        blocks=4,
        bins=15,
        policy_layers=1,
        value_layers=1,
        prior_layers=1,
    ),
    behavior=BehaviorConfig(horizon=3),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup=0),
    penalty=PenaltyConfig(posterior=0.5, rho=1.0, estimator="exact"),
)
STREAMS, TIME, BATCH = 2, 5, 3


def record_of(step):
    """What a stream of squares gives at a step."""
    view = np.full((STREAMS, 32, 32, 3), 30, np.uint8)
    for stream, place in enumerate(np.random.default_rng(step).integers(0, 24, (STREAMS, 2))):
        view[stream, place[0] : place[0] + 8, place[1] : place[1] + 8] = (250, 120, 200)
    blank, never = np.zeros(STREAMS, np.float32), np.zeros(STREAMS, bool)
    latent = Latent(np.zeros((STREAMS, 32), np.float32), np.zeros((STREAMS, 4), np.uint8))
    action = np.zeros((STREAMS, 2), np.float32)
    return replay.Record({"view": view}, action, blank, never, never, never, latent)


@pytest.fixture(scope="module")
def batch():
    memory = replay.init(SMALL, STREAMS, 12, 32, 4, "float32", "host")
    for step in range(12):
        memory = replay.append(memory, record_of(step))
    return replay.sample(memory, jax.random.key(0), BATCH, TIME)[1]


update = jax.jit(agent.update, static_argnums=0)


@pytest.mark.slow
def test_reconstruction_error_halves_on_a_fixed_batch(batch):
    assert batch.obs["view"].dtype == jnp.uint8
    assert batch.obs["view"].shape == (TIME, BATCH, 32, 32, 3)
    state, errors = fresh(TINY, SMALL, jax.random.key(0)), []
    for _ in range(60):
        state, _, metrics = update(TINY, state, batch)
        errors.append(float(metrics["loss/view"]))
    assert int(state.skipped) == 0
    assert np.mean(errors[-5:]) < errors[0] / 2


def test_the_penalty_is_that_of_the_whole_jacobian(batch):
    world = fresh(TINY, SMALL, jax.random.key(1)).model.world
    uniform = jax.random.uniform(jax.random.key(2), (TIME, BATCH, TINY.model.stoch))
    noise = draw_penalty_noise(TINY, TIME * BATCH, key=jax.random.key(3))
    dynamics = world.dynamics

    def ours(encoder):
        prediction = predict(TINY, dataclasses.replace(world, encoder=encoder), batch, uniform)
        return penalties(TINY, dynamics, prediction, noise)["posterior"], prediction.observed.h

    def plain(encoder):
        e = encoder(batch.obs, F32)
        h = dynamics.observe(batch.start, e, batch.prev_action, batch.is_first, uniform).h
        u = jnp.concatenate([h, e], axis=-1).reshape(TIME * BATCH, -1)
        assert u.shape[1] == 32 + encoder.width
        return jax.vmap(lambda u: penalty.exact(lambda u: dynamics.probs(dynamics.posterior(u)), u))(u).mean()

    (value, _), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(world.encoder)
    expected, expected_gradient = jax.jit(jax.value_and_grad(plain))(world.encoder)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    # The penalty shapes e through all convolutions.
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True)
    for got, want in pairs:
        assert_close(got, want, 1e-4)
        assert jnp.abs(want).max() > 0


@pytest.mark.slow
def test_runs_beside_each_other_learn_what_they_would_alone(batch):
    both = jax.vmap(lambda key: fresh(TINY, SMALL, key))(jax.random.split(jax.random.key(4)))
    batches = jax.tree.map(lambda x: jnp.stack([x, x]), batch)
    _, _, together = jax.jit(jax.vmap(lambda state, batch: agent.update(TINY, state, batch)))(both, batches)
    _, _, alone = update(TINY, jax.tree.map(lambda x: x[1], both), batch)
    for name in ("loss/view", "loss/penalty_posterior", "norm/gradient"):
        np.testing.assert_allclose(together[name][1], alone[name], rtol=1e-4, err_msg=name)
