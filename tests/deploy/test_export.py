"""The exported step gives the agent's numbers, run as its users run it: by ONNX Runtime, or by a compiler."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpld
from gpld import agent, config as options
from gpld.cli import main
from gpld.config import ConfigError
from gpld.deploy import Policy, _export
from gpld.deploy._export import step_of
from gpld.distributions import symlog
from gpld.training import evaluation, saved
from gpld.types import Spaces
from tests.scripts import ROOT
from tests.training.helpers import tiny

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

SPACES = {
    "states": Spaces.of({"height": (), "arm": (2, 3)}, actions=2),
    "images": Spaces.of({"camera": (16, 32, 3), "height": ()}, actions=3, images=["camera"]),
    "discrete": Spaces.of({"height": (), "arm": (2, 3)}, actions=5, discrete=True),
}


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def noise_of(policy, calls):
    """What `Policy.act` draws in the next call of a policy that has been called `calls` times."""
    latent, action = jax.random.split(jax.random.fold_in(policy._key, calls))
    model = policy._model
    numbers = model.policy.draw_noise((1,), key=action)
    shape = (1, model.world.dynamics.stoch)
    return {"noise.latent": jax.random.uniform(latent, shape)[0], "noise.action": numbers[0]}


def state_of(policy):
    """What an exported step would hand on where a policy is now."""
    dynamics, carry = policy._model.world.dynamics, policy._carry
    seen = dynamics.unpack(carry.latent, jnp.dtype("float32"))
    return np.concatenate([np.asarray(x[0]) for x in (seen.h, seen.z, carry.action)])


def differences(policy, step, observations, deterministic=False):
    """Of an exported step from a policy `[T, 2]`: actions, its states fed back; all, the policy's."""
    own = theirs = np.zeros(step.get_inputs()[len(policy.spaces.obs)].shape, np.float32)
    found = []
    for calls, obs in enumerate(observations):
        given = {f"obs.{name}": np.asarray(x, policy.spaces.dtype(name)) for name, x in obs.items()}
        if not deterministic:
            given |= {name: np.asarray(x) for name, x in noise_of(policy, calls).items()}
        fed_back, own = step.run(None, {**given, "state": own})
        action, after = step.run(None, {**given, "state": theirs})
        expected = policy.act(obs, deterministic=deterministic)
        theirs = state_of(policy)
        single = max(np.abs(action - expected).max(), np.abs(after - theirs).max())
        found.append([np.abs(fed_back - expected).max(), single])
    return np.array(found)


def largest_difference(policy, step, observations):
    """Between the actions of a policy and of an exported step, each with its own states fed back."""
    return differences(policy, step, observations)[:, 0].max()


def episode_of(name):
    """The observations of an episode that an agent plays."""
    policy, seen = gpld.load(name, seed=5), []
    with evaluation.make_env(policy.config, 1, number=0) as env:
        step = env.step(np.zeros((1, env.spaces.actions), np.float32))
        while not step.is_last.all():
            seen.append({name: x[0] for name, x in step.obs.items()})
            step = env.step(policy.act(seen[-1])[None])
    return seen


def drawn(spaces, steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield {
            name: rng.integers(0, 256, shape) if name in spaces.images else 3 * rng.normal(size=shape)
            for name, shape in spaces.obs
        }


@pytest.fixture(params=SPACES)
def made_up(request):
    """A fresh agent for some spaces, as a run would have it."""
    config, spaces = tiny("gym:Arm-v0", agent={"model": {"depth": 2}}), SPACES[request.param]
    model = jax.jit(agent.init, static_argnums=(0, 1))(config.agent, spaces, jax.random.key(0)).model
    # A fresh policy hardly looks at its state: let it.
    model = jax.tree.map(lambda x: 1.5 * x, model)
    return saved.Trained(Path("run"), config, spaces, model, 0, 0)


def test_it_acts_as_the_agent_on_recorded_observations(small_run, tmp_path):
    with evaluation.make_env(tiny(), 1, number=0) as env:
        rng = np.random.default_rng(0)
        steps = [env.step(rng.uniform(-1, 1, (1, 1)).astype(np.float32)) for _ in range(200)]
    recorded = [{name: x[0] for name, x in step.obs.items()} for step in steps]
    found = gpld.export(small_run, out=tmp_path)
    policy = gpld.load(small_run, seed=7)
    assert largest_difference(policy, session(found.path), recorded) < 1e-5
    assert found.difference < 1e-5
    onnx.checker.check_model(onnx.load(found.path), full_check=True)


def test_it_acts_as_the_agent_for_all_spaces(made_up, tmp_path):
    found = gpld.export(made_up, out=tmp_path)
    policy = Policy(made_up.config, made_up.spaces, made_up.model, seed=3)
    assert largest_difference(policy, session(found.path), drawn(made_up.spaces, 50)) < 1e-5


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [("cartpole-swingup@demo", False), ("cheetah-run@demo", False), ("cheetah-run@demo", True)],
)
def test_a_trained_agent_differs_by_rounding_which_its_memory_magnifies(name, deterministic, tmp_path):
    found = gpld.export(name, deterministic=deterministic, out=tmp_path)
    # The seed of the recording: the agent meets what follows from its own actions.
    policy, recorded = gpld.load(name, seed=5), episode_of(name)
    assert len(recorded) * policy.config.env.action_repeat == 1000
    fed_back, single = differences(policy, session(found.path), recorded, deterministic).T
    assert single.max() < 2e-5
    # In some moments of an episode the smallest differences grow a hundredfold, and then vanish again.
    assert np.median(fed_back) < 1e-5
    assert np.quantile(fed_back, 0.9) < 1e-3
    assert found.difference < 1e-2


def test_an_agent_of_bfloat16_is_exported_as_the_same_agent_in_float32(tmp_path):
    trained = saved.load("cartpole-swingup@demo")
    low = options.override(trained.config, {"agent": {"compute": "bfloat16"}})
    found = gpld.export(trained._replace(config=low), out=tmp_path)
    assert found.difference < 1e-3
    recorded = episode_of("cartpole-swingup@demo")[:60]
    exact, rounded = (
        differences(Policy(config, *trained[2:4], seed=5), session(found.path), recorded)
        for config in (trained.config, low)
    )
    assert exact.max() < 1e-5
    # An action of the run itself differs visibly, from one and the same state, too.
    assert np.median(rounded, axis=0).min() > 1e-3


@pytest.mark.parametrize("made_up", ["states"], indirect=True)
def test_the_trial_of_a_file_feeds_its_states_back_and_refuses_another_step(made_up, tmp_path):
    found = gpld.export(made_up, out=tmp_path)
    about = json.loads(found.description.read_text())
    assert about["checked"] == {"steps": 100, "largest_difference": found.difference}
    run = _export._runner("onnx", found.path.read_bytes())

    def tried(change):
        with jax.default_matmul_precision("float32"):
            return _export._difference(made_up, lambda given: change(*run(given)), list(about["inputs"]))

    assert tried(lambda action, state: (action, state)) == found.difference < 1e-5
    # From the agent's states, actions are right: only what is handed on is off a little.
    assert 1e-5 < tried(lambda action, state: (action, state + np.float32(5e-5))) < 1e-2
    for change in (
        lambda action, state: (action + np.float32(2e-4), state),
        lambda action, state: (action, state[::-1]),
        lambda action, state: (action, np.float32("nan") * state),
    ):
        with pytest.raises(RuntimeError, match="the exported step differs from the agent's by"):
            tried(change)


def test_a_deterministic_step_takes_the_likeliest(made_up, tmp_path):
    """Its latent state is that of a sampling step with noise in the middle of the likeliest classes."""
    spaces, dynamics, model = made_up.spaces, made_up.model.world.dynamics, made_up.model
    exported = session(gpld.export(made_up, deterministic=True, out=tmp_path).path)
    names = [x.name for x in exported.get_inputs()]
    assert names == [*(f"obs.{name}" for name, _ in spaces.obs), "state"]
    sampling = jax.jit(step_of(spaces, model, [*names, "noise.latent", "noise.action"]))
    none = np.zeros(() if spaces.discrete else spaces.actions, np.float32)
    state = np.zeros(exported.get_inputs()[-1].shape, np.float32)
    for obs in drawn(spaces, 20):
        obs = {name: np.asarray(x, spaces.dtype(name)) for name, x in obs.items()}
        given = {f"obs.{name}": x for name, x in obs.items()} | {"state": state}
        action, after = exported.run(None, given)
        h, feature = after[: dynamics.hidden_norm.scale.shape[0]], after[: -spaces.actions]
        e = model.world.encoder({name: jnp.asarray(x) for name, x in obs.items()}, jnp.dtype("float32"))
        probs = np.asarray(dynamics.probs(dynamics.posterior(jnp.concatenate([h, e]))))
        best = probs.argmax(-1)[:, None]
        middle = np.take_along_axis(probs.cumsum(-1) - probs / 2, best, -1)[:, 0]
        _, sampled = sampling(*given.values(), middle, none)
        np.testing.assert_allclose(sampled[: -spaces.actions], feature, atol=1e-5)
        likeliest = model.policy(jnp.asarray(feature)).mode()
        np.testing.assert_allclose(after[-spaces.actions :], likeliest, atol=1e-5)
        assert action == likeliest.argmax() if spaces.discrete else abs(action - likeliest).max() < 1e-5
        state = after


def test_the_description_is_that_of_the_file(made_up, tmp_path):
    found = gpld.export(made_up, out=tmp_path)
    about, spaces = json.loads(found.description.read_text()), made_up.spaces
    types = {"float32": "tensor(float)", "uint8": "tensor(uint8)", "int32": "tensor(int32)"}
    step = session(found.path)
    for listed, arrays in ((about["inputs"], step.get_inputs()), (about["outputs"], step.get_outputs())):
        told = [(name, x["shape"], types[x["dtype"]]) for name, x in listed.items()]
        assert told == [(x.name, x.shape, x.type) for x in arrays]
    limits = {name: (x["low"], x["high"]) for name, x in about["inputs"].items() if "low" in x}
    expected = {f"obs.{name}": (0, 255) for name in spaces.images} | {"noise.latent": (0, 1)}
    assert limits == expected | ({"noise.action": (0, 1)} if spaces.discrete else {})
    action = about["outputs"]["action"]
    assert (action["low"], action["high"]) == ((0, 4) if spaces.discrete else (-1, 1))
    # Nobody knows this environment.
    assert "env_low" not in action
    assert (about["action_repeat"], about["deterministic"]) == (2, False)
    assert about["checked"]["largest_difference"] == found.difference < 1e-5


def test_bounds_of_actions_are_told_where_they_are_known(tmp_path):
    def action_of(task, spaces):
        config = tiny(task)
        fresh = jax.eval_shape(lambda key: agent.init(config.agent, spaces, key), jax.random.key(0))
        trained = saved.Trained(Path("run"), config, spaces, fresh.model, 0, 0)
        return _export.description(trained, False)["outputs"]["action"]

    obs = {"height": ()}
    own = action_of("gym:Arm-v0", Spaces.of(obs, 2, bounds=[(-1.5, 2.0), (0.0, 1.0)]))
    assert (own["env_low"], own["env_high"]) == ([-1.5, 0.0], [2.0, 1.0])
    # A run of an older version does not say them.
    known = action_of("quadruped-run", Spaces.of(obs, 12))
    assert (known["env_low"], known["env_high"]) == (4 * [-1.0, -1.0, -0.8], 4 * [1.0, 1.1, 0.8])
    assert "env_low" not in action_of("gym:Arm-v0", Spaces.of(obs, 3))
    assert "env_low" not in action_of("gym:Arm-v0", Spaces.of(obs, 3, discrete=True))


def test_stablehlo_is_the_same_step(made_up, tmp_path):
    found = gpld.export(made_up, "stablehlo", out=tmp_path)
    about = json.loads(found.description.read_text())
    call = jax.export.deserialize(bytearray(found.path.read_bytes())).call
    step = session(gpld.export(made_up, out=tmp_path).path)
    rng, state = np.random.default_rng(1), np.zeros(about["inputs"]["state"]["shape"], np.float32)
    for _ in range(10):
        given = {
            name: (rng.uniform(0, x.get("high", 1), x["shape"])).astype(x["dtype"])
            for name, x in about["inputs"].items()
        } | {"state": state}
        ours, state = step.run(None, given)
        for one, other in zip(call(*given.values()), (ours, state), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


RANDOM = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(3, 2, 6, 7)).astype(np.float32)
NCHW = ("NCHW", "HWIO", "NHWC")
FUNCTIONS = {
    "symlog": lambda x: symlog(x * jnp.exp(20 * x)),
    "a product of stacks": lambda x: jnp.einsum("agik,agjk->gaij", x, x[:, :, 1:3]),
    "a sum over two axes": lambda x: jnp.tensordot(x, x, axes=([0, 2], [0, 2])),
    "a convolution": lambda x: jax.lax.conv_general_dilated(
        x, KERNEL, (2, 1), [(1, 2), (0, 1)], rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "its other layout": lambda x: jax.lax.conv_general_dilated(
        jnp.moveaxis(x, -1, 1), KERNEL, (1, 1), "VALID", dimension_numbers=NCHW
    ),
    "sums": lambda x: jnp.cumsum(x, 1) + jax.lax.cumsum(x, 2, reverse=True) + x.sum((0, 3), keepdims=True),
    "parts": lambda x: jnp.concatenate([x[:, 1:4:2, ::3], x[:, 2:, :2]], axis=1).transpose(2, 0, 1, 3),
    "clipping": lambda x: jnp.clip(x, -0.5, x.min((0, 1, 2, 3)) + 2) + jnp.where(x < 0, x**2, x**3),
    "softmax": lambda x: jax.nn.softmax(x, axis=1) - jax.nn.one_hot(x.argmax(1), 4, axis=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_primitives_are_translated(name):
    from gpld.deploy._onnx import to_onnx

    with jax.numpy_rank_promotion("allow"):
        expected = FUNCTIONS[name](RANDOM)
        data = to_onnx(
            lambda x: (FUNCTIONS[name](x),), {"x": jax.ShapeDtypeStruct(RANDOM.shape, "float32")}, ["y"]
        )
    (found,) = session(data).run(None, {"x": RANDOM})
    np.testing.assert_allclose(
        found, expected, rtol=2e-6, atol=2e-5 if "a " in name or "its" in name else 1e-6
    )


def test_small_numbers_keep_their_logarithm():
    from gpld.deploy._onnx import to_onnx

    x = np.float32([0, 1e-30, 1e-9, 3e-8, 1e-4, 0.3, 2.0, 1e30])
    data = to_onnx(lambda x: (jnp.log1p(x),), {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}, ["y"])
    np.testing.assert_allclose(session(data).run(None, {"x": x})[0], np.log1p(np.float64(x)), rtol=3e-7)


def test_what_has_no_translation_is_named():
    from gpld.deploy._onnx import to_onnx

    with pytest.raises(NotImplementedError, match="primitive 'erf_inv'"):
        to_onnx(lambda x: (jax.lax.erf_inv(x),), {"x": jax.ShapeDtypeStruct((), "float32")}, ["y"])


def test_the_command_says_what_it_wrote(small_run, tmp_path, capsys):
    assert main(["export", str(small_run), "--to", "onnx", "--deterministic", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"written to {tmp_path / 'policy.onnx'}, names and shapes to" in told
    assert "over 100 steps that the agent dreams, with states fed back" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.onnx", "policy.onnx.json"]


def test_mistakes_are_told_in_a_line(small_run, tmp_path, capsys, monkeypatch):
    with pytest.raises(ConfigError, match="to: 'tflite' is not allowed; it must be onnx or stablehlo"):
        gpld.export(small_run, "tflite")
    assert main(["export", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
    (tmp_path / "file").touch()
    for out, reason in (("/proc/x", "No such file or directory"), (tmp_path / "file", "File exists")):
        assert main(["export", str(small_run), "--out", str(out)]) == 2
        assert capsys.readouterr().err == f"gpld export: out: {out} cannot be written ({reason})\n"
    (tmp_path / "file").unlink()
    (tmp_path / "policy.onnx").mkdir()
    assert main(["export", str(small_run), "--out", str(tmp_path)]) == 2
    told = f"gpld export: out: {tmp_path / 'policy.onnx'} cannot be written (Is a directory)\n"
    assert capsys.readouterr().err == told
    (tmp_path / "policy.onnx").rmdir()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(small_run), "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("pip install 'onnx>=1.17' 'onnxruntime>=1.20'")
    assert not list(tmp_path.iterdir())


def example(folder):
    """The example where neither JAX nor this package can be imported."""
    code = (
        "import runpy, sys; sys.modules |= dict.fromkeys(['jax', 'gpld', 'envpool']); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    path = str(ROOT / "examples" / "onnx_dm_control.py")
    words = [sys.executable, "-c", code, path, str(folder), "--episodes", "1"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_example_needs_neither_jax_nor_this_package(small_run, tmp_path):
    gpld.export(small_run, out=tmp_path)
    told = example(tmp_path)
    assert told.returncode == 0, told.stderr
    assert 10 < float(told.stdout.split()[0]) < 1000


def test_the_example_tells_mistakes_in_a_line(small_run, tmp_path):
    def mistake():
        told = example(tmp_path / "agent")
        assert told.returncode == 1
        assert "Traceback" not in told.stderr
        return told.stderr.splitlines()[-1]  # dm_control may warn of a missing display before

    assert mistake().startswith(f"folder: {tmp_path / 'agent'} has no policy.onnx; gpld export RUN --out")
    about = gpld.export(small_run, out=tmp_path / "agent").description
    described = json.loads(about.read_text())
    about.write_text(json.dumps(described | {"task": "gym:Pendulum-v1"}))
    assert mistake().endswith("is for gym:Pendulum-v1, not for the suite")
    images = {name.replace("position", "image"): x for name, x in described["inputs"].items()}
    about.write_text(json.dumps(described | {"inputs": images}))
    assert mistake().endswith("sees images, and this example gives it states")
