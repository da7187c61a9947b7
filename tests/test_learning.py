"""The whole agent on a task small enough to know the best return."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from gpld import agent, replay
from gpld.config import AgentConfig, BehaviorConfig, ModelConfig, OptimizerConfig
from gpld.types import Spaces

# Three states in a row, two actions. Right moves on, left goes back to the start; the last state pays 1.
# Ten steps: the best return is 9, for going right twice and staying. Acting at random gives 2.3 on average.
STEPS, STREAMS = 10, 4
BEST = STEPS - 1
SPACES = Spaces.of({"state": (3,)}, 2, discrete=True)
CONFIG = AgentConfig(
    model=ModelConfig(
        deter=32,
        hidden=16,
        stoch=4,
        classes=4,
        units=32,
        blocks=4,
        bins=41,
        policy_layers=1,
        value_layers=1,
        encoder_layers=1,
        decoder_layers=1,
        prior_layers=1,
    ),
    behavior=BehaviorConfig(horizon=8, discount_horizon=20),
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup=50),
)


def environment_step(place, clock, action):
    """All streams together; the step after the last is a reset, whose action is ignored."""
    first = clock == STEPS
    place = jnp.where(first | (action[:, 0] > 0), 0, jnp.minimum(place + 1, 2))
    clock = jnp.where(first, 0, clock + 1)
    reward = jnp.where(~first & (place == 2), 1.0, 0.0)
    last = clock == STEPS
    never = jnp.zeros(STREAMS, bool)
    return (
        place,
        clock,
        {
            "obs": {"state": jax.nn.one_hot(place, 3)},
            "reward": reward,
            "is_first": first,
            "is_last": last,
            "is_terminal": never,
        },
    )


def advance(carry, key, learn):
    """One step in every stream and, if `learn`, one update."""
    state, memory, acting, place, clock = carry
    act_key, sample_key = jax.random.split(key)
    place, clock, step = environment_step(place, clock, acting.action)
    acting = agent.act(CONFIG, state.model, acting, step["obs"], step["is_first"], act_key)
    memory = replay.append(memory, replay.Record(**step, action=acting.action, latent=acting.latent))
    if learn:
        memory, batch, indices = replay.sample(memory, sample_key, 8, 10)
        state, latents, _ = agent.update(CONFIG, state, batch)
        memory = replay.write_back(memory, indices, latents, True)
    return (state, memory, acting, place, clock), step["reward"]


@partial(jax.jit, static_argnums=2)
def run(carry, keys, learn):
    return jax.lax.scan(lambda carry, key: advance(carry, key, learn), carry, keys)


def test_a_toy_task_is_learned_to_its_best_return():
    state = agent.init(CONFIG, SPACES, jax.random.key(0))
    memory = replay.init(SPACES, STREAMS, 2000, CONFIG.model.deter, CONFIG.model.stoch, "float32")
    place, clock = jnp.zeros(STREAMS, jnp.int32), jnp.full(STREAMS, STEPS)
    carry = (state, memory, agent.init_carry(CONFIG, SPACES, STREAMS), place, clock)
    carry, rewards = run(carry, jax.random.split(jax.random.key(1), 22), False)
    carry, _ = run(carry, jax.random.split(jax.random.key(2), 1100), True)
    _, after = run(carry, jax.random.split(jax.random.key(3), 22 * 10), False)
    before = float(rewards.sum()) / (2 * STREAMS)
    learned = float(after.sum()) / (20 * STREAMS)
    assert before < 5
    assert learned > 0.95 * BEST, f"return {learned:.2f} of {BEST}, {before:.2f} before training"
    assert np.isfinite(learned)
