"""Encoder, dynamics and decoder against the reference's arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import distributions as d
from gpld.types import Latent
from gpld.world_model import States
from gpld.world_model._encoder import flat
from gpld.world_model._loss import kl_losses
from tests.golden_files import Golden, assert_close


def test_golden_encoder():
    g = Golden("encoder")
    spaces = g.spaces("obs")
    model = g.agent(g.config(), spaces).model
    assert [name for name, _ in spaces.obs] == list(g["concat_order"])
    vectors = [d.symlog(x) for x in flat(g.under("obs"), spaces.obs)]
    assert_close(jnp.concatenate(vectors, -1), g["concat"], 1e-5)
    assert_close(model.world.encoder(g.under("obs"), jnp.dtype("float32")), g["tokens"], 1e-5)


@pytest.fixture(scope="module")
def rssm():
    g = Golden("rssm")
    config = g.config()
    # The file has no observations: any space will do for the encoder, whose parameters are not used.
    from gpld.types import Spaces

    return g, g.agent(config, Spaces.of({"x": (1,)}, g.actions)).model.world.dynamics


def _stored(g) -> Latent:
    return Latent(g["in/deter"], jnp.argmax(g["in/stoch"], -1).astype(jnp.uint8))


def _core(dynamics, h, z, action):
    return dynamics.cell(h, z.reshape(*z.shape[:-2], -1), action)


def test_golden_core_and_posterior_and_prior(rssm):
    g, dynamics = rssm
    h = _core(dynamics, g["in/deter"], g["in/stoch"], g["in/action"])
    assert_close(h, g["core/next_deter"], 1e-5, "h")
    logits = dynamics.posterior(jnp.concatenate([h, g["in/tokens"]], -1))
    shape = g["post/logits"].shape
    assert_close(logits.reshape(shape), g["post/logits"], 1e-5, "posterior")
    assert_close(dynamics.prior(h).reshape(shape), g["prior/logits"], 1e-5, "prior")
    probs = {"post": dynamics.probs(logits), "prior": dynamics.probs(dynamics.prior(h))}
    for name, p in probs.items():
        assert_close(p, g[f"{name}/probs"], 1e-5, name)
        assert_close(d.entropy(p), g[f"{name}/entropy"], 1e-5, name)
    kl = d.kl(probs["post"], probs["prior"])
    assert_close(kl, g["state_kl"], 1e-5, "kl")


def test_golden_resets_zero_h_z_and_action(rssm):
    g, dynamics = rssm
    reset = g["in/reset"]
    assert reset.any()
    assert not reset.all()
    uniform = jnp.full(g["in/stoch"].shape[:-1], 0.5)
    last = dynamics.unpack(_stored(g), jnp.dtype("float32"))
    step = dynamics.observe_step(last, g["in/tokens"], g["in/action"], reset, uniform)
    assert_close(step.h, g["reset/next_deter"], 1e-5)
    seen = dynamics.observe(
        _stored(g), g["in/tokens"][None], g["in/action"][None], reset[None], uniform[None]
    )
    assert_close(seen.h[0], g["reset/next_deter"], 1e-5)
    assert_close(seen.logits[0].reshape(g["reset/post_logits"].shape), g["reset/post_logits"], 1e-5)


def test_goldenkl_losses(rssm):
    g, dynamics = rssm
    post, prior = g["kl/post_logits"], g["kl/prior_logits"]
    free = g.scalar("cfg/free_nats")

    def losses(post, prior):
        return kl_losses(
            d.mixed_softmax(post, dynamics.unimix), d.mixed_softmax(prior, dynamics.unimix), free
        )

    assert_close(
        d.kl(d.mixed_softmax(post, dynamics.unimix), d.mixed_softmax(prior, dynamics.unimix)),
        g["kl/raw"],
        1e-5,
    )
    for name, value in losses(post, prior).items():
        assert_close(value, g[f"kl/{name}"], 1e-5, name)
        grads = jax.grad(lambda post, prior, name=name: losses(post, prior)[name].mean(), argnums=(0, 1))(
            post, prior
        )
        assert_close(grads[0], g[f"kl/{name}_grad_post"], 1e-5, f"{name} by posterior")
        assert_close(grads[1], g[f"kl/{name}_grad_prior"], 1e-5, f"{name} by prior")


def test_golden_decoder_and_heads():
    g = Golden("decoder_heads")
    model = g.agent(g.config(), g.spaces("target")).model.world
    h, z = g["feat/deter"], g["feat/stoch"]
    z = z.reshape(*z.shape[:-2], -1)
    for key, prediction in model.decoder(h, z).items():
        assert_close(prediction.reshape(g[f"dec_pred/{key}"].shape), g[f"dec_pred/{key}"], 1e-5, key)
    for key, loss in model.decoder.loss(h, z, g.under("target")).items():
        assert_close(loss, g[f"dec_loss/{key}"], 1e-5, key)
    reward, cont = States(h, z).read(model.reward, model.cont)
    assert_close(reward.logits, g["rew/logits"], 1e-5, "reward")
    assert_close(cont[..., 0], g["con/logit"], 1e-5, "continue")
    assert_close(model.reward(g["head_input"]).logits, g["rew/logits"], 1e-5, "reward, of the file's input")


def test_acting_and_observing_are_the_same_step(rssm):
    g, dynamics = rssm
    uniform = jax.random.uniform(jax.random.key(0), g["in/stoch"].shape[:-1])
    none = jnp.zeros(uniform.shape[0], bool)
    last = dynamics.unpack(_stored(g), jnp.dtype("float32"))
    step = dynamics.observe_step(last, g["in/tokens"], g["in/action"], none, uniform)
    seen = dynamics.observe(_stored(g), g["in/tokens"][None], g["in/action"][None], none[None], uniform[None])
    np.testing.assert_allclose(step.h, seen.h[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(dynamics.pack(step).z, dynamics.pack(seen).z[0])
    # What is sampled is one class of each variable, whatever its gradient.
    assert set(np.unique(seen.z)) == {0, 1}
