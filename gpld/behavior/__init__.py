"""Behaviour: the policy and value, and how they learn from dreams of the world model and from replay."""

from gpld.behavior._losses import Normalizer, Scores, dream_losses, replay_value_loss, score
from gpld.behavior._policy import PolicyHead
from gpld.behavior._returns import dream_returns, replay_returns

__all__ = [
    "Normalizer",
    "PolicyHead",
    "Scores",
    "dream_losses",
    "dream_returns",
    "replay_returns",
    "replay_value_loss",
    "score",
]
