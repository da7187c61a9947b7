"""Every option of an agent and a run: typed and frozen, with presets, validation and files."""

from gpld.config._files import diff as diff
from gpld.config._files import load as load
from gpld.config._files import save as save
from gpld.config._options import AgentConfig as AgentConfig
from gpld.config._options import BehaviorConfig as BehaviorConfig
from gpld.config._options import CheckpointConfig as CheckpointConfig
from gpld.config._options import Config as Config
from gpld.config._options import EnvConfig as EnvConfig
from gpld.config._options import EvalConfig as EvalConfig
from gpld.config._options import LogConfig as LogConfig
from gpld.config._options import LossConfig as LossConfig
from gpld.config._options import ModelConfig as ModelConfig
from gpld.config._options import OptimizerConfig as OptimizerConfig
from gpld.config._options import PenaltyConfig as PenaltyConfig
from gpld.config._options import ReplayConfig as ReplayConfig
from gpld.config._presets import PRESETS as PRESETS
from gpld.config._presets import Preset as Preset
from gpld.config._presets import with_presets as with_presets
from gpld.config._tree import ConfigError as ConfigError
from gpld.config._tree import flat as flat
from gpld.config._tree import override as override
from gpld.config._tree import suggestion as suggestion
from gpld.config._validation import check_numbers as check_numbers
from gpld.config._validation import validate as validate
