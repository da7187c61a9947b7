"""Vector environments: EnvPool, dm_control and Gymnasium behind one small interface."""

from gpld.envs._base import EnvironmentFailure as EnvironmentFailure
from gpld.envs._base import Fault as Fault
from gpld.envs._base import Step as Step
from gpld.envs._base import VectorEnv as VectorEnv
from gpld.envs._base import stream_seed as stream_seed
from gpld.envs._catalog import Task as Task
from gpld.envs._catalog import has_envpool as has_envpool
from gpld.envs._catalog import tasks as tasks
from gpld.envs._catalog import tasks_table as tasks_table
from gpld.envs._check import check as check
from gpld.envs._dm_control import pixel_spaces as pixel_spaces
from gpld.envs._dm_control import renderers as renderers
from gpld.envs._dm_control import suite_tasks as suite_tasks
from gpld.envs._fleet import Fleet as Fleet
from gpld.envs._gymnasium import Issue as Issue
from gpld.envs._imports import announce as announce
from gpld.envs._imports import opening as opening
from gpld.envs._make import choose as choose
from gpld.envs._make import make as make
from gpld.envs._poses import Poses as Poses
from gpld.envs._process import Hosts as Hosts
