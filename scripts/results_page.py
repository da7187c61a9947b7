"""Write the page about results, docs/results.md, and its figures from the committed data in results/.

    python scripts/results_page.py            # rewrite page, figures, and the section of results/README.md
    python scripts/results_page.py --check    # say which pages are stale, and fail if any is

Every number on the page, and whether it is called a gain or a loss, follows from the data.
"""

import argparse
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpld import results, studies
from gpld.analysis import comparisons, curves, figures, sensitivity, statistics
from gpld.analysis.cost import UPDATES
from gpld.population import TITLES
from gpld.results import Tables
from gpld.studies import Study, _show

ROOT = Path(__file__).parents[1]
STUDY, COST = "locomotion-short", "cost"
DATA = ROOT / "results" / STUDY
PAGE = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "figures"
KEPT = ROOT / "results" / "README.md"
README = ROOT / "README.md"
LANDING = ROOT / "docs" / "index.md"
DREAMER, GPLD = TITLES["dreamerv3"], TITLES["gpld"]
COMMAND = "python scripts/results_page.py"
PEER_STEPS = 200_000
"""Env steps at which others' runs are compared: the last at which both have been evaluated."""
SAME = 0.005
"""Gains below this are called none."""
MAPS = ("posterior", "prior")
MORE = {"variants-short": "Other penalties", "pixels-short": "From images"}
"""Studies of few runs, by name, with the titles of their sections, which are there once they have results."""


class Evidence:
    """The committed runs of a study, and what follows from them."""

    def __init__(self, name: str = STUDY) -> None:
        self.study: Study = studies.get(name)
        self.tables: Tables = results.read_tables(DATA.parent / name)
        with tempfile.TemporaryDirectory() as folder:
            studies.unpack_committed(self.study, Path(folder), DATA.parent / name)
            self.rows = _show.load(Path(folder), studies.read_plan(Path(folder)))
        self.env_steps = self.study.env_steps[-1]
        self.scores = statistics.final_scores(self.rows, self.env_steps)
        self.areas = statistics.area_scores(self.rows, self.env_steps)
        done = set(self.scores["task"])
        self.tasks = [task for task in self.study.tasks if task in done]
        self.missing = [task for task in self.study.tasks if task not in done]

    def values(self, scores: pd.DataFrame, task: str, method: str) -> np.ndarray:
        """Of each run of a method on a task."""
        own = scores.loc[(scores["task"] == task) & (scores["method"] == method), "return"]
        return own.to_numpy(np.float64)

    def gain(self, scores: pd.DataFrame, task: str) -> float:
        """How much more GPLD has than DreamerV3, as a share of it."""
        return self.values(scores, task, GPLD).mean() / self.values(scores, task, DREAMER).mean() - 1

    def has_ratio(self, task: str) -> bool:
        """Whether scores on a task can be divided by DreamerV3's."""
        return task in statistics.baseline_means(self.scores, DREAMER, self.tasks)

    def sides(self, scores: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """GPLD's and DreamerV3's scores `[runs, tasks]`: of every task at most 1000."""
        return statistics.both_sides(scores, GPLD, DREAMER, self.tasks)


def write_page(found: Evidence) -> str:
    """The whole page."""
    parts = [
        "# Results",
        f"<!-- Written by `{COMMAND}` from results/{STUDY}; changes by hand are lost. -->",
        in_short(found),
        "## What GPLD gains",
        gains(found),
        "## Smoother models",
        smoothness(found),
        *(part for name, title in MORE.items() if kept(name) for part in (f"## {title}", more(name))),
        "## What it costs",
        cost(),
        "## DreamerV3 here and elsewhere",
        others(found),
        "## Where stronger agents stand",
        stronger(found),
        "## How it was measured",
        protocol(found),
    ]
    return "\n\n".join(parts) + "\n"


def in_short(found: Evidence) -> str:
    """The answer, and how sure it is."""
    sides = found.sides(found.scores)
    iqm, their_iqm = (
        f"{statistics.iqm(side):.0f} {_interval(statistics.interval(statistics.iqm, side), digits=0)}"
        for side in sides
    )
    area, their_area = (side.mean() for side in found.sides(found.areas))
    low, high = statistics.improvement_interval(*sides)
    told = [task for task in found.tasks if found.has_ratio(task)]
    by_task = _tasks([f"**{_more(found.gain(found.scores, task))}** on {task}" for task in told])
    count = len(found.tasks)
    together = {1: "", 2: " over both tasks"}.get(count, f" over all {count} tasks")
    lines = [
        f"After {found.env_steps:,} env steps, with {len(found.study.seeds)} seeds of each method and "
        f"compared with DreamerV3, GPLD-DreamerV3 scores {by_task}.",
        *(_too_little(found, task) for task in found.tasks if task not in told),
        f"The interquartile mean of its scores{together} is {iqm}, and DreamerV3's {their_iqm}; a run of "
        "GPLD scores more than one of DreamerV3 with probability "
        f"{statistics.probability_of_improvement(*sides):.2f} {_interval((low, high))}; and over the whole "
        f"of training (area under the curve, mean of tasks) it has {_more(area / their_area - 1)}. Brackets "
        "hold 95% intervals of a stratified bootstrap over runs.",
    ]
    if low <= 0.5 <= high:
        lines.append("So few runs do not settle which of the two learns sooner.")
    if found.missing:
        lines.append(
            f"{len(found.tasks)} of the paper's {len(found.study.tasks)} locomotion tasks "
            f"{'has' if len(found.tasks) == 1 else 'have'} been run so far; {_tasks(found.missing)} "
            f"{'is' if len(found.missing) == 1 else 'are'} still missing."
        )
    lines.append(
        f"{found.env_steps:,} env steps are less than a quarter of the paper's million, so this says how "
        "soon the methods learn, and not where they end."
    )
    return " ".join(lines)


def _too_little(found: Evidence, task: str) -> str:
    """Scores on a task that DreamerV3 has not learned."""
    ours, theirs = (found.values(found.scores, task, method) for method in (GPLD, DREAMER))
    return (
        f"On {task}, where DreamerV3 scores too little for a percentage, its seeds score from "
        f"{theirs.min():.0f} to {theirs.max():.0f} and GPLD's from {ours.min():.0f} to {ours.max():.0f}."
    )


def gains(found: Evidence) -> str:
    """Figure and table of scores."""
    paper = results.paper_scores().pivot(index="task", columns="method", values="mean")
    rows = []
    for task in found.tasks:
        ours, theirs = (found.values(found.scores, task, method)[:, None] for method in (GPLD, DREAMER))
        chance = statistics.probability_of_improvement(ours, theirs)
        rows.append(
            [
                task,
                _mean(theirs[:, 0]),
                _mean(ours[:, 0]),
                comparisons.percent(found.gain(found.scores, task)) if found.has_ratio(task) else "",
                f"{chance:.2f} {_interval(statistics.improvement_interval(ours, theirs))}",
                comparisons.percent(found.gain(found.areas, task)) if found.has_ratio(task) else "",
                comparisons.percent(paper.loc[task, GPLD] / paper.loc[task, DREAMER] - 1),
            ]
        )
    header = ["task", "DreamerV3", "GPLD-DreamerV3", "gain", "probability that a GPLD run scores more"]
    header += ["gain, area under the curve", "the paper's gain at 1M env steps"]
    worse = [task for task in found.tasks if found.has_ratio(task) and found.gain(found.scores, task) < SAME]
    about = (
        f"Means of 20 episodes of each seed's last model, after {found.env_steps:,} env steps. A probability "
        "of 0.00 or 1.00 says that all runs of one method score more than all of the other, and a bootstrap "
        "of these runs can then give no other: it is not certain."
    )
    if worse:
        about += "\n\n" + "\n\n".join(_behind(found, task) for task in worse)
    figure = f"![Returns of GPLD-DreamerV3 and DreamerV3 over env steps](figures/{STUDY}-tasks.png)"
    bands = (
        f"Bands are 95% bootstrap intervals of the mean: `gpld study figure {STUDY} --band interval`. Thin "
        "lines are others' runs, with the bounds that their source gives."
    )
    parts = [figure, bands, _table(header, rows), about]
    if len(found.tasks) > 1:
        parts.append(f"![Returns over env steps, averaged over tasks](figures/{STUDY}-aggregate.png)")
    return "\n\n".join(parts)


def _behind(found: Evidence, task: str) -> str:
    """Where on the curve GPLD is behind on a task, and what is likely to be the reason."""
    aligned = curves.align(found.rows)
    ours, theirs = (aligned[task, method] for method in (GPLD, DREAMER))
    half = found.env_steps / 2
    early, late = (
        [runs.returns[:, chosen].mean() for runs in (ours, theirs)]
        for chosen in (ours.env_steps <= half, ours.env_steps > half)
    )
    words = (
        f"On {task}, where the paper reports a gain, GPLD scores {_more(found.gain(found.scores, task))} "
        f"here. Up to {half:,.0f} env steps its evaluations return {early[0]:.0f} on average and DreamerV3's "
        f"{early[1]:.0f}; after that, {late[0]:.0f} and {late[1]:.0f}."
    )
    scores = [found.values(found.scores, task, method) for method in (GPLD, DREAMER)]
    (low, high), (their_low, their_high) = (statistics.interval(statistics.mean, x[:, None]) for x in scores)
    if low <= their_high and their_low <= high:
        spread, their_spread = (f"from {x.min():.0f} to {x.max():.0f}" for x in scores)
        words += (
            f" At the end its seeds score {spread}, and DreamerV3's {their_spread}: too wide a spread to "
            "tell the methods apart."
        )
    elif early[0] / early[1] < late[0] / late[1]:
        words += " It falls behind early, when the penalty weighs most and the model has learned little."
        means = np.array([runs.returns.mean(0) for runs in (ours, theirs)])[:, ours.env_steps > half]
        ahead = np.flatnonzero(means[0] >= means[1])
        if ahead.size:
            step, (our, their) = ours.env_steps[ours.env_steps > half][ahead[0]], means[:, ahead[0]]
            words += (
                f" At {step:,.0f} env steps it has caught up ({our:.0f} and {their:.0f}), and it ends "
                "behind, so the early weight is at most a part of the reason."
            )
        else:
            words += " That is the likeliest reason."
        words += (
            " Whether a lighter penalty, such as the one that the authors' launchers set "
            "([method](method.md)), does better on this task has not been tried."
        )
    return words


def smoothness(found: Evidence) -> str:
    """What the penalty does to the maps that it is about, and to predictions."""
    measured = found.tables.tables["sensitivity"]
    if measured.empty:
        return "Not measured yet."
    means = _last_means(measured)
    rows = []
    for task in dict.fromkeys(measured["task"]):
        for name in MAPS:
            ours, theirs = means.loc[(task, name, GPLD)], means.loc[(task, name, DREAMER)]
            rows.append(
                [
                    f"{task}, {name}",
                    f"{theirs['kl']:.3g}",
                    f"{ours['kl']:.3g}",
                    f"{ours['kl'] / theirs['kl']:.2f}",
                    f"{theirs['jacobian']:.3g}",
                    f"{ours['jacobian']:.3g}",
                ]
            )
    header = ["", "KL per step, DreamerV3", "GPLD", "ratio", "squared Jacobian norm, DreamerV3", "GPLD"]
    words = (
        "The penalty is on the posterior alone. The table has what the paper's Figure 9 shows, on these "
        "models: how much the latent distributions change when their inputs are moved a little (the "
        "posterior's embedding, the prior's recurrent state), and the mean squared norm of their "
        "Jacobians."
    )
    if all(float(row[3]) < 1 for row in rows):
        words += " The prior, which is trained towards the posterior, becomes smoother with it."
    return "\n\n".join([words, _table(header, rows), _predictions(found)])


def _last_means(measured: pd.DataFrame) -> pd.DataFrame:
    """Sensitivity of the last models: means over lengths of steps and seeds, by task, map and method."""
    last = measured.loc[measured["env_steps"] == measured["env_steps"].max()]
    named = last.assign(run=last["task"] + "/" + last["method"] + "/" + last["seed"].astype(str))
    return sensitivity.averages(named).groupby(["task", "map", "method"])[["kl", "jacobian"]].mean()


def _predictions(found: Evidence) -> str:
    measured = found.tables.tables["quality"]
    last = measured.loc[measured["env_steps"] == measured["env_steps"].max()]
    means = last.groupby(["task", "ahead", "method"])[["latent", "reward", "observation"]].mean()
    rows = []
    for task in dict.fromkeys(last["task"]):
        for ahead in (1, 5, 25):
            ours, theirs = means.loc[(task, ahead, GPLD)], means.loc[(task, ahead, DREAMER)]
            cells = [f"{ours[name] / theirs[name]:.2f}" for name in ("latent", "reward", "observation")]
            rows.append([f"{task}, {ahead}", *cells])
    words = (
        "Errors of open-loop predictions along each agent's own episodes, GPLD's divided by "
        "DreamerV3's. The agents move differently, and a faster one is harder to predict, so this "
        "compares models on different data."
    )
    header = ["steps ahead", "latents", "rewards", "observations"]
    return "\n\n".join([words, _table(header, rows)])


def kept(name: str) -> bool:
    """Whether results of a study are committed."""
    return (DATA.parent / name / results.RUNS).exists()


def more(name: str) -> str:
    """A study of few runs: its purpose, figure, and scores of each run."""
    found = Evidence(name)
    measured = found.tables.tables["sensitivity"]
    smooth = dict(_last_means(measured)["kl"]) if len(measured) else {}
    rows = []
    for task in found.tasks:
        for method in found.study.methods:
            scores, areas = (found.values(kind, task, method) for kind in (found.scores, found.areas))
            if not len(scores):
                continue
            kl = (f"{smooth[task, place, method]:.3g}" for place in MAPS if smooth)
            each = ", ".join(f"{score:.0f}" for score in sorted(scores))
            rows.append([f"{task}, {method}", f"{scores.mean():.0f}", each, f"{areas.mean():.0f}", *kl])
    header = ["", "score", "of each seed", "mean return while training"]
    header += [f"KL per step, {place}" for place in MAPS if smooth]
    about = [found.study.purpose.strip(), f"Scores are after {found.env_steps:,} env steps."]
    about += [*_seeds_of_all(found), f"`gpld study report {name}` shows the rest."]
    figure = f"![Returns over env steps]({FIGURES.name}/{name}-tasks.png)"
    made = {str(run.provenance): _made(run.provenance) for run in found.tables.runs}
    how = f"`gpld study run {name}`: {'; '.join(made.values())}."
    return "\n\n".join([" ".join(" ".join(about).split()), figure, _table(header, rows), how])


def _seeds_of_all(found: Evidence) -> list[str]:
    """Scores with all seeds of the methods that have more in the study of the page."""
    every, words = Evidence(), []
    for task, method in itertools.product(found.tasks, found.study.methods):
        some, scores = (x.values(x.scores, task, method) for x in (found, every))
        if len(some) < len(scores):
            words.append(f"{scores.mean():.0f} ({method})")
    return [f"With all seeds of `{STUDY}` they are {' and '.join(words)}."] if words else []


def _made(provenance: Mapping[str, Any]) -> str:
    """When runs were made, on what, and of which code."""
    versions, commit = provenance["packages"], provenance["git"]["commit"]
    device = provenance["device"]["kind"]
    return f"{provenance['date']}, {device}, jax {versions['jax']}, commit {commit[:7]}"


def cost() -> str:
    """What the penalty adds to an update."""
    one, eight = _overhead("update-09e7219", runs=1), _overhead("update-09e7219", runs=8)
    paper = results.paper_cost()
    posterior = paper.loc[(paper["rho"] == 0.5) & (paper["prior"] == 0)].set_index("posterior")["ratio"]
    ratio, light = (float(posterior.loc[weight]) for weight in (0.5, 0.25))
    words = (
        f"An update with the penalty takes {one:.3f} times as long as one of DreamerV3 with one run in a "
        f"program, and {eight:.3f} times with eight (12M agent, one NVIDIA H200): the closed form needs "
        f"no second backward pass. The paper reports {ratio:.2f} times for this setting and {light:.2f} for "
        "the same work with half of the weight, of whole runs and by vector-Jacobian products. "
        "[Performance](performance.md) has the tables."
    )
    return "\n\n".join([words, *(_settings() if kept(COST) else [])])


def _settings() -> list[str]:
    """The paper's table of costs, beside what the same settings take here."""
    tables = results.read_tables(DATA.parent / COST)
    measured = tables.tables["cost"].set_index(["rho", "posterior", "prior", "estimator"])
    baseline = measured.xs("", level="estimator").iloc[0]
    rows = []
    for paper in results.paper_cost().itertuples(index=False):
        setting = (paper.rho, paper.posterior, paper.prior)
        ways = [measured.loc[(*setting, estimator)] for estimator in ("vjp", "probes")]
        rows.append(
            [
                *(f"{value:g}" for value in setting),
                f"{paper.ratio:.2f} ± {paper.std:.3f}",
                *(f"{way['ratio']:.3f} ± {way['ratio_std']:.3f}" for way in ways),
                f"{paper.seconds_more:.0f}",
                *(f"{way['seconds_more']:.0f}" for way in ways),
                *(f"{way['temporary_mib']:.0f}" for way in ways),
                *(f"{way['kernels']:.0f}" for way in ways),
            ]
        )
    header = ["rho", "posterior", "prior", "the paper's time over DreamerV3's", "by products", "closed form"]
    header += ["the paper's extra s in 500k env steps", "by products", "closed form"]
    header += ["temporary MiB by products", "closed form", "kernels by products", "closed form"]
    words = (
        "The paper's table of run times, which it took with vector-Jacobian products. Here the same penalty "
        "is timed that way (`estimator = vjp`) and in the closed form that training uses, each setting in "
        f"turn in every round, one run in a program. DreamerV3 takes {baseline['ms']:.2f} ms an update, "
        f"{baseline['temporary_mib']:.0f} MiB besides its states and {baseline['kernels']:.0f} kernels."
    )
    how = (
        f"`gpld study run {COST}`, {_made(tables.runs[0].provenance)}; means and standard deviations, here "
        f"over rounds of {UPDATES} updates, in the paper over whole runs."
    )
    return [words, _table(header, rows), how]


def _overhead(name: str, *, runs: int) -> float:
    """Time of an update with probes over DreamerV3's, as measured with so many runs in one program."""
    return _update(name, runs=runs)["ratio"]


def _update(name: str, *, runs: int) -> dict[str, float]:
    """A measured update with probes."""
    return next(
        row
        for row in _measured(name)
        if row["runs"] == runs and row["variant"] == "probes" and row["rho"] == 0.5
    )


def _measured(name: str) -> list[dict]:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())["rows"]


def others(found: Evidence) -> str:
    """Whether the baseline here is what others measured."""
    peers = results.peers(agents=["DreamerV3"]).set_index(["task", "env_steps"])
    first = results.published()
    first = first.loc[first["env_steps"] == PEER_STEPS].groupby("task")["return"].mean()
    aligned = curves.align(found.rows)
    rows = []
    for task in found.tasks:
        here = _evaluated(aligned[task, DREAMER])
        peer = peers.loc[(task, PEER_STEPS)]
        place = "inside" if peer["low"] <= here.mean() <= peer["high"] else "above"
        place = "below" if here.mean() < peer["low"] else place
        theirs = f"{peer['mean']:.0f} [{peer['low']:.0f}, {peer['high']:.0f}]"
        rows.append([task, _mean(here), theirs, place, f"{first[task]:.0f}" if task in first else ""])
    header = ["task", "DreamerV3 here", "DreamerV3 as others ran it", "this mean and their bounds"]
    header += ["as published in 2023"]
    words = (
        f"Evaluations at {PEER_STEPS:,} env steps, beside runs of DreamerV3 by the authors of BMPC, who "
        "do not say which version or how many seeds (the bounds are theirs), and beside the runs that "
        "DreamerV3's authors published in 2023, whose agent had another recurrent layer and other sizes and "
        "learns sooner. The paper follows later code, and so does this package; `results/README.md` has more."
    )
    ahead = sum(
        _evaluated(aligned[task, GPLD]).mean() > _evaluated(aligned[task, DREAMER]).mean()
        for task in found.tasks
    )
    noise = (
        f"An evaluation is of 3 episodes, and noisy: at {PEER_STEPS:,} env steps GPLD's mean is above "
        f"DreamerV3's on {ahead} of {len(found.tasks)} tasks. The scores above are of 20 episodes."
    )
    return "\n\n".join([words, _table(header, rows), noise])


def _evaluated(runs: curves.Runs) -> np.ndarray:
    """The return of each run at `PEER_STEPS`."""
    return np.array([np.interp(PEER_STEPS, runs.env_steps, line) for line in runs.returns])


def stronger(found: Evidence) -> str:
    """Other agents at the same number of env steps."""
    peers = results.peers()
    at = peers.loc[(peers["env_steps"] == PEER_STEPS) & peers["task"].isin(found.tasks)]
    means = at.pivot_table(index="task", columns="agent", values="mean")
    agents = means.mean().sort_values(ascending=False).index.tolist()
    aligned = curves.align(found.rows)
    rows = []
    for task in found.tasks:
        ours = _evaluated(aligned[task, GPLD]).mean()
        rows.append([task, f"{ours:.0f}", *(f"{means.loc[task, agent]:.0f}" for agent in agents)])
    best = [task for task, row in zip(found.tasks, rows, strict=True) if float(row[2]) > float(row[1])]
    words = (
        f"Mean returns at {PEER_STEPS:,} env steps from states. {agents[0]} is ahead of GPLD-DreamerV3 "
        f"on {len(best)} of {len(rows)} tasks. GPLD is about world models; it is not the quickest way to "
        "these returns."
    )
    header = ["task", "GPLD-DreamerV3 here", *agents]
    source = "The others' numbers are quoted from BMPC's and SimbaV2's repositories: `gpld.results.peers()`."
    return "\n\n".join([words, _table(header, rows), source])


def protocol(found: Evidence) -> str:
    """How the runs were made."""
    rows = []
    for made in {str(run.provenance): run.provenance for run in found.tables.runs}.values():
        together = {run.task for run in found.tables.runs if run.provenance == made}
        packages = made["packages"]
        rows.append(
            [
                ", ".join(sorted(together)),
                made["date"],
                made["device"]["kind"],
                made["git"]["commit"][:7],
                packages["jax"],
                f"{packages['mujoco']}, {packages['envpool']}",
            ]
        )
    every = found.study.config(found.tasks[0], GPLD, 0).eval.every
    words = (
        f"`gpld study run {STUDY}`: the paper's configuration as printed ([method](method.md)), the 12M "
        f"agent, bfloat16, all eight runs of a task in one program. Evaluations are every {every:,} "
        "agent steps, the mean of 3 whole episodes, not smoothed; scores are 20 episodes of the last "
        "model. No run is left out. (walker-run was made by a script of its commit that did "
        "the same.)"
    )
    where = (
        f"All rows are in the repository's folder `results/{STUDY}` as CSV. `gpld study table {STUDY}`, "
        f"`gpld study figure {STUDY}` and `gpld study report {STUDY}` show them on any machine, in "
        "seconds and without a GPU."
    )
    return "\n\n".join(
        [words, _table(["tasks", "date", "device", "commit", "jax", "MuJoCo, EnvPool"], rows), where]
    )


def write_section(found: Evidence) -> str:
    """The section of results/README.md."""
    return "\n".join(
        [
            "## GPLD against DreamerV3",
            "",
            in_short(found),
            "",
            f"Tables and figures are on the page [Results](../docs/results.md); `{COMMAND}` writes it from "
            f"[{STUDY}]({STUDY}).",
            "",
        ]
    )


def write_numbers(found: Evidence) -> str:
    """What the README says in short."""
    told = [task for task in found.tasks if found.has_ratio(task)]
    by_task = _tasks([f"{_more(found.gain(found.scores, task))} on {task}" for task in told])
    alone, eight = _update("update-09e7219", runs=1), _update("update-09e7219", runs=8)
    theirs = next(row["ms"] for row in _measured("update-reference") if row["method"] == GPLD)
    added = [row["ratio"] - 1 for row in _measured("update") if row["variant"] == "probes"]
    added += [alone["ratio"] - 1, eight["ratio"] - 1]
    count = f"{len(found.tasks)} of " * bool(found.missing) + f"the paper's {len(found.study.tasks)}"
    sides = found.sides(found.scores)
    chance = statistics.probability_of_improvement(*sides)
    low, high = statistics.improvement_interval(*sides)
    verdict = "Better: not settled." if low <= 0.5 <= high else f"Better: {'yes' if low > 0.5 else 'no'}."
    jacobians = _last_means(found.tables.tables["sensitivity"])["jacobian"].unstack("method")
    smoother = (jacobians[DREAMER] / jacobians[GPLD]).xs("posterior", level="map")
    lines = [
        f"**Smoother: yes.** The posterior's squared Jacobian norm is {smoother.min():.0f} to "
        f"{smoother.max():.0f} times smaller than DreamerV3's on {count} locomotion tasks.",
        f"**{verdict}** After {found.env_steps // 1000}k env steps, with {len(found.study.seeds)} seeds of "
        f"each, GPLD scores {by_task}. "
        + "".join(f"{_too_little(found, task)} " for task in found.tasks if task not in told)
        + f"A run of it scores more than one of DreamerV3 with probability {chance:.2f} "
        f"{_interval((low, high))}. The paper reports gains after 1M env steps, which have not been run here "
        "([results](docs/results.md)).",
        f"**Fast: {theirs / alone['ms']:.1f} times** the authors' code, one run on one H200: "
        f"{alone['ms']:.1f} ms an update, where theirs takes {theirs:.1f} ms (timed outside this "
        f"repository). Each of eight runs in one program takes {eight['ms']:.1f} ms "
        "([performance](docs/performance.md)).",
        f"**Cheap:** the penalty adds {min(added):.0%} to {max(added):.0%} to an update: it has a "
        "[closed form](docs/penalty.md#the-closed-form).",
    ]
    return "".join(f"- {line}\n" for line in lines)


def draw(found: Evidence) -> list[Path]:
    """Save the figures of the pages."""
    paths = []
    for evidence in (found, *(Evidence(name) for name in MORE if kept(name))):
        study = evidence.study.name
        source = f"data: results/{study}; command: {COMMAND}"
        for name, figure in _show.draw(evidence.study, evidence.rows, "interval").items():
            if name == "tasks" or len(evidence.tasks) > 1:
                paths += figures.save(figure, FIGURES, f"{study}-{name}", source=source, kinds=(".png",))
    return paths


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _mean(values: np.ndarray) -> str:
    low, high = statistics.interval(statistics.mean, values[:, None])
    return f"{values.mean():.0f} [{low:.0f}, {high:.0f}]"


def _interval(ends: Sequence[float], digits: int = 2) -> str:
    return f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"


def _more(gain: float) -> str:
    return "the same" if abs(gain) < SAME else f"{abs(gain):.0%} {'more' if gain > 0 else 'less'}"


def _tasks(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def pages(found: Evidence) -> dict[Path, str]:
    """Every page that has numbers of the study, as it should be."""
    readme = _with_section(README, "in short", write_numbers(found))
    return {
        PAGE: write_page(found),
        KEPT: _with_section(KEPT, STUDY, write_section(found)),
        README: readme,
        LANDING: write_landing(readme),
    }


def write_landing(readme: str) -> str:
    """The first page of the site: the README. Links that leave docs/ become plain text."""
    title, rest = readme.split("\n", 1)
    rest = re.sub(r"(?<!!)\[([^]]+)\]\((?!docs/|https?:)[^)]+\)", r"\1", rest).replace("](docs/", "](")
    return f"{title}\n\n<!-- Written by `{COMMAND}` from README.md; changes by hand are lost. -->\n{rest}"


def _with_section(page: Path, name: str, text: str) -> str:
    """A page with what stands between its marks of this name replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
    return re.sub(pattern, lambda _: f"{begin}\n{text}{end}", page.read_text(), flags=re.S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages and figures, or check the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args(arguments).check
    found = Evidence()
    wanted = pages(found)
    if check:
        stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
        print(*(f"stale: {path.relative_to(ROOT)}" for path in stale), sep="\n")
        return int(bool(stale))
    for path, text in wanted.items():
        path.write_text(text)
    print(*(path.relative_to(ROOT) for path in [*wanted, *draw(found)]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
