"""The world model: what a latent state is, how it follows from the last one, and what it predicts."""

from gpld.world_model._decoder import Decoder
from gpld.world_model._encoder import STAGES, Encoder
from gpld.world_model._loss import Prediction, predict
from gpld.world_model._model import TwoHotHead, WorldModel
from gpld.world_model._penalty import PenaltyNoise, draw_penalty_noise, penalties, penalty_weight
from gpld.world_model._rssm import RSSM, Dream, DreamNoise, Observed, States, bounded

__all__ = [
    "RSSM",
    "STAGES",
    "Decoder",
    "Dream",
    "DreamNoise",
    "Encoder",
    "Observed",
    "PenaltyNoise",
    "Prediction",
    "States",
    "TwoHotHead",
    "WorldModel",
    "bounded",
    "draw_penalty_noise",
    "penalties",
    "penalty_weight",
    "predict",
]
