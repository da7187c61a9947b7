"""The page about a run's folder has every file and every metric that a run writes."""

import json
import re

import jax
import pytest

from gpld import agent, config, profiling
from gpld.analysis import quality, sensitivity
from gpld.results import _collect
from gpld.training import logs, provenance, saved, score
from gpld.training.checkpoints.milestones import MILESTONES
from gpld.types import Spaces

from .pages import DOCS

PAGE = (DOCS / "explain.md").read_text()
NAMES = set(re.findall(r"`([^`]+)`", PAGE))


def named(name):
    """Whether the page has a file or metric, by its name or by a pattern of names."""
    patterns = [re.escape(known).replace(r"\*", ".*") for known in NAMES]
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@pytest.mark.parametrize("prior", [0.0, 0.1])
def test_every_metric_of_an_update_is_explained(prior):
    options = config.override(
        config.with_presets(config.Config("cartpole-swingup"), ["nano", "cpu"]),
        {"agent": {"penalty": {"prior": prior}}},
    )
    spaces = Spaces((("position", (3,)), ("velocity", (2,))), 1)

    def update(key):
        state = agent.init(options.agent, spaces, key)
        return agent.update(options.agent, state, profiling.random_batch(options, spaces, key))[2]

    metrics = jax.eval_shape(update, jax.random.key(0))
    assert len(metrics) > 30
    assert [name for name in metrics if not named(name)] == []


def test_everything_in_a_run_s_folder_is_explained(small_run):
    inside = [path.name + "/" * path.is_dir() for path in small_run.iterdir()]
    assert {"config.json", "checkpoints/"} <= set(inside)
    assert [name for name in inside if not named(name)] == []
    lines = [json.loads(line) for line in (small_run / logs.METRICS).read_text().splitlines()]
    assert [name for line in lines for name in line if not named(name)] == []
    clock = [json.loads(line) for line in (small_run / logs.TIMING).read_text().splitlines()]
    assert [name for line in clock for name in line if not named(name)] == []


def test_files_of_other_commands_are_explained():
    files = [saved.CONFIG, saved.SPACES, provenance.RUN, logs.UNDONE, score.EVALUATION, _collect.SCORES]
    files += [f"{MILESTONES}/", "film.gif", "open-loop-pixels.mp4", "dream.png"]
    files += [f"{kind.NAME}.csv" for kind in (sensitivity, quality)]
    assert [name for name in files if not named(name)] == []
    assert not named("nonsense.json")
