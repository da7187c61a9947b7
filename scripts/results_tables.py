"""Write the tables of results/README.md and of the documentation, from results/ and from the options.

    python scripts/results_tables.py            # rewrite them
    python scripts/results_tables.py --check    # say which pages are stale, and fail if any is

A page has a table between `<!-- table: NAME -->` and `<!-- end -->`; NAME is one of `TABLES`. Below
a table stands how its numbers were measured, as its file says. Nothing else of a page is touched.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gpld import config as options, results
from gpld.config import Config
from gpld.population import TITLES
from gpld.training.saved import FREE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = (
    "results/README.md",
    "results/recipe.md",
    "results/kernels.md",
    "results/physics.md",
    "docs/performance.md",
    "docs/environments.md",
    "docs/penalty.md",
    "docs/method.md",
    "docs/troubleshooting.md",
    "docs/deployment.md",
)

DREAMER, GPLD = TITLES["dreamerv3"], TITLES["gpld"]
FRAMES, REPEAT = 1000, 2
"""Env steps of an episode of the suite, and of one action."""
Rows = list[list[str]]


def read(name: str) -> dict[str, Any]:
    """The data of one file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *sources: str) -> str:
    """A table in Markdown, and below it where its numbers come from."""
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines)
    return "\n".join([text, *(["", "; ".join(map(measured, sources)) + "."] if sources else [])])


def measured(name: str) -> str:
    """How the numbers of a file were measured: command, date, machine, versions and commit."""
    data = read(name)
    made = data.get("provenance", data)
    command = made.get("command") or data.get("command")
    if isinstance(command, list):
        command = "python " + " ".join(command)
    device, packages = made.get("device"), made.get("packages", {})
    where = device.get("kind") if isinstance(device, dict) else device
    cores = data.get("machine", made).get("cores")
    jax = packages.get("jax") or made.get("jax")
    parts = [
        f"`{command}`" if command else "",
        str(made.get("date", ""))[:10],
        {"cpu": "a CPU"}.get(str(where), where) or "",
        f"{cores} cores" if cores else "",
        f"jax {jax}" if jax else "",
        *(f"{package} {x}" for package, x in data.get("versions", {}).items() if package != "python"),
        f"commit {commit}" if (commit := commit_of(made)) else "",
    ]
    return ", ".join(filter(None, parts)) + f" ({{file {name}}})"


def commit_of(made: dict[str, Any]) -> str:
    """The commit, shortened unless it is more than one."""
    git = made.get("git", {})
    commit = made.get("commit") or git.get("commit") or ""
    short = commit if " " in commit else commit[:7]
    return f"{short} with changes" if git.get("dirty") else short


# One update


def updates(*names: str) -> dict[tuple[int, str], dict[str, float]]:
    """Measured updates by number of runs and variant; the last file that has one counts."""
    found = {}
    for name in names:
        for row in read(name)["rows"]:
            if row["rho"] in (0.0, 0.5) and row["ratio"] is not None:
                found[row["runs"], row["variant"]] = row
    return found


STATES = ("update", "update-exact", "update-09e7219")
IMAGES = ("update-pixels",)


def states() -> dict[tuple[int, str], dict[str, float]]:
    """Updates from states; baselines and probes are not those that exact penalties were timed beside."""
    exact = {key: row for key, row in updates("update-exact").items() if key[1] == "exact"}
    return updates("update", "update-09e7219") | exact


def one_update() -> str:
    """Updates from states and from images, by the number of runs in one program."""
    header = ["runs in one program", "DreamerV3, ms per update and run"]
    for title in ("GPLD", "GPLD, exact"):
        header += [f"{title}, ms", "over DreamerV3"]
    rows = []
    for found, end in ((states(), ""), (updates(*IMAGES), ", from images")):
        for runs in sorted({runs for runs, _ in found}):
            cells = [f"{runs}{end}", f"{found[runs, 'baseline']['ms']:.3f}"]
            for variant in ("probes", "exact"):
                row = found.get((runs, variant))
                cells += [f"{row['ms']:.3f}", f"{row['ratio']:.3f}"] if row else ["", ""]
            rows.append([*cells, f"{found[runs, 'probes']['temporary_GiB']:.2f}"])
    return table([*header, "GPLD's temporary memory, GiB"], rows, *STATES, *IMAGES)


PHASES = {
    "dreams": r"RSSM\.imagine",
    "heads on dreams": r"score",
    "observing, forwards": r"predict, step by step",
    "observing, backwards": r"predict, backwards, step by step",
    "world model over all steps": r"(predict|Observed\.read|RSSM\.pack)(, backwards)?$",
    "penalty": r"penalties",
    "optimiser": r"update",
    "returns, noise, metrics and the rest": r"",
}
"""Phases of an update, and how their parts in a profile are called; the first that fits counts."""


def phases() -> str:
    """Milliseconds and kernels of each phase of an update, of one run and of eight."""
    found = {phase: {runs: [0.0, 0.0] for runs in (1, 8)} for phase in PHASES}
    for row in read("profile")["rows"]:
        phase = next(name for name, part in PHASES.items() if re.match(part, row["part"]))
        for i, value in enumerate((row["ms"], row["kernels"])):
            found[phase][row["runs"]][i] += value
    sums = {runs: [sum(own[runs][i] for own in found.values()) for i in (0, 1)] for runs in (1, 8)}
    rows = [
        [phase, *(cell for runs in (1, 8) for cell in (f"{own[runs][0]:.2f}", f"{own[runs][1]:.0f}"))]
        for phase, own in (found | {"all": sums}).items()
    ]
    header = ["", "one run, ms", "kernels", "each of eight runs, ms", "kernels of all eight"]
    return table(header, rows, "profile")


def before_and_after() -> str:
    """GPLD's update before and after one change, measured one after the other."""
    rows = []
    for name, title in (("update-c05b57f", "before"), ("update-548d7e6", "after")):
        own = {row["runs"]: row for row in read(name)["rows"]}
        rows.append([title, *(f"{own[runs]['ms']:.2f} ± {own[runs]['spread'] / 2:.2f}" for runs in (1, 8))])
    header = ["GPLD, ms per update and run", "one run", "eight runs"]
    return table(header, rows, "update-c05b57f", "update-548d7e6")


def triton_products() -> str:
    """GPLD's update with and without the products that XLA writes in Triton."""
    timed = read("triton-products")["rows"]
    rows = []
    for runs, title in ((1, "one run"), (8, "eight runs")):
        own = sorted(
            (row for row in timed if row["runs"] == runs), key=lambda row: not row["triton_products"]
        )
        rows.append([title, *(f"{row['ms']:.2f} ({row['least']:.2f} to {row['most']:.2f})" for row in own)])
    header = ["GPLD, ms per update and run", "as XLA chooses", "without Triton's products"]
    return table(header, rows, "triton-products")


def foundations() -> str:
    """The fastest variant on each foundation, for eight runs and for one."""
    kinds = {
        "XLA alone": r"xla",
        "cuBLAS, then Pallas through Triton (today's)": r"today",
        "one kernel, Pallas through Triton": r"Pallas, Triton, \d",
        "one kernel, Triton through jax-triton": r"jax-triton, \d",
        "the same, weights kept, Pallas": r"Pallas, Triton, kept",
        "the same, weights kept, jax-triton": r"jax-triton, kept",
        "one kernel, Pallas through Mosaic GPU": r"Pallas, Mosaic",
    }
    sources = ("foundations-alone", "foundations")
    timed = [read(name)["rows"] for name in sources]

    def fastest(kind: str, rows: list[dict[str, Any]]) -> str:
        return f"{min(row['us'] for row in rows if re.match(kind, row['variant'])):.0f}"

    rows = [[title, *(fastest(kind, own) for own in timed)] for title, kind in kinds.items()]
    return table(["next h of a dream step", "one run, us", "eight runs, us"], rows, *sources)


def dreams() -> str:
    """Dreams with fewer kernels, each kind in its fastest tiling."""
    kinds = {
        "today's 16 kernels a step": r"today",
        "the recurrence in two kernels": r"recurrence",
        "what is within a row in one kernel": r"chain",
        "both": r"both",
    }
    timed = read("dreams")["rows"]

    def fastest(kind: str, runs: int) -> str:
        own = [row for row in timed if row["runs"] == runs and re.match(kind, row["candidate"])]
        best = min(own, key=lambda row: row["ms"])
        return f"{best['ms']:.2f} ± {best['spread'] / 2:.2f}"

    rows = [[title, *(fastest(kind, runs) for runs in (1, 8))] for title, kind in kinds.items()]
    return table(["dreams alone, ms per update and run", "one run", "eight runs"], rows, "dreams")


def loop(names: dict[str, str]) -> str:
    """The loop of runs by file, and how their machine is called."""
    header = [
        "runs in one program",
        "updates per second",
        "of the updates alone",
        "without evaluations and checkpoints",
        "env steps per second",
        "a checkpoint stops it for, s, with an empty and a full replay",
        "hours for ten runs of 1M env steps",
    ]
    rows = [
        [
            f"{row['runs']}{where}",
            f"{row['updates_per_second']:.1f}",
            f"{row['ratio']:.1%}",
            f"{row['ratio_without_evaluation']:.1%}",
            f"{row['env_steps_per_second']:,.0f}",
            "{stopped:.2f} and {stopped_when_full:.2f}".format(**row["checkpoint"])
            if "checkpoint" in row
            else "",
            f"{row['paper_gpu_hours']:.2f}",
        ]
        for name, where in names.items()
        for row in read(name)["rows"]
    ]
    return table(header, rows, *names)


def starts() -> tuple[str, str]:
    """Seconds to the first update with an empty and with a warm compilation cache."""
    rows = read("start")["rows"]
    empty, warm = ([row["seconds"] for row in rows if row["cache"] == kind] for kind in ("empty", "warm"))
    return f"{empty[0]:.1f}", f"{min(warm):.1f} to {max(warm):.1f}"


def start() -> str:
    """Seconds from the command to the first update."""
    return table(["empty cache, s to the first update", "warm cache, s"], [starts()], "start")


def speed() -> str:
    """Everything that takes time, on one screen."""
    reference = {row["method"]: row["ms"] for row in read("update-reference")["rows"]}
    rows = [["the authors' code, one run", *(f"{reference[name]:.1f} ms" for name in (DREAMER, GPLD))]]
    names = {1: "one run", 8: "eight runs in one program, each", 16: "sixteen, each"}
    images = {1: "from 64x64 images, one run", 4: "from 64x64 images, four runs, each"}
    for found, kinds in ((states(), names), (updates(*IMAGES), images)):
        for runs, title in kinds.items():
            own = [found[runs, variant]["ms"] for variant in ("baseline", "probes")]
            rows.append([f"{title}", *(f"{ms:.2f} ms" for ms in own)])
    (whole,) = read("end_to_end")["rows"]
    share = f"{whole['ratio']:.0%} of the updates alone"
    rows += [
        [
            "whole loop, four runs of each, each",
            f"{whole['ms_per_update_and_run']:.2f} ms, {share}",
            "(both)",
        ],
        ["ten runs of 1M env steps", f"{whole['paper_gpu_hours']:.1f} GPU-hours", "(both)"],
        ["from the command to the first update", "{} s; {} s with a warm cache".format(*starts()), "(both)"],
    ]
    return table(["one H200, the 12M agent", "DreamerV3", "GPLD"], rows)


# Environments


def environments() -> str:
    """Agent steps per second of both backends on both machines."""
    here, there = (read(name)["agent_steps_per_second"] for name in ("environments", "environments-h200"))
    rows = [
        [f"{title}, {machine}", *(f"{rates[task][backend]:,.0f}" for task in there)]
        for rates, machine in ((here, "2 cores"), (there, "16 cores"))
        for backend, title in (("envpool", "EnvPool"), ("dm_control", "dm_control, one process"))
    ]
    return table(["agent steps per second", *there], rows, "environments", "environments-h200")


def environments_in_jax() -> str:
    """Agent steps per second of environments on the device, beside EnvPool's."""
    data = read("environments-jax")
    streams = f"{data['runs']} runs of {data['count']} streams"
    rows = [
        [name.replace("jax:", ""), f"{rate:,.0f}"]
        for name, rates in data["agent_steps_per_second"].items()
        for rate in rates.values()
    ]
    return table([f"{streams}, H200", "agent steps per second"], rows, "environments-jax")


def drawing() -> str:
    """Images per second, by the number of processes."""
    rates = read("environments-pixels")["agent_steps_per_second"]
    rows = [[f"{count}", *(f"{own[f'egl x {count}']:.0f}" for own in rates.values())] for count in (1, 2)]
    return table(["processes that draw", *rates], rows, "environments-pixels")


# The penalty alone

ESTIMATORS = {
    "vjp probes": "probes by vector-Jacobian products",
    "closed-form probes": "`closed_form`, one probe",
    "closed-form exact": "`closed_form`, exact",
}


def penalties(
    name: str, form: Callable[[float], str], shares: Sequence[float] = (0.25, 0.5, 0.75, 1.0)
) -> Rows:
    """Rows of milliseconds by target and estimator, a column for each share of states."""
    found = {tuple(row["labels"].values()): row["milliseconds"] for row in read(name)["measurements"]}
    return [
        [f"{target}, {title}", *(form(found[target, estimator, rho]) for rho in shares)]
        for target in ("posterior", "prior", "joint")
        for estimator, title in ESTIMATORS.items()
    ]


def three_digits(value: float) -> str:
    """A number of milliseconds, large or small."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


RHO = ["rho 0.25", "rho 0.5", "rho 0.75", "rho 1"]


def penalty_gpu() -> str:
    """With what it makes of an update of eight runs without it."""
    alone = read("update-d8229ea")["rows"]
    (base,) = [row["ms"] for row in alone if (row["runs"], row["variant"]) == (8, "baseline")]
    rows = penalties("penalty", lambda ms: f"{ms:.3f} ({(base + ms) / base:.3f})")
    return table(["", *RHO], rows, "penalty")


def penalty_cpu() -> str:
    """Milliseconds of the penalty alone on two cores."""
    return table(["", *RHO], penalties("penalty-cpu", three_digits), "penalty-cpu")


def penalty_short() -> str:
    """Milliseconds of the penalty alone at rho 0.5, on both machines."""
    gpu = [row[1] for row in penalties("penalty", lambda ms: f"{ms:.3f}", [0.5])]
    cpu = [row[1] for row in penalties("penalty-cpu", three_digits, [0.5])]
    targets = ("posterior", "prior", "joint")
    header = [
        "rho 0.5",
        *(f"{target}, H200" for target in targets),
        *(f"{target}, two cores" for target in targets),
    ]
    count = len(ESTIMATORS)
    rows = [[title, *gpu[i::count], *cpu[i::count]] for i, title in enumerate(ESTIMATORS.values())]
    return table(header, rows, "penalty", "penalty-cpu")


# Learning


def curves(name: str, method: str) -> list[dict[int, float]]:
    """Returns by thousands of env steps of each run of a method in a file."""
    return [
        {round(steps, -3): value for steps, value in zip(run["env_steps"], run["returns"], strict=True)}
        for run in read(name)["runs"]
        if run["method"] == method
    ]


def published(task: str) -> list[dict[int, float]]:
    """The same of DreamerV3's published runs, by the env steps that they name."""
    runs = results.published().query("task == @task").groupby("seed")
    return [dict(zip(run["env_steps"], run["return"], strict=True)) for _, run in runs]


def spread(runs: Sequence[dict[int, float]], env_steps: int) -> str:
    """Mean, smallest and largest return."""
    values = [run[env_steps] for run in runs]
    return f"{statistics.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def learning(name: str, task: str, methods: Sequence[str], every: int, until: int) -> str:
    """Returns of a file's runs beside those of others."""
    peers = results.peers(agents=[DREAMER], tasks=[task]).set_index("env_steps")
    own, others = [curves(name, method) for method in methods], published(task)
    header = ["env steps", *(f"{m}, {len(runs)} seeds" for m, runs in zip(methods, own, strict=True))]
    header += [f"{DREAMER} by others (bounds)", f"{DREAMER}, published in 2023, {len(others)} seeds"]
    rows = []
    for steps in range(every, until + 1, every):
        peer = ""
        if steps in peers.index:
            mean, low, high = peers.loc[steps, ["mean", "low", "high"]]
            peer = f"{mean:.0f} ({low:.0f} to {high:.0f})"
        rows.append([f"{steps:,}", *(spread(runs, steps) for runs in own), peer, spread(others, steps)])
    return table(header, rows, name)


def walker() -> str:
    """Evaluations to 250k env steps, and the last training episodes."""
    name = "learning-walker-walk-250k"
    text = learning(name, "walker-walk", (DREAMER,), 50_000, 250_000)
    training = [{int(steps): x for steps, x in run["training"].items()} for run in read(name)["runs"]]
    last = max(training[0])
    row = f"| training episodes, {last:,} | {spread(training, last)} | | |"
    return text.replace("\n\n", f"\n{row}\n\n", 1)


def demonstration() -> str:
    """What `make train` reaches."""
    seeds = read("demonstration")["rows"]
    shown = {"return": "return", "random policy": "random", "seconds": "seconds"}
    rows = [[label, *(f"{row[name]:.0f}" for row in seeds)] for label, name in shown.items()]
    return table(["seed", *(f"{row['seed']}" for row in seeds)], rows, "demonstration")


SYMBOLS = {
    "h, D": ("deterministic state and its width", "agent.model.deter"),
    "z, K, C": (
        "stochastic state: K categorical variables of C classes",
        "agent.model.stoch",
        "agent.model.classes",
    ),
    "e, E": ("encoder's output and its width", "agent.model.units"),
    "B, T, H": (
        "sequences in a batch, their length, steps of a dream",
        "replay.batch",
        "replay.length",
        "agent.behavior.horizon",
    ),
    "lambda_0": ("initial weight, posterior and prior", "agent.penalty.posterior", "agent.penalty.prior"),
    "rho": ("share of the B*T states that the penalty is evaluated on", "agent.penalty.rho"),
    "c0, floor": ("scale and end of the decay", "agent.penalty.scale", "agent.penalty.floor"),
}
"""Symbols of the paper, what they mean, and the options that set them."""


def symbols() -> str:
    """The paper's symbols with the defaults of their options."""
    defaults = options.flat(Config("walker-walk"))
    rows = [
        [symbol, meaning, ", ".join(f"{defaults[x]:g}" for x in names), ", ".join(f"`{x}`" for x in names)]
        for symbol, (meaning, *names) in SYMBOLS.items()
    ]
    return table(["symbol", "meaning", "default", "option"], rows)


def free_options() -> str:
    """Options that may change between two starts of a run."""
    groups = [f"all of `{name.strip('.')}`" if name.endswith(".") else f"`{name}`" for name in FREE]
    return table(["free to change between two starts"], [["`env_steps`, upwards"], *([x] for x in groups)])


def physics(engine: str) -> str:
    """Two sets of simulators, task by task."""
    data = read("physics")
    found = data["engines"][engine]
    within = [f"within {int(step):,}" for step in found["rows"][0]["largest_difference"]]
    returns = ["return, old", "new", "change"]
    rows = []
    for row in found["rows"]:
        first = row["first_difference"]
        means = (row[f"return_{name}"] for name in ("old", "new", "change"))
        rows.append(
            [
                row["task"],
                f"{row['equal_starts']:.0%}",
                "never" if first is None else str(first),
                *(
                    f"{x:.0e}" if x else "0"
                    for x in (row["largest_onset"], *row["largest_difference"].values())
                ),
                *(f"{x['mean']:.2f} ± {x['half_width']:.2f}" for x in means),
            ]
        )
    header = ["task", "equal starts", "first difference, env step", "its size", *within, *returns]
    sets = (", ".join(f"{name} {x}" for name, x in own.items()) for own in found["versions"].values())
    source = f"`{data['command']}`, {data['date']}, {' against '.join(sets)}, {found['episodes']} episodes"
    return f"{table(header, rows)}\n\n{source} ({{file physics}})."


# Exported agents


def exported() -> str:
    """Time of a step on one core by the size of the agent."""
    rows = [
        [row["preset"], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", f"{row['megabytes']:.1f}"]
        for row in read("export")["rows"]
    ]
    return table(["agent", "median, ms", "99th percentile, ms", "file, MB"], rows, "export")


def exported_returns() -> str:
    """Mean returns before and after."""
    header = ["task", "env steps", "episodes", "original (95% interval of its mean)", "exported"]
    rows = []
    for row in read("export-returns")["rows"]:
        low, high = row["original_95"]
        mean = f"{row['original_mean']:.1f} ({low:.1f} to {high:.1f})"
        count = str(len(row["exported"]))
        rows.append([row["task"], f"{row['env_steps']:,}", count, mean, f"{row['exported_mean']:.1f}"])
    return table(header, rows, "export-returns")


# The search for a recipe


def recipe() -> str:
    """Every setting that was tried, after the default on the same task."""
    header = ["task", "options besides the default's", "seeds", "return (env steps)", "later"]
    evaluations = results.read_tables(RESULTS / "locomotion-short").tables["evaluations"]
    sources = sorted(f"recipe/{path.stem}" for path in (RESULTS / "recipe").glob("*.json"))
    rows = []
    for name in sources:
        data = read(name)
        tried = pd.DataFrame(data["rows"])
        steps = sorted(set(tried["env_steps"]))
        default = evaluations.loc[evaluations["task"] == data["task"]]
        for method, own in default.groupby("method"):
            nearest = [min(own["env_steps"], key=lambda at, step=step: abs(at - step)) for step in steps]
            at = [own.loc[own["env_steps"] == step] for step in nearest]
            rows.append([data["task"], f"none, {method}", str(own["seed"].nunique()), *map(_returns, at)])
        for setting, own in tried.groupby("setting", sort=False):
            at = [own.loc[own["env_steps"] == step] for step in steps]
            cells = [f"{data['options']}, {setting}", str(own["seed"].nunique()), *map(_returns, at)]
            rows.append([data["task"], *cells])
    return table(header, rows, *sources)


def screens() -> str:
    """What the higher value of each option adds, in every screen."""
    sources = sorted(f"screens/{path.stem}" for path in (RESULTS / "screens").glob("*.json"))
    rows = []
    for name in sources:
        data = read(name)
        which = f"{data['task']}, {data['presets'][0]}, {data['env_steps'][-1] // 1000}k"
        found = data["summary"].values()
        for option, (low, high) in data["factors"].items():
            cells = [f"{own['effects'][option]:+.0f} ± {own['error']:.0f}" for own in found]
            rows.append([which, f"`{option}`", f"{low:g}", f"{high:g}", *cells])
        rows.append([which, "mean of all runs", "", "", *(f"{own['mean']:.0f}" for own in found)])
    header = [
        "task, agent, env steps",
        "option",
        "from",
        "to",
        "mean return while training",
        "last evaluation",
    ]
    return table(header, rows, *sources)


NEARLY = 0.1
"""Nats by which a policy's entropy may lie below the largest and still count as the same."""


def dream_rewards() -> str:
    """What dreams promise for an episode, beside what evaluations return."""
    tried = pd.DataFrame(read("metrics/walker-stand")["rows"])
    tried["dreamt"] = tried["dream/reward"] * FRAMES / REPEAT
    means = tried.groupby(["env_steps", "method"])[["eval/return", "dreamt"]].mean()
    rows = []
    for steps in sorted(set(tried["env_steps"])):
        cells = [f"{steps:,}"]
        for method in (DREAMER, GPLD):
            earned, dreamt = means.loc[(steps, method)]
            cells += [f"{dreamt:.0f}", f"{earned:.0f}", f"{dreamt / earned:.2f}"]
        rows.append(cells)
    header = ["env steps", f"{DREAMER}, dreamt", "earned", "ratio", f"{GPLD}, dreamt", "earned", "ratio"]
    return table(header, rows, "metrics/walker-stand")


def rare_rewards() -> str:
    """How much imagined returns differ where rewards are rare, and how random policies still are."""
    tried = pd.DataFrame(read("metrics/hopper-hop")["rows"])
    most = tried["entropy/policy"].max()
    rows = []
    for steps, own in tried.groupby("env_steps"):
        random = int((own["entropy/policy"] > most - NEARLY).sum())
        cells = (f"{own['return/std'].median():.3f}", f"{own['return/scale'].median():.2f}")
        best = own["eval/return"]
        rows.append(
            [f"{steps:,}", *cells, f"{random} of {len(own)}", f"{best.median():.1f} ({best.max():.0f})"]
        )
    header = ["env steps", "standard deviation of imagined returns", "range they are divided by"]
    header += ["policies as random as at first", "evaluation, median (best)"]
    return table(header, rows, "metrics/hopper-hop")


def _returns(rows: pd.DataFrame) -> str:
    """Mean return with the smallest and the largest of a seed, and the env steps."""
    own = rows.loc[rows["env_steps"] == rows["env_steps"].max(), "return"]
    step = int(rows["env_steps"].max()) // 1000
    return f"{own.mean():.0f} ({own.min():.0f} to {own.max():.0f}; {step}k)"


TABLES: dict[str, Callable[[], str]] = {
    "symbols": symbols,
    "free options": free_options,
    "speed": speed,
    "updates": one_update,
    "phases": phases,
    "before and after": before_and_after,
    "triton products": triton_products,
    "foundations": foundations,
    "dreams": dreams,
    "dream rewards": dream_rewards,
    "rare rewards": rare_rewards,
    "loop": lambda: loop({"end_to_end": ", H200, 12M", "end_to_end-cpu": ", two cores, 0.1M"}),
    "start": start,
    "environments": environments,
    "environments in JAX": environments_in_jax,
    "drawing": drawing,
    "penalty": penalty_short,
    "penalty on a GPU": penalty_gpu,
    "penalty on a CPU": penalty_cpu,
    "cartpole-swingup": lambda: learning(
        "learning-cartpole-swingup", "cartpole-swingup", (DREAMER, GPLD), 50_000, 100_000
    ),
    "walker-walk": walker,
    "demonstration": demonstration,
    "physics of EnvPool": lambda: physics("envpool"),
    "physics of dm_control": lambda: physics("dm_control"),
    "export": exported,
    "export returns": exported_returns,
    "recipe": recipe,
    "screens": screens,
}
"""Tables by the names that pages call them by."""

MARKED = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.S)


def written(page: str) -> str:
    """The text of a page with its tables as the data have them. A table that there is not is a `KeyError`."""
    # The site of the documentation does not hold the data: its pages name the files. It needs an empty line
    # between a comment and a table.
    beside = page.startswith("results/")
    file, gap = (r"[\1.json](\1.json)", "") if beside else (r"`results/\1.json`", "\n")

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}{gap}{re.sub(r'{file (.+?)}', file, TABLES[found[2]]())}\n{gap}{found[4]}"

    return MARKED.sub(fill, (ROOT / page).read_text())


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite all tables, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is stale")
    options = parser.parse_args(arguments)
    stale = [page for page in PAGES if written(page) != (ROOT / page).read_text()]
    for page in stale:
        print(f"stale: {page}" if options.check else f"written: {page}")
        if not options.check:
            (ROOT / page).write_text(written(page))
    if not stale:
        print("all tables are as the data have them")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
