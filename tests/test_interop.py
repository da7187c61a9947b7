import io
import pickle

import jax
import numpy as np
import pytest

from gpld import agent, interop
from tests.golden_files import Golden
from tests.test_agent import SPACES, TINY


@pytest.fixture(scope="module")
def state():
    state = agent.init(TINY, SPACES, jax.random.key(0))
    slow_value = jax.tree.map(lambda x: x + 1, state.slow_value)
    normalizer = jax.tree.map(lambda x: x + 2, state.normalizer)
    return state._replace(slow_value=slow_value, normalizer=normalizer)


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_golden_names_are_ours():
    g = Golden("world_model_loss")
    state = g.agent(g.config(), g.spaces("obs"))
    assert interop.to_reference(state).keys() == g.under("param").keys()
    for name, array in interop.to_reference(state).items():
        np.testing.assert_array_equal(array, g[f"param/{name}"])


def test_round_trip(state):
    other = interop.from_reference(agent.init(TINY, SPACES, jax.random.key(1)), interop.to_reference(state))
    assert same(other[:2], state[:2])
    assert same(other.normalizer, state.normalizer)


def test_without_a_slow_value_it_becomes_a_copy_of_the_value(state):
    arrays = {
        k: v for k, v in interop.to_reference(state).items() if not k.startswith(("slowval", "retnorm"))
    }
    other = interop.from_reference(agent.init(TINY, SPACES, jax.random.key(1)), arrays)
    assert same(other.slow_value, state.model.value)


def test_missing_and_misshapen_parameters_are_named(state):
    arrays = interop.to_reference(state)
    del arrays["dyn/obs0/bias"]
    with pytest.raises(ValueError, match="1 parameters are missing: dyn/obs0/bias"):
        interop.from_reference(state, arrays)
    arrays["dyn/obs0/bias"] = np.zeros(99)
    with pytest.raises(ValueError, match=r"dyn/obs0/bias is \(99,\), expected \(8,\)"):
        interop.from_reference(state, arrays)


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("nesting", ["flat", "nested"])
def test_pickled_checkpoints(state, tmp_path, nesting, protocol):
    arrays = interop.to_reference(state)
    tree = {"params": arrays, "opt/state/1/count": np.int32(3), "counters": {"updates": 7}}
    if nesting == "nested":
        tree["params"] = {"agent": {f"agent/{name}": array for name, array in arrays.items()}}
    (tmp_path / "agent.pkl").write_bytes(pickle.dumps(tree, protocol=protocol))
    read = interop.read_checkpoint(tmp_path)
    assert read.keys() == arrays.keys()
    other = interop.from_reference(agent.init(TINY, SPACES, jax.random.key(1)), read)
    assert same(other[:2], state[:2])


def test_files_written_before_numpy_2_are_read(state, tmp_path):
    path = tmp_path / "old.pkl"
    path.write_bytes(pickle.dumps(interop.to_reference(state), 2).replace(b"numpy._core", b"numpy.core"))
    assert same(
        interop.read_checkpoint(path)["dyn/obs0/kernel"], interop.to_reference(state)["dyn/obs0/kernel"]
    )


class _Malicious:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_pickle_that_runs_code_is_refused(tmp_path, capsys):
    stream = io.BytesIO()
    pickle.dump({"params": {"dyn/obs0/kernel": np.zeros(3)}, "more": _Malicious()}, stream)
    (tmp_path / "agent.pkl").write_bytes(stream.getvalue())
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print"):
        interop.read_checkpoint(tmp_path)
    assert capsys.readouterr().out == ""
