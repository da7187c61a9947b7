"""Scores of a run's checkpoints, taken on its way: kept beside it in one file."""

import json
from pathlib import Path
from typing import Any

from gpld import files
from gpld.training.score import Score

SCORES = "scores.json"
"""The file in a run's folder, with the list `scores`, one entry for each env step at which it was scored."""


def read_scores(folder: Path) -> list[dict[str, Any]]:
    """Scores in a run's folder, by env steps: `env_steps`, `updates`, `mean`, `std` and `returns`."""
    return files.read_list(folder / SCORES, "scores")


def add_score(folder: Path, score: Score) -> None:
    """Add a score to those in a run's folder, in one move; one at the same env steps is replaced."""
    entry = {**score._asdict(), "mean": score.mean, "std": score.std}
    others = [old for old in read_scores(folder) if old["env_steps"] != score.env_steps]
    scores = sorted([*others, entry], key=lambda old: old["env_steps"])
    files.write_text(folder / SCORES, json.dumps({"scores": scores}, indent=1) + "\n")
