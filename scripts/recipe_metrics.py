"""Keep what runs of a study logged about their dreams, beside their evaluations, for results/recipe.md.

    python scripts/recipe_metrics.py studies/locomotion-short/runs/walker-stand --commit COMMIT

Metrics are means of the lines within 3,000 env steps of an evaluation. It writes
results/metrics/TASK.json.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpld import config as options, results
from gpld.population import TITLES, method_of
from gpld.training import logs, saved

METRICS = ("dream/reward", "value/mean", "return/std", "return/scale", "entropy/policy")
NEAR = 3000
"""Env steps around an evaluation."""


def rows_of(run: Path) -> list[dict]:
    """A row for each evaluation of a run."""
    config, lines = options.load(run / saved.CONFIG), logs.read(run)
    updates, found = lines.dropna(subset=list(METRICS)), []
    for line in lines.dropna(subset=["eval/return"]).to_dict("records"):
        near = updates.loc[(updates["env_steps"] - line["env_steps"]).abs() <= NEAR]
        about = {
            "method": TITLES[method_of(config)],
            "seed": config.seed,
            "env_steps": int(line["env_steps"]),
        }
        found.append(about | {"eval/return": line["eval/return"]} | near[list(METRICS)].mean().to_dict())
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the file of a task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of a task's runs")
    parser.add_argument("--commit", required=True, help="of the code that made them")
    parser.add_argument("--out", type=Path, default=Path("results/metrics"))
    asked = parser.parse_args(arguments)
    runs = sorted(results.runs_in(asked.folder))
    if not runs:
        raise SystemExit(f"recipe_metrics.py: folder: {str(asked.folder)!r} holds no runs")
    task = options.load(runs[0] / saved.CONFIG).task
    about = results.last_start(runs[0]) | {"git": {"commit": asked.commit, "dirty": False}}
    about["command"] = f"gpld study run locomotion-short --tasks {task}"
    rows = [row for run in runs for row in rows_of(run)]
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / f"{task}.json"
    path.write_text(json.dumps({"provenance": about, "task": task, "rows": rows}, indent=1) + "\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
