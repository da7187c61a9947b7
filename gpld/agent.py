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

from gpld import behavior, kernels, world_model
from gpld.behavior import DreamNoise, Normalizer, PolicyHead
from gpld.config import AgentConfig, ConfigError
from gpld.distributions import FusedTwoHot, TwoHot, bernoulli_mean
from gpld.kernels import Part
from gpld.nets import Head, aligned, joint_heads
from gpld.optimizer import laprop, tensor_norms
from gpld.types import Batch, Latent, Spaces
from gpld.world_model import PenaltyNoise, WorldModel


class Model(eqx.Module):
    """All trained parameters."""

    world: WorldModel
    policy: PolicyHead
    value: Head


class Hyper(NamedTuple):
    """Hyperparameters that may differ between runs of one program, as float32 scalars."""

    learning_rate: Float[Array, ""]
    entropy: Float[Array, ""]
    posterior: Float[Array, ""]
    """Initial weight of the posterior penalty."""
    prior: Float[Array, ""]
    """Initial weight of the prior penalty."""
    floor: Float[Array, ""]
    """Smallest weight of both."""
    over_all: Float[Array, ""]
    """1 to average the penalty over all states, 0 over those that it was evaluated on."""

    @classmethod
    def of(cls, config: AgentConfig) -> "Hyper":
        """Those of a run."""
        penalty = config.penalty
        values = cls(
            learning_rate=config.optimizer.learning_rate,
            entropy=config.behavior.entropy,
            posterior=penalty.posterior,
            prior=penalty.prior,
            floor=penalty.floor,
            over_all=penalty.scaling == "all",
        )
        return cls(*(jnp.float32(value) for value in values))


class AgentState(NamedTuple):
    """Everything that an update reads and changes."""

    model: Model
    slow_value: Head
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
    if config.behavior.gradient == "dynamics" and spaces.discrete:
        raise ConfigError(
            "agent.behavior.gradient: 'dynamics' needs continuous actions, and these are discrete; "
            "take 'reinforce'"
        )
    state_key, world_key, policy_key, value_key = jax.random.split(key, 4)
    sizes = config.model
    feature = sizes.deter + sizes.stoch * sizes.classes
    model = Model(
        WorldModel.init(sizes, spaces, key=world_key),
        PolicyHead.init(config, spaces, key=policy_key),
        Head.init(feature, sizes.units, sizes.value_layers, sizes.bins, scale=0.0, key=value_key),
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
) -> Carry:
    """Observe and sample an action, in training and evaluation alike. `obs` is `[N, ...]`."""
    latent_key, action_key = jax.random.split(key)
    e = model.world.encoder(obs, jnp.dtype(config.compute))
    uniform = jax.random.uniform(latent_key, carry.latent.z.shape)
    dynamics = model.world.dynamics
    latent = world_model.step_posterior(dynamics, carry.latent, e, carry.action, is_first, uniform)
    feature = jnp.concatenate([latent.h, dynamics.one_hot(latent.z, latent.h.dtype)], axis=-1)
    policy = model.policy(feature)
    return Carry(latent, policy.sample(model.policy.draw_noise(is_first.shape, key=action_key)))


class Noise(NamedTuple):
    """All random numbers of one update."""

    classes: Float[Array, "T B K"]
    dream: DreamNoise
    penalty: PenaltyNoise


def draw_noise(config: AgentConfig, model: Model, batch: Batch, key: PRNGKeyArray) -> Noise:
    """Random numbers for an update on a batch of this shape."""
    classes, dream, penalty = jax.random.split(key, 3)
    states = batch.reward.size
    return Noise(
        jax.random.uniform(classes, (*batch.reward.shape, config.model.stoch)),
        behavior.draw_noise(config, model.policy, states, key=dream),
        world_model.draw_penalty_noise(config, states, key=penalty),
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
    prediction = world_model.predict(config, model.world, batch, noise.classes)
    seen, hyper = prediction.observed, state.hyper
    penalties = world_model.penalties(
        config, model.world.dynamics, prediction, noise.penalty, over_all=hyper.over_all
    )

    flat = [x.reshape(-1, x.shape[-1]) for x in (seen.h, seen.z)]
    fused = kernels.chosen(config, flat[0].shape[0])
    dream = behavior.imagine(
        model.world.dynamics, model.policy, *flat, noise.dream, unroll=config.unroll, fused=fused
    )
    scores = _score_dream(model, state.slow_value, dream)
    if config.behavior.gradient == "dynamics":
        baseline = state.slow_value if config.behavior.slow_target else model.value
        scores["by_action"] = behavior.pull_advantages(config, model.world, baseline, dream)
    dreamt = behavior.dream_losses(config.behavior, state.normalizer, hyper.entropy, **scores)

    value_logits, slow_logits = joint_heads([model.value, state.slow_value], seen.h, seen.z, fused=fused)
    replay_value = behavior.replay_value_loss(
        config.behavior,
        reward=batch.reward,
        is_last=batch.is_last,
        is_terminal=batch.is_terminal,
        bootstrap=jax.lax.stop_gradient(dreamt.returns[0].reshape(batch.reward.shape)),
        value_logits=value_logits,
        slow_logits=slow_logits,
    )

    scales = config.loss
    weights = {"dyn": scales.dyn, "rep": scales.rep, "reward": scales.reward, "cont": scales.cont}
    terms = {k: (weights.get(k, scales.reconstruction), x.mean()) for k, x in prediction.losses.items()}
    terms["policy"] = (1.0, dreamt.policy.mean())
    terms["value"] = (1.0, dreamt.value.mean())
    terms["replay_value"] = (config.behavior.replay_value, replay_value.mean())
    for name, value in penalties.items():
        initial = getattr(hyper, name)
        weight = world_model.penalty_weight(config.penalty, initial, hyper.floor, state.updates)
        terms[f"penalty_{name}"] = (weight, value)
    total = sum(weight * term for weight, term in terms.values())

    metrics = {f"loss/{name}": term for name, (_, term) in terms.items()} | {"loss/total": total}
    metrics |= {f"weight/{name}": weight for name, (weight, _) in terms.items() if name.startswith("penalty")}
    metrics |= prediction.metrics | dreamt.metrics
    latents = jax.lax.stop_gradient(Latent(seen.h, seen.index.astype(jnp.uint8)))
    return total, LossOutput(latents, dreamt.normalizer, metrics)


def _score_dream(model: Model, slow_value: Head, dream: behavior.Dream) -> dict[str, PyTree]:
    """Evaluate all heads on a dream. Only policy and value learn from it."""
    frozen = jax.lax.stop_gradient((model.world.reward, model.world.cont, slow_value))
    # XLA would merge these products with those on replayed states, and then copy their results apart.
    heads = jax.lax.optimization_barrier((*frozen, model.value))
    shape = dream.feature.shape[:2]
    rows = dream.feature.reshape(shape[0] * shape[1], -1)
    fused, read, first = dream.read is not None, None, [None] * len(heads)
    if dream.read is not None:
        read, first = Part(dream.read.reshape(len(rows), -1)), _first_products(heads, rows)

    def by_state(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), tree)

    def twohot(head: Head, known: Part | None) -> TwoHot | FusedTwoHot:
        if not fused:
            return TwoHot(by_state(head(rows)))
        head = aligned(head)
        return FusedTwoHot.of(by_state(head.product(rows, fused=True, known=known)), head.out.bias)

    reward, cont, slow, value = zip(heads, first, strict=True)
    policy = model.policy(rows, fused=fused, known=read)
    return {
        "reward": twohot(*reward).mean(),
        "cont": by_state(bernoulli_mean(cont[0](rows, fused=fused, known=cont[1])[:, 0])),
        "action": dream.action,
        # All states but the last act.
        "policy": jax.tree.map(lambda x: x[:-1], by_state(policy)),
        "value": twohot(*value),
        "slow_value": twohot(*slow).mean(),
    }


def _first_products(heads: Sequence[Head], rows: Float[Array, "N F"]) -> list[Part]:
    """What the first layers of all heads multiply the rows to: one product, which reads them once."""
    weights = jax.lax.stop_gradient([head.first.weight for head in heads])
    products = rows @ jnp.concatenate(weights, axis=1).astype(rows.dtype)
    return [Part(products, i) for i in range(len(heads))]


def update(config: AgentConfig, state: AgentState, batch: Batch) -> tuple[AgentState, Latent, Metrics]:
    """One gradient step. Returns the new state, the batch's new latents `[T, B, ...]`, and metrics.

    If the loss, any gradient or any new parameter is not finite, the state keeps its values and only the
    counters move.
    """
    noise = draw_noise(config, state.model, batch, jax.random.fold_in(state.key, state.updates))
    gradient = jax.value_and_grad(lambda model: loss(config, model, state, batch, noise), has_aux=True)
    (total, out), grads = gradient(state.model)
    steps, optimizer = laprop(config.optimizer).update(
        grads, state.optimizer, state.model, learning_rate=state.hyper.learning_rate
    )
    rate = config.optimizer.behavior_rate
    steps = eqx.tree_at(
        lambda model: (model.policy, model.value),
        steps,
        replace_fn=lambda part: jax.tree.map(lambda step: rate * step, part),
    )
    model = eqx.apply_updates(state.model, steps)
    slow_value = follow(state.slow_value, model.value, config.behavior.slow_rate)

    trees = {"gradient": grads, "update": steps, "parameters": state.model}
    norms = {f"norm/{name}": _norm(tree) for name, tree in trees.items()}
    # Parameters were finite, and stay so if what is added to them is.
    finite = jnp.isfinite(total + norms["norm/gradient"] + norms["norm/update"])
    old = (state.model, state.slow_value, state.optimizer, state.normalizer)
    new = (model, slow_value, optimizer, out.normalizer)
    model, slow_value, optimizer, normalizer = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
    state = AgentState(
        model,
        slow_value,
        optimizer,
        normalizer,
        state.hyper,
        state.key,
        updates=state.updates + 1,
        skipped=jnp.where(finite, state.skipped, state.skipped + 1),
        skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
    )
    counts = {"updates/skipped": state.skipped, "updates/skipped_in_row": state.skipped_in_row}
    metrics = out.metrics | norms | {k: x.astype(jnp.float32) for k, x in counts.items()}
    return state, out.latents, metrics


def follow(slow: PyTree, source: PyTree, rate: float) -> PyTree:
    """Move slow parameters towards their source."""
    return jax.tree.map(lambda old, new: (1 - rate) * old + rate * new, slow, source)


def _norm(tree: PyTree) -> Float[Array, ""]:
    return jnp.linalg.norm(tensor_norms(tree))
