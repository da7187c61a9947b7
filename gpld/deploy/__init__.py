"""A trained agent at work: from observations to actions, wherever they come from and go to.

    import gpld

    policy = gpld.load("runs/cartpole-swingup-seed0")
    env = my_robot()
    obs = env.reset()                  # {"position": [3 numbers], "velocity": [2 numbers]}
    while env.running:
        obs = env.step(policy.act(obs))
    policy.reset()                     # before the next episode

Only options and parameters are read, and no simulator need be installed. `gpld.export` writes a file that
programs without JAX and this package can run.
"""

from gpld.deploy._export import Exported as Exported, export as export, export_command as export_command
from gpld.deploy._policy import Policy as Policy, load as load
