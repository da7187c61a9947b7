"""The replay against a model of it made of Python lists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from gpld import replay as rp
from gpld.replay._ring import _write_slots
from gpld.types import Batch, Latent, Spaces

SPACES = Spaces.of({"height": (), "arm": (2, 3)}, actions=2)
S, N, D, K, B, T = 3, 13, 4, 2, 5, 3

sample = jax.jit(rp.sample, static_argnames=("batch", "length", "online"))
append = jax.jit(rp.append)
write_back = jax.jit(rp.write_back)


def empty(dtype="float32", storage="device", slots=N):
    return rp.init(SPACES, S, slots, D, K, dtype, storage)


def record(step, run=0):
    """A step whose every number tells its run, stream, step and field."""
    at = 1000 * run + 100 * np.arange(S) + step

    def field(number, *shape):
        offset = np.arange(np.prod(shape, dtype=int)).reshape(1, *shape) + 10 * number
        return (at.reshape(S, *[1] * len(shape)) + 1e-3 * offset).astype(np.float32)

    return rp.Record(
        obs={"height": field(1), "arm": field(2, 2, 3)},
        action=field(3, 2),
        reward=field(4),
        is_first=at % 3 == 0,
        is_last=at % 5 == 1,
        is_terminal=at % 7 == 2,
        latent=Latent(field(5, D), (at[:, None] + np.arange(K)).astype(np.uint8)),
    )


def filled(steps, dtype="float32", storage="device", slots=N):
    replay = empty(dtype, storage, slots)
    for step in range(steps):
        replay = (rp.append if storage == "host" else append)(replay, record(step))
    return replay


def new_latents(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(T, B, D)).astype(np.float32)
    return Latent(jnp.asarray(h, dtype), jnp.asarray(rng.integers(0, 256, (T, B, K)), jnp.uint8))


def pairs_of(indices):
    return list(zip(np.asarray(indices.stream).tolist(), np.asarray(indices.start).tolist(), strict=True))


def assert_same(a, b):
    """Equal structure, types and bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


class Model:
    """A replay as anyone would write it: a list of all records ever seen, and a queue."""

    def __init__(self, online):
        self.steps, self.latents, self.queue, self.online = [], [], [], online

    @property
    def oldest(self):
        return max(len(self.steps) - N, 0)

    def append(self, rec):
        self.steps.append(rec)
        self.latents.append([(rec.latent.h[s], rec.latent.z[s]) for s in range(S)])
        if len(self.steps) % (T + 1) == 0:
            self.queue += [(s, len(self.steps) - T - 1) for s in range(S)]

    def check(self, batch, indices):
        """The sequences sampled are allowed, those of the queue come first, and their contents are right."""
        pairs = pairs_of(indices)
        self.queue = [item for item in self.queue if item[1] >= self.oldest]
        if self.online:
            waiting, self.queue = self.queue[:B], self.queue[B:]
            assert pairs[: len(waiting)] == waiting
        assert_same(jax.tree.map(np.asarray, batch), stack([self.sequence(*pair) for pair in pairs]))

    def sequence(self, s, start):
        assert 0 <= s < S
        assert self.oldest <= start <= len(self.steps) - T - 1
        before, recs = self.steps[start : start + T], self.steps[start + 1 : start + T + 1]
        series = {k: np.stack([r.obs[k][s] for r in recs]) for k in recs[0].obs}
        flags = ([getattr(r, f)[s] for r in recs] for f in ("reward", "is_first", "is_last", "is_terminal"))
        return Batch(
            series,
            np.stack([r.action[s] for r in before]),
            *map(np.array, flags),
            Latent(*self.latents[start][s]),
        )

    def write_back(self, indices, latent):
        for b, (s, start) in enumerate(zip(indices.stream, indices.start, strict=True)):
            for t in range(T):
                self.latents[start + 1 + t][s] = (latent.h[t, b], latent.z[t, b])


def stack(sequences):
    series = [sequence._replace(start=None) for sequence in sequences]
    start = jax.tree.map(lambda *x: np.stack(x), *[sequence.start for sequence in sequences])
    return jax.tree.map(lambda *x: np.stack(x, axis=1), *series)._replace(start=start)


# What a run does: append some steps, perhaps update, perhaps without keeping the latents, and so on.
actions = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 2), st.booleans(), st.integers(0, 2**31 - 1)), max_size=12
)


@settings(max_examples=40, deadline=None)
@given(actions=actions, online=st.booleans())
def test_agrees_with_a_model_made_of_lists(actions, online):
    replay, model = empty(), Model(online)
    for steps, updates, keep, seed in actions:
        for _ in range(steps):
            rec = record(len(model.steps))
            replay = append(replay, rec)
            model.append(rec)
        for update in range(updates if replay.appended > T else 0):
            replay, batch, indices = sample(replay, jax.random.key(seed + update), B, T, online)
            model.check(batch, indices)
            latent = new_latents(seed + update)
            replay = write_back(replay, indices, latent, keep)
            if keep:
                model.write_back(*jax.tree.map(np.asarray, (indices, latent)))
    assert int(replay.appended) == len(model.steps)
    if model.steps:
        latents = rp.export(replay, model.oldest, len(model.steps), ["h", "z"])
        for s in range(S):
            kept = model.latents[model.oldest :]
            np.testing.assert_array_equal(latents["h"][s], np.stack([step[s][0] for step in kept]))
            np.testing.assert_array_equal(latents["z"][s], np.stack([step[s][1] for step in kept]))


@pytest.mark.parametrize("steps", [T + 1, 9, N, N + 1, 2 * N + 5])
def test_every_step_is_reachable_and_none_else(steps):
    oldest = max(steps - N, 0)
    _, batch, indices = sample(filled(steps), jax.random.key(steps), 2000, T, online=False)
    assert set(pairs_of(indices)) == {(s, t) for s in range(S) for t in range(oldest, steps - T)}
    # Trained on: all but each stream's oldest, which is only ever context.
    heights = {float(x) for t in range(oldest + 1, steps) for x in record(t).obs["height"]}
    assert set(np.ravel(batch.obs["height"]).tolist()) == heights


@pytest.mark.parametrize("steps", [N - 2, 2 * N + 5])
def test_sampling_is_uniform(steps):
    count = 20_000
    _, _, indices = sample(filled(steps), jax.random.key(1), count, T, online=False)
    starts = min(steps, N) - T
    drawn = np.asarray(indices.stream) * starts + np.asarray(indices.start) - max(steps - N, 0)
    assert stats.chisquare(np.bincount(drawn, minlength=S * starts)).pvalue > 0.01


def test_uniform_samples_fill_the_batch_behind_the_queue():
    # Two periods are complete: 6 sequences wait, the second batch gets one of them and 1999 uniform ones.
    replay, _, first = sample(filled(2 * T + 3), jax.random.key(0), B, T)
    replay, _, rest = sample(replay, jax.random.key(1), 2000, T)
    assert pairs_of(first) == [(0, 0), (1, 0), (2, 0), (0, 4), (1, 4)]
    assert pairs_of(rest)[0] == (2, 4)
    assert int(replay.consumed) == 6
    starts = 2 * T + 3 - T
    drawn = np.asarray(rest.stream[1:]) * starts + np.asarray(rest.start[1:])
    assert stats.chisquare(np.bincount(drawn, minlength=S * starts)).pvalue > 0.01


def test_online_queue_gives_each_sequence_once_in_order():
    replay, seen, steps = empty(), [], 40
    for step in range(steps):
        replay = append(replay, record(step))
        if step >= T:
            before = int(replay.consumed)
            replay, _, indices = sample(replay, jax.random.key(step), B, T)
            fresh = int(replay.consumed) - before
            chosen = pairs_of(indices)[:fresh]
            # B >= S, so that none waits longer than the step that completes it.
            assert all(start == step - T for _, start in chosen)
            seen += chosen
    assert seen == [(s, start) for start in range(0, steps, T + 1) for s in range(S)]


def test_online_queue_skips_what_the_ring_overwrote():
    # Never sampled until step 30: steps from 17 on are stored, so sequences at 0, 4, 8, 12, 16 are lost.
    replay, _, indices = sample(filled(30), jax.random.key(0), 6, T)
    assert pairs_of(indices) == [(0, 20), (1, 20), (2, 20), (0, 24), (1, 24), (2, 24)]
    assert int(replay.consumed) == 7 * S


def test_where_sequences_overlap_the_last_of_the_batch_wins():
    before = filled(N + 2)
    indices = rp.Indices(jnp.array([1, 1, 2, 1, 1], np.int32), jnp.array([8, 6, 6, 8, 7], np.int32))
    latent = new_latents(0)
    latents = rp.export(write_back(before, indices, latent, True), 2, N + 2, ["h", "z"])
    expected = {k: np.array(v) for k, v in rp.export(before, 2, N + 2, ["h", "z"]).items()}
    writer = {(1, 7): 1, (1, 8): 4, (1, 9): 4, (1, 10): 4, (1, 11): 3, (2, 7): 2, (2, 8): 2, (2, 9): 2}
    for (s, step), b in writer.items():
        t = step - int(indices.start[b]) - 1
        expected["h"][s, step - 2], expected["z"][s, step - 2] = latent.h[t, b], latent.z[t, b]
    assert_same(jax.tree.map(np.asarray, latents), expected)


sequences = st.lists(st.tuples(st.integers(0, S - 1), st.integers(4, 9)), min_size=B, max_size=B)


@settings(max_examples=50, deadline=None)
@given(sequences=sequences)
def test_each_step_of_a_batch_is_written_once(sequences):
    """Not seen from the outside on CPUs, where a scatter happens to go through its writes in order."""
    stream, start = np.array(sequences, np.int32).T
    slot = _write_slots(np.int32(N), rp.Indices(jnp.array(stream), jnp.array(start)), True, N, T)
    expected = {(stream[b], start[b] + 1 + t): (t, b) for b in range(B) for t in range(T)}
    written = [(t, b) for t in range(T) for b in range(B) if slot[t, b] < N]
    assert sorted(written) == sorted(expected.values())
    assert len(np.unique(slot[slot >= N])) == B * T - len(written)


@pytest.mark.parametrize("storage", ["device", "host"])
def test_write_back_leaves_alone_what_is_not_to_be_kept_or_gone(storage):
    indices = rp.Indices(jnp.zeros(B, np.int32), jnp.full(B, 1, np.int32))
    replay = filled(9, storage=storage)
    copy = jax.tree.map(np.array, replay)
    assert_same(jax.tree.map(np.asarray, rp.write_back(replay, indices, new_latents(0), False)), copy)
    # Steps 2 and 3 of the sequence 1..4 have been overwritten by 15 and 16, in the same slots.
    replay = filled(N + 4, storage=storage)
    copy = rp.export(filled(N + 4), 4, N + 4, ["h", "z"])
    latent = new_latents(0)
    h = rp.export(rp.write_back(replay, indices, latent, True), 4, N + 4, ["h", "z"])["h"]
    np.testing.assert_array_equal(h[0, 0], latent.h[2, -1])
    np.testing.assert_array_equal(h[:, 1:], copy["h"][:, 1:])


def block(replay, rec, key, length=T, batch=B):
    """A step and two updates in one program, as a loop does it."""
    replay = rp.append(replay, rec)

    def update(replay, key):
        replay, drawn, indices = rp.sample(replay, key, batch, length)
        h = drawn.start.h[None] * drawn.reward[:, :, None].astype(drawn.start.h.dtype)
        z = jnp.broadcast_to(drawn.start.z[None] + jnp.uint8(1), (length, batch, drawn.start.z.shape[-1]))
        return rp.write_back(replay, indices, Latent(h, z), True), (drawn, indices)

    return jax.lax.scan(update, replay, jax.random.split(key, 2))


def test_a_run_does_not_depend_on_its_neighbours():
    runs = [filled(9), filled(9), filled(9)]
    recs = [record(9, run) for run in range(3)]
    keys = jax.random.split(jax.random.key(3), 3)
    together = jax.jit(jax.vmap(block))

    def stacked(trees):
        return jax.tree.map(lambda *x: jnp.stack(x), *trees)

    result = together(stacked(runs), stacked(recs), keys)
    alone = jax.jit(block)(runs[1], recs[1], keys[1])
    assert_same(jax.tree.map(lambda x: x[1], result), alone)
    others = together(
        stacked([filled(12), runs[1], empty()]), stacked([recs[2], *recs[1:]]), keys.at[0].set(keys[2])
    )
    assert_same(jax.tree.map(lambda x: x[1], others), alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("runs", [0, 2])
def test_compiled_program_changes_the_rings_in_place(dtype, runs):
    replay, rec, key = empty(dtype, slots=10_000), record(0), jax.random.key(0)
    program, args = block, (replay, rec, key)
    if runs:
        program = jax.vmap(block)
        args = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (runs, *x.shape)), args)
    memory = jax.jit(program, donate_argnums=0).lower(*args).compile().memory_analysis()
    rings = sum(x.nbytes for x in jax.tree.leaves(args[0]))
    assert memory.alias_size_in_bytes == rings
    assert memory.temp_size_in_bytes < rings / 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_host_memory_gives_the_same_bits(dtype):
    device, host = empty(dtype), empty(dtype, "host")
    for step in range(2 * N):
        device, host = append(device, record(step)), rp.append(host, record(step))
        if step >= T:
            key = jax.random.key(step)
            device, batch, indices = sample(device, key, B, T)
            host, host_batch, host_indices = rp.sample(host, key, B, T)
            assert_same((batch, indices), (host_batch, host_indices))
            latent = new_latents(step, dtype)
            device = write_back(device, indices, latent, step % 4 != 0)
            host = rp.write_back(host, host_indices, latent, step % 4 != 0)
    assert host.host
    assert not device.host
    assert_same(device, host)
    assert batch.start.h.dtype == dtype


@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize("steps", [7, N, 2 * N + 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_and_restore_round_trip(storage, steps, dtype):
    replay, put = empty(dtype, storage), rp.append if storage == "host" else append
    saved = []  # the steps, each exported once, in chunks as a run appends them
    for step in range(steps):
        replay = put(replay, record(step))
        if step == T or step % 5 == 4 or step == steps - 1:
            done = sum(chunk.shape[-2] for chunk in saved)
            saved.append(np.asarray(rp.export(replay, done, step + 1, ["steps"])["steps"]))
        if step == steps // 2:
            replay, _, indices = rp.sample(replay, jax.random.key(0), B, T)
            replay = rp.write_back(replay, indices, new_latents(1, dtype), True)
    held = rp.stored(replay)
    assert held == range(max(steps - N, 0), steps)
    rows = np.concatenate(saved, axis=-2)[:, held.start :]
    latents = jax.tree.map(np.asarray, rp.export(replay, held.start, held.stop, ["h", "z"]))
    consumed = int(replay.consumed)

    assert_same(replay, rp.restore(empty(dtype, storage), held.start, rows, latents, consumed))
    cut = len(held) // 2
    restored = empty(dtype, storage)
    for begin, end in ((0, cut), (cut, len(held))):
        part = {k: v[:, begin:end] for k, v in latents.items()}
        restored = rp.restore(restored, held.start + begin, rows[:, begin:end], part, consumed)
    assert_same(replay, restored)


@pytest.mark.parametrize("storage", ["device", "host"])
def test_a_device_may_copy_more_than_it_is_asked_for(storage):
    replay = filled(N + 3, storage=storage)
    exact = rp.export(replay, 5, 10, ["steps", "h"])
    more = rp.export(replay, 5, 10, ["steps", "h"], size=8)
    for name, values in more.items():
        assert values.shape[-2] == (8 if storage == "device" else 5)
        np.testing.assert_array_equal(values[:, :5], exact[name])
        np.testing.assert_array_equal(
            values[:, 5:], np.repeat(exact[name][:, 4:], values.shape[1] - 5, axis=1)
        )


def test_several_runs_export_and_restore_at_once():
    runs = [filled(N + 3), append(filled(N + 2), record(7, run=5))]
    both = jax.tree.map(lambda *x: jnp.stack(x), *runs)
    held = rp.stored(both)
    steps = rp.export(both, held.start, held.stop, ["steps"])["steps"]
    np.testing.assert_array_equal(steps[1], rp.export(runs[1], held.start, held.stop, ["steps"])["steps"])
    blank = jax.vmap(lambda _: empty())(jnp.arange(2))
    latents = rp.export(both, held.start, held.stop, ["h", "z"])
    assert_same(rp.restore(blank, held.start, steps, latents, both.consumed), both)


def test_export_refuses_steps_it_does_not_hold():
    replay = filled(N + 3)
    with pytest.raises(ValueError, match=r"\[2, 9\).*holds \[3, 16\)"):
        rp.export(replay, 2, 9, ["steps"])["steps"]
    with pytest.raises(ValueError, match=r"\[9, 17\)"):
        rp.export(replay, 9, 17, ["h", "z"])


def test_restore_refuses_what_does_not_fit():
    replay = filled(N)
    steps, latents = rp.export(replay, 0, N, ["steps"])["steps"], rp.export(replay, 0, N, ["h", "z"])
    with pytest.raises(ValueError, match="13 steps a stream do not fit in a replay of 12"):
        rp.restore(empty(slots=12), 0, steps, latents, 0)
    with pytest.raises(ValueError, match=r"h are float32\[3, 13, 4\].*uint16\[3, 13, 4\]"):
        rp.restore(empty("bfloat16"), 0, steps, latents, 0)
    with pytest.raises(ValueError, match=r"z are uint8\[3, 13, 1\]"):
        rp.restore(empty(), 0, steps, latents | {"z": latents["z"][..., :1]}, 0)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_what_is_allocated(dtype, size):
    expected = S * N * (4 * (7 + 2 + 1 + 3) + size * D + K) + 2 * 4
    for storage in ("device", "host"):
        assert sum(x.nbytes for x in jax.tree.leaves(empty(dtype, storage))) == expected


def test_slots_for_the_smaller_of_capacity_and_plan():
    assert rp.slots_for(5_000_000, 500_000, 16, 64) == 31_250
    assert rp.slots_for(1_000, 500_000, 3, 64) == 334
    with pytest.raises(ValueError, match=r"replay.capacity = 1000 .* leave 63 .* at least 65"):
        rp.slots_for(1_000, 500_000, 16, 64)


def test_impossible_arguments_are_named():
    with pytest.raises(ValueError, match=r"replay.capacity leaves 3 steps a stream; it must leave 4"):
        rp.sample(empty(slots=3), jax.random.key(0), B, T)
    with pytest.raises(ValueError, match="below 2\\*\\*31"):
        rp.init(SPACES, 2**16, 2**15, D, K, "float32")
    rec = record(0)
    with pytest.raises(ValueError, match=r"keys \['height'\]; allowed are \['arm', 'height'\]"):
        rp.append(empty(), rec._replace(obs={"height": rec.obs["height"]}))
    with pytest.raises(ValueError, match=r"record.action has shape \(3, 1\); it must be \(3, 2\)"):
        rp.append(empty(), rec._replace(action=rec.action[:, :1]))


PIXELS = Spaces.of({"height": (), "arm": (2, 3), "view": (4, 2, 3)}, actions=2, images=["view"])


def seen(step):
    """A record with an image of random bytes; read as floats, those of one stream are not numbers."""
    rec, view = record(step), np.random.default_rng(step).integers(0, 256, (S, 4, 2, 3), np.uint8)
    view[step % S] = 255
    return rec._replace(obs={"arm": rec.obs["arm"], "height": rec.obs["height"], "view": view})


@pytest.mark.parametrize("storage", ["device", "host"])
def test_images_come_back_byte_by_byte(storage):
    replay, model = rp.init(PIXELS, S, N, D, K, "float32", storage), Model(online=True)
    host = storage == "host"
    for step in range(2 * N):
        replay = (rp.append if host else append)(replay, seen(step))
        model.append(seen(step))
        if step >= T:
            replay, batch, indices = (rp.sample if host else sample)(replay, jax.random.key(step), B, T)
            assert batch.obs["view"].dtype == np.uint8
            model.check(batch, indices)
    held = rp.stored(replay)
    exported = (
        rp.export(replay, held.start, held.stop, ["steps"])["steps"],
        rp.export(replay, held.start, held.stop, ["h", "z"]),
    )
    steps, latents = jax.tree.map(np.asarray, exported)
    blank = rp.init(PIXELS, S, N, D, K, "float32", storage)
    assert_same(rp.restore(blank, held.start, steps, latents, int(replay.consumed)), replay)


def test_a_byte_of_an_image_takes_a_byte():
    for storage in ("device", "host"):
        replay = rp.init(PIXELS, S, N, D, K, "float32", storage)
        expected = S * N * (4 * (7 + 2 + 1 + 3) + 4 * 2 * 3 + 4 * D + K) + 2 * 4
        assert sum(x.nbytes for x in jax.tree.leaves(replay)) == expected


def test_images_of_another_type_or_size_are_refused():
    replay, rec = rp.init(PIXELS, S, N, D, K, "float32"), seen(0)
    wrong = rec._replace(obs=rec.obs | {"view": rec.obs["view"].astype(np.float32)})
    with pytest.raises(ValueError, match=r"record.view is an image of float32; it must be uint8"):
        rp.append(replay, wrong)
    odd = Spaces.of({"view": (3, 3, 1)}, actions=2, images=["view"])
    with pytest.raises(ValueError, match=r"'view'.* 9 bytes, not a multiple of 4"):
        rp.init(odd, S, N, D, K, "float32")
