"""Things that may crash, hang or take the device, each tried in a process of its own:

python -m gpld.doctor._probes device
"""

import json
import sys

SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <geom type="sphere" size=".2"/>
    <camera pos="0 -1 0" xyaxes="1 0 0 0 0 1"/>
  </worldbody>
</mujoco>
"""


def device() -> str:
    """Compile and run a product on JAX's first device; its kind, their number, and bytes (0 if unknown)."""
    import jax
    import jax.numpy as jnp

    ones = jnp.ones((8, 8))
    if float(jax.jit(jnp.matmul)(ones, ones).sum()) != 512.0:
        raise ArithmeticError("a matrix product came out wrong")
    first = jax.devices()[0]
    memory = (first.memory_stats() or {}).get("bytes_limit", 0)
    return json.dumps(
        {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count(), "memory": memory}
    )


def dm_control() -> str:
    """Step a task of dm_control's suite."""
    from dm_control import suite

    env = suite.load("cartpole", "swingup", task_kwargs={"random": 0})
    env.reset()
    reward = env.step([0.0]).reward
    if not 0 <= reward <= 1:
        raise ArithmeticError(f"cartpole-swingup gave the reward {reward}, which is not in [0, 1]")
    return "runs cartpole-swingup"


def envpool() -> str:
    """Step a task of EnvPool."""
    import envpool
    import numpy as np

    env = envpool.make_gymnasium("CartpoleSwingup-v1", num_envs=1, seed=0)
    env.reset()
    reward = env.step(np.zeros((1, 1)))[1]
    if not 0 <= float(reward[0]) <= 1:
        raise ArithmeticError(f"cartpole-swingup gave the reward {reward}, which is not in [0, 1]")
    return "runs cartpole-swingup"


def gl() -> str:
    """Draw a sphere with the backend named by MUJOCO_GL."""
    from dm_control import mujoco

    image = mujoco.Physics.from_xml_string(SCENE).render(32, 32, camera_id=0)
    if image.max() == image.min():
        raise ArithmeticError("the picture is empty")
    return "draws"


if __name__ == "__main__":
    print(globals()[sys.argv[1]]())
