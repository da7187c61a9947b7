import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

from gpld import cli, world_model
from gpld.analysis import quality, rollouts
from gpld.distributions import kl, symlog
from gpld.training import saved
from gpld.types import Latent

predict = jax.jit(world_model.predict, static_argnums=0)
step = jax.jit(
    lambda dynamics, last, *given: dynamics.observe_step(dynamics.unpack(last, last.h.dtype), *given)
)
prior_of = jax.jit(lambda dynamics, h: dynamics.probs(dynamics.prior(h)))
SHAPE = {"episodes": 2, "steps": 20}
HORIZON = 5


@pytest.fixture(scope="module")
def trained(runs):
    return saved.load(runs["dreamerv3"])


@pytest.fixture(scope="module")
def batch(trained):
    return rollouts.roll_out(trained, **SHAPE)


def errors(trained, batch, horizon=HORIZON, seed=0):
    return quality.open_loop_errors(trained.config.agent, trained.model, batch, jax.random.key(seed), horizon)


def test_one_step_ahead_is_the_prior_of_the_next_step(trained, batch):
    """Without a step that was not seen there is no difference between open and closed loop."""
    found = errors(trained, batch)
    config, world = trained.config.agent, trained.model.world
    uniform = jax.random.uniform(
        jax.random.split(jax.random.key(0))[0], (*batch.reward.shape, config.model.stoch)
    )
    seen = predict(config, world, batch, uniform).observed
    closed = kl(world.dynamics.probs(seen.logits), prior_of(world.dynamics, seen.h))
    starts = len(batch.reward) - HORIZON
    assert found.latent[0] == pytest.approx(float(closed[1 : starts + 1].mean()), rel=1e-4)
    assert found.count.tolist() == [2 * starts] * HORIZON


@jax.jit
def expectation(world, h, z):
    """Decoded observations and the reward, each from its own head."""
    flat = world.dynamics.unpack(Latent(h, z), h.dtype).z
    return world.decoder(h, flat), world.reward(jnp.concatenate([h, flat], axis=1)).mean()


def test_a_second_implementation_step_by_step_agrees(trained, batch):
    config, world, found = trained.config.agent, trained.model.world, errors(trained, batch)
    classes_key, dream_key = jax.random.split(jax.random.key(0))
    uniform = jax.random.uniform(classes_key, (*batch.reward.shape, config.model.stoch))
    seen = predict(config, world, batch, uniform).observed
    starts = len(batch.reward) - HORIZON

    def after(x, ahead):
        return x[ahead : ahead + starts].reshape(2 * starts, *x.shape[2:])

    posterior, h, z = (
        world.dynamics.probs(seen.logits),
        after(seen.h, 0),
        after(world.dynamics.pack(seen).z, 0),
    )
    for ahead in range(1, HORIZON + 1):
        # The posterior's own step, of which only h is taken: it does not depend on what is observed.
        unseen, never = jnp.zeros((2 * starts, config.model.units)), jnp.zeros(2 * starts, bool)
        noise = jax.random.uniform(jax.random.fold_in(dream_key, ahead), (2 * starts, config.model.stoch))
        before = Latent(h, z.astype(jnp.uint8))
        h = step(world.dynamics, before, unseen, after(batch.prev_action, ahead), never, noise).h
        prior = prior_of(world.dynamics, h)
        below = np.cumsum(np.asarray(prior), axis=-1)[..., :-1] <= np.asarray(noise)[..., None]
        z = jnp.asarray(below.sum(-1), jnp.uint8)
        decoded, reward = expectation(world, h, z)
        squares = [
            np.square(decoded[name] - symlog(after(batch.obs[name], ahead))).sum(-1) for name in decoded
        ]
        expected = {
            "latent": kl(after(posterior, ahead), prior).mean(),
            "observation": sum(squares).mean(),
            "reward": jnp.abs(reward - after(batch.reward, ahead)).mean(),
        }
        for name, value in expected.items():
            # The outermost of 15 bins are at 5e8: their rounding is seen in the mean.
            near = pytest.approx(float(value), rel=1e-2 if name == "reward" else 1e-4)
            assert getattr(found, name)[ahead - 1] == near, (name, ahead)


def test_predictions_end_with_their_episode(trained, batch):
    whole = errors(trained, batch)
    first = batch.is_first.at[10, 0].set(True)
    cut = errors(trained, batch._replace(is_first=first))
    # Of 15 starts of that stream, as many as there are steps ahead would look over the reset.
    assert cut.count.tolist() == [30 - ahead for ahead in range(1, HORIZON + 1)]
    assert np.isfinite(cut.observation).all()
    assert (np.abs(cut.observation - whole.observation) > 1e-6).all()


def test_a_model_that_knows_nothing_is_worse_than_one_that_learned(trained, batch):
    blank = jax.tree.map(jnp.zeros_like, trained.model)
    ignorant = errors(trained._replace(model=blank), batch)
    learned = errors(trained, batch)
    assert (learned.observation < ignorant.observation).all()


def test_rows_have_every_number_of_steps_ahead_up_to_the_length_of_the_trajectory(trained, batch):
    rows = quality.measure(trained, batch, horizon=HORIZON)
    assert rows["ahead"].tolist() == [1, 2, 3, 4, 5]
    found = errors(trained, batch)
    np.testing.assert_allclose(rows["reward"], found.reward)
    assert len(quality.measure(trained, batch, horizon=100)) == 19


ROWS = pandas.DataFrame(
    {
        "run": f"{method}{seed}",
        "task": "walker-walk",
        "method": method,
        "seed": seed,
        "env_steps": steps,
        "ahead": ahead,
        "latent": scale * ahead + seed,
        "reward": 0.1 * ahead,
        "observation": scale * steps,
        "count": 10.0,
    }
    for method, scale in (("DreamerV3", 2.0), ("GPLD-DreamerV3", 1.0))
    for seed in (0, 1)
    for steps in (100, 200)
    for ahead in (1, 2, 5)
)


def test_the_table_and_the_figure_show_the_last_checkpoints():
    table = quality.table(ROWS).set_index(["ahead", "method"])
    assert table.loc[(5, "DreamerV3"), "latent"] == 10.5
    assert table.loc[(5, "GPLD-DreamerV3"), "observation"] == 200
    assert sorted(set(table.index.get_level_values("ahead"))) == [1, 5]
    panels = {axis.get_title("left"): axis for axis in quality.draw(ROWS).axes}
    assert list(panels) == [f"walker-walk: {name}" for name in quality.MEASURES]
    lines = {line.get_label(): line for line in panels["walker-walk: latent"].get_lines()}
    assert lines["DreamerV3"].get_ydata().tolist() == [2.5, 4.5, 10.5]
    assert lines["GPLD-DreamerV3"].get_ydata().tolist() == [1.5, 2.5, 5.5]


def test_the_command_keeps_rows_with_the_run(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = runs["dreamerv3"]
    assert cli.main(["quality", str(folder), "--episodes", "2", "--steps", "20", "--out", str(tmp_path)]) == 0
    kept = rollouts.read([folder], "quality")
    assert kept["ahead"].tolist() == list(range(1, 20))
    assert set(kept["env_steps"]) == {1600}
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "quality.csv"), kept, check_exact=False)
    out = capsys.readouterr().out
    for value in quality.table(kept)["latent"]:
        assert f"{value:.3g}" in out
