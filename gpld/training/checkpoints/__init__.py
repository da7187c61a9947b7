"""Checkpoints of runs: everything a run needs to continue as if it had never stopped.

    checkpoints/
      set-aside/                           newer than a damaged checkpoint, which the run repeats
      steps/000000000000-000000004096.npy  steps appended to the replay between two checkpoints, written once
      000000065536/                        one checkpoint, named by its step:
        arrays/                              agent, carry and other arrays, by Orbax
        latents/                             the replay's latents, which training changes
        blobs/                               bytes, such as the states of environments
        manifest.json, manifest.sha256       size and SHA-256 of every file, those in steps/ included

Files and folders get these names once they are complete on disk, and what they replace is removed after
that. So there is always a good checkpoint to restore, whenever the process, the machine or the disk fails.
"""

from gpld.training.checkpoints._checkpoints import (
    STEPS as STEPS,
    Checkpoints as Checkpoints,
    complete as complete,
    discard_replay as discard_replay,
    is_replay as is_replay,
    newest_good as newest_good,
    restore_all as restore_all,
    save_all as save_all,
    saved_steps as saved_steps,
)
from gpld.training.checkpoints._copies import Copied as Copied
from gpld.training.checkpoints._files import SET_ASIDE as SET_ASIDE
from gpld.training.checkpoints._manifest import CheckpointError as CheckpointError
from gpld.training.checkpoints._snapshot import Blob as Blob, Restored as Restored
from gpld.training.checkpoints._trees import named_leaves as named_leaves
