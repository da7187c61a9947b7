"""Names of tasks: the suite's, the groups the paper reports them in, and those nearest to a mistyped one."""

import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches

PROPRIO = (
    "acrobot-swingup",
    "acrobot-swingup_sparse",
    "cartpole-balance",
    "cartpole-balance_sparse",
    "cartpole-swingup",
    "cartpole-swingup_sparse",
    "cheetah-run",
    "finger-spin",
    "finger-turn_easy",
    "finger-turn_hard",
    "hopper-hop",
    "hopper-stand",
    "pendulum-swingup",
    "reacher-easy",
    "reacher-hard",
    "walker-run",
    "walker-stand",
    "walker-walk",
)
"""The 18 tasks of the paper's main table."""

LOCOMOTION = ("cheetah-run", "hopper-hop", "hopper-stand", "walker-run", "walker-stand", "walker-walk")
"""The paper's higher-complexity subset."""

QUADRUPED = ("quadruped-run", "quadruped-walk")
"""Trained for 4M env steps."""

DMC = PROPRIO + QUADRUPED
"""The 20 tasks of the benchmark."""

_SUITE = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse three_poles two_poles",
    "cheetah": "run",
    "dog": "fetch run stand trot walk",
    "finger": "spin turn_easy turn_hard",
    "fish": "swim upright",
    "hopper": "hop stand",
    "humanoid": "run run_pure_state stand walk",
    "humanoid_CMU": "run stand walk",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "escape fetch run walk",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer15 swimmer6",
    "walker": "run stand walk",
}
"""The tasks of each domain."""

SUITE = tuple(f"{domain}-{task}" for domain, names in _SUITE.items() for task in names.split())
"""Every task of dm_control's suite."""

GYM_PREFIX = "gym:"
"""Tasks that start with this are names in Gymnasium's registry."""

JAX_PREFIX = "jax:"
"""Tasks that start with this name a module, and in it an environment written in JAX: jax:module:name."""

POOL_PREFIX = "envpool:"
"""Tasks that start with this are names in EnvPool's registry."""

CRAFTER = f"{GYM_PREFIX}gpld.envs.crafter:Crafter-v1"
"""Crafter, which Gymnasium knows once this module is imported."""


def registered_tasks(module: str = "") -> list[str]:
    """Crafter, and the tasks that Gymnasium and the installed EnvPool have in their registries.

    With an imported module, also those that are not Gymnasium's own: they go by the module's name.
    """
    import gymnasium

    found = [CRAFTER]
    for name, spec in gymnasium.registry.items():
        entry = spec.entry_point
        place = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
        if not place.startswith("gymnasium."):
            found += [f"{GYM_PREFIX}{module}:{name}"] if module else []
        elif isinstance(entry, str):  # others only say what became of them
            found.append(GYM_PREFIX + name)
    with suppress(Exception):  # of whatever kind: EnvPool is not there, or cannot be imported
        from envpool.registration import registry

        found += [POOL_PREFIX + name for name in registry.specs]
    return [*dict.fromkeys(found)]  # Crafter registers itself, too


def near(task: str, known: Iterable[str]) -> list[str]:
    """At most three of the known tasks, nearest to a mistyped name, whatever its case and prefix."""
    kind = task.lower().partition(":")[0] + ":"
    if kind == JAX_PREFIX:  # what modules have is not listed
        return [JAX_PREFIX + task[len(kind) :]]
    alike: dict[str, list[str]] = {}
    for other in known:
        alike.setdefault(_bare(other), []).append(other)
    names = [_bare(task)] if _bare(task) in alike else get_close_matches(_bare(task), alike, n=3)
    found = [other for name in names for other in alike[name] if other != task]
    return ([other for other in found if other.startswith(kind)] or found)[:3]


def _bare(task: str) -> str:
    """A name without its prefix and module; `atari_pong` and `ALE/Pong-v5` are other names of Pong."""
    return re.sub(r"^(ale/|atari_)", "", task.lower().rpartition(":")[2])
