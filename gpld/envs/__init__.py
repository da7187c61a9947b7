"""Vector environments: EnvPool, dm_control, Gymnasium and JAX's behind one small interface."""

from gpld.envs._base import (
    EnvironmentFailure as EnvironmentFailure,
    Fault as Fault,
    Step as Step,
    VectorEnv as VectorEnv,
    stream_seed as stream_seed,
)
from gpld.envs._cartpole import CartPole as CartPole
from gpld.envs._catalog import (
    Listed as Listed,
    Task as Task,
    all_tasks as all_tasks,
    all_tasks_text as all_tasks_text,
    has_envpool as has_envpool,
    tasks as tasks,
    tasks_table as tasks_table,
)
from gpld.envs._check import check as check
from gpld.envs._dm_control import (
    pixel_spaces as pixel_spaces,
    renderers as renderers,
    suite_tasks as suite_tasks,
)
from gpld.envs._fleet import Fleet as Fleet
from gpld.envs._gymnasium import Issue as Issue
from gpld.envs._imports import announce as announce, opening as opening
from gpld.envs._jax import EnvState as EnvState, JaxEnv as JaxEnv, JaxTask as JaxTask
from gpld.envs._make import choose as choose, make as make
from gpld.envs._poses import Poses as Poses
from gpld.envs._process import Hosts as Hosts
from gpld.envs._spaces import (
    action_choices as action_choices,
    action_reader as action_reader,
    action_width as action_width,
    flat_observation as flat_observation,
)
