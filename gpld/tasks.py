"""Names of the DeepMind Control tasks and the groups the paper reports them in. Data only."""

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
