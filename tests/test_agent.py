from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import agent, interop
from gpld.agent import Noise
from gpld.config import (
    ARRAYS,
    NUMBERS,
    AgentConfig,
    BehaviorConfig,
    Config,
    ModelConfig,
    OptimizerConfig,
    ReplayConfig,
    override,
)
from gpld.profiling import random_batch
from gpld.types import Batch, Latent, Spaces
from gpld.world_model import DreamNoise, PenaltyNoise
from tests.golden_files import Golden, assert_close, swap


def _uniform_for(probs, index):
    """Uniform numbers for which inverse-CDF sampling gives `index`: the middle of its interval."""
    one_hot = jax.nn.one_hot(index, probs.shape[-1])
    return jnp.sum((jnp.cumsum(probs, -1) - probs / 2) * one_hot, -1)


@pytest.fixture(scope="module")
def golden_loss():
    """The whole loss of `world_model_loss.npz`: its random numbers are found from the samples it stores."""
    g = Golden("world_model_loss")
    config = g.config(
        horizon=g.scalar("cfg/imag_length"),
        discount_horizon=int(g.scalar("cfg/horizon")),
        trace=g.scalar("cfg/imag_lam"),
        entropy=g.scalar("cfg/imag_actent"),
        slow_weight=g.scalar("cfg/imag_slowreg"),
        slow_target=bool(g.scalar("cfg/imag_slowtar")),
        replay_value=g.scalar("scale/repval"),
    )
    state = g.agent(config, g.spaces("obs"))
    flags = {k: swap(g[f"obs/{k}"]) for k in ("reward", "is_first", "is_last", "is_terminal")}
    obs = {k: swap(g[f"obs/{k}"]) for k, _ in g.spaces("obs").obs}
    start = Latent(g["carry/deter"], jnp.argmax(g["carry/stoch"], -1).astype(jnp.uint8))
    batch = Batch(obs=obs, prev_action=swap(g["prevact"]), start=start, **flags)
    noise = Noise(_posterior_uniform(g, state.model), _dream_noise(g, state.model), _penalty_noise(g))
    return g, config, state, batch, noise


def _posterior_uniform(g, model):
    dynamics = model.world.dynamics
    h = swap(g["repfeat/deter"])
    logits = dynamics.posterior(jnp.concatenate([h, swap(g["tokens"])], -1))
    return _uniform_for(dynamics.probs(logits), swap(jnp.argmax(g["repfeat/stoch"], -1)))


def _dream_noise(g, model):
    """[B*T, S, ...] to [H, T*B, ...]: our dreams start from states in time-major order."""
    batch, time = g["obs/reward"].shape

    def reorder(x):
        return swap(x.reshape(batch, time, *x.shape[1:])).reshape(x.shape).swapaxes(0, 1)

    h, z, action = (reorder(g[f"imag/{k}"]) for k in ("deter", "stoch", "act"))
    dynamics = model.world.dynamics
    policy = model.policy(jnp.concatenate([h, z.reshape(*h.shape[:2], -1)], -1)[:-1])
    after = dynamics.cell(h[:-1], z[:-1].reshape(*h[:-1].shape[:2], -1), action[:-1])
    probs = dynamics.probs(dynamics.prior(after))
    return DreamNoise(_uniform_for(probs, jnp.argmax(z[1:], -1)), (action[:-1] - policy.mean) / policy.std)


def _penalty_noise(g):
    """States in time-major order, and the probes `[rows, n, C]` of the file as `[1, n, rows, C]`."""
    batch, time = g["obs/reward"].shape
    states = g["gp/indices"] % time * batch + g["gp/indices"] // time
    probes = swap(g["gp/eps"])[None].astype(jnp.float32)
    return PenaltyNoise(states, None, {"posterior": probes, "prior": None})


TERMS = {"gp_post": "penalty_posterior", "rew": "reward", "con": "cont", "repval": "replay_value"}


def test_golden_loss_and_gradients(golden_loss):
    g, config, state, batch, noise = golden_loss
    gradient = jax.jit(jax.value_and_grad(agent.loss, argnums=1, has_aux=True), static_argnums=0)
    (total, out), grads = gradient(config, state.model, state, batch, noise)
    assert_close(total, g["total"], 2e-5, "total")
    named = interop.to_reference(state._replace(model=grads))
    for name, expected in g.under("grad").items():
        assert_close(named[name], expected, 1e-4, name)
    for name, mean in g.under("loss_mean").items():
        assert_close(out.metrics[f"loss/{TERMS.get(name, name)}"], mean, 2e-5, name)
    assert_close(swap(out.latents.h), g["repfeat/deter"], 2e-5, "h")
    np.testing.assert_array_equal(swap(out.latents.z), jnp.argmax(g["repfeat/stoch"], -1))
    assert_close(out.latents.h[-1], g["next_carry/deter"], 2e-5, "next carry")
    assert_close(out.metrics["entropy/prior"], g["metric/dyn_ent"], 2e-5)
    assert_close(out.metrics["entropy/posterior"], g["metric/rep_ent"], 2e-5)
    assert_close(out.normalizer.low, g["retnorm_after/lo"], 2e-5)
    assert_close(out.normalizer.high, g["retnorm_after/hi"], 2e-5)


def test_golden_slow_value():
    g = Golden("slow_target")
    rate = g.scalar("cfg/rate")
    assert rate == BehaviorConfig().slow_rate
    for step in range(1, 5):
        for name, source in g.under(f"source/{step}/val").items():
            before, after = (g[f"slow/{s}/slowval/{name}"] for s in (step - 1, step))
            assert_close(agent.follow(before, source, rate), after, 1e-6, name)


TINY = AgentConfig(
    model=ModelConfig(
        deter=16,
        hidden=8,
        stoch=3,
        classes=4,
        units=8,
        blocks=4,
        bins=15,
        policy_layers=1,
        value_layers=1,
        encoder_layers=1,
        decoder_layers=1,
        prior_layers=1,
    ),
    behavior=BehaviorConfig(horizon=3),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup=0),
)
SPACES = Spaces.of({"position": (2,), "speed": ()}, 2)
update = jax.jit(agent.update, static_argnums=0, donate_argnums=1)


def make_batch(config=TINY, spaces=SPACES, time=6, batch=4, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 20))
    obs = {name: jax.random.normal(next(keys), (time, batch, *shape)) for name, shape in spaces.obs}
    first, last = (jax.random.uniform(next(keys), (time, batch)) < 0.2 for _ in range(2))
    action = jax.random.normal(next(keys), (time, batch, spaces.actions))
    if spaces.discrete:
        action = jax.nn.one_hot(jnp.argmax(action, -1), spaces.actions)
    h = jax.random.normal(next(keys), (batch, config.model.deter)).astype(config.compute)
    z = jax.random.randint(next(keys), (batch, config.model.stoch), 0, config.model.classes)
    reward = jax.random.uniform(next(keys), (time, batch))
    return Batch(obs, action, reward, first, last, last, Latent(h, z.astype(jnp.uint8)))


def test_parameter_counts_of_the_published_agent():
    spaces = Spaces.of({"height": (), "orientations": (14,), "velocity": (9,)}, 6)
    state = jax.eval_shape(lambda key: agent.init(AgentConfig(), spaces, key), jax.random.key(0))
    world = state.model.world

    def count(tree):
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    assert count(world.dynamics) == 5_783_040
    assert count(state.model.value) == 853_503
    assert count(world.decoder) == 794_136
    assert count(state.model.policy) == 791_052
    assert count(world.reward) == 721_407
    assert count(world.cont) == 656_129
    assert count(world.encoder) == 138_752
    assert count(state.model) == 9_738_019


def test_fresh_agent_predicts_zero_reward_and_value_and_acts_near_zero_mean():
    state = agent.init(TINY, SPACES, jax.random.key(0))
    _, _, metrics = update(TINY, agent.init(TINY, SPACES, jax.random.key(0)), make_batch())
    assert metrics["reward/predicted_mean"] == 0
    assert metrics["value/mean"] == 0
    policy = state.model.policy(jnp.ones((5, 16 + 12)))
    assert jnp.abs(policy.mean).max() < 0.05


def test_an_update_is_compiled_once_donates_its_state_and_stays_on_the_device():
    state, batch = agent.init(TINY, SPACES, jax.random.key(0)), make_batch()
    function = jax.jit(agent.update, static_argnums=0, donate_argnums=1)
    program = function.lower(TINY, state, batch).compile()
    text = program.as_text()
    for transfer in ("outfeed", "infeed", "send(", "host-transfer", "callback"):
        assert transfer not in text
    size = sum(
        leaf.nbytes for leaf in jax.tree.leaves(state) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )
    # All of the state is updated in place.
    assert program.memory_analysis().alias_size_in_bytes >= size - 1024
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            state, _, _ = function(TINY, state, batch)
    assert function._cache_size() == 1


def test_runs_in_one_program_do_not_see_each_other():
    keys = jax.random.split(jax.random.key(7), 3)
    states = jax.vmap(lambda key: agent.init(TINY, SPACES, key))(keys)
    batches = jax.tree.map(lambda *x: jnp.stack(x), *(make_batch(seed=i) for i in range(3)))
    vupdate = jax.jit(jax.vmap(agent.update, in_axes=(None, 0, 0)), static_argnums=0)
    _, latents, _ = vupdate(TINY, states, batches)
    # Other neighbours, same run in the middle: same random numbers, same bits.
    other = jax.tree.map(lambda x: x.at[jnp.array([0, 2])].set(x[jnp.array([2, 0])]), (states, batches))
    new_states, other_latents, metrics = vupdate(TINY, *other)
    np.testing.assert_array_equal(latents.z[1], other_latents.z[1])
    np.testing.assert_array_equal(latents.h[1], other_latents.h[1])
    # And alone.
    alone, alone_latents, alone_metrics = update(TINY, agent.init(TINY, SPACES, keys[1]), make_batch(seed=1))
    np.testing.assert_array_equal(latents.z[1], alone_latents.z)
    np.testing.assert_allclose(metrics["loss/total"][1], alone_metrics["loss/total"], rtol=1e-5)
    for got, want in zip(jax.tree.leaves(new_states.model), jax.tree.leaves(alone.model), strict=True):
        np.testing.assert_allclose(got[1], want, atol=2e-5)


@pytest.mark.parametrize("broken", ["obs", "reward"])
def test_a_non_finite_update_changes_nothing_but_the_counters(broken):
    state, _, _ = update(TINY, agent.init(TINY, SPACES, jax.random.key(0)), make_batch())
    before = jax.tree.map(np.asarray, state._replace(key=jax.random.key_data(state.key)))
    good = make_batch(seed=1)
    if broken == "obs":
        bad = good._replace(obs=good.obs | {"speed": good.obs["speed"].at[2, 1].set(jnp.nan)})
    else:
        bad = good._replace(reward=good.reward.at[0, 0].set(jnp.nan))
    for count in (1, 2):
        state, _, metrics = update(TINY, state, bad)
        assert metrics["updates/skipped"] == metrics["updates/skipped_in_row"] == count
    for name in ("model", "slow_value", "optimizer", "normalizer"):
        for got, want in zip(
            jax.tree.leaves(getattr(state, name)), jax.tree.leaves(getattr(before, name)), strict=True
        ):
            np.testing.assert_array_equal(got, want)
    state, _, metrics = update(TINY, state, good)
    assert metrics["updates/skipped"] == 2
    assert metrics["updates/skipped_in_row"] == 0
    assert state.updates == 4


def test_parameters_never_leave_the_finite_numbers():
    state = agent.init(TINY, SPACES, jax.random.key(0))
    numbers = state.hyper.numbers | {"optimizer.learning_rate": jnp.float32(jnp.inf)}
    state = state._replace(hyper=state.hyper._replace(numbers=numbers))
    state, _, metrics = update(TINY, state, make_batch())
    assert metrics["updates/skipped"] == 1
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.model))


def test_observations_may_be_called_like_losses():
    spaces = Spaces.of({"x": (3,), "reward": (2,), "value": ()}, 2)
    config = Config(task="walker-walk", agent=TINY, replay=ReplayConfig(batch=2, length=4))
    state = jax.eval_shape(partial(agent.init, TINY, spaces), jax.random.key(0))
    batch = jax.eval_shape(partial(random_batch, config, spaces), jax.random.key(0))
    _, _, metrics = jax.eval_shape(partial(agent.update, TINY), state, batch)
    names = {"x", "observed/reward", "observed/value", "reward", "value"}
    assert {f"loss/{name}" for name in names} <= set(metrics)


@pytest.mark.slow
def test_policy_and_value_may_learn_at_a_rate_of_their_own():
    import dataclasses

    slower = dataclasses.replace(TINY, optimizer=dataclasses.replace(TINY.optimizer, behavior_rate=0.25))
    before = agent.init(TINY, SPACES, jax.random.key(0)).model
    models = [
        update(config, agent.init(config, SPACES, jax.random.key(0)), make_batch())[0].model
        for config in (TINY, slower)
    ]
    whole, part = (jax.tree.map(jnp.subtract, model, before) for model in models)
    for name, rate in (("world", 1.0), ("policy", 0.25), ("value", 0.25)):
        steps = zip(*map(jax.tree.leaves, (getattr(part, name), getattr(whole, name))), strict=True)
        for got, want in steps:
            np.testing.assert_allclose(got, rate * want, atol=1e-6)
        assert any(jnp.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(getattr(whole, name)))


OTHER_NUMBERS = {
    "optimizer.learning_rate": 3e-2,
    "optimizer.behavior_rate": 0.3,
    "optimizer.warmup": 50,
    "optimizer.clip": 1e-3,
    "optimizer.clip_floor": 50.0,
    "optimizer.eps": 0.1,
    "loss.reconstruction": 0.4,
    "loss.reward": 2.0,
    "loss.cont": 0.6,
    "loss.dyn": 0.7,
    "loss.rep": 0.3,
    "loss.free_nats": 0.01,
    "behavior.entropy": 0.1,
    "behavior.discount_horizon": 20,
    "behavior.trace": 0.5,
    "behavior.slow_rate": 0.2,
    "behavior.slow_weight": 0.4,
    "behavior.replay_value": 1.3,
    "behavior.return_rate": 0.3,
    "behavior.return_low": 25.0,
    "behavior.return_high": 75.0,
    "behavior.return_limit": 0.01,
    "penalty.floor": 0.9,
    "penalty.scale": 1.5,
    "penalty.start": 1,
    "penalty.decay_steps": 7,
    "penalty.step_interval": 1,
    "penalty.step_factor": 0.1,
}
SCHEDULES = {"sqrt": ("scale",), "linear": ("decay_steps",), "step": ("step_interval", "step_factor")}


def with_options(config, values):
    changes = {}
    for name, value in values.items():
        group, option = name.split(".")
        changes.setdefault(group, {})[option] = value
    return override(config, changes)


def updated(config, program, names, count=3):
    """A run after some updates by the program of `program`, which takes `names` as arrays."""
    state = agent.init(config, SPACES, jax.random.key(0))._replace(hyper=agent.Hyper.of(config, names))
    for seed in range(count):
        state, _, _ = update(program, state, make_batch(seed=seed))
    return state._replace(hyper=None, key=None)


def furthest(one, two):
    """The largest difference of any number of two states."""
    pairs = zip(*map(jax.tree.leaves, (one, two)), strict=True)
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["sqrt", "linear", "step"])
def test_every_number_in_which_runs_may_differ_is_the_runs_own(schedule):
    """In one program, each alone changes a run, and all together make it the run they make as constants."""
    assert set(OTHER_NUMBERS) == set(NUMBERS)
    short = {"penalty.decay_steps": 20, "penalty.step_interval": 2, "optimizer.clip": 0.1}
    base = with_options(TINY, {"penalty.schedule": schedule, **short})
    unread = {f"penalty.{x}" for kind, own in SCHEDULES.items() if kind != schedule for x in own}
    alone = updated(base, base, NUMBERS)
    for name, value in OTHER_NUMBERS.items():
        changed = furthest(alone, updated(with_options(base, {name: value}), base, NUMBERS))
        assert (changed == 0) == (name in unread), name
        assert changed == 0 or changed > 1e-6, name
    other = with_options(base, OTHER_NUMBERS)
    assert furthest(updated(other, base, NUMBERS), updated(other, other, ARRAYS)) < 1e-5


def test_the_agent_overfits_a_fixed_batch():
    state, batch = agent.init(TINY, SPACES, jax.random.key(0)), make_batch()
    first = None
    for _ in range(400):
        state, _, metrics = update(TINY, state, batch)
        first = first or metrics
    for name in ("position", "speed", "reward"):
        assert metrics[f"loss/{name}"] < 0.5 * first[f"loss/{name}"], name
    assert metrics["updates/skipped"] == 0


def test_bfloat16_agrees_with_float32_up_to_its_precision():
    import dataclasses

    low = dataclasses.replace(TINY, compute="bfloat16")
    _, _, expected = update(TINY, agent.init(TINY, SPACES, jax.random.key(0)), make_batch())
    state, latents, metrics = update(low, agent.init(low, SPACES, jax.random.key(0)), make_batch(low))
    assert latents.h.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state.model)} == {jnp.dtype("float32")}
    for name in ("loss/position", "loss/reward", "loss/dyn"):
        np.testing.assert_allclose(metrics[name], expected[name], rtol=0.1)
