"""Every option of an agent and a run: typed and frozen, with presets, validation and files."""

from gpld.config._arguments import OTHER_NAMES as OTHER_NAMES, normalize as normalize
from gpld.config._files import diff as diff, load as load, parse as parse, read as read, save as save
from gpld.config._options import (
    AgentConfig as AgentConfig,
    BehaviorConfig as BehaviorConfig,
    CheckpointConfig as CheckpointConfig,
    Config as Config,
    EnvConfig as EnvConfig,
    EvalConfig as EvalConfig,
    LogConfig as LogConfig,
    LossConfig as LossConfig,
    ModelConfig as ModelConfig,
    OptimizerConfig as OptimizerConfig,
    PenaltyConfig as PenaltyConfig,
    ReplayConfig as ReplayConfig,
)
from gpld.config._per_run import (
    ARRAYS as ARRAYS,
    NUMBERS as NUMBERS,
    PER_RUN as PER_RUN,
    with_numbers as with_numbers,
)
from gpld.config._presets import PRESETS as PRESETS, Preset as Preset, with_presets as with_presets
from gpld.config._tree import (
    ConfigError as ConfigError,
    flat as flat,
    merged as merged,
    nested as nested,
    override as override,
    suggestion as suggestion,
    unnested as unnested,
)
from gpld.config._validation import (
    check_backend as check_backend,
    check_numbers as check_numbers,
    evaluated_once as evaluated_once,
    learns_nothing as learns_nothing,
    validate as validate,
)
