"""Open-loop predictions to look at: a world model sees a few steps, and after them hears actions alone.

The posterior's states of the context are decoded, and after them those of a dream in which the actions are
the ones that were truly taken. Beside the truth they are films of images, and lines of everything else.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, PRNGKeyArray, UInt8

from gpld import world_model
from gpld.agent import Model
from gpld.analysis import figures, rollouts
from gpld.config import AgentConfig
from gpld.display.curve import COLOURS
from gpld.distributions import symexp
from gpld.pictures import coloured
from gpld.training.saved import Trained
from gpld.types import Batch
from gpld.world_model import States, WorldModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTEXT = 5
"""Steps that the model sees."""
STEPS = 50
"""Agent steps in all."""
MAX_PANELS = 24
"""Dimensions that are drawn at most: those that vary most."""
SIDE = 128
"""The least height of an image in a film, in pixels; smaller ones are enlarged."""
GAP = 4
"""Pixels between images, and of the bar above them."""

Found = TypeVar("Found")


class NoPredictions(ValueError):  # noqa: N818
    """An episode that is too short to be predicted, with a message for the user."""


def dream(
    model: Model,
    h: Float[Array, "N D"],
    z: Float[Array, "N KC"],
    actions: Float[Array, "H N A"],
    key: PRNGKeyArray,
    look: Callable[[Array, Float[Array, "N D"], Float[Array, "N KC"]], Found],
) -> Found:
    """What `look(ahead, h, z)` finds in the states after 1 to H steps without observations, `[H, ...]`."""
    dynamics = model.world.dynamics

    def step(state, now: tuple[Array, Float[Array, "N A"]]):
        ahead, action = now
        uniform = jax.random.uniform(jax.random.fold_in(key, ahead), (len(h), dynamics.stoch))
        state = dynamics.imagine_step(state, action, uniform)
        return state, look(ahead, state.h, state.z)

    return jax.lax.scan(step, States(h, z), (jnp.arange(1, len(actions) + 1), actions))[1]


def reward_of(world: WorldModel, h: Float[Array, "*N D"], z: Float[Array, "*N KC"]) -> Float[Array, "*N"]:
    """The reward that a state makes the model expect."""
    return world.reward(States(h, z).feature).mean()


class Trajectory(NamedTuple):
    """T steps of B episodes."""

    obs: dict[str, Float32[Array | np.ndarray, "T B ..."] | UInt8[Array | np.ndarray, "T B ..."]]
    """Vectors in their own units, and images as uint8."""
    reward: Float32[Array | np.ndarray, "T B"]


class OpenLoop(NamedTuple):
    """The truth, and the model's prediction."""

    truth: Trajectory
    model: Trajectory
    context: int
    """Steps whose observations the model saw: of those, `model` has the posterior's reconstruction."""


def open_loop(
    trained: Trained,
    *,
    episodes: int = 4,
    steps: int = STEPS,
    context: int = CONTEXT,
    seed: int = 0,
    task: Callable | None = None,
) -> OpenLoop:
    """Play `episodes` episodes side by side, and predict their first `steps` from the first `context`.

    Less where one of them ends earlier: a reset cannot be foreseen. Raises `NoPredictions` if that is within
    the context. The seed decides where the episodes begin, and what is random in actions and latents. `task`
    is a factory, as `train` takes it.
    """
    batch = rollouts.roll_out(trained, episodes=episodes, steps=steps, seed=seed, task=task)
    return predict(trained, batch, jax.random.key(seed), context=context)


def predict(trained: Trained, batch: Batch, key: PRNGKeyArray, *, context: int = CONTEXT) -> OpenLoop:
    """`open_loop` of a batch `[T, B]` at hand, up to its first reset."""
    resets = np.flatnonzero(np.asarray(batch.is_first)[1:].any(axis=1))
    steps = int(resets[0]) + 1 if len(resets) else len(batch.reward)
    if steps <= context:
        raise NoPredictions(
            f"an episode ended after {steps} steps: nothing is left to predict after {context} of context"
        )
    batch = _first_steps(batch, steps)
    config, spaces = trained.config.agent, trained.spaces
    decoded, reward = _decoded(config, trained.model, batch, key, context)
    model = {
        name: jnp.rint(255 * decoded[name]).astype(jnp.uint8)
        if name in spaces.images
        else symexp(decoded[name]).reshape(batch.obs[name].shape)
        for name, _ in spaces.obs
    }
    sides = jax.tree.map(np.asarray, (Trajectory(batch.obs, batch.reward), Trajectory(model, reward)))
    return OpenLoop(*sides, context)


def _first_steps(batch: Batch, steps: int) -> Batch:
    return jax.tree.map(lambda x: x[:steps], batch._replace(start=None))._replace(start=batch.start)


@partial(jax.jit, static_argnums=(0, 4))
def _decoded(
    config: AgentConfig, model: Model, batch: Batch, key: PRNGKeyArray, context: int
) -> tuple[dict[str, Float[Array, "T B ..."]], Float[Array, "T B"]]:
    """The decoder's observations and the expected rewards along a batch."""
    config, world = rollouts.in_float32(config), model.world
    classes_key, dream_key = jax.random.split(key)
    with jax.default_matmul_precision("float32"):
        uniform = jax.random.uniform(classes_key, (context, batch.reward.shape[1], config.model.stoch))
        seen = world_model.predict(config, world, _first_steps(batch, context), uniform).observed
        dreamt = dream(
            model, seen.h[-1], seen.z[-1], batch.prev_action[context:], dream_key, lambda _, h, z: (h, z)
        )
        h, z = (jnp.concatenate(pair) for pair in zip((seen.h, seen.z), dreamt, strict=True))
        return world.decoder(h, z), reward_of(world, h, z)


def rows(found: OpenLoop, name: str) -> UInt8[np.ndarray, "3 T B height width 3"]:
    """Truth, model, and model minus truth of an image, in colours; no difference is the grey 128."""
    truth, model = (coloured(side.obs[name]) for side in (found.truth, found.model))
    difference = (model.astype(np.int16) - truth + 256) // 2
    return np.stack([truth, model, difference.astype(np.uint8)])


def pictures(
    found: OpenLoop, name: str, episodes: int | None = None
) -> UInt8[np.ndarray, "T height width 3"]:
    """A film of an image: `rows` from top to bottom, episodes from left to right, and a bar above.

    Of all episodes, or of the first few.
    """
    images = rows(found, name)[:, :, :episodes]
    scale = -(-SIDE // images.shape[3])
    images = images.repeat(scale, axis=3).repeat(scale, axis=4)
    # Each with a white edge at its top and left.
    images = np.pad(images, [(0, 0)] * 3 + [(GAP, 0), (GAP, 0), (0, 0)], constant_values=255)
    count, steps, across, height, width, _ = images.shape
    film = images.transpose(1, 0, 3, 2, 4, 5).reshape(steps, count * height, across * width, 3)[:, :, GAP:]
    return with_bar(film[:, GAP:], found.context)


def with_bar(
    film: UInt8[np.ndarray, "T height width 3"], context: int
) -> UInt8[np.ndarray, "T height+4 width 3"]:
    """A film with a bar above: blue while a model observes, for `context` steps, and orange afterwards."""
    film = np.pad(film, ((0, 0), (GAP, 0), (0, 0), (0, 0)))
    for colour, shown in ((COLOURS[0], slice(context)), (COLOURS[1], slice(context, None))):
        film[shown, :GAP] = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)
    return film


def traces(found: OpenLoop, episode: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Truth and model `[T]` of one episode's reward, and of every number of its vectors, by their names."""
    sides = (found.truth, found.model)
    lines = {"reward": tuple(side.reward[:, episode] for side in sides)}
    for name, values in found.truth.obs.items():
        if values.dtype == np.uint8:
            continue
        flat = [side.obs[name][:, episode].reshape(len(values), -1) for side in sides]
        for i, pair in enumerate(zip(*(x.T for x in flat), strict=True)):
            lines[f"{name} {i}" if flat[0].shape[1] > 1 else name] = pair
    return lines


def draw(found: OpenLoop, *, episode: int = 0) -> "Figure":
    """One episode's reward and vectors, a panel for each number; the steps that the model saw are shaded."""
    lines = traces(found, episode)
    # The reward is first, and always shown.
    varied = sorted(list(lines)[1:], key=lambda name: -float(np.std(lines[name][0])))[: MAX_PANELS - 1]
    shown = [name for name in lines if name == "reward" or name in varied]
    figure, axes = figures.panels(len(shown), panel=(2.5, 1.6))
    for panel, name in zip(axes, shown, strict=True):
        truth, model = lines[name]
        panel.axvspan(0, found.context - 1, color="#DDDDDD", linewidth=0, label="observed")
        panel.plot(truth, color=COLOURS[-1], linewidth=1.4, label="truth")
        panel.plot(model, color=COLOURS[1], linewidth=1.4, linestyle="--", label="model")
        figures.style(panel)
        panel.set_title(name, loc="left", fontsize=8)
        panel.set_xlabel("agent steps", fontsize=7)
    figures.legend(figure)
    return figure
