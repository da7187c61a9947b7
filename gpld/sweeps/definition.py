"""The definition of a sweep, its runs, and the file that keeps both it and what was decided."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpld import files
from gpld.config import Config, ConfigError, override, validate
from gpld.files import DamagedFile
from gpld.population import Member, task_folder
from gpld.sweeps.settings import Combination, Values, checked, settings

SWEEP = "sweep.json"
"""The definition of a sweep and the settings that were stopped, in the folder of its runs."""


@dataclass(frozen=True)
class Sweep:
    """A sweep: what is varied, and what was decided."""

    values: Values
    """Values of options by their dotted names; `preset` and `method` stand for several options.

    Settings are combinations of all but `task`: each is trained on every task.
    """
    seeds: tuple[int, ...] = (0,)
    """Seeds of every setting."""
    halve_at: tuple[int, ...] = ()
    """Env steps at which the worse half of the settings is stopped, in rising order."""
    sweep_at: tuple[int, ...] = ()
    """Env steps at which settings are compared, in rising order; `halve_at` and the end if there are none."""
    halved: tuple[int, ...] = ()
    """Those of `halve_at` that have been passed."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    """Names of settings that were stopped, and why."""

    @property
    def tasks(self) -> list[str]:
        """The tasks, if they are swept."""
        return checked("task", self.values["task"]) if "task" in self.values else []

    @property
    def settings(self) -> list[Combination]:
        """All settings, those that were stopped included."""
        others = {name: own for name, own in self.values.items() if name != "task"}
        return settings(others, runs=len(self.seeds) * max(1, len(self.tasks)))

    def folders(self, out: Path, setting: Combination) -> dict[tuple[str, int], Path]:
        """Folders of a setting's runs by task, empty if none is swept, and seed."""
        return {
            (task, seed): out / task_folder(task) / f"{setting.name}-seed{seed}"
            for task in self.tasks or [""]
            for seed in self.seeds
        }


def members(config: Config, sweep: Sweep, out: Path) -> dict[str, list[Member]]:
    """The runs of each setting by its name, or a `ConfigError` about a mistake in the sweep or a value."""
    if not sweep.seeds or len(set(sweep.seeds)) < len(sweep.seeds):
        raise ConfigError(f"seeds: {sweep.seeds!r} is not allowed; it must be different seeds, at least one")
    found: dict[str, list[Member]] = {}
    for setting in sweep.settings:
        for (task, seed), folder in sweep.folders(out, setting).items():
            own = setting.apply(override(config, {"task": task or config.task, "seed": seed}))
            try:
                validate(own)
            except ConfigError as error:
                raise ConfigError(f"sweep: {setting.name}: {error}") from error
            found.setdefault(setting.name, []).append(Member(own, folder))
    configs = [member.config for own in found.values() for member in own]
    first = max(own.eval.every * own.env.action_repeat for own in configs)
    if not all(own.eval.every for own in configs):
        raise ConfigError("eval.every: 0 is not allowed in a sweep, which compares evaluations")
    for name, end in (("halve_at", config.env_steps - 1), ("sweep_at", config.env_steps)):
        steps = getattr(sweep, name)
        if steps and first > end:
            raise ConfigError(
                f"{name}: {steps!r} is not allowed: no evaluation is due before {first} env steps, and these "
                f"runs have {config.env_steps}; a smaller eval.every makes them earlier"
            )
        if list(steps) != sorted({*steps}) or any(not first <= step <= end for step in steps):
            where = f"from {first}, where all have been evaluated, to {end}"
            raise ConfigError(f"{name}: {steps!r} is not allowed; it must be increasing env steps {where}")
    return found


def read(folder: Path) -> Sweep | None:
    """The sweep of a folder, or None if it has none."""
    path = folder / SWEEP
    try:
        values = files.read_json(path)
        steps = {name: tuple(values[name]) for name in ("seeds", "halve_at", "sweep_at", "halved")}
        sweep = Sweep(**{**values, **steps, "stopped": dict(values["stopped"])})
        if not sweep.settings:
            raise ValueError("no settings")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path}: not the definition of a sweep ({error!r})") from error
    return sweep


def write(sweep: Sweep, folder: Path) -> None:
    """Keep a sweep in the folder of its runs, in one move."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / SWEEP, asdict(sweep))
