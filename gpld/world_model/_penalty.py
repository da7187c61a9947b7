"""The gradient penalty on the posterior and prior of the world model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpld import penalty
from gpld.config import AgentConfig, PenaltyConfig
from gpld.nets import NORM_EPS, Head
from gpld.penalty import schedules
from gpld.world_model._loss import Prediction
from gpld.world_model._rssm import Dynamics


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
        name: penalty.draw_probes(k, shape, options.noise) if options.estimator == "probes" else None
        for name, k in zip(("posterior", "prior"), jax.random.split(probes_key), strict=True)
    }
    rows = penalty.sample_rows(rows_key, sizes.stoch, count) if options.random_rows else None
    return PenaltyNoise(states, rows, probes)


def penalties(
    config: AgentConfig, dynamics: Dynamics, prediction: Prediction, noise: PenaltyNoise
) -> dict[str, Float[Array, ""]]:
    """Mean squared Jacobian norm per row of every penalised map, by h and e (posterior) or by h (prior)."""
    heads = {
        "posterior": (dynamics.posterior, prediction.observed.first),
        "prior": (dynamics.prior, prediction.prior_first),
    }
    options = config.penalty
    rows = noise.rows if options.random_rows else options.rows or None
    values = {}
    for name in targets(options):
        head, first = heads[name]
        first = first.reshape(-1, first.shape[-1])
        values[name] = penalty.average(
            penalty.closed_form(
                _described(head, dynamics),
                penalty.take_states(first, noise.states),
                noise.probes[name],
                rows=rows,
                dtype=jnp.dtype(config.compute),
            ),
            total=first.shape[0],
            scaling=options.scaling,
        )
    return values


def penalty_weight(
    config: PenaltyConfig, initial: Float[Array, ""], updates: Int[Array, ""]
) -> Float[Array, ""]:
    """lambda after a number of updates."""
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


def _described(head: Head, dynamics: Dynamics) -> penalty.Head:
    """A head of ours as the penalty's library describes heads."""
    layers = [(layer.linear, layer.norm) for layer in head.mlp.layers]
    return penalty.Head(
        layers=tuple(penalty.Hidden(linear.weight, linear.bias, norm.scale) for linear, norm in layers),
        out=penalty.Output(head.out.weight, head.out.bias),
        rows=dynamics.stoch,
        eps=NORM_EPS,
        unimix=dynamics.unimix,
    )
