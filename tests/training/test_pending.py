"""An evaluation under way, as bytes and back."""

import math
import time

import jax.numpy as jnp
import numpy as np

from gpld.training import _pending
from gpld.training._pending import Line, Pending


def test_what_each_run_keeps_is_joined_to_what_it_was():
    model = {"a": jnp.arange(6.0).reshape(2, 3), "b": {"c": jnp.ones((2, 0)), "d": jnp.float32([0.1, 0.2])}}
    held = [
        Line(8, 1, [{"loss": 0.1, "x": math.inf}, {"loss": math.nan}], 1.0),
        Line(16, 2, [{"loss": 1 / 3}, {"eval": 1e-30}], 2.0),
    ]
    blobs = [_pending.dumps(Pending(400, 7, model, 1.0), held, run) for run in range(2)]
    assert b'{"agent_steps": 400' in blobs[0]
    before = time.monotonic()
    found, lines = _pending.loads(blobs, model)
    # Clocks of another process mean nothing here.
    assert all(before <= clock <= time.monotonic() for clock in (found.clock, *(x.clock for x in lines)))
    assert (found.agent_steps, found.updates) == (400, 7)
    assert repr([line[:3] for line in lines]) == repr([line[:3] for line in held])
    for name, array in {"a": found.model["a"], **found.model["b"]}.items():
        expected = {"a": model["a"], **model["b"]}[name]
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected)
