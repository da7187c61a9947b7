from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpld import config as options
from gpld.analysis.report._page import FilmEntry
from gpld.files import is_file
from gpld.training import provenance, saved


def configs_of(runs: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Every option of some runs, by their names, as values that JSON can hold."""
    found = {}
    for name, folder in runs.items():
        if (folder / saved.CONFIG).exists():
            found[name] = options.flat(options.load(folder / saved.CONFIG))
    return found


def films_of(title: str, run: Path) -> list[FilmEntry]:
    """Films and open-loop predictions in a run's folder: each PNG, and what plays under the same name."""
    found = []
    stills = [path for name in ("film*.png", "open-loop*.png") for path in run.glob(name) if is_file(path)]
    for still in sorted(stills, key=lambda path: (len(path.stem), path.stem)):  # film-2 before film-10
        plays = (still.with_suffix(suffix) for suffix in (".mp4", ".gif"))
        words = title if still.stem == "film" else f"{title}, {still.stem.replace('-', ' ')}"
        found.append(FilmEntry(words, still, next(filter(is_file, plays), None)))
    return found


def environment_of(folders: Mapping[str, Path]) -> list[tuple[str, str]]:
    """Versions, devices and commands of all starts of some runs; each value with how many starts had it."""
    counts: dict[str, dict[str, int]] = {}
    for folder in folders.values():
        for start in provenance.starts(folder):
            for name, value in _flat(start).items():
                seen = counts.setdefault(name, {})
                seen[value] = seen.get(value, 0) + 1
    return [(name, _listed(values)) for name, values in counts.items()]


def _flat(start: dict[str, Any]) -> dict[str, str]:
    git, device = start.get("git") or {}, start.get("device") or {}
    hardware = f"{device.get('count')} x {device.get('kind')} ({device.get('platform')})" if device else None
    values = {
        "gpld": start.get("gpld"),
        "commit": f"{git['commit'][:12]}{', with changes' if git.get('dirty') else ''}" if git else None,
        "python": start.get("python"),
        "platform": start.get("platform"),
        "device": hardware,
        "XLA_FLAGS": start.get("xla_flags"),
        **(start.get("packages") or {}),
    }
    return {name: str(value) for name, value in values.items() if value}


def _listed(values: dict[str, int]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return "; ".join(f"{value} ({count} starts)" for value, count in values.items())
