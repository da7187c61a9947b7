"""The agent: one pytree of state, and three pure functions, `init`, `act` and `update`.

Nothing here knows of environments, files or devices. All three functions work under `jax.vmap` over a leading
axis of runs, each with its own parameters, random numbers and hyperparameters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from gpld import behavior, fused, world_model
from gpld.behavior import Normalizer, PolicyHead
from gpld.config import ARRAYS, AgentConfig, flat, with_numbers
from gpld.nets import of_each
from gpld.optimizer import laprop, tensor_norms
from gpld.types import Batch, Latent, Number, Spaces
from gpld.world_model import DreamNoise, PenaltyNoise, States, TwoHotHead, WorldModel


class Model(eqx.Module):
    """All trained parameters."""

    world: WorldModel
    policy: PolicyHead
    value: TwoHotHead


class Hyper(NamedTuple):
    """Hyperparameters that may differ between runs of one program, as float32 scalars."""

    posterior: Float[Array, ""]
    """Initial weight of the posterior penalty."""
    prior: Float[Array, ""]
    """Initial weight of the prior penalty."""
    over_all: Float[Array, ""]
    """1 to average the penalty over all states, 0 over those that it was evaluated on."""
    numbers: dict[str, Float[Array, ""]]
    """Other options, by their names: some of `config.NUMBERS`, which stand in the place of the program's."""

    @classmethod
    def of(cls, config: AgentConfig, names: Sequence[str] = ARRAYS) -> "Hyper":
        """Those of a run; `names` are the numbers that its program takes as arrays."""
        penalty, values = config.penalty, flat(config)
        scalars = (penalty.posterior, penalty.prior, penalty.scaling == "all")
        return cls(*map(jnp.float32, scalars), {name: jnp.float32(values[name]) for name in names})


class AgentState(NamedTuple):
    """Everything that an update reads and changes."""

    model: Model
    slow_value: TwoHotHead
    optimizer: PyTree
    normalizer: Normalizer
    hyper: Hyper
    key: PRNGKeyArray
    """Never changes: the numbers of update n are drawn from `fold_in(key, n)`."""
    updates: Int[Array, ""]
    skipped: Int[Array, ""]
    """Updates left out because a loss, gradient or parameter was not finite."""
    skipped_in_row: Int[Array, ""]


class Carry(NamedTuple):
    """What acting remembers of N environments: the latent state, and the action taken in it."""

    latent: Latent
    action: Float[Array, "N A"]


Metrics = dict[str, Float[Array, ""]]


def init(config: AgentConfig, spaces: Spaces, key: PRNGKeyArray) -> AgentState:
    """A fresh agent. The slow value starts as a copy of the value."""
    state_key, world_key, policy_key, value_key = jax.random.split(key, 4)
    model = Model(
        WorldModel.init(config.model, spaces, key=world_key),
        PolicyHead.init(config, spaces, key=policy_key),
        TwoHotHead.init(config.model, config.model.value_layers, key=value_key),
    )
    return AgentState(
        model=model,
        # A copy, not the same buffers: none may be donated to `update` twice.
        slow_value=jax.tree.map(jnp.copy, model.value),
        optimizer=laprop(config.optimizer).init(model),
        normalizer=Normalizer.init(),
        hyper=Hyper.of(config),
        key=state_key,
        updates=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_row=jnp.zeros((), jnp.int32),
    )


def init_carry(config: AgentConfig, spaces: Spaces, count: int) -> Carry:
    """A carry for `count` environments that are about to start."""
    h = jnp.zeros((count, config.model.deter), jnp.dtype(config.compute))
    z = jnp.zeros((count, config.model.stoch), jnp.uint8)
    return Carry(Latent(h, z), jnp.zeros((count, spaces.actions)))


def act(
    config: AgentConfig,
    model: Model,
    carry: Carry,
    obs: dict[str, Array],
    is_first: Bool[Array, " N"],
    key: PRNGKeyArray,
    *,
    deterministic: bool = False,
) -> Carry:
    """Observe and sample an action, in training and evaluation alike. `obs` is `[N, ...]`.

    `deterministic` takes the likeliest latent state and action instead.
    """
    latent_key, action_key = jax.random.split(key)
    e, dynamics = model.world.encoder(obs, jnp.dtype(config.compute)), model.world.dynamics
    uniform = jax.random.uniform(latent_key, carry.latent.z.shape)
    last = dynamics.unpack(carry.latent, e.dtype)
    seen = dynamics.observe_step(last, e, carry.action, is_first, uniform)
    states = States(seen.h, dynamics.mode(seen.logits)) if deterministic else seen
    policy = model.policy(states.feature)
    noise = model.policy.draw_noise(is_first.shape, key=action_key)
    action = policy.mode() if deterministic else policy.sample(noise)
    return Carry(dynamics.pack(states), action)


class Noise(NamedTuple):
    """All random numbers of one update."""

    classes: Float[Array, "T B K"]
    dream: DreamNoise
    penalty: PenaltyNoise


def draw_noise(config: AgentConfig, model: Model, batch: Batch, key: PRNGKeyArray) -> Noise:
    """Random numbers for an update on a batch of this shape."""
    classes_key, dream_key, penalty_key = jax.random.split(key, 3)
    states, stoch = batch.reward.size, config.model.stoch
    dreams = (config.behavior.horizon, states)
    dream_classes_key, action_key = jax.random.split(dream_key)
    return Noise(
        jax.random.uniform(classes_key, (*batch.reward.shape, stoch)),
        DreamNoise(
            jax.random.uniform(dream_classes_key, (*dreams, stoch)),
            model.policy.draw_noise(dreams, key=action_key),
        ),
        world_model.draw_penalty_noise(config, states, key=penalty_key),
    )


class LossOutput(NamedTuple):
    """What the loss leaves behind besides its value."""

    latents: Latent
    normalizer: Normalizer
    metrics: Metrics


def loss(
    config: AgentConfig, model: Model, state: AgentState, batch: Batch, noise: Noise
) -> tuple[Float[Array, ""], LossOutput]:
    """The one loss of all modules. `state` gives what is not trained by gradients."""
    plain = model.world.dynamics
    model, slow_value = fused.chosen(config, batch, (model, state.slow_value))
    config = with_numbers(config, state.hyper.numbers)
    world, hyper = model.world, state.hyper

    prediction = world_model.predict(config, world, batch, noise.classes)
    # By products, it is differentiated twice.
    penalties = world_model.penalties(config, plain, prediction, noise.penalty, over_all=hyper.over_all)

    seen = prediction.observed
    start = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), States(seen.h, seen.z))
    dream = world.dynamics.imagine(model.policy, start, noise.dream, unroll=config.unroll)
    scores = behavior.score(world, model.policy, model.value, slow_value, dream)
    dreamt = behavior.dream_losses(config.behavior, state.normalizer, dream.action, scores)

    value, slow = seen.read(model.value, slow_value)
    bootstrap = dreamt.returns[0].reshape(batch.reward.shape)
    replay_value = behavior.replay_value_loss(config.behavior, batch, bootstrap, value, slow.mean())

    scales = config.loss
    weights = {"dyn": scales.dyn, "rep": scales.rep, "reward": scales.reward, "cont": scales.cont}
    weights |= {"policy": 1.0, "value": 1.0, "replay_value": config.behavior.replay_value}
    learned = {"policy": dreamt.policy, "value": dreamt.value, "replay_value": replay_value}
    averages = of_each(jnp.mean, prediction.losses | learned)
    terms = {k: (weights.get(k, scales.reconstruction), x) for k, x in averages.items()}
    for name, value in penalties.items():
        weight = world_model.penalty_weight(config.penalty, getattr(hyper, name), state.updates)
        terms[f"penalty_{name}"] = (weight, value)
    total = sum(weight * term for weight, term in terms.values())

    metrics = {f"loss/{name}": term for name, (_, term) in terms.items()} | {"loss/total": total}
    metrics |= {f"weight/{name}": weight for name, (weight, _) in terms.items() if name.startswith("penalty")}
    metrics |= prediction.metrics | dreamt.metrics
    return total, LossOutput(world.dynamics.pack(seen), dreamt.normalizer, metrics)


def update(config: AgentConfig, state: AgentState, batch: Batch) -> tuple[AgentState, Latent, Metrics]:
    """One gradient step. Returns the new state, the batch's new latents `[T, B, ...]`, and metrics.

    If the loss, any gradient or any new parameter is not finite, the state keeps its values and only the
    counters move.
    """
    noise = draw_noise(config, state.model, batch, jax.random.fold_in(state.key, state.updates))
    gradient = jax.value_and_grad(lambda model: loss(config, model, state, batch, noise), has_aux=True)
    (total, out), grads = gradient(state.model)
    config = with_numbers(config, state.hyper.numbers)
    steps, optimizer = laprop(config.optimizer).update(grads, state.optimizer, state.model)
    rate = config.optimizer.behavior_rate
    steps = eqx.tree_at(
        lambda model: (model.policy, model.value),
        steps,
        replace_fn=lambda part: jax.tree.map(lambda step: rate * step, part),
    )
    model = eqx.apply_updates(state.model, steps)
    slow_value = follow(state.slow_value, model.value, config.behavior.slow_rate)

    norms = jnp.linalg.norm(tensor_norms(state.model, grads), axis=1)
    norms = {"norm/parameters": norms[0], "norm/gradient": norms[1]}
    # Parameters were finite, and stay so: LaProp's steps are bounded by its rate if gradients are finite.
    finite = jnp.isfinite(total + norms["norm/gradient"] + rate * config.optimizer.learning_rate)
    new = {"model": model, "slow_value": slow_value, "optimizer": optimizer, "normalizer": out.normalizer}
    old = {name: getattr(state, name) for name in new}
    state = state._replace(
        **jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old),
        updates=state.updates + 1,
        skipped=jnp.where(finite, state.skipped, state.skipped + 1),
        skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
    )
    counts = {"updates/skipped": state.skipped, "updates/skipped_in_row": state.skipped_in_row}
    metrics = out.metrics | norms | {k: x.astype(jnp.float32) for k, x in counts.items()}
    return state, out.latents, metrics


def follow(slow: PyTree, source: PyTree, rate: Number) -> PyTree:
    """Move slow parameters towards their source."""
    return jax.tree.map(lambda old, new: (1 - rate) * old + rate * new, slow, source)


has_kernels = fused.work_here
"""Whether an update may be compiled from GPU kernels here."""
