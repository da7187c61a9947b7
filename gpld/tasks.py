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
