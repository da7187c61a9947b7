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

SUITE = (
    "acrobot-swingup",
    "acrobot-swingup_sparse",
    "ball_in_cup-catch",
    "cartpole-balance",
    "cartpole-balance_sparse",
    "cartpole-swingup",
    "cartpole-swingup_sparse",
    "cartpole-three_poles",
    "cartpole-two_poles",
    "cheetah-run",
    "dog-fetch",
    "dog-run",
    "dog-stand",
    "dog-trot",
    "dog-walk",
    "finger-spin",
    "finger-turn_easy",
    "finger-turn_hard",
    "fish-swim",
    "fish-upright",
    "hopper-hop",
    "hopper-stand",
    "humanoid-run",
    "humanoid-run_pure_state",
    "humanoid-stand",
    "humanoid-walk",
    "humanoid_CMU-run",
    "humanoid_CMU-stand",
    "humanoid_CMU-walk",
    "lqr-lqr_2_1",
    "lqr-lqr_6_2",
    "manipulator-bring_ball",
    "manipulator-bring_peg",
    "manipulator-insert_ball",
    "manipulator-insert_peg",
    "pendulum-swingup",
    "point_mass-easy",
    "point_mass-hard",
    "quadruped-escape",
    "quadruped-fetch",
    "quadruped-run",
    "quadruped-walk",
    "reacher-easy",
    "reacher-hard",
    "stacker-stack_2",
    "stacker-stack_4",
    "swimmer-swimmer15",
    "swimmer-swimmer6",
    "walker-run",
    "walker-stand",
    "walker-walk",
)
"""Every task of dm_control 1.0.38's suite."""

GYM_PREFIX = "gym:"
"""Tasks that start with this are names in Gymnasium's registry."""
