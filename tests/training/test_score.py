import dataclasses
import io
import json
import statistics

import jax
import pytest
from rich.console import Console

import gpld
from gpld.training import evaluate, saved, score


@pytest.fixture(scope="module")
def trained(small_run):
    return saved.load(small_run)


@pytest.fixture(scope="module")
def found(trained):
    return score.score(trained, episodes=3, seed=5)


def test_a_score_is_an_evaluation_with_keys_of_its_seed(trained, found):
    again = evaluate(trained.config, trained.model, episodes=3, number=5, key=jax.random.key(5))
    assert found.returns == again
    assert found[:4] == ("cartpole-balance", 400, 0, 5)
    assert len(set(found.returns)) == 3
    assert all(0 < episode_return <= 1000 for episode_return in found.returns)


def test_another_seed_begins_elsewhere(trained, found):
    assert set(score.score(trained, episodes=3, seed=6).returns).isdisjoint(found.returns)


@pytest.mark.slow
def test_agents_scored_together_score_as_each_does_alone(trained):
    others = [
        trained._replace(
            config=dataclasses.replace(trained.config, seed=seed),
            model=jax.tree.map(lambda x, factor=factor: factor * x, trained.model),
        )
        for seed, factor in ((4, 1.5), (5, 0.5))
    ]
    agents = [trained, *others]
    together = score.score_all(agents, episodes=2)
    for one, own in zip(agents, together, strict=True):
        alone = score.score(one, episodes=2)
        assert own.returns == pytest.approx(alone.returns, abs=1e-3)
        assert own[:4] == alone[:4]
    assert len({episode for own in together for episode in own.returns}) == 6


def test_the_file_has_the_returns_and_where_they_came_from(found, tmp_path):
    path = found.write(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "evaluation.json"
    values = json.loads(path.read_text())
    assert values["returns"] == found.returns
    assert values["mean"] == pytest.approx(statistics.mean(found.returns))
    assert values["std"] == pytest.approx(statistics.pstdev(found.returns))
    assert values["env_steps"] == 400
    assert values["provenance"]["gpld"] == gpld.__version__


def test_the_table():
    console = Console(record=True, width=60, file=io.StringIO())
    console.print(score.table(score.Score("walker-walk", 10, 1, 0, [1.0, 4.0])))
    cells = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    rows = [row for row in cells if row and row[-1].replace(".", "").isdigit()]
    assert rows == [["0", "1.0"], ["1", "4.0"], ["mean", "2.5"], ["std", "1.5"]]
