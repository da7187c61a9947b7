"""The gradient penalty on the posterior and prior of the world model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpld import penalty
from gpld.config import AgentConfig, PenaltyConfig
from gpld.nets import NORM_EPS, MLPHead
from gpld.penalty import schedules
from gpld.world_model._loss import Prediction
from gpld.world_model._rssm import RSSM


class PenaltyNoise(NamedTuple):
    """What one evaluation of the penalty draws at random."""

    states: Int[Array, " n"]
    """The states it is evaluated on, of all T*B; posterior and prior share them."""
    rows: Int[Array, " rows"] | None
    """The rows it is evaluated on, if those are random."""
    probes: dict[str, Float[Array, "P n rows C"] | None]
    """By map; none for the exact value."""


def targets(config: PenaltyConfig) -> list[str]:
    """The maps that are penalised: `posterior`, `prior`, both, or neither for DreamerV3."""
    return [name for name in ("posterior", "prior") if getattr(config, name) > 0]


def draw_penalty_noise(config: AgentConfig, total: int, *, key: PRNGKeyArray) -> PenaltyNoise:
    """Random numbers for the penalty on a batch of `total` states."""
    options, sizes = config.penalty, config.model
    states_key, rows_key, probes_key = jax.random.split(key, 3)
    states = penalty.sample_states(states_key, total, options.rho)
    count = options.rows or sizes.stoch
    shape = (options.probes, len(states), count, sizes.classes)
    probes = {
        name: penalty.draw_probes(k, shape, options.noise) if options.estimator != "exact" else None
        for name, k in zip(("posterior", "prior"), jax.random.split(probes_key), strict=True)
    }
    rows = penalty.sample_rows(rows_key, sizes.stoch, count) if options.random_rows else None
    return PenaltyNoise(states, rows, probes)


def penalties(
    config: AgentConfig,
    dynamics: RSSM,
    prediction: Prediction,
    noise: PenaltyNoise,
    *,
    over_all: Float[Array, ""] | float = 0.0,
) -> dict[str, Float[Array, ""]]:
    """Mean squared Jacobian norm per row of every penalised map, by h and e (posterior) or by h (prior).

    The mean is over the sampled states, or with `over_all` 1 over all, as if those left out had none.
    """
    seen = prediction.observed
    by_first = {"posterior": lambda: seen.first, "prior": lambda: dynamics.prior.first(seen.h)}
    by_input = {"posterior": (seen.h, prediction.e), "prior": (seen.h,)}
    options, heads = config.penalty, {"posterior": dynamics.posterior, "prior": dynamics.prior}
    rows = noise.rows if options.random_rows else options.rows or None

    def sampled(*parts: Float[Array, "T B _"]) -> Float[Array, "n _"]:
        taken = [penalty.take_states(x.reshape(-1, x.shape[-1]), noise.states) for x in parts]
        return jnp.concatenate(taken, axis=-1)

    share = jnp.where(over_all > 0, noise.states.size / seen.first[..., 0].size, 1.0)
    values = {}
    for name in targets(options):
        if options.estimator == "vjp":
            u, probes = sampled(*by_input[name]), noise.probes[name]
            each = _by_products(dynamics, heads[name], u, probes, rows, config.compute)
        else:
            each = penalty.closed_form(
                _layers_of(heads[name], dynamics),
                sampled(by_first[name]()),
                noise.probes[name],
                rows=rows,
                dtype=jnp.dtype(config.compute),
            )
        values[name] = share * jnp.mean(each)
    return values


def _by_products(
    dynamics: RSSM,
    head: MLPHead,
    u: Float[Array, "n d"],
    probes: Float[Array, "P n rows C"] | None,
    rows: penalty.Rows,
    compute: str,
) -> Float[Array, " n"]:
    """The probes' estimate at every state by one vector-Jacobian product through the head for each row."""
    assert probes is not None, "drawn for every estimator but the exact one"

    def probs(u: Float[Array, " d"]) -> Float[Array, "K C"]:
        return dynamics.probs(head(u.astype(compute)))

    def estimate(u: Float[Array, " d"], probes: Float[Array, "P rows C"]) -> Float[Array, ""]:
        return penalty.probed(probs, u, probes, rows=rows)

    return jax.vmap(estimate, in_axes=(0, 1))(u.astype(jnp.float32), probes)


def penalty_weight(
    config: PenaltyConfig, initial: Float[Array, ""], updates: Int[Array, ""]
) -> Float[Array, ""]:
    """lambda after a number of updates, from `initial` on."""
    return schedules.coefficient(
        config.schedule,
        updates,
        initial,
        start=config.start,
        floor=config.floor,
        scale=config.scale,
        decay_steps=config.decay_steps,
        step_interval=config.step_interval,
        step_factor=config.step_factor,
        table=config.custom,
    )


def _layers_of(head: MLPHead, dynamics: RSSM) -> penalty.Head:
    """A head as the room `penalty` describes it."""
    layers = [(layer.linear, layer.norm) for layer in head.mlp.layers]
    return penalty.Head(
        layers=tuple(penalty.Hidden(linear.weight, linear.bias, norm.scale) for linear, norm in layers),
        out=penalty.Output(head.out.weight, head.out.bias),
        rows=dynamics.stoch,
        eps=NORM_EPS,
        unimix=dynamics.unimix,
    )
