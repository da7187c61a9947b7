"""Policies, returns and losses against the reference's arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpld.behavior import Normalizer, Scores, dream_losses, dream_returns, replay_returns, replay_value_loss
from gpld.config import BehaviorConfig
from gpld.distributions import Normal, TwoHot, twohot_loss, twohot_mean
from gpld.types import Batch, Spaces
from tests.golden_files import Golden, assert_close, swap


def test_golden_policy_and_value():
    g = Golden("policy")
    model = g.agent(g.config(), Spaces.of({"x": (1,)}, g.actions)).model
    h, z = g["feat/deter"], g["feat/stoch"]
    z = z.reshape(*z.shape[:-2], -1)
    policy = model.policy(jnp.concatenate([h, z], -1))
    assert_close(model.policy.mlp(g["head_input"]), g["policy/hidden"], 1e-5, "hidden")
    assert_close(policy.mean, g["policy/mean"], 1e-5, "mean")
    assert_close(policy.std, g["policy/std"], 1e-5, "std")
    assert_close(policy.log_prob(g["policy/action"]), g["policy/logp"], 1e-5, "log_prob")
    assert_close(policy.entropy(), g["policy/entropy"], 1e-5, "entropy")
    logits = model.value(g["head_input"]).logits
    assert_close(logits, g["value/logits"], 1e-5, "value logits")
    assert_close(twohot_mean(logits), g["value/pred"], 1e-5, "value")
    assert_close(twohot_loss(logits, g["value/target"]), g["value/loss"], 1e-5, "value loss")


@pytest.fixture(scope="module")
def returns():
    return Golden("returns")


def _behavior(g, alternative: bool = False) -> BehaviorConfig:
    cfg = {k: v.item() for k, v in g.under("cfg").items()}
    if alternative:
        cfg |= {k: v.item() for k, v in g.under("cfg_alt").items()}
    return BehaviorConfig(
        slow_target=bool(cfg["slowtar"]),
        trace=cfg["lam"],
        entropy=cfg["actent"],
        slow_weight=cfg["slowreg"],
        learned_discount=bool(cfg["contdisc"]),
        discount_horizon=int(cfg["horizon"]),
        return_rate=cfg["retnorm_rate"],
        return_limit=cfg["retnorm_limit"],
        return_low=cfg["perclo"],
        return_high=cfg["perchi"],
    )


def _losses(g, config, step, normalizer, **replace):
    x = {k: swap(v[step]) for k, v in g.under("imag").items()} | replace
    return dream_losses(
        config,
        normalizer,
        x["act"][:-1],
        Scores(
            reward=x["rew"],
            cont=x["con"],
            slow_value=twohot_mean(x["slow_logits"]),
            value=TwoHot(x["val_logits"]),
            policy=Normal(x["mean"][:-1], x["std"][:-1]),
        ),
    )


def _assert_matches(losses, config, expected):
    assert_close(swap(losses.returns), expected["ret"], 1e-5, "returns")
    assert_close(swap(losses.policy), expected["policy_loss"], 1e-5, "policy loss")
    assert_close(swap(losses.value), expected["value_loss"], 1e-5, "value loss")
    assert_close(losses.normalizer.low, expected["lo_after"], 1e-5, "low")
    assert_close(losses.normalizer.high, expected["hi_after"], 1e-5, "high")
    assert_close(losses.normalizer.scale(config), expected["retnorm_scale"], 1e-5, "scale")
    assert_close(losses.metrics["advantage/mean"], expected["metric_adv"], 1e-5, "advantage")
    assert_close(losses.metrics["advantage/std"], expected["metric_adv_std"], 1e-5, "advantage std")


def test_golden_dream_losses_over_consecutive_updates(returns):
    config, normalizer = _behavior(returns), Normalizer.init()
    expected = returns.under("imag_out")
    for step in range(expected["ret"].shape[0]):
        losses = _losses(returns, config, step, normalizer)
        _assert_matches(losses, config, {k: v[step] for k, v in expected.items()})
        normalizer = losses.normalizer


def test_golden_dream_losses_with_the_other_options(returns):
    config, expected = _behavior(returns, alternative=True), returns.under("imag_alt_out")
    normalizer = Normalizer(expected["lo_before"], expected["hi_before"])
    _assert_matches(_losses(returns, config, 1, normalizer), config, expected)


def test_golden_dream_gradients(returns):
    config, step = _behavior(returns), int(returns["imag_grad/update_index"])
    before = Normalizer(returns["imag_out/lo_before"][step], returns["imag_out/hi_before"][step])

    def total(x):
        losses = _losses(returns, config, step, before, **x)
        return losses.policy.mean() + losses.value.mean()

    names = ("mean", "std", "val_logits", "slow_logits", "rew", "con")
    grads = jax.grad(total)({k: swap(returns[f"imag/{k}"][step]) for k in names})
    for name in ("mean", "std", "val_logits"):
        assert_close(swap(grads[name]), returns[f"imag_grad/{name}"], 1e-5, name)
    for name in ("slow_logits", "rew", "con"):
        assert not grads[name].any(), name


def test_golden_replay_value_loss(returns):
    x = {k: swap(v) for k, v in returns.under("repl").items()}
    config = dataclasses.replace(
        _behavior(returns),
        slow_weight=returns.scalar("cfg_repl/slowreg"),
        trace=returns.scalar("cfg_repl/lam"),
    )

    def loss(config, logits):
        none = jnp.zeros(0)
        batch = Batch({}, none, x["rew"], none, x["last"], x["term"], none)
        slow_value = twohot_mean(x["slow_logits"])
        return replay_value_loss(config, batch, x["boot"], TwoHot(logits), slow_value)

    discount = 1 - 1 / config.discount_horizon
    got = replay_returns(x["rew"], x["last"], x["term"], x["boot"], trace=config.trace, discount=discount)
    assert_close(swap(got), returns["repl_out/ret"], 1e-5, "returns")
    assert_close(swap(loss(config, x["val_logits"])), returns["repl_out/loss"], 1e-5, "loss")
    grad = jax.grad(lambda logits: loss(config, logits).mean())(x["val_logits"])
    assert_close(swap(grad), returns["repl_out/grad_val_logits"], 1e-5, "gradient")
    other = dataclasses.replace(config, slow_target=True, slow_weight=returns.scalar("cfg_alt/slowreg"))
    assert_close(swap(loss(other, x["val_logits"])), returns["repl_out/loss_alt"], 1e-5, "other options")


def test_golden_percentiles(returns):
    config, normalizer = _behavior(returns), Normalizer.init()
    for step, x in enumerate(returns["perc/x"]):
        normalizer = normalizer.follow(config, x)
        assert_close(normalizer.low, returns["perc/lo"][step], 1e-5)
        assert_close(normalizer.high, returns["perc/hi"][step], 1e-5)
        assert_close(normalizer.scale(config), returns["perc/scale"][step], 1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), st.integers(0, 1000))
def test_returns_equal_the_plain_recursion(steps, trace, seed):
    reward, cont, value = (
        np.asarray(jax.random.uniform(k, (steps + 1, 3))) for k in jax.random.split(jax.random.key(seed), 3)
    )
    got = dream_returns(jnp.asarray(reward), jnp.asarray(cont), jnp.asarray(value), trace=trace, discount=0.9)
    last, expected = value[-1], []
    for t in reversed(range(steps)):
        last = reward[t + 1] + 0.9 * cont[t + 1] * ((1 - trace) * value[t + 1] + trace * last)
        expected.insert(0, last)
    np.testing.assert_allclose(got, np.stack(expected), rtol=1e-5)
