"""How long runs take on a CPU, before they begin: enough to tell minutes from weeks."""

import time
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from gpld import agent
from gpld.config import Config
from gpld.population import Member, programs
from gpld.training._groups import newest
from gpld.types import Spaces

SHORT = 600.0
"""Seconds below which nothing needs to be said."""
LONG = 24 * 3600.0
"""Seconds from which a run on a CPU is hopeless for most."""
SHARE, SMALL_SHARE = 0.25, 0.12
"""Of the speed of one large product, what an update reaches on two cores: with 1m and more, and with nano."""
SMALL = 1e10
"""Operations of an update that lie between those of nano and of 1m."""
SMALL_ENV_STEPS = 26_000
"""Length of the run that is suggested instead."""


def expected_seconds(members: Sequence[Member]) -> float:
    """A rough time of what is left of runs that a CPU trains.

    From the arithmetic of an update and the speed of one product on this machine; acting, evaluations and
    convolutions come on top.
    """
    products = sum(map(_products_left, programs(members)))
    return products / product_rate() if products else 0.0


def _products_left(members: Sequence[Member]) -> float:
    """Operations of large products that take as long as what is left of runs that one program trains."""
    config, left = members[0].config, 0
    for member in members:
        done = newest(member) // config.env.action_repeat
        left += max(0, config.updates_at(member.config.agent_steps) - config.updates_at(done))
    if not left:
        return 0.0
    operations = update_flops(config)
    return left * operations / (SHARE if operations > SMALL else SMALL_SHARE)


def duration_lines(seconds: float, config: Config) -> list[str]:
    """Lines about an expected time: nothing if it is short, and what to type instead if it is hopeless."""
    if seconds < SHORT:
        return []
    lines = [f"expected time: about {in_words(seconds)} on this CPU"]
    if seconds > LONG:
        images = " --env.pixels" * config.env.pixels
        lines += [
            "that is too long for most purposes; a GPU takes hours, a small agent minutes (images: hours):",
            f"    gpld train {config.task}{images} --preset nano --env-steps {SMALL_ENV_STEPS}",
        ]
    return lines


def in_words(seconds: float) -> str:
    """A rough time: `20 seconds`, `12 minutes`, `5 hours`, `40 days`."""
    units = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))
    unit, length = next((unit for unit in units if seconds >= 1.5 * unit[1]), units[-1])
    count = max(1, round(seconds / length))
    return f"{count} {unit}{'s' if count > 1 else ''}"


def update_flops(config: Config) -> float:
    """Floating-point operations of one update's products, but for the few that depend on observations."""
    narrow = Spaces.of({"x": (1,)}, 1)
    state = jax.eval_shape(partial(agent.init, config.agent, narrow), jax.random.key(0))
    model, world = state.model, state.model.world
    size = {
        name: sum(leaf.size for leaf in jax.tree.leaves(part) if leaf.ndim > 1)
        for name, part in {
            "world": world,
            "dynamics": (world.dynamics.inputs, world.dynamics.hidden, world.dynamics.gates),
            "prior": world.dynamics.prior,
            "fixed": (world.reward, world.cont, state.slow_value),
            "learning": (model.policy, model.value),
            "policy": model.policy,
        }.items()
    }
    observed = config.replay.batch * config.replay.length
    dreamt = observed * (config.agent.behavior.horizon + 1)
    forward = size["dynamics"] + size["prior"] + size["policy"] + size["fixed"]
    # Two operations a weight forwards, and four backwards.
    return 6.0 * observed * (size["world"] + size["learning"]) + dreamt * (
        2.0 * forward + 6.0 * size["learning"]
    )


def product_rate(size: int = 768, repeats: int = 5) -> float:
    """Floating-point operations per second of a large product in float32, the best of some."""
    x = jnp.ones((size, size))
    product = jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
