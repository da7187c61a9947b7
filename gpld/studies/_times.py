"""Studies that time updates instead of training: what a worker does, and how it is shown."""

from pathlib import Path

import pandas as pd

from gpld import config as options, files
from gpld.analysis import cost
from gpld.analysis.tables import Table
from gpld.studies import _state
from gpld.studies._estimate import spaces_of
from gpld.studies._plan import Group, Plan
from gpld.training import provenance, saved


def measure(folder: Path, plan: Plan, group: Group) -> None:
    """Time the runs of a group in turn, and keep what was found of each in its folder."""
    import jax

    runs = sorted(group.runs, key=lambda run: run.method != plan.study.baseline)  # the baseline first
    spaces = spaces_of(runs[0].config)
    rows = cost.compare([run.config for run in runs], spaces=spaces, progress=cost.print_progress)
    device = jax.devices()[0].device_kind
    for run, row in zip(runs, rows.to_dict("records"), strict=True):
        path = _state.run_folder(folder, run)
        path.mkdir(parents=True, exist_ok=True)
        options.save(run.config, path / saved.CONFIG)
        provenance.record(path, 0)
        about = {"task": run.task, "method": run.method, "seed": run.seed, "device": device}
        with files.in_one_move(path / _state.TIMES) as unfinished:
            pd.DataFrame([about | row]).to_csv(unfinished, index=False)


def load(plan: Plan, folder: Path) -> pd.DataFrame:
    """Measurements so far: a row for each run, with the columns of `cost.measure`."""
    paths = [_state.run_folder(folder, run) / _state.TIMES for run in plan.runs]
    # A baseline has no estimator, which is the empty text and no missing number.
    rows = [pd.read_csv(path).astype({"estimator": object}) for path in paths if path.exists()]
    return pd.concat(rows, ignore_index=True).fillna({"estimator": ""}) if rows else pd.DataFrame()


def tables(plan: Plan, folder: Path, source: str) -> list[Table]:
    """The paper's table of overheads, with what explains them beside it; one for each device."""
    found = load(plan, folder)
    if found.empty:
        return []
    notes = (f"all of it is in {_state.TIMES} of each run", source)
    return [
        cost.table(own, title=f"{plan.study.title}, on {device}", notes=notes)
        for device, own in found.groupby("device", sort=False)
    ]


def summary(plan: Plan, folder: Path) -> list[str]:
    """The findings in sentences."""
    found = load(plan, folder)
    if found.empty:
        return ["Nothing has been timed yet."]
    sentences = []
    for device, own in found.groupby("device", sort=False):
        base = own["method"] == plan.study.baseline
        ranges = [
            f"{cost.ESTIMATORS[str(estimator)]} {ratios.min():.2f} to {ratios.max():.2f}"
            for estimator, ratios in own.loc[~base].groupby("estimator", sort=False)["ratio"]
        ]
        sentences.append(
            f"On {device} an update of {plan.study.baseline} takes {own.loc[base, 'ms'].mean():.3g} ms, and "
            f"with the penalty {', '.join(ranges)} times as long."
        )
    return sentences
