"""The paper's experiments as data, and where they run: this machine, a Slurm cluster, Ray."""

from gpld.studies._cli import report_command as report_command, study_command as study_command
from gpld.studies._estimate import CostEstimate as CostEstimate, estimate as estimate
from gpld.studies._local import LocalOptions as LocalOptions
from gpld.studies._plan import Group as Group, Plan as Plan, Run as Run, plan as plan, read_plan as read_plan
from gpld.studies._ray import RayOptions as RayOptions
from gpld.studies._run import RunOptions as RunOptions, default_folder as default_folder, run as run
from gpld.studies._show import write_report as write_report
from gpld.studies._slurm import SlurmOptions as SlurmOptions
from gpld.studies._state import RunState as RunState, run_states as run_states
from gpld.studies._study import Study as Study, get as get, names as names
from gpld.studies._tables import (
    committed as committed,
    export as export,
    unpack_committed as unpack_committed,
)
