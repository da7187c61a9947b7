"""The world model: what a latent state is, how it follows from the last one, and what it predicts."""

from gpld.world_model._decoder import Decoder
from gpld.world_model._dreams import Dreams, pull_dream
from gpld.world_model._encoder import STAGES, Encoder
from gpld.world_model._loss import Prediction, predict
from gpld.world_model._model import WorldModel
from gpld.world_model._penalty import PenaltyNoise, draw_penalty_noise, penalties, penalty_weight
from gpld.world_model._record import empty_record, write
from gpld.world_model._rssm import Dynamics, Observed, observe, step_posterior

__all__ = [
    "STAGES",
    "Decoder",
    "Dreams",
    "Dynamics",
    "Encoder",
    "Observed",
    "PenaltyNoise",
    "Prediction",
    "WorldModel",
    "draw_penalty_noise",
    "empty_record",
    "observe",
    "penalties",
    "penalty_weight",
    "predict",
    "pull_dream",
    "step_posterior",
    "write",
]
