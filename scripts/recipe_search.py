"""Search for options that learn in fewer env steps, by sweeps with successive halving, a stage at a time.

    python scripts/recipe_search.py rates                       # on a GPU; what it found is at the end
    python scripts/recipe_search.py data -- --agent.optimizer.learning-rate 1e-4   # with an earlier finding
    python scripts/recipe_search.py rates --small --print       # the command for a trial on a CPU

A stage is a command of `gpld train`, which resumes it if it is interrupted. Most stages vary what may differ
within a program: six settings with two seeds are one program of twelve runs, about a quarter of an hour for
100k env steps of the 12M agent, by the time of an update on an H200. Options after `--` are those of
`gpld train` and hold for all settings. What is confirmed on fresh seeds (`--seeds 10..13`) and on at least
three of the four tasks is a finding.
"""

import argparse
import shlex
import sys

from gpld import cli

TASKS = ("walker-run", "walker-walk", "cheetah-run", "hopper-stand")

STAGES = {
    "rates": ["agent.optimizer.learning_rate=4e-5,1e-4,2e-4", "agent.optimizer.behavior_rate=0.1,0.3"],
    "behavior": ["agent.behavior.entropy=3e-4,1e-3,3e-3", "agent.behavior.discount_horizon=100,333"],
    "model": ["agent.loss.free_nats=0.3,1", "agent.loss.rep=0.03,0.1,0.3"],
    "penalty": ["agent.penalty.posterior=0,0.1,0.5", "agent.penalty.scale=1000,10000"],
    "data": ["env.count=1,4,16", "replay.train_ratio=512,1024"],
    "dreams": ["agent.behavior.horizon=10,15,25", "env.action_repeat=2,4"],
}
"""What each stage varies."""

SIZES = {
    False: "--seeds 0..1 --env-steps 100000 --halve-at 60000 --eval.every 5000 --preset 12m gpu",
    True: "--seeds 0 --env-steps 3000 --halve-at 1000 2000 --eval.every 250 --eval.episodes 1 "
    "--replay.train-ratio 8 --preset nano",
}
"""Seeds and env steps of a search, and of a trial of it."""


def command(stage: str, rest: list[str], *, task: str = TASKS[0], small: bool = False) -> list[str]:
    """Arguments of `gpld train` for a stage on one task."""
    values = STAGES[stage]
    if small:  # the trial has a train ratio of its own
        values = [value for value in values if not value.startswith("replay.")]
    out = f"runs/search-{stage}{'-small' * small}/{task}"
    return [task, *SIZES[small].split(), "--out", out, *rest, "--sweep", *values]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--small", action="store_true", help="tiny runs")
    parser.add_argument("--print", action="store_true", help="print the command and do nothing")
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:at])
    arguments = command(asked.stage, given[at + 1 :], task=asked.task, small=asked.small)
    print(f"gpld train {shlex.join(arguments)}", flush=True)
    sys.exit(0 if asked.print else cli.main(["train", *arguments]))
