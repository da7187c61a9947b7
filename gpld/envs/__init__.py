"""Vector environments: EnvPool, dm_control and Gymnasium behind one small interface."""

from gpld.envs._base import EnvironmentFailure as EnvironmentFailure
from gpld.envs._base import Fault as Fault
from gpld.envs._base import Step as Step
from gpld.envs._base import VectorEnv as VectorEnv
from gpld.envs._catalog import Task as Task
from gpld.envs._catalog import tasks as tasks
