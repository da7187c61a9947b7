"""Train all runs of one task of a study in one program, then score and measure them.

Made for a machine that is lent for a limited time: everything is written as soon as it is known, what matters most
first: metrics while training, then scores of the final models, then sensitivity and prediction quality of the final and
of earlier models, and last the parameters of the best run of the last method.

    python scripts/train_task.py locomotion-short walker-run --out studies/locomotion-short
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from gpld import machine
from gpld.population import Member
from gpld.studies import _plan, _state, _study
from gpld.training import saved, train_all
from gpld.training.evaluation import evaluate_all
from gpld.training.provenance import provenance
from gpld.training.saved import Trained
from gpld.training.score import Score


def main() -> None:
    """Train, score, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", help="name of a study, or the path of its file")
    parser.add_argument("task", help="one of its tasks")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    arguments = parser.parse_args()
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:7.1f} s] {text}", flush=True)

    machine.use_compilation_cache()
    study, out = _study.get(arguments.study), arguments.out
    runs = [run for run in _plan.plan(study).runs if run.task == arguments.task]
    folders = [_state.run_folder(out, run) for run in runs]
    say(f"{len(runs)} runs of {arguments.task} to {study.env_steps[-1]:,} env steps")
    train_all([Member(run.config, folder) for run, folder in zip(runs, folders, strict=True)])
    say("trained")

    steps = saved.steps(folders[0])
    final = [saved.load(folder, steps[-1]) for folder in folders]
    say("loaded")
    scores = _scores(final, study.score_episodes)
    for folder, score in zip(folders, scores, strict=True):
        entry = {**score._asdict(), "mean": score.mean, "std": score.std}
        (folder / "scores.json").write_text(json.dumps({"scores": [entry], "provenance": provenance()}))
    say("scored: " + ", ".join(f"{score.mean:.1f}" for score in scores))
    for step in reversed(steps):
        for folder, trained in zip(folders, final, strict=True):
            found = trained if step == trained.env_steps else saved.load(folder, step)
            _measure(found, folder)
        say(f"measured at {step:,} env steps")
    last = [i for i, run in enumerate(runs) if run.method == runs[-1].method]
    best = max(last, key=lambda i: scores[i].mean)
    leaves = jax.tree.leaves(eqx.filter(final[best].model, eqx.is_array))
    np.savez(folders[best] / "model.npz", *map(np.asarray, leaves))
    (out / "best").write_text(str(folders[best].relative_to(out)))
    say(f"done; the best is {folders[best]}")


def _scores(trained: list[Trained], episodes: int) -> list[Score]:
    """`score.score` of all agents in one program."""
    configs = [one.config for one in trained]
    stack = partial(jax.tree.map, lambda *x: jax.numpy.stack(x) if eqx.is_array(x[0]) else x[0])
    keys = stack(*[jax.random.key(0) for _ in trained])
    returns = evaluate_all(
        configs, stack(*[one.model for one in trained]), episodes=episodes, number=0, keys=keys
    )
    return [
        Score(one.config.task, one.env_steps, one.updates, 0, own)
        for one, own in zip(trained, returns, strict=True)
    ]


def _measure(trained: Trained, folder: Path) -> None:
    """Sensitivity and prediction quality of one model, on the same four episodes."""
    from gpld.analysis import quality, rollouts, sensitivity

    batch = rollouts.roll_out(trained)
    for kind in (sensitivity, quality):
        rows = kind.measure(trained, batch)
        rows.insert(0, "updates", trained.updates)
        rows.insert(0, "env_steps", trained.env_steps)
        path = folder / f"{kind.NAME}.csv"
        rows.to_csv(path, mode="a", header=not path.exists(), index=False)


if __name__ == "__main__":
    main()
