"""Milestones: the model alone, kept for good at regular steps, to measure it over training.

    milestones/000000065536/   a checkpoint without replay, optimiser and environments, named by its env steps

They are written and checked as checkpoints are, and read by the same `Checkpoints`.
"""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import PyTree

from gpld.training.checkpoints import _files, _trees
from gpld.training.checkpoints._checkpoints import saved_steps
from gpld.training.checkpoints._copies import Room
from gpld.training.checkpoints._snapshot import Snapshot

MILESTONES = "milestones"
"""The folder of milestones in that of a run."""


def save(folders: Sequence[Path], step: int, models: PyTree, *, updates: int) -> None:
    """Save the models of R runs, `[R, ...]`, after `step`; they are on disk when this returns.

    Training waits for it: a fraction of a second for each run, once in many thousand updates.
    """
    trees = _trees.copy({"agent": {"model": models}}, Room()).split(len(folders))
    for folder, tree in zip(folders, trees, strict=True):
        path = _path(folder, step)
        _files.make_folder(path.parent)
        nothing = range(0)
        snapshot = Snapshot(step, tree, nothing, nothing, [], [], 0, {}, {"updates": updates})
        snapshot.write(_files.temporary(path), [])
        _files.publish(path)


def set_aside(folder: Path, *, after: int) -> list[Path]:
    """Set aside milestones newer than the step that a run resumes from, and remove incomplete ones.

    The run will repeat these steps and save them again. Returns where the old ones are now.
    """
    _files.remove_unfinished(folder / MILESTONES)
    later = [step for step in saved_steps(folder / MILESTONES) if step > after]
    return [_files.set_aside(_path(folder, step), folder / MILESTONES) for step in later]


def _path(folder: Path, step: int) -> Path:
    return folder / MILESTONES / f"{step:012d}"
