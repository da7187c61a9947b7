"""One step of a trained agent as a file that other programs run."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import gpld
from gpld import files, machine
from gpld.agent import Model, init_carry
from gpld.config import ConfigError
from gpld.deploy._policy import acted
from gpld.display.options import RunArgument, parse, shown
from gpld.distributions import symexp
from gpld.envs import tasks
from gpld.training import saved
from gpld.training.saved import Trained
from gpld.types import Spaces
from gpld.world_model import States

Format = Literal["onnx", "stablehlo"]
OUTPUTS = ("action", "next_state")
CHECKED, AGREES = 100, 1e-4
"""Steps that a written file is tried for, and the difference of a single one that is taken for rounding."""


class Exported(NamedTuple):
    """What `export` wrote."""

    path: Path
    description: Path
    """JSON with name, shape, type and range of each input and output."""
    difference: float
    """The largest between the file's actions and those of the agent in float32, each with its own states fed
    back, in an episode that the agent's world model dreams."""


def export(
    run: str | Path | Trained,
    to: str = "onnx",
    *,
    deterministic: bool = False,
    out: str | Path | None = None,
) -> Exported:
    """Write one step of an agent, or of that of a run's newest good checkpoint, to `out/policy.FORMAT`.

    The step maps observations and a state to an action and the next state, all of one environment, without a
    leading axis, in float32 whatever the run computed in. The state is one vector; zeros begin an episode. A
    sampling step takes its random numbers as inputs. A deterministic one takes the likeliest latent state and
    action. `policy.FORMAT.json` says the rest. Without `out` the
    file is in the folder of the run, or in this one if the agent comes from a file.
    """
    if to not in get_args(Format):
        raise ConfigError(f"to: {to!r} is not allowed; it must be {' or '.join(get_args(Format))}")
    onnx = _imported_onnx() if to == "onnx" else None
    trained = run if isinstance(run, Trained) else saved.load(run)
    own = trained.folder if trained.folder.is_dir() else Path()
    folder = own if out is None else Path(out)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    described = description(trained, deterministic)
    step = jax.jit(step_of(trained.spaces, trained.model, list(described["inputs"])))
    shapes = {
        name: jax.ShapeDtypeStruct(tuple(x["shape"]), x["dtype"]) for name, x in described["inputs"].items()
    }
    with jax.default_matmul_precision("float32"):  # GPUs would multiply in less
        data = onnx(step, shapes, OUTPUTS) if onnx else _stablehlo(step, shapes)
        difference = _difference(trained, _runner(to, data), list(shapes))
    path, beside = folder / f"policy.{to}", folder / f"policy.{to}.json"
    described["checked"] = {"steps": CHECKED, "largest_difference": difference}
    with _writing(path):
        files.write_bytes(path, data)
    with _writing(beside):
        files.write_json(beside, described)
    return Exported(path, beside, difference)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What goes wrong in it is the option's fault."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"out: {path} cannot be written ({error.strerror})") from error


def step_of(spaces: Spaces, model: Model, names: Sequence[str]) -> Callable[..., tuple[Array, Array]]:
    """One step as a function of the inputs with these names. Without noise it is deterministic."""
    dynamics = model.world.dynamics

    def step(*arrays: Array) -> tuple[Array, Array]:
        given = {name: x[None] for name, x in zip(names, arrays, strict=True)}
        e = model.world.encoder({name: given[f"obs.{name}"] for name, _ in spaces.obs}, jnp.dtype("float32"))
        h, z, action = _parts(spaces, model, given["state"])
        uniform = given.get("noise.latent", jnp.zeros((1, dynamics.stoch)))
        seen = dynamics.observe_step(States(h, z), e, action, jnp.zeros(1, bool), uniform)
        h, z = seen.h, seen.z
        if "noise.latent" not in given:
            z = dynamics.mode(seen.logits)
        policy = model.policy(States(h, z).feature)
        action = policy.sample(given["noise.action"]) if "noise.action" in given else policy.mode()
        chosen = jnp.argmax(action[0]) if spaces.discrete else jnp.clip(action[0], -1.0, 1.0)
        return chosen, jnp.concatenate([h, z, action], axis=-1)[0]

    return step


def _widths(spaces: Spaces, model: Model) -> tuple[int, int, int]:
    """Of h, z and the last action in the state."""
    dynamics = model.world.dynamics
    return *(dense.linear.weight.shape[0] for dense in dynamics.inputs[:2]), spaces.actions


def _parts(spaces: Spaces, model: Model, state: Float[Array, "1 S"]) -> list[Array]:
    """h, z and the last action of a state."""
    deter, code, _ = _widths(spaces, model)
    return jnp.split(state, [deter, deter + code], axis=-1)


def description(trained: Trained, deterministic: bool) -> dict[str, Any]:
    """What the JSON beside the file says."""
    config, spaces, model = trained.config, trained.spaces, trained.model
    inputs = {
        f"obs.{name}": _array(shape, spaces.dtype(name), (0, 255) if name in spaces.images else ())
        for name, shape in spaces.obs
    }
    state = _array([sum(_widths(spaces, model))], "float32")
    inputs["state"] = state | {"meaning": "next_state of the step before; zeros where an episode begins"}
    if not deterministic:
        uniform = {"meaning": "random numbers, uniform in [0, 1)"}
        latent, one = (_array(shape, "float32", (0, 1)) for shape in ([model.world.dynamics.stoch], []))
        normal = _array([spaces.actions], "float32") | {"meaning": "random numbers, standard normal"}
        inputs["noise.latent"], inputs["noise.action"] = (
            latent | uniform,
            (one | uniform if spaces.discrete else normal),
        )
    if spaces.discrete:
        action = _array([], "int32", (0, spaces.actions - 1)) | {"meaning": "the number of the chosen action"}
    else:
        action = _array([spaces.actions], "float32", (-1, 1))
        action |= {"meaning": "to be scaled from [-1, 1] to the environment's bounds"}
        if bounds := spaces.bounds or _known_bounds(config.task):
            low, high = zip(*bounds, strict=True)
            action |= {"env_low": list(low), "env_high": list(high)}
    return {
        "task": config.task,
        "action_repeat": config.env.action_repeat,
        "deterministic": deterministic,
        "inputs": inputs,
        "outputs": dict(zip(OUTPUTS, (action, state), strict=True)),
        "env_steps": trained.env_steps,
        "gpld": gpld.__version__,
    }


def _known_bounds(task: str) -> tuple[tuple[float, float], ...]:
    """Of a task of the benchmark: runs and agent files of older versions do not say them."""
    return next((known.spaces.bounds for known in tasks() if known.name == task), ())


def _array(shape: Sequence[int], dtype: str, limits: Sequence[int] = ()) -> dict[str, Any]:
    """An input or output, with `low` and `high` if it has limits."""
    return {"shape": list(shape), "dtype": dtype} | dict(zip(("low", "high"), limits, strict=False))


def _stablehlo(step: Callable[..., Any], shapes: Mapping[str, jax.ShapeDtypeStruct]) -> bytes:
    from jax import export as jax_export

    exported = jax_export.export(jax.jit(step), platforms=("cpu", "cuda"))(*shapes.values())
    return bytes(exported.serialize())


def _imported_onnx() -> Callable[..., bytes]:
    try:
        import onnxruntime  # noqa: F401

        from gpld.deploy._onnx import to_onnx
    except ImportError as error:
        raise ConfigError(f"to: 'onnx' needs a package ({error}): {machine.install('onnx')}") from None
    return to_onnx


def _runner(to: str, data: bytes) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Runs the bytes of a file as those who are given it do: inputs by name to outputs."""
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(OUTPUTS, dict(inputs))
    from jax import export as jax_export

    call = jax.jit(jax_export.deserialize(bytearray(data)).call)
    return lambda inputs: call(*inputs.values())


def _difference(
    trained: Trained, run: Callable[[Mapping[str, Any]], Sequence[Any]], names: Sequence[str]
) -> float:
    """The largest between actions of a file and of the agent, each with its own states fed back."""
    config = dataclasses.replace(trained.config.agent, compute="float32")
    spaces, model, fed_back, single = trained.spaces, trained.model, [], []
    carry = init_carry(config, spaces, 1)
    state = own_state = np.zeros(sum(_widths(spaces, model)), np.float32)  # the agent's, and the file's
    for number, key in enumerate(jax.random.split(jax.random.key(0), CHECKED)):
        obs, noise = _dreamt(spaces, model, state, key)
        inputs = {f"obs.{name}": x for name, x in obs.items()} | noise | {"state": state[None]}
        given = {name: np.asarray(inputs[name][0]) for name in names}
        first, deterministic = np.array([number == 0]), "noise.latent" not in names
        carry = acted(config, model, carry, obs, first, key, deterministic=deterministic)
        seen = model.world.dynamics.unpack(carry.latent, jnp.dtype("float32"))
        state = np.concatenate([np.asarray(x[0]) for x in (seen.h, seen.z, carry.action)])
        expected = np.clip(carry.action[0], -1.0, 1.0), state
        pairs = zip(_outputs(spaces, run(given)), expected, strict=True)
        single.append(np.max([np.abs(found - agents).max() for found, agents in pairs]))
        action, own_state = _outputs(spaces, run(given | {"state": own_state}))
        fed_back.append(np.abs(action - expected[0]).max())
    # At the border between two classes rounding decides, so a single step may differ.
    if not np.median(single) <= AGREES:
        raise RuntimeError(f"the exported step differs from the agent's by {np.median(single):.1e}")
    return float(max(fed_back))


def _outputs(spaces: Spaces, found: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Of a step, with a discrete action as one-hot."""
    action, state = map(np.asarray, found)
    return (np.eye(spaces.actions, dtype=np.float32)[action] if spaces.discrete else action), state


@partial(jax.jit, static_argnums=0)
def _dreamt(
    spaces: Spaces, model: Model, state: Float[Array, "S"], key: PRNGKeyArray
) -> tuple[dict[str, Array], dict[str, Array]]:
    """An observation that the agent's world model expects after a state, and what `act` draws with a key."""
    h, z, action = _parts(spaces, model, state[None])
    dynamics = model.world.dynamics
    uniform = jax.random.uniform(jax.random.fold_in(key, 2), (1, dynamics.stoch))  # not a key of `split`
    expected = dynamics.imagine_step(States(h, z), action, uniform)
    decoded = model.world.decoder(expected.h, expected.z)
    obs = {name: symexp(decoded[name]).reshape(1, *shape) for name, shape in spaces.vector_obs}
    obs |= {name: jnp.round(255 * decoded[name]).astype(jnp.uint8) for name, _ in spaces.image_obs}
    latent_key, action_key = jax.random.split(key)  # as in `act`, or no file would agree
    latent = jax.random.uniform(latent_key, (1, dynamics.stoch))
    return obs, {"noise.latent": latent, "noise.action": model.policy.draw_noise((1,), key=action_key)}


@dataclasses.dataclass(frozen=True)
class AgentExportOptions:
    """Options of `gpld export`."""

    run: RunArgument
    """Folder of a run, finished or not: its newest good checkpoint is exported; or an agent file."""
    to: Format = "onnx"
    """Format of the file: onnx for any program, stablehlo for compilers and JAX."""
    deterministic: bool = False
    """Take the likeliest latent state and action, rather than random numbers as inputs."""
    out: Annotated[Path | None, shown("FOLDER", "(default: the run's own, or this one)")] = None
    """Folder for policy.FORMAT and policy.FORMAT.json."""


def export_command(arguments: Sequence[str], what: str) -> int:
    """`gpld export`."""
    options = parse(AgentExportOptions, "export", what, arguments)
    found = export(options.run, options.to, deterministic=options.deterministic, out=options.out)
    print(f"written to {found.path}, names and shapes to {found.description}")
    told = f"over {CHECKED} steps that the agent dreams, with states fed back"
    print(f"its actions differ by at most {found.difference:.1e} from the agent's, {told}")
    return 0
