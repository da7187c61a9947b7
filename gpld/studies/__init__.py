"""The paper's experiments as data, and where they run: this machine, a Slurm cluster, Ray."""

from gpld.studies._cli import report_command as report_command
from gpld.studies._cli import study_command as study_command
from gpld.studies._estimate import CostEstimate as CostEstimate
from gpld.studies._estimate import estimate as estimate
from gpld.studies._local import LocalOptions as LocalOptions
from gpld.studies._plan import Group as Group
from gpld.studies._plan import Plan as Plan
from gpld.studies._plan import Run as Run
from gpld.studies._plan import plan as plan
from gpld.studies._plan import read_plan as read_plan
from gpld.studies._ray import RayOptions as RayOptions
from gpld.studies._report import write_report as write_report
from gpld.studies._run import RunOptions as RunOptions
from gpld.studies._run import default_folder as default_folder
from gpld.studies._run import run as run
from gpld.studies._slurm import SlurmOptions as SlurmOptions
from gpld.studies._state import RunState as RunState
from gpld.studies._state import run_states as run_states
from gpld.studies._study import Study as Study
from gpld.studies._study import get as get
from gpld.studies._study import names as names
from gpld.studies._tables import committed as committed
from gpld.studies._tables import export as export
from gpld.studies._tables import unpack_committed as unpack_committed
