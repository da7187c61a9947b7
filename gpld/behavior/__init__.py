"""Behaviour: the policy and value, and how they learn from dreams of the world model and from replay."""

from gpld.behavior._losses import (
    Normalizer as Normalizer,
    Scores as Scores,
    dream_losses as dream_losses,
    replay_value_loss as replay_value_loss,
    score as score,
)
from gpld.behavior._policy import PolicyHead as PolicyHead
from gpld.behavior._returns import dream_returns as dream_returns, replay_returns as replay_returns
