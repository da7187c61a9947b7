"""The world model: what a latent state is, how it follows from the last one, and what it predicts."""

from gpld.world_model._decoder import Decoder as Decoder
from gpld.world_model._encoder import STAGES as STAGES, Encoder as Encoder
from gpld.world_model._loss import Prediction as Prediction, predict as predict
from gpld.world_model._model import TwoHotHead as TwoHotHead, WorldModel as WorldModel
from gpld.world_model._penalty import (
    PenaltyNoise as PenaltyNoise,
    draw_penalty_noise as draw_penalty_noise,
    penalties as penalties,
    penalty_weight as penalty_weight,
)
from gpld.world_model._rssm import (
    RSSM as RSSM,
    Dream as Dream,
    DreamNoise as DreamNoise,
    Observed as Observed,
    States as States,
    bounded as bounded,
)
