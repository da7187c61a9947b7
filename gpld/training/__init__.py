"""Training and evaluation of runs, their checkpoints and logs."""

from gpld.training.checkpoints import CheckpointError as CheckpointError
from gpld.training.evaluation import evaluate as evaluate
from gpld.training.evaluation import play as play
from gpld.training.loop import Result as Result
from gpld.training.loop import TrainingStopped as TrainingStopped
from gpld.training.loop import train as train
from gpld.training.loop import train_all as train_all
