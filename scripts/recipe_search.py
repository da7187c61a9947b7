"""Search for options that learn in fewer env steps, by sweeps with successive halving, a stage at a time.

    python scripts/recipe_search.py sizes                         # on a GPU; what it found is at the end
    python scripts/recipe_search.py data -- --preset 1m           # later stages take what earlier ones found
    python scripts/recipe_search.py sizes --small --print         # the command for a trial on a CPU

A stage is a command of `gpld train`, which resumes it if it is interrupted. Every setting is trained on four
tasks, with two seeds; options after `--` are those of `gpld train` and hold for all of them. What is
confirmed on fresh seeds is a finding: `--seeds 10..13` and the values that remain.
"""

import argparse
import shlex
import sys

from gpld import cli

TASKS = ("walker-walk", "walker-run", "cheetah-run", "hopper-stand")

STAGES = {
    "sizes": [
        "preset=1m,12m",
        "agent.model.blocks=1,8",
        "agent.optimizer.learning_rate=4e-5,1e-4,2e-4,4e-4",
        "agent.optimizer.warmup=0,1000",
    ],
    "data": [
        "env.count=1,4,16",
        "replay.train_ratio=512,1024",
        "agent.optimizer.learning_rate=1e-4,2e-4,4e-4",
    ],
    "behavior": [
        "agent.behavior.horizon=10,15,25",
        "agent.behavior.entropy=1e-4,3e-4,1e-3",
        "agent.optimizer.behavior_rate=0.5,1,2",
        "agent.behavior.discount_horizon=100,333",
    ],
    "batch": ["replay.batch=8,16,32", "replay.length=32,64", "env.action_repeat=1,2"],
    "penalty": [
        "agent.penalty.estimator=probes,exact",
        "agent.penalty.posterior=0,0.1,0.5",
        "agent.penalty.scale=1000,10000",
    ],
}
"""What each stage varies."""

SIZES = {
    False: "--seeds 0..1 --env-steps 100000 --halve-at 20000 50000 --eval.every 2500",
    True: "--seeds 0 --env-steps 3000 --halve-at 1000 2000 --eval.every 250 --eval.episodes 1 "
    "--replay.train-ratio 8 --preset nano",
}
"""Seeds and env steps of a search, and of a trial of it."""


def command(stage: str, rest: list[str], *, small: bool = False) -> list[str]:
    """Arguments of `gpld train` for a stage."""
    tasks, values = (TASKS[:2], STAGES[stage]) if small else (TASKS, STAGES[stage])
    if small:  # sizes and ratios of the trial
        values = [value for value in values if not value.startswith(("preset", "agent.model", "replay."))]
    words = [tasks[0], *SIZES[small].split(), "--out", f"runs/search-{stage}{'-small' * small}", *rest]
    return [*words, "--sweep", f"task={','.join(tasks)}", *values]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--small", action="store_true", help="tiny runs on two tasks")
    parser.add_argument("--print", action="store_true", help="print the command and do nothing")
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:at])
    arguments = command(asked.stage, given[at + 1 :], small=asked.small)
    print(f"gpld train {shlex.join(arguments)}", flush=True)
    sys.exit(0 if asked.print else cli.main(["train", *arguments]))
