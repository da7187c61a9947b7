"""Training and evaluation of runs, their checkpoints and logs."""

from gpld.training._lock import refuse_other_options as refuse_other_options
from gpld.training.checkpoints import CheckpointError as CheckpointError
from gpld.training.evaluation import evaluate as evaluate, play as play
from gpld.training.loop import (
    Result as Result,
    TrainingStopped as TrainingStopped,
    train as train,
    train_all as train_all,
)
