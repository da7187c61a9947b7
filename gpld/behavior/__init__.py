"""Behaviour: dreams of the world model, their returns, and the policy and value that learn from them."""

from gpld.behavior._dynamics import pull_advantages
from gpld.behavior._imagination import Dream, DreamNoise, draw_noise, imagine
from gpld.behavior._losses import Normalizer, dream_losses, replay_value_loss
from gpld.behavior._policy import PolicyHead
from gpld.behavior._returns import dream_returns, replay_returns

__all__ = [
    "Dream",
    "DreamNoise",
    "Normalizer",
    "PolicyHead",
    "draw_noise",
    "dream_losses",
    "dream_returns",
    "imagine",
    "pull_advantages",
    "replay_returns",
    "replay_value_loss",
]
