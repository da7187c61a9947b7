from gpld import results
from gpld.tasks import PROPRIO


def test_the_papers_table_has_every_task_and_both_methods():
    table = results.paper_scores()
    pairs = set(zip(table["task"], table["method"], strict=True))
    assert pairs == {(task, method) for task in PROPRIO for method in results.METHODS}
    row = table[(table["task"] == "hopper-hop") & (table["method"] == "GPLD-DreamerV3")].iloc[0]
    assert (row["mean"], row["std"], row["env_steps"]) == (197.4, 41.7, 1_000_000)


def test_the_papers_run_times_are_twelve():
    table = results.paper_cost()
    assert len(table) == 12
    row = table[(table["rho"] == 0.5) & (table["posterior"] == 0.5) & (table["prior"] == 0)].iloc[0]
    assert (row["ratio"], row["std"], row["seconds_more"]) == (1.51, 0.157, 3712.1)


def test_published_curves_are_results_like_ours(tmp_path):
    table = results.published()
    assert tuple(table.columns) == results.COLUMNS
    assert (table.groupby("task")["seed"].nunique() == 5).all()
    assert set(table["task"]) == {"cartpole-swingup", "cheetah-run", "pendulum-swingup", "walker-walk"}
    for _, run in table.groupby("run"):
        results.write(tmp_path, run)
    assert results.load(tmp_path)["return"].sum() == table["return"].sum()
