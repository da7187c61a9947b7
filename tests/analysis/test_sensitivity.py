import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import scipy.special

from gpld import cli, distributions, penalty, world_model
from gpld.analysis import rollouts, sensitivity
from gpld.files import DamagedFile
from gpld.training import saved
from gpld.training.checkpoints import milestones


def measure_run(folder, **options):
    return rollouts.measure_all(folder, {"sensitivity": sensitivity.measure}, **options)["sensitivity"]


def test_a_linear_gaussian_head_has_its_analytic_sensitivity():
    # r(x) = N(W'x, s^2 I):  KL(r(x) || r(x + d)) = |W'd|^2 / (2 s^2), and E |W'v|^2 = ||W||_F^2 / dims.
    dims, std, key = 6, 0.7, jax.random.key(0)
    weight = jax.random.normal(key, (dims, 4))
    x = jax.random.normal(jax.random.key(1), (20_000, dims))

    def gaussian_kl(before, after):
        return jnp.sum(jnp.square(after - before), axis=1) / (2 * std**2), jnp.zeros(len(before))

    found = sensitivity.along_random_directions(
        lambda x: x @ weight, x, jax.random.key(2), change=gaussian_kl
    )
    lengths = np.array(sensitivity.MAGNITUDES) * np.linalg.norm(x, axis=1).mean()
    np.testing.assert_allclose(found.length, lengths, rtol=1e-5)
    expected = lengths * float(jnp.sum(jnp.square(weight))) / dims / (2 * std**2)
    np.testing.assert_allclose(found.kl, expected, rtol=0.03)
    # And without directions to average over, to rounding: every direction of a multiple of I is the same.
    found = sensitivity.along_random_directions(
        lambda x: 3 * x, x[:50], jax.random.key(2), change=gaussian_kl
    )
    np.testing.assert_allclose(found.kl, np.asarray(found.length) * 9 / (2 * std**2), rtol=1e-2)
    assert found.kl[-1] == pytest.approx(float(found.length[-1]) * 9 / (2 * std**2), rel=1e-4)


def test_a_linear_softmax_head_has_its_analytic_sensitivity_for_small_steps():
    dims, rows = 5, 3
    weight = jax.random.normal(jax.random.key(0), (dims, rows))
    x = jnp.broadcast_to(jnp.array([0.3, -0.2, 0.1, 0.4, -0.5]), (20_000, dims))

    def head(x):  # two classes each
        p = jax.nn.sigmoid(x @ weight)
        return jnp.stack([p, 1 - p], axis=2)

    found = sensitivity.along_random_directions(head, x, jax.random.key(1), magnitudes=(0.001, 0.01))
    slope = np.asarray(head(x[:1])[0, :, 0] * head(x[:1])[0, :, 1])
    norms = np.linalg.norm(weight, axis=0)
    # KL is d' (Fisher information) d / 2; |v_1| of a unit vector v has this mean.
    expected = np.asarray(found.length) * np.sum(slope * norms**2) / dims / 2
    np.testing.assert_allclose(found.kl, expected, rtol=0.03)
    mean = math.gamma(dims / 2) / (math.sqrt(math.pi) * math.gamma((dims + 1) / 2))
    np.testing.assert_allclose(found.total_variation, np.sum(slope * norms) * mean, rtol=0.03)


def test_the_change_is_kl_and_total_variation():
    logits = jax.random.normal(jax.random.key(0), (2, 7, 3, 4))
    p, q = jax.nn.softmax(logits)
    kl, variation = sensitivity.change(p, q)
    np.testing.assert_allclose(kl, distributions.kl(p, q), rtol=1e-5)
    np.testing.assert_allclose(variation, np.abs(p - q).sum((1, 2)) / 2, rtol=1e-6)


def test_the_change_keeps_its_digits_where_distributions_are_almost_equal():
    logits = np.random.default_rng(0).normal(size=(5, 3, 4))
    p = scipy.special.softmax(logits, axis=-1)
    q = scipy.special.softmax(logits + 3e-4 * np.random.default_rng(1).normal(size=logits.shape), axis=-1)
    exact = np.sum(p * np.log(p / q), axis=(1, 2))
    kl, _ = sensitivity.change(jnp.asarray(p, jnp.float32), jnp.asarray(q, jnp.float32))
    np.testing.assert_allclose(kl, exact, rtol=5e-3)


predict = jax.jit(world_model.predict, static_argnums=0)
SHAPE = {"episodes": 2, "steps": 20}
"""Everywhere the same: another would be compiled again."""


@pytest.fixture(scope="module")
def measured(runs):
    rows = {name: measure_run(folder, **SHAPE) for name, folder in runs.items()}
    return pandas.concat(rows.values(), ignore_index=True)


def test_the_penalised_agent_is_less_sensitive(measured):
    found = sensitivity.averages(measured).set_index(["map", "method"])
    for name, factor in (("posterior", 0.2), ("observation", 0.2)):
        smooth, rough = found.loc[(name, "GPLD-DreamerV3")], found.loc[(name, "DreamerV3")]
        assert 0 < smooth["kl"] < factor * rough["kl"]
        assert 0 < smooth["total_variation"] < rough["total_variation"]
    smooth, rough = (found.loc[("posterior", name), "jacobian"] for name in ("GPLD-DreamerV3", "DreamerV3"))
    assert 0 < smooth < 0.2 * rough


def test_rows_are_tidy(measured):
    assert len(measured) == 2 * 3 * 10
    assert not measured.drop(columns="jacobian").isna().any(axis=None)
    assert set(measured["map"]) == set(sensitivity.MAPS)
    assert measured["jacobian"].isna().equals(measured["map"] == "observation")
    assert set(measured["env_steps"]) == {1600}
    lengths = measured["length"] / measured["magnitude"]
    assert lengths.groupby([measured["run"], measured["map"]]).std().max() < 1e-4 * lengths.min()


def test_the_jacobian_is_that_of_the_full_map(runs):
    trained = saved.load(runs["dreamerv3"])
    batch = rollouts.roll_out(trained, **SHAPE)
    key = jax.random.key(4)
    _, found = sensitivity.sensitivities(trained.config.agent, trained.model, batch, key)
    world, config = trained.model.world, trained.config.agent
    uniform = jax.random.uniform(jax.random.split(key, 5)[0], (20, 2, config.model.stoch))
    h = predict(config, world, batch, uniform).observed.h
    e = world.encoder(batch.obs, jnp.dtype(jnp.float32))
    u = jnp.concatenate([h, e], axis=-1).reshape(40, -1)

    @jax.jit
    def exact(head, states):
        return jax.vmap(lambda u: penalty.exact(lambda u: world.dynamics.probs(head(u)), u))(states).mean()

    assert found["posterior"] == pytest.approx(float(exact(world.dynamics.posterior, u)), rel=1e-4)
    prior = exact(world.dynamics.prior, h.reshape(40, -1))
    assert found["prior"] == pytest.approx(float(prior), rel=1e-4)


def test_the_seed_decides_everything(runs):
    one, two, other = (measure_run(runs["gpld"], seed=seed, **SHAPE) for seed in (1, 1, 2))
    pandas.testing.assert_frame_equal(one, two)
    assert (one["kl"] != other["kl"]).all()


def test_a_rollout_is_what_evaluation_plays(runs):
    trained = saved.load(runs["gpld"])
    batch = rollouts.roll_out(trained, episodes=2, seed=5)
    assert batch.reward.shape == (501, 2)
    assert batch.is_first[:, 0].nonzero()[0].tolist() == [0]
    assert batch.is_last[:, 0].nonzero()[0].tolist() == [500]
    assert np.asarray(batch.prev_action[0]).tolist() == [[0.0], [0.0]]
    assert (np.abs(batch.prev_action[1:]) > 0).all()
    assert not np.array_equal(batch.obs["position"][:, 0], batch.obs["position"][:, 1])


def test_all_checkpoints_are_measured_and_kept_by_their_step(runs):
    folder, options = runs["dreamerv3"], SHAPE
    steps = saved.steps(folder)
    assert steps == [800, 1600]
    (folder / "sensitivity.csv").unlink(missing_ok=True)
    newest = measure_run(folder, **options)
    assert newest["env_steps"].unique().tolist() == steps[1:]
    both = measure_run(folder, all_checkpoints=True, **options)
    assert both["env_steps"].unique().tolist() == steps
    again = measure_run(folder, **options)
    pandas.testing.assert_frame_equal(again, both)
    pandas.testing.assert_frame_equal(rollouts.read([folder], "sensitivity"), both)
    assert both.groupby("env_steps")["kl"].mean().nunique() == 2


def test_milestones_are_measured_too(runs, tmp_path):
    folder = shutil.copytree(runs["gpld"], tmp_path / "run")
    early = saved.load(folder, 800)
    milestones.save([folder], 400, jax.tree.map(lambda x: x[None], early.model), updates=50)
    rows = measure_run(folder, all_checkpoints=True, **SHAPE)
    assert rows["env_steps"].unique().tolist() == [400, 800, 1600]
    kept, checkpoint, last = (rows.loc[rows["env_steps"] == step] for step in (400, 800, 1600))
    assert set(kept["updates"]) == {50}
    np.testing.assert_array_equal(kept["kl"], checkpoint["kl"])  # the same model, whatever its step
    assert (kept["kl"].to_numpy() != last["kl"].to_numpy()).all()
    panels = {axis.get_title("left"): axis for axis in sensitivity.draw(rows).axes}
    (line,) = panels["cartpole-balance: posterior"].get_lines()
    assert line.get_xdata().tolist() == [400, 800, 1600]


def rows(**columns):
    return {"run": "a", "task": "walker-walk", "map": "posterior", "seed": 0, "jacobian": 1.0} | columns


ROWS = pandas.DataFrame(
    [
        rows(run=f"{method}{seed}", seed=seed, method=method, env_steps=steps, kl=kl, total_variation=kl)
        for method, scale in (("DreamerV3", 1.0), ("GPLD-DreamerV3", 0.5))
        for seed in (0, 1)
        for steps, value in ((100, 2.0), (200, 6.0))
        for kl in (scale * value * (1 + seed), 3 * scale * value * (1 + seed))
    ]
)


def test_the_table_compares_methods_at_their_last_checkpoints():
    found = sensitivity.table(ROWS).set_index("method")
    # Means over two lengths: 12 and 24 for DreamerV3's seeds at 200 env steps, half of that for GPLD.
    assert found["kl"].tolist() == [18.0, 9.0]
    assert found["kl_std"].tolist() == [6.0, 3.0]
    assert found["ratio"].tolist() == [1.0, 0.5]
    assert found["runs"].tolist() == [2, 2]
    assert found["env_steps"].tolist() == [200, 200]


def test_ratios_are_to_dreamerv3_whatever_others_are_called():
    others = ROWS.loc[ROWS["method"] == "DreamerV3"]
    others = others.assign(method="12m", run="12m" + others["run"])
    found = sensitivity.table(pandas.concat([others.assign(kl=3 * others["kl"]), ROWS], ignore_index=True))
    assert dict(zip(found["method"], found["ratio"], strict=True))["12m"] == pytest.approx(3.0)
    assert dict(zip(found["method"], found["ratio"], strict=True))["DreamerV3"] == 1.0


def test_the_figure_draws_means_over_runs_by_env_steps():
    figure = sensitivity.draw(ROWS, maps=("posterior",))
    (axis,) = figure.axes
    assert axis.get_title("left") == "walker-walk: posterior"
    lines = {line.get_label(): line for line in axis.get_lines()}
    assert lines["DreamerV3"].get_xdata().tolist() == [100, 200]
    assert lines["DreamerV3"].get_ydata().tolist() == [6.0, 18.0]
    assert lines["GPLD-DreamerV3"].get_ydata().tolist() == [3.0, 9.0]
    # Of a step that one of the runs has not reached there is no mean.
    late = ROWS[(ROWS["run"] != "DreamerV31") | (ROWS["env_steps"] < 200)]
    lines = {line.get_label(): line for line in sensitivity.draw(late, ("posterior",)).axes[0].get_lines()}
    assert lines["DreamerV3"].get_xdata().tolist() == [100]


def test_the_command_writes_rows_figure_and_table(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = runs["gpld"].parent
    arguments = ["sensitivity", str(folder), "--episodes", "2", "--steps", "20", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    kept = pandas.read_csv(tmp_path / "sensitivity.csv")
    table = sensitivity.table(kept)
    assert set(table["method"]) == {"DreamerV3", "GPLD-DreamerV3"}
    out = capsys.readouterr().out
    for ratio in table["ratio"]:
        assert f"{ratio:.3g}" in out
    assert len((tmp_path / "sensitivity.md").read_text().splitlines()) == 2 + len(table)
    assert (tmp_path / "sensitivity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nothing"], "run: '{}/nothing' is not the folder of a run, nor one that holds runs"),
        (["{}", "--episodes", "0"], "episodes: 0 is not allowed; it must be at least 1 and at most 10000"),
    ],
)
def test_mistakes_are_told(arguments, message, tmp_path, capsys):
    assert cli.main(["sensitivity", *(x.format(tmp_path) for x in arguments)]) == 2
    assert capsys.readouterr().err == f"gpld sensitivity: {message.format(tmp_path)}\n"


def test_a_table_that_lacks_a_column_is_named(tmp_path):
    path = tmp_path / "sensitivity.csv"
    path.write_text("run,task,method,seed,env_steps,updates,map,magnitude,length,kl,total_variation\n")
    with pytest.raises(DamagedFile, match=r"sensitivity\.csv: the column jacobian is missing; move it away"):
        rollouts.read_run(tmp_path, "sensitivity")
