"""States of environments: every bit comes back, and nothing in them is run."""

import ast
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes

from gpld.envs import _states, make
from gpld.envs._base import Stream
from gpld.envs._serial import SerialEnv
from gpld.types import Spaces
from tests.envs.helpers import need

ROOT = Path(__file__).parents[2]

DTYPES = scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc")
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | arrays(DTYPES, array_shapes(min_dims=0, min_side=0, max_side=3))
)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=10,
)


def same(one, two):
    """Equal kinds, types and bits."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, float):
        return np.float64(one).tobytes() == np.float64(two).tobytes() or (one != one and two != two)
    return one == two


@given(STATES)
@settings(max_examples=100, deadline=None)
def test_every_bit_comes_back(state):
    assert same(_states.loads(_states.dumps(state)), state)


def test_random_numbers_go_on():
    old, new = np.random.RandomState(3), np.random.default_rng(4)
    old.normal(), new.normal()
    again = _states.loads(_states.dumps({"old": old, "new": new}))
    assert again["old"].normal(size=5).tolist() == old.normal(size=5).tolist()
    assert again["new"].normal(size=5).tolist() == new.normal(size=5).tolist()


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_is_neither_written_nor_read_unless_it_is_asked_for(tmp_path):
    planted = Planted(str(tmp_path / "ran"))
    with pytest.raises(_states.NotPlainData, match="Planted is neither an array"):
        _states.dumps([planted])
    data = _states.dumps([planted], pickles=True)
    with pytest.raises(
        _states.UnreadableState, match=r"a pickle, which is not read unless env\.pickle is on"
    ):
        _states.loads(data)
    assert not (tmp_path / "ran").exists()
    _states.loads(data, pickles=True)
    assert (tmp_path / "ran").exists()


def other_files(planted):
    objects, small = io.BytesIO(), io.BytesIO()
    np.savez(objects, tree=np.array([planted], object))
    np.savez_compressed(small, tree=np.zeros(1000, np.uint8))
    with zipfile.ZipFile(odd := io.BytesIO(), "w") as archive:
        archive.writestr("tree.npy", b"neither")
    good = _states.dumps({"a": np.zeros(3)})
    return [b"", pickle.dumps(planted), objects.getvalue(), small.getvalue(), odd.getvalue(), good[:-9]]


def test_whatever_else_is_in_a_file_is_not_run(tmp_path):
    planted = Planted(str(tmp_path / "ran"))
    for data in other_files(planted):
        with pytest.raises(_states.UnreadableState):
            _states.loads(data)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("backend", ["dm_control", "envpool"])
def test_what_an_older_version_pickled_is_left_and_new_episodes_begin(tmp_path, backend, caplog):
    need(backend)
    planted = pickle.dumps((Planted(str(tmp_path / "ran")), 0, 0, 0, 0, 0))
    with make("cartpole-balance", count=2, seed=0, backend=backend) as env:
        for _ in range(3):
            env.step(np.zeros((2, 1)))
        assert env.restore(planted) == [0, 1]
        assert env.step(np.zeros((2, 1))).is_first.tolist() == [True, True]
    assert "the saved state of the environments cannot be used" in caplog.text
    assert not (tmp_path / "ran").exists()


class Counting(Stream):
    """Counts its steps, in an object that only pickles."""

    spaces = Spaces.of({"count": ()}, 1)

    def __init__(self):
        self.count = [0]

    def _observation(self):
        return {"count": np.array(self.count[0], np.float32)}

    def reset(self):
        self.count = [0]
        return self._observation()

    def frame(self, action):
        self.count[0] += 1
        return self._observation(), 0.0, False, False

    def save(self):
        return Holder(self.count[0])

    def restore(self, state):
        self.count = [state.count]
        return True

    def render(self, height, width):
        raise NotImplementedError

    def close(self):
        pass


class Holder:
    def __init__(self, count):
        self.count = count


@pytest.mark.parametrize("pickles", [False, True])
def test_a_state_that_only_pickles_needs_to_be_asked_for(pickles, caplog):
    def make_env():
        return SerialEnv(lambda stream, restart: Counting(), count=2, action_repeat=1, pickles=pickles)

    with make_env() as env, make_env() as again:
        for _ in range(4):
            env.step(np.zeros((2, 1)))
        state = env.save()
        env.save()
        assert again.restore(state) == ([] if pickles else [0, 1])
        counts = again.step(np.zeros((2, 1))).obs["count"].tolist()
    assert counts == ([4, 4] if pickles else [0, 0])
    assert sum("unless env.pickle is on" in message for message in caplog.messages) == (not pickles)


# What the code may do, by its syntax

UNPICKLES = {"load", "loads", "Unpickler"}
ALLOWED = {
    ("gpld/interop.py", "Unpickler"): "the arrays-only reader's own class",
    ("gpld/envs/_states.py", "loads"): "the opt-in",
    ("gpld/envs/_process.py", "load"): "pipes between processes of one program",
    ("gpld/envs/_process.py", "loads"): "an error on its way through them",
    (
        "gpld/training/_program_cache.py",
        "deserialize_and_load",
    ): "programs in the user's own cache, as JAX's own are",
}
MODULES = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch")


def unpickling(source):
    """Names by which a module can make objects of bytes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES[:-1]:
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in MODULES[1:-1])
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in MODULES:
            yield from {node.attr} & UNPICKLES
        if isinstance(node, ast.Attribute) and node.attr == "deserialize_and_load":
            yield node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
            "load",
            "read_pickle",
            "loadtxt",
        ):
            words = {word.arg: word.value for word in node.keywords}
            if getattr(node.func, "attr", "") == "read_pickle":
                yield "read_pickle"
            allowed = words.get("allow_pickle")
            if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
                yield "allow_pickle"


@pytest.mark.parametrize("path", sorted((ROOT / "gpld").rglob("*.py")), ids=str)
def test_nothing_is_unpickled_from_disk(path):
    name = path.relative_to(ROOT).as_posix()
    assert {found for found in unpickling(path.read_text()) if (name, found) not in ALLOWED} == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle\npickle.loads(x)", {"loads"}),
        ("import pickle\nread = pickle.load", {"load"}),
        ("from pickle import loads as read", {"loads"}),
        ("import dill", {"dill"}),
        ("import numpy as np\nnp.load(x, allow_pickle=True)", {"allow_pickle"}),
        ("import numpy as np\nnp.load(x, allow_pickle=False)", set()),
        ("import pandas\npandas.read_pickle(x)", {"read_pickle"}),
        ("import torch\ntorch.load(x)", {"load"}),
        ("import pickle\npickle.dumps(x)", set()),
    ],
)
def test_the_rule_itself(source, found):
    assert set(unpickling(source)) == found
