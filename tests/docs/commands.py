"""How commands in our pages are tried: what replaces placeholders, what makes them small, what cannot run."""

import re
import shlex

from tests.training.helpers import arguments, tiny

TINY = [*arguments(tiny(env_steps=400, eval={"every": 100}))[1:], "--agent.unroll", "1"]
"""Options of a short run of a tiny agent. They win over presets."""

PLACEHOLDERS = {
    r"\bRUN \.\.\.": "runs/small",
    r"\bRUN\b": "runs/small",
    r"\bPLACE\b": "runs",
    r"\bNAME\b": "smoke",
    r"\bTASK\b": "cartpole-balance",
    r"@STEP\b": "",
    r"^gpld report FOLDER\b": "gpld report runs",
    r"\bFOLDER\b": "new",
    r"\bHOST:PORT\b": "localhost:1234",
    r"--seed S\b": "--seed 0",
    r"^gpld train (?=--(?!help))": "gpld train cartpole-balance ",
}
"""What readers replace by something of theirs, as patterns, and what it is here."""

SMALL = {
    # One of them learns. The others act, evaluate, save and film: to compile an update takes too long.
    "gpld train": [*TINY, "--agent.compute", "float32", "--replay.train-ratio", "0.001"],
    "gpld train cartpole-swingup --preset demo --seed": ["--replay.train-ratio", "6"],
    "gpld train envpool:Pong-v5": ["--eval.limit", "20"],  # of thousands
    "gpld profile": [*TINY, "--updates", "1"],
    "gpld eval": ["--episodes", "2"],
    "gpld sensitivity": ["--episodes", "2", "--steps", "40"],
    "gpld quality": ["--episodes", "2", "--steps", "40"],
    "gpld theory": ["--seeds", "2"],
    "python benchmarks/environments.py": ["--tasks", "cartpole-swingup", "--seconds", "0.2"],
    "python benchmarks/start.py": ["--seeds", "1", "--warm", "1"],
    "python scripts/screenshots.py": ["--out", "pictures"],  # not over those that are committed
}
"""Options that are added at the end of a command, by how it begins: of two values the later one counts."""

ON_SMOKE = ("status", "table", "figure", "report")
"""What is shown of the study `smoke` where pages show `proprio`, whose runs take days."""

CLUSTER = "needs a cluster; tests/studies/test_clusters.py runs studies on Slurm and on Ray"
NETWORK = "needs a network"

LEFT_OUT = {
    r"make .+": "would set up .venv; `test_targets_of_make_exist` looks for the target",
    r"(\S*pip|apt) install .+": NETWORK,
    r"python scripts/offline_bundle.py( --pixels)?": NETWORK,
    r"python -m tarfile .+|export .+": "are for what that packs; tests/envs/test_offline_bundle.py unpacks",
    r"pre-commit install": "is not installed with us, and changes the checkout",
    r"\S*zensical .+": "serves until it is stopped, or empties a cache; test_site.py builds the site",
    r"docker .+": "needs an engine; tests/test_install.py reads the Dockerfile",
    r"srun .+": CLUSTER,
    r"gpld study run .+ --on (slurm|ray) .+": CLUSTER,
    r"gpld study run (?!smoke).+": "takes hours on a GPU; `gpld study run smoke` is the same machinery",
    r"gpld study import .+": "needs a study whose runs are committed; tests/studies/test_tables.py",
    r"gpld study figure .+ --peers .+": "needs runs as long as others' curves; tests/studies/test_show.py",
    r"python benchmarks/environments.py .*jax:brax.+": "needs Brax; tests/test_benchmarks.py has another",
    r"python examples/onnx_dm_control.py .+": "needs an exported agent; tests/deploy/test_export.py has one",
    r"gpld cost.*": "compiles ten programs, which takes minutes; tests/analysis/test_cost.py calls it",
    r"PYTHONPATH=\. gpld train (gym|jax):springs:.+": "needs the reader's module; tests/envs has some",
    r"gpld train jax:(brax|mujoco_playground|gymnax).+": "needs their packages; tests/envs/test_jax.py",
    r"gpld train gym:gpld\.envs\.crafter:.+": "needs Crafter; tests/envs/test_crafter.py has a stand-in",
    r"gpld train .+ --env\.pixels": "draws for minutes without a GPU; tests/training/test_images.py",
    r"gpld train .+ --sweep .+": "names options that would be made small, too; tests/sweeps has some",
    r"gpld train .+ --distributed .+": "needs two machines; tests/training/test_devices.py has two processes",
    r"gpld train (.+ )?--init-from .+": "needs a run of its sizes; tests/training/test_warm_start.py has one",
    r"python benchmarks/(update|learning|end_to_end|penalty|start|export)\.py .+": "takes long, or a GPU",
    r"python scripts/recipe_screen\.py .+": "trains sixteen runs for an hour; tests/sweeps/test_screen.py",
    r"python benchmarks/(dreams|foundations/compare)\.py .+": "times kernels, which takes a GPU",
    r"python benchmarks/gpu_program\.py": "needs XLA's compiler for GPUs; tests/test_benchmarks.py",
    r"python benchmarks/physics\.py compare .+": "needs recordings; tests/test_benchmarks.py makes some",
}
"""Commands that are not run, as patterns, and why."""


def left_out(text: str) -> str | None:
    """The pattern of commands that are not run which this one is one of."""
    return next((pattern for pattern in LEFT_OUT if re.fullmatch(pattern, text)), None)


def filled(text: str) -> str:
    """A command without placeholders, and with the program's bare name."""
    for pattern, ours in PLACEHOLDERS.items():
        text = re.sub(pattern, ours, text)
    return text.removeprefix(".venv/bin/")


def made_small(text: str) -> str:
    """A command as it is run here."""
    text = filled(text)
    text = re.sub(rf"^(gpld study (?:{'|'.join(ON_SMOKE)})) proprio", r"\1 smoke", text)
    if "--help" in text:
        return text
    more = [options for begin, options in SMALL.items() if f"{text} ".startswith(f"{begin} ")]
    return shlex.join([*shlex.split(text), *(word for options in more for word in options)])
