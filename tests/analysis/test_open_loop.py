import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from gpld import agent, world_model
from gpld.analysis import figures, open_loop, rollouts
from gpld.distributions import symexp, symlog
from gpld.training import saved
from gpld.training.saved import Trained
from gpld.types import Batch, Latent, Spaces
from tests.training.test_images import Square, square

STEPS, CONTEXT, EPISODES = 9, 5, 2
KEY = jax.random.key(3)

predict = jax.jit(world_model.predict, static_argnums=0)


@pytest.fixture(scope="module")
def trained(runs):
    return saved.load(runs["dreamerv3"])


@pytest.fixture(scope="module")
def whole(trained):
    """More than is predicted."""
    return rollouts.roll_out(trained, episodes=EPISODES, steps=STEPS + 3)


@pytest.fixture(scope="module")
def batch(whole):
    return first_steps(whole, STEPS)


@pytest.fixture(scope="module")
def found(trained, batch):
    return open_loop.predict(trained, batch, KEY)


def first_steps(batch, steps):
    return jax.tree.map(lambda x: x[:steps], batch._replace(start=None))._replace(start=batch.start)


def observed(trained, batch):
    """What the posterior makes of the context, and the key of the dream."""
    config = trained.config.agent
    classes_key, dream_key = jax.random.split(KEY)
    uniform = jax.random.uniform(classes_key, (CONTEXT, EPISODES, config.model.stoch))
    return predict(config, trained.model.world, first_steps(batch, CONTEXT), uniform), dream_key


def changed(batch, step, name=None):
    """The batch with one observation, or with one action, made quite another."""
    if name is None:
        return batch._replace(prev_action=batch.prev_action.at[step].set(1 - batch.prev_action[step]))
    return batch._replace(obs=batch.obs | {name: batch.obs[name].at[step].set(1000.0)})


# From states


def test_the_truth_is_what_came(found, batch):
    for name, values in batch.obs.items():
        np.testing.assert_array_equal(found.truth.obs[name], values)
        assert found.model.obs[name].shape == values.shape
    np.testing.assert_array_equal(found.truth.reward, batch.reward)


def test_a_second_implementation_step_by_step_agrees(trained, batch, found):
    world = trained.model.world
    prediction, dream_key = observed(trained, batch)
    seen = prediction.observed
    h, z = world.dynamics.pack(seen).h[-1], world.dynamics.pack(seen).z[-1]
    for t in range(STEPS):
        if t < CONTEXT:
            decoded = world.decoder(seen.h[t], seen.z[t])
        else:
            # The posterior's own step, of which only h is taken: it does not depend on what is observed.
            unseen, never = jnp.zeros((EPISODES, trained.config.agent.model.units)), jnp.zeros(EPISODES, bool)
            noise = jax.random.uniform(jax.random.fold_in(dream_key, t - CONTEXT + 1), z.shape)
            last = world.dynamics.unpack(Latent(h, z), h.dtype)
            h = world.dynamics.observe_step(last, unseen, batch.prev_action[t], never, noise).h
            prior = world.dynamics.probs(world.dynamics.prior(h))
            below = np.cumsum(np.asarray(prior), axis=-1)[..., :-1] <= np.asarray(noise)[..., None]
            z = jnp.asarray(below.sum(-1), jnp.uint8)
            decoded = world.decoder(h, world.dynamics.unpack(Latent(h, z), h.dtype).z)
        for name, values in decoded.items():
            np.testing.assert_allclose(found.model.obs[name][t], symexp(values), rtol=1e-3, atol=1e-4)


def test_after_the_context_only_actions_are_heard(trained, batch, found):
    blind = open_loop.predict(trained, changed(batch, CONTEXT, "velocity"), KEY)
    np.testing.assert_array_equal(blind.model.obs["position"], found.model.obs["position"])
    seeing = open_loop.predict(trained, changed(batch, CONTEXT - 1, "velocity"), KEY)
    acting = open_loop.predict(trained, changed(batch, CONTEXT + 1), KEY)
    for other, first in ((seeing, CONTEXT - 1), (acting, CONTEXT + 1)):
        same = (other.model.obs["position"] == found.model.obs["position"]).all(axis=(1, 2))
        assert np.argmin(same) == first


def test_predictions_end_before_a_reset(trained, whole, found):
    cut = open_loop.predict(trained, whole._replace(is_first=whole.is_first.at[STEPS, 1].set(True)), KEY)
    np.testing.assert_array_equal(cut.truth.obs["position"], whole.obs["position"][:STEPS])
    np.testing.assert_array_equal(cut.model.obs["position"], found.model.obs["position"])
    early = whole._replace(is_first=whole.is_first.at[CONTEXT, 0].set(True))
    with pytest.raises(
        open_loop.NoPredictions, match="ended after 5 steps: nothing is left to predict after 5"
    ):
        open_loop.predict(trained, early, KEY)


def test_an_agent_s_own_episodes_are_predicted_and_repeated_by_their_seed(trained, batch):
    first, again = (
        open_loop.open_loop(trained, episodes=EPISODES, steps=STEPS, seed=seed) for seed in (0, 0)
    )
    np.testing.assert_array_equal(first.truth.obs["velocity"], batch.obs["velocity"])
    np.testing.assert_array_equal(first.model.obs["velocity"], again.model.obs["velocity"])


def test_the_figure_shows_truth_model_and_context(found):
    figure = open_loop.draw(found, episode=1)
    panels = {panel.get_title(loc="left"): panel for panel in figure.axes}
    assert list(panels) == ["reward", *(f"position {i}" for i in range(3)), "velocity 0", "velocity 1"]
    for name, (side, number) in {"position 2": ("position", 2), "velocity 0": ("velocity", 0)}.items():
        lines = {line.get_label(): line.get_ydata() for line in panels[name].get_lines()}
        np.testing.assert_array_equal(lines["truth"], found.truth.obs[side][:, 1, number])
        np.testing.assert_array_equal(lines["model"], found.model.obs[side][:, 1, number])
    rewards = {line.get_label(): line.get_ydata() for line in panels["reward"].get_lines()}
    np.testing.assert_array_equal(rewards["model"], found.model.reward[:, 1])
    (shade,) = panels["reward"].patches
    assert (shade.get_x(), shade.get_width()) == (0, CONTEXT - 1)


def test_of_many_numbers_those_that_vary_most_are_drawn():
    values = np.arange(4, dtype=np.float32)[:, None, None] * np.arange(40, dtype=np.float32)
    side = open_loop.Trajectory({"joints": values}, np.zeros((4, 1), np.float32))
    figure = open_loop.draw(open_loop.OpenLoop(side, side, 2))
    titles = [panel.get_title(loc="left") for panel in figure.axes if panel.get_visible()]
    assert titles == ["reward", *(f"joints {i}" for i in range(17, 40))]


# From images


@pytest.fixture(scope="module")
def seeing():
    """An agent that sees, and what it saw while a square was moved at random."""
    spaces = Spaces.of({"view": (16, 16, 3), "time": (1,)}, 1, images=["view"])
    config = square()
    model = agent.init(config.agent, spaces, jax.random.key(0)).model
    trained = Trained(None, config, spaces, model, 0, 0)
    rng, envs = np.random.default_rng(0), [Square() for _ in range(EPISODES)]
    steps = [[env.reset(seed=i)[0] for i, env in enumerate(envs)]]
    actions = rng.uniform(-1, 1, (STEPS, EPISODES, 1)).astype(np.float32)
    steps += [[env.step(a)[0] for env, a in zip(envs, row, strict=True)] for row in actions[1:]]
    obs = {name: jnp.asarray([[seen[name] for seen in row] for row in steps]) for name in ("view", "time")}
    first = jnp.zeros((STEPS, EPISODES), bool).at[0].set(True)
    sizes = config.agent.model
    start = Latent(jnp.zeros((EPISODES, sizes.deter)), jnp.zeros((EPISODES, sizes.stoch), jnp.uint8))
    reward = jnp.zeros((STEPS, EPISODES))
    return trained, Batch(obs, jnp.asarray(actions), reward, first, ~first, ~first, start)


@pytest.fixture(scope="module")
def sights(seeing):
    return open_loop.predict(*seeing, KEY)


def test_images_of_the_context_are_the_posterior_s_reconstructions(seeing, sights):
    """Their losses are those that training would have."""
    losses = observed(*seeing)[0].losses
    truth, model = (side.obs["view"][:CONTEXT] / 255 for side in (sights.truth, sights.model))
    np.testing.assert_allclose(np.square(model - truth).sum((2, 3, 4)), losses["view"], rtol=2e-2)
    truth, model = (symlog(jnp.asarray(side.obs["time"][:CONTEXT])) for side in (sights.truth, sights.model))
    np.testing.assert_allclose(np.square(model - truth).sum(-1), losses["time"], rtol=1e-4)


def test_rows_are_truth_model_and_their_difference(seeing, sights):
    truth, model, difference = open_loop.rows(sights, "view").astype(int)
    np.testing.assert_array_equal(truth, seeing[1].obs["view"])
    np.testing.assert_array_equal(model, sights.model.obs["view"])
    assert np.abs(2 * (difference - 128) - (model - truth)).max() <= 1
    assert difference.min() < 64
    assert difference.max() > 192


def test_a_film_has_rows_columns_and_a_bar_that_tells_when_it_imagines(sights):
    film = open_loop.pictures(sights, "view")
    side, gap = 128, open_loop.GAP
    assert film.shape == (STEPS, 3 * (side + gap), EPISODES * (side + gap) - gap, 3)
    rows = open_loop.rows(sights, "view")
    for row in range(3):
        for episode in range(EPISODES):
            top, left = gap + row * (side + gap), episode * (side + gap)
            shown = film[:, top : top + side, left : left + side]
            np.testing.assert_array_equal(shown[:, ::8, ::8], rows[row, :, episode])
            np.testing.assert_array_equal(shown[:, 7::8, 7::8], rows[row, :, episode])
    bars = film[:, 0, 0].tolist()
    assert bars == [[0, 0x72, 0xB2]] * CONTEXT + [[0xD5, 0x5E, 0]] * (STEPS - CONTEXT)


def test_images_without_colours_are_grey():
    grey = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4, 1)
    side = open_loop.Trajectory({"view": grey}, np.zeros((1, 1), np.float32))
    truth, _, difference = open_loop.rows(open_loop.OpenLoop(side, side, 1), "view")
    np.testing.assert_array_equal(truth, grey.repeat(3, axis=-1))
    assert (difference == 128).all()


# Strips


def test_strips_are_in_rows_of_methods_under_their_tasks(tmp_path):
    films = {}
    for task in ("cheetah-run", "walker-walk"):
        for shade, method in ((50, "DreamerV3"), (200, "GPLD-DreamerV3")):
            path = tmp_path / f"{task}-{method}.png"
            Image.new("RGB", (400, 40), (shade, 0, len(films) * 100)).save(path)
            films.setdefault(task, {})[method] = path
    panels = figures.strips(films).axes
    assert [panel.get_ylabel() for panel in panels] == ["DreamerV3", "GPLD-DreamerV3"] * 2
    assert [panel.get_title(loc="left") for panel in panels] == ["cheetah-run", "", "walker-walk", ""]
    shades = [round(255 * float(panel.images[0].get_array()[0, 0, 0])) for panel in panels]
    assert shades == [50, 200, 50, 200]
