"""Checkpoints: every bit comes back, from whatever a crash, a bad disk or a full one has left."""

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpld import agent, machine, replay as rp
from gpld.config import Config, with_presets
from gpld.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    _copies,
    _files,
    _snapshot,
    _trees,
    complete,
    discard_replay,
    saved_steps,
)
from gpld.types import Spaces

ROOT = Path(__file__).parents[2]
SPACES = Spaces.of({"height": (), "arm": (2, 3)}, actions=2)
S, N, D, K, F = 3, 8, 4, 2, 13
APPENDED = 3  # steps between two checkpoints: the ring comes around at the third


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def arrays(k):
    """A tree of every kind of leaf, its bits chosen by `k`."""
    rng = np.random.default_rng(k)
    bits = rng.integers(0, 2**32, (3, 5), np.uint32)
    bits[0, :3] = 0x7FC00001, 0xFF800123, 0x80000000  # two NaNs with a payload, and -0.0
    return {
        "agent": (
            jnp.asarray(bits.view(np.float32)),
            jnp.asarray(rng.integers(0, 2**16, 7, np.uint16)).view(jnp.bfloat16),
            jnp.full(4, -0.0),
        ),
        "key": jax.random.split(jax.random.key(k), 2),
        "fast_key": jax.random.key(k, impl="rbg"),
        "updates": jnp.int32(k),
        "empty": jnp.zeros((0, 3)),
        "nothing": None,
        "episodes": {"returns": rng.normal(size=4), "count": np.array(2**40 + k), "total": np.float64(k / 3)},
    }


def rows(begin, end):
    at = np.arange(begin, end)[None, :, None] + 1000 * np.arange(S)[:, None, None]
    return (at + 0.01 * np.arange(F)).astype(np.float32)


def replay(k, storage="host"):
    """A replay that was given 3k steps; their latents depend on k too, as training changes them."""
    held = range(max(APPENDED * k - N, 0), APPENDED * k)
    rng = np.random.default_rng(k)
    latents = {
        "h": rng.integers(0, 2**16, (S, len(held), D), np.uint16),
        "z": rng.integers(0, 256, (S, len(held), K), np.uint8),
    }
    return rp.restore(empty(storage), held.start, rows(held.start, held.stop), latents, consumed=k)


def empty(storage="host"):
    return rp.init(SPACES, S, N, D, K, "bfloat16", storage)


def save(checkpoints, k, storage="host"):
    blobs = {"env": bytes([k % 256]) * 100, "nothing": b""}
    info = {"iterations": k, "ratio": k / 3, "names": ["a", "b"]}
    checkpoints.save(10 * k, arrays(k), replay(k, storage), blobs=blobs, info=info)


def assert_same(a, b):
    """Equal structure, kinds, types and bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert isinstance(x, jax.Array) == isinstance(y, jax.Array)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def restore(folder, storage="host"):
    """Restore as a new process would, and check every bit; the number of the checkpoint, or None."""
    with Checkpoints(folder) as checkpoints:
        return restored_number(checkpoints, storage)


def restored_number(checkpoints, storage="host"):
    restored = checkpoints.restore(arrays(0), empty(storage))
    if restored is None:
        return None
    k = restored.step // 10
    assert_same(restored.arrays, arrays(k))
    assert_same(restored.replay, replay(k, storage))
    assert restored.blobs == {"env": bytes([k % 256]) * 100, "nothing": b""}
    assert restored.info == {"iterations": k, "ratio": k / 3, "names": ["a", "b"]}
    return k


def save_all(folder, numbers, **options):
    with Checkpoints(folder, **options) as checkpoints:
        restored_number(checkpoints)
        for k in numbers:
            save(checkpoints, k)
        checkpoints.wait()


def chunks(folder):
    return sorted(tuple(map(int, path.stem.split("-"))) for path in (folder / "steps").iterdir())


@pytest.mark.parametrize("storage", ["device", "host"])
def test_every_bit_comes_back(tmp_path, storage, capfd, caplog):
    assert restore(tmp_path / "none") is None
    for k in range(1, 6):
        with Checkpoints(tmp_path / "deep" / "run") as checkpoints:
            restored_number(checkpoints, storage)
            save(checkpoints, k, storage)
        assert restore(tmp_path / "deep" / "run", storage) == k
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def test_a_checkpoint_of_nothing_lived_yet(tmp_path):
    save_all(tmp_path, [0, 1])
    assert chunks(tmp_path) == [(0, 3)]
    assert restore(tmp_path) == 1


def test_latents_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(_snapshot, "PIECE_BYTES", 3 * S * (2 * D + K))
    for storage in ("device", "host"):
        with Checkpoints(tmp_path / storage) as checkpoints:
            save(checkpoints, 2, storage)
            save(checkpoints, 5, storage)
        names = sorted(path.name for path in (tmp_path / storage / f"{50:012d}" / "latents").glob("*.h.npy"))
        spans = [(7, 10), (10, 13), (13, 15)]
        assert names == [f"{begin:012d}-{end:012d}.h.npy" for begin, end in spans]
        assert restore(tmp_path / storage, storage) == 5


def test_an_agent_and_a_population(tmp_path):
    config = with_presets(Config(task="walker-walk"), ["nano"])
    init = partial(agent.init, config.agent, SPACES)
    shapes = jax.eval_shape(jax.vmap(init), jax.random.split(jax.random.key(0), 2))
    rng = np.random.default_rng(0)

    def fill(shape):
        if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(1), shape.shape)
        return jnp.asarray(rng.integers(0, 2**32, shape.shape, np.uint32)).view(shape.dtype)

    state = jax.tree.map(fill, shapes)
    runs = jax.tree.map(lambda *x: np.stack(x), replay(4), replay(4))
    runs.consumed[1] += 1
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, runs)
    blank = jax.tree.map(lambda *x: np.stack(x), empty(), empty())
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(shapes, blank)
    assert_same(restored.arrays, state)
    assert_same(restored.replay, runs)


def test_a_part_of_the_arrays(tmp_path):
    save_all(tmp_path, [1])
    state = arrays(1)
    with Checkpoints(tmp_path) as checkpoints:
        for names in (["updates", "key", "empty"], ["episodes"]):
            restored = checkpoints.restore({name: arrays(0)[name] for name in names}, part=True)
            assert_same(restored.arrays, {name: state[name] for name in names})
            assert restored.info["iterations"] == 1
            assert restored.replay is None
        like = {"updates": jnp.zeros(()), "key": arrays(0)["key"]}
        with pytest.raises(CheckpointError, match=r"arrays: updates is int32\[\] there, float32\[\] here$"):
            checkpoints.restore(like, part=True)


def test_arrays_go_where_those_they_replace_are(tmp_path):
    save_all(tmp_path, [1])
    placed = jax.device_put(arrays(0)["agent"], jax.devices()[0])
    restored = Checkpoints(tmp_path).restore({**arrays(0), "agent": placed})
    assert all(leaf.committed for leaf in restored.arrays["agent"])
    assert not restored.arrays["updates"].committed


def test_saving_copies_before_it_returns(tmp_path, monkeypatch):
    """The caller goes on, donates and overwrites, while the thread has not begun to fetch what it writes."""
    go, fetch = threading.Event(), _copies.Copied.fetch
    monkeypatch.setattr(_copies.Copied, "fetch", lambda copy: fetch(copy) if go.wait(60) else None)
    live, memory = arrays(1), replay(1, "device")
    mutable = live["episodes"]["returns"]
    with Checkpoints(tmp_path) as checkpoints:
        blobs, info = {"env": bytes([1]) * 100, "nothing": b""}, {"iterations": 1, "ratio": 1 / 3}
        info["names"] = ["a", "b"]
        checkpoints.save(10, live, memory, blobs=blobs, info=info)
        assert checkpoints.busy
        assert saved_steps(checkpoints.folder) == []
        on_device = [leaf for leaf in jax.tree.leaves((live, memory)) if isinstance(leaf, jax.Array)]
        clobber = jax.jit(lambda leaves: [jnp.zeros_like(x) + x[..., :1] for x in leaves], donate_argnums=0)
        floats = [x for x in on_device if x.dtype in (jnp.float32, jnp.uint16) and x.size]
        jax.block_until_ready(clobber(floats))
        assert floats[0].is_deleted()
        mutable[:] = 0
        info["names"].append("c")
        blobs.clear()
        go.set()
        checkpoints.wait()
        assert not checkpoints.busy
    assert restore(tmp_path, "device") == 1


@pytest.mark.parametrize("spare", [0, 1200, sys.maxsize])
def test_what_does_not_fit_on_the_device_goes_to_host_memory_at_once(tmp_path, monkeypatch, spare):
    monkeypatch.setattr(_snapshot, "PIECE_BYTES", 3 * S * (2 * D + K))
    monkeypatch.setattr(machine, "spare_device_memory", lambda: spare)
    taken = _snapshot.Snapshot.take(20, arrays(2), replay(2, "device"), {}, {}, 0)
    on_device = [
        isinstance(copy.array, jax.Array) for piece in taken.pieces for copy in piece.values.values()
    ]
    assert len(on_device) == 4
    assert sum(on_device) == {0: 0, 1200: 2, sys.maxsize: 4}[spare]
    with Checkpoints(tmp_path) as checkpoints:
        save(checkpoints, 2, "device")
    assert restore(tmp_path, "device") == 2


def test_a_function_gives_bytes_when_they_are_written(tmp_path):
    threads = []

    def late():
        threads.append(threading.current_thread())
        return b"late"

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(10, arrays(1), replay(1), blobs={"now": b"now", "late": late})
        checkpoints.wait()
        assert checkpoints.restore(arrays(0)).blobs == {"now": b"now", "late": b"late"}
    assert threads != [threading.current_thread()]
    assert len(threads) == 1


def test_steps_are_written_once_and_kept_as_long_as_they_are_needed(tmp_path):
    written, seen = [], {}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for k in range(1, 9):
            save(checkpoints, k)
            checkpoints.wait()
            assert saved_steps(checkpoints.folder) == [10 * i for i in range(max(k - 1, 1), k + 1)]
            # Two rings of 8 steps, that of the checkpoint before included.
            oldest = max(APPENDED * max(k - 1, 1) - N, 0)
            assert chunks(tmp_path) == [(b, b + 3) for b in range(oldest // 3 * 3, 3 * k, 3)]
            for path in (tmp_path / "steps").iterdir():
                inode = path.stat().st_ino, path.stat().st_mtime_ns
                assert seen.setdefault(path.name, inode) == inode
            written.append(chunks(tmp_path)[-1])
    assert written == [(3 * i, 3 * i + 3) for i in range(8)]


@pytest.mark.parametrize("keep", [1, 3])
def test_retention(tmp_path, keep):
    save_all(tmp_path, range(1, 6), keep=keep)
    assert saved_steps(tmp_path) == [10 * k for k in range(6 - keep, 6)]
    for k in range(5, 5 - keep, -1):
        assert restore(tmp_path) == k
        shutil.rmtree(tmp_path / f"{10 * k:012d}")


def test_more_steps_than_the_ring_holds_since_the_last_checkpoint(tmp_path):
    save_all(tmp_path, [1, 6])
    assert chunks(tmp_path) == [(0, 3), (10, 18)]
    assert restore(tmp_path) == 6


def test_a_step_is_saved_once(tmp_path):
    save_all(tmp_path, [1, 2])
    before = {path: path.stat().st_mtime_ns for path in files_in(tmp_path)}
    with Checkpoints(tmp_path) as checkpoints:
        restored_number(checkpoints)
        save(checkpoints, 2)
        checkpoints.wait()
        assert {path: path.stat().st_mtime_ns for path in files_in(tmp_path)} == before
        with pytest.raises(ValueError, match="step 10 cannot be saved after step 20"):
            save(checkpoints, 1)


def test_another_runs_checkpoints_are_not_overwritten(tmp_path):
    save_all(tmp_path, [1])
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match="of step 10: restore it"):
        save(checkpoints, 2)
    assert restore(tmp_path) == 1


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_used(tmp_path, damage, caplog):
    save_all(tmp_path, [1, 2, 3])
    files = [path for path in files_in(tmp_path) if f"{30:012d}" in path.parts]
    files += [tmp_path / "steps" / f"{6:012d}-{9:012d}.npy"]
    assert len(files) > 12
    rng = np.random.default_rng(0)
    for path in files:
        good = path.read_bytes()
        if not good and damage != "missing":
            continue
        at = rng.integers(len(good)) if good else 0
        if damage == "truncated":
            path.write_bytes(good[:at])
        elif damage == "flipped":
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.integers(8)]) + good[at + 1 :])
        else:
            path.unlink()
        caplog.clear()
        assert restore(tmp_path) == 2
        (message,) = caplog.messages
        assert message.startswith(f"checkpoint {tmp_path / f'{30:012d}'} cannot be used: ")
        # A manifest and its checksum accuse each other.
        assert str(path) in message or path.name in message
        path.write_bytes(good)
        caplog.clear()
        assert restore(tmp_path) == 3
        assert caplog.messages == []


def resealed(folder, change):
    """Change a manifest, and let its checksum agree."""
    text = (folder / "manifest.json").read_bytes()
    values = json.loads(text)
    changed = change(values)
    text = (
        changed if isinstance(changed, bytes) else json.dumps(values if changed is None else changed).encode()
    )
    (folder / "manifest.json").write_bytes(text)
    line = f"{hashlib.sha256(text).hexdigest()}  manifest.json\n"
    (folder / "manifest.sha256").write_text(line)


FORGED = {
    "no format": lambda m: m.pop("format") and None,
    "a format before the first": lambda m: m.update(format=0),
    "a format of text": lambda m: m.update(format="2"),
    "an unknown key": lambda m: m.update(more=1),
    "a missing key": lambda m: m.pop("pieces") and None,
    "not JSON": lambda m: b"{",
    "not UTF-8": lambda m: b"\xff\xfe",
    "nested deeply": lambda m: b"[" * 100_000,
    "a list": lambda m: [1, 2],
    "nothing": lambda m: b"",
    "another step": lambda m: m.update(step=10),
    "a negative step": lambda m: m.update(step=-20),
    "a step of truth": lambda m: m.update(step=True),
    "a path to a device": lambda m: m["files"].update({"/dev/zero": [1, "0"]}),
    "a path that leads out": lambda m: m["files"].update({"blobs/../../../x": [1, "0"]}),
    "a file without a digest": lambda m: m["files"].update({"blobs/x": 3}),
    "a chunk of texts": lambda m: m.update(chunks=[["0", "3", [1, "0"]]]),
    "a chunk backwards": lambda m: m.update(chunks=[[3, 0, [1, "0"]]]),
    "pieces of nothing": lambda m: m.update(pieces=[[]]),
    "consumed by text": lambda m: m.update(consumed=["a"]),
    "arrays of numbers": lambda m: m.update(arrays={"a": 1}),
    "info of text": lambda m: m.update(info="x"),
    "a large number": lambda m: m.update(end=10**400),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_manifest_that_is_not_one_is_named_and_the_previous_checkpoint_used(tmp_path, change, caplog):
    save_all(tmp_path, [1, 2])
    resealed(tmp_path / f"{20:012d}", change)
    assert restore(tmp_path) == 1
    (message,) = caplog.messages
    assert (
        f"{tmp_path / f'{20:012d}' / 'manifest.json'} is not the manifest of a checkpoint here: " in message
    )
    shutil.rmtree(tmp_path / f"{10:012d}")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* can be used: .*manifest\.json is not the"
    ):
        restore(tmp_path)


@pytest.mark.parametrize("file", ["manifest.ocdbt", "d/*"])
def test_arrays_that_are_none_though_their_checksums_agree(tmp_path, file, caplog, capfd):
    """One warning, and the checkpoint before it; not a word of the library's threads."""
    save_all(tmp_path, [1, 2])
    folder = tmp_path / f"{20:012d}"
    (path, *_) = (folder / "arrays").glob(file)
    path.write_bytes(b"")
    nothing = [0, hashlib.sha256(b"").hexdigest()]
    resealed(folder, lambda m: m["files"].update({path.relative_to(folder).as_posix(): nothing}))
    capfd.readouterr()
    assert restore(tmp_path) == 1
    (message,) = caplog.messages
    assert f"{folder / 'arrays'} cannot be read (" in message
    time.sleep(0.2)  # for threads to say what they have to say
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["latents/*.h.npy", "../steps/*.npy"])
def test_a_replay_that_is_none_though_its_checksums_agree(tmp_path, name):
    save_all(tmp_path, [1])
    folder = tmp_path / f"{10:012d}"
    (path,) = folder.glob(name)
    path.write_bytes(b"nothing")
    digest = [7, hashlib.sha256(b"nothing").hexdigest()]

    def change(manifest):
        if name.startswith("latents"):
            manifest["files"][path.relative_to(folder).as_posix()] = digest
        else:
            manifest["chunks"][0][2] = digest

    resealed(folder, change)
    with pytest.raises(CheckpointError, match=rf"^the replay of {folder} cannot be read \("):
        restore(tmp_path)


def test_a_renamed_checkpoint_and_names_that_are_none(tmp_path):
    save_all(tmp_path, [1, 2])
    (tmp_path / f"{20:012d}").rename(tmp_path / f"{30:012d}")
    for name in ("\u00b2", "\u0661" * 12, "1", "-00000000010", "0" * 13):
        (tmp_path / name).mkdir()
    assert saved_steps(tmp_path) == [10, 30]
    assert restore(tmp_path) == 1


@pytest.mark.parametrize("what", ["manifest.json", "blobs/env", "arrays", ""])
def test_a_link_is_not_followed(tmp_path, what, caplog):
    save_all(tmp_path / "run", [1, 2])
    path = tmp_path / "run" / f"{20:012d}" / what
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert restore(tmp_path / "run") == 1
    assert "it is a symbolic link; links are not followed" in caplog.text


@pytest.fixture
def elsewhere(tmp_path):
    """A folder of somebody else, in which nothing may change."""
    folder = tmp_path / "elsewhere"
    (folder / "latents").mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    yield folder
    assert sorted(path.name for path in folder.rglob("*")) == ["latents", "thesis.txt"]


@pytest.mark.parametrize("name", ["", "steps"])
def test_nothing_behind_a_link_is_removed(tmp_path, elsewhere, name):
    """Not even where the run folder was not looked at before."""
    run = tmp_path / "run"
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(elsewhere)
    checkpoints = Checkpoints(run)
    save(checkpoints, 1)
    with pytest.raises(CheckpointError, match=f"could not be written: {run / name}: it is a symbolic link"):
        checkpoints.close()


def test_nothing_is_set_aside_behind_a_link(tmp_path, elsewhere):
    run = tmp_path / "run"
    save_all(run, [1, 2])
    (run / f"{20:012d}" / "blobs" / "env").write_bytes(b"")
    (run / "set-aside").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="set-aside: it is a symbolic link"):
        save_all(run, [2])


def test_no_replay_behind_a_link_is_discarded(tmp_path, elsewhere):
    run = tmp_path / "run"
    save_all(run, [1, 2])
    (run / f"{30:012d}").symlink_to(elsewhere)
    discard_replay(run)
    assert list(run.glob("*/latents")) == [run / f"{30:012d}" / "latents"]
    save_all(tmp_path / "other", [1])
    (tmp_path / "link").symlink_to(tmp_path / "other")
    discard_replay(tmp_path / "link")
    assert restore(tmp_path / "other") == 1


def test_what_leads_to_a_pipe_is_not_waited_for(tmp_path, caplog):
    save_all(tmp_path, [1, 2])
    path = tmp_path / f"{20:012d}" / "blobs" / "env"
    path.unlink()
    os.mkfifo(path)
    assert restore(tmp_path) == 1
    assert "it is not a regular file" in caplog.text


def test_what_is_newer_than_a_good_checkpoint_is_set_aside_whole(tmp_path, caplog):
    save_all(tmp_path, [1, 2, 3])
    damaged = tmp_path / f"{30:012d}"
    (damaged / "blobs" / "env").write_bytes(b"")
    before = {path.relative_to(damaged): path.read_bytes() for path in files_in(damaged)}
    chunk = (tmp_path / "steps" / f"{6:012d}-{9:012d}.npy").read_bytes()
    save_all(tmp_path, [3])
    assert restore(tmp_path) == 3
    aside = tmp_path / "set-aside" / damaged.name
    assert {path.relative_to(aside): path.read_bytes() for path in files_in(aside)} == before
    assert (tmp_path / "set-aside" / f"{6:012d}-{9:012d}.npy").read_bytes() == chunk
    assert f"{damaged} is set aside: {aside}" in caplog.messages
    (tmp_path / f"{30:012d}" / "blobs" / "env").write_bytes(b"")
    save_all(tmp_path, [4])
    assert (tmp_path / "set-aside" / f"{damaged.name}-1").is_dir()


def test_a_run_goes_on_after_damage(tmp_path, caplog):
    """What the lost checkpoint left neither comes back nor stands in the way."""
    save_all(tmp_path, [1, 2, 3])
    (tmp_path / f"{30:012d}" / "latents" / f"{1:012d}-{9:012d}.h.npy").write_bytes(b"")
    stale = tmp_path / "steps" / f"{6:012d}-{9:012d}.npy"
    stale.write_bytes(b"of another life")
    for again in ([3], [4], [5, 6]):
        copy = tmp_path.parent / f"{tmp_path.name}-{again[0]}"
        shutil.copytree(tmp_path, copy)
        save_all(copy, again)
        assert restore(copy) == again[-1]
        assert saved_steps(copy) == [10 * k for k in [2, *again][-2:]]
        shutil.rmtree(copy / f"{10 * again[-1]:012d}")
        assert restore(copy) == [2, *again][-2]
    assert sum("000000000001-000000000009.h.npy has 0 bytes instead of" in m for m in caplog.messages) == 3


def test_damage_to_all_stops_the_run(tmp_path, caplog):
    """Never starts a long run from the beginning because one file, needed by all checkpoints, is bad."""
    save_all(tmp_path, [1, 2])
    shared = tmp_path / "steps" / f"{0:012d}-{3:012d}.npy"
    shared.write_bytes(shared.read_bytes()[:-1])
    with Checkpoints(tmp_path) as checkpoints:
        reason = f"no checkpoint in {tmp_path} can be used: {shared} has 595 bytes instead of 596. Restore"
        with pytest.raises(CheckpointError, match=reason):
            checkpoints.restore(arrays(0), empty())
        with pytest.raises(CheckpointError, match="restore it first"):
            save(checkpoints, 3)
        assert len(caplog.messages) == 2
        # The agent alone needs no replay.
        assert_same(checkpoints.restore(arrays(0)).arrays, arrays(2))


def test_reading_changes_nothing(tmp_path):
    save_all(tmp_path, [1, 2])
    (tmp_path / ".tmp-000000000030").mkdir()
    (tmp_path / "steps" / ".tmp-0-1.npy").write_bytes(b"being written")
    before = sorted(tmp_path.rglob("*"))
    assert restore(tmp_path) == 2
    assert sorted(tmp_path.rglob("*")) == before
    save_all(tmp_path, [3])
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_checkpoint_replaced_while_it_is_read(tmp_path, monkeypatch, caplog):
    """Another process reads while the run goes on: what it began to read is gone before it ends."""
    save_all(tmp_path, [1, 2])
    problem, writer = _files.problem, Checkpoints(tmp_path)
    restored_number(writer)

    def slow(path, digest):
        if not writer.busy and saved_steps(writer.folder) == [10, 20]:
            for k in (3, 4):
                save(writer, k)
            writer.close()
        return problem(path, digest)

    monkeypatch.setattr(_files, "problem", slow)
    assert restore(tmp_path) == 4
    assert caplog.messages == []


def test_other_arrays_are_refused_by_name(tmp_path):
    save_all(tmp_path, [1])
    like = {**arrays(0), "updates": jnp.zeros(2), "more": jnp.zeros(1), "key": jax.random.key(0)}
    del like["empty"]
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError) as error:
        checkpoints.restore(like, empty())
    for text in (
        "updates is int32[] there, float32[2] here",
        "more is not there, float32[1] here",
        "empty is float32[0, 3] there, not here",
        ": key is key[2] there, key[] here",
    ):
        assert text in str(error.value)
    assert "agent" not in str(error.value)
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match=r"not here; 5 more$"):
        checkpoints.restore({})


def test_another_replay_is_refused(tmp_path):
    save_all(tmp_path, [3])
    wide = rp.init(SPACES, S, N + 1, D, K, "bfloat16", "host")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match=r"\[1, 9\).*9 slots"):
        checkpoints.restore(arrays(0), wide)


def test_impossible_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint.keep is 0; it must be at least 1"):
        Checkpoints(tmp_path, keep=0)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=r"a\.b is 3; only arrays"):
            checkpoints.save(1, {"a": {"b": 3}}, replay(1))
        with pytest.raises(ValueError, match="same name"):
            checkpoints.save(1, {"a": {"b": jnp.zeros(1)}, "a.b": jnp.zeros(1)}, replay(1))
        with pytest.raises(TypeError, match="not JSON serializable"):
            checkpoints.save(1, arrays(1), replay(1), info={"x": np.float32(1)})
    assert saved_steps(tmp_path) == []


def test_a_newer_format_is_refused_and_left_alone(tmp_path):
    save_all(tmp_path, [1, 2])
    resealed(tmp_path / f"{20:012d}", lambda m: m.update(format=3))
    with pytest.raises(CheckpointError, match="has format 3, but this version of gpld reads up to 2"):
        restore(tmp_path)
    assert saved_steps(tmp_path) == [10, 20]


def test_the_first_format_is_read(tmp_path):
    save_all(tmp_path, [1])
    resealed(tmp_path / f"{10:012d}", lambda m: m.update(format=1))
    assert restore(tmp_path) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


LARGE = {
    "arrays": {"arrays": {"weights": np.random.default_rng(0).normal(size=2**18)}},
    "blobs": {"blobs": {"env": bytes(2**21)}},
}


def save_large(checkpoints, large):
    large = {"arrays": arrays(2), "blobs": {}, **large}
    checkpoints.save(20, large["arrays"], replay(2), blobs=large["blobs"])


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_a_full_disk(small_disk, large):
    folder = small_disk / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        save(checkpoints, 1)
        save_large(checkpoints, large)
        with pytest.raises(CheckpointError) as error:
            checkpoints.wait()
        message = str(error.value)
        assert message.startswith(f"checkpoint {folder / f'{20:012d}'} could not be written: ")
        assert "No space left on device" in message
        assert message.endswith(f"MiB free); the last one, {folder / f'{10:012d}'}, is intact")
        assert restore(folder) == 1
        # What could not be completed was removed, so that there is room again.
        assert sorted(path.name for path in folder.iterdir()) == [f"{10:012d}", "steps"]
        assert chunks(folder) == [(0, 3)]
        save(checkpoints, 2)
    assert restore(folder) == 2


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_a_file_that_may_not_grow(tmp_path, large):
    """The same through a limit on the size of files, which everyone may set."""
    with Checkpoints(tmp_path) as checkpoints:
        save(checkpoints, 1)
        checkpoints.wait()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        try:
            save_large(checkpoints, large)
            with pytest.raises(CheckpointError, match=f"{20:012d} could not be written: .*File too large"):
                checkpoints.save(30, arrays(3), replay(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert restore(tmp_path) == 1
        save(checkpoints, 3)
    assert restore(tmp_path) == 3


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "checkpoints"
    checkpoints = Checkpoints(folder)
    save(checkpoints, 1)
    with pytest.raises(
        CheckpointError, match=f"{folder}.* could not be written: {folder}.*: Not a directory"
    ):
        checkpoints.close()


def test_a_disk_that_became_read_only(small_disk):
    save_all(small_disk, [1])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with Checkpoints(small_disk) as checkpoints:
        assert restored_number(checkpoints) == 1
        save(checkpoints, 2)
        with pytest.raises(CheckpointError, match=r"could not be written: .*steps.*: Read-only file system"):
            checkpoints.wait()
        assert restored_number(checkpoints) == 1


def test_every_moment_of_a_save_leaves_a_good_checkpoint(tmp_path, monkeypatch, caplog):
    """Copies the folder before every change that reaches the disk: what a kill at that moment would leave."""
    folder, moments = tmp_path / "run", []

    def copy(*_, **__):
        moments.append(tmp_path / str(len(moments)))
        shutil.copytree(folder, moments[-1])

    def before(function):
        return lambda *args, **options: (copy(), function(*args, **options))[1]

    def remove_file_by_file(path):
        for file in files_in(path):
            copy()
            file.unlink()
        rmtree(path)

    rmtree = shutil.rmtree
    save_all(folder, [1, 2])
    with Checkpoints(folder) as checkpoints:
        restored_number(checkpoints)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", before(os.fsync))
            patch.setattr(os, "replace", before(os.replace))
            patch.setattr(Path, "unlink", before(Path.unlink))
            patch.setattr(_trees, "write", before(_trees.write))
            patch.setattr(shutil, "rmtree", remove_file_by_file)
            save(checkpoints, 3)
            checkpoints.wait()
    for moment in moments[:: len(moments) // 8]:
        shutil.copytree(moment, tmp_path / "resumed")
        save_all(tmp_path / "resumed", [4])
        assert restore(tmp_path / "resumed") == 4
        assert not list((tmp_path / "resumed").rglob(".tmp-*"))
        rmtree(tmp_path / "resumed")
    newest = []
    for moment in moments:
        steps = saved_steps(moment)
        newest.append(steps[-1])
        for step in reversed(steps):
            assert restore(moment) == step // 10
            rmtree(moment / f"{step:012d}")
    assert newest == sorted(newest)
    assert newest.count(20) > 20
    assert newest.count(30) > 10
    assert caplog.messages == []


def save_forever(folder):
    """What the process does that is going to be killed."""
    with Checkpoints(folder) as checkpoints:
        k = restored_number(checkpoints) or 0
        while True:
            print(k, flush=True)
            k += 1
            save(checkpoints, k)
            checkpoints.wait()


def kill_repeatedly(folder, times):
    """Start, kill and verify; how often a kill hit while something was half written."""
    code = f"from {__name__} import save_forever; save_forever({str(folder)!r})"
    halves, rng = 0, random.Random(0)
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        with process:
            lines = [process.stdout.readline() for _ in range(rng.randint(1, 4))]
            time.sleep(rng.uniform(0, 0.1))
            assert process.poll() is None
            process.kill()
            completed = int([*lines, *process.stdout.read().splitlines()][-1])
        halves += any(folder.rglob(".tmp-*"))
        assert restore(folder) in (completed or None, completed + 1)
    return halves


def test_killed(tmp_path, caplog):
    kill_repeatedly(tmp_path, 3)
    assert caplog.messages == []


@pytest.mark.slow
def test_killed_twenty_times(tmp_path, caplog):
    assert kill_repeatedly(tmp_path, 20) >= 5
    assert caplog.messages == []


@pytest.fixture
def killed_together(tmp_path):
    """Two runs that were killed when only the first had given its second checkpoint its name."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        save_all(folder, [1, 2])
    (folders[1] / f"{20:012d}").rename(folders[1] / f".tmp-{20:012d}")
    return folders


def test_a_checkpoint_that_one_run_has_is_named_for_all(killed_together):
    complete(killed_together)
    assert [restore(folder) for folder in killed_together] == [2, 2]


def test_a_run_that_resumed_alone_does_not_get_the_later_checkpoint_back(killed_together):
    """It has repeated steps since, which the later checkpoint knows nothing of."""
    first, second = killed_together
    complete([second])
    assert restore(second) == 1
    complete([first, second])
    assert [restore(folder) for folder in killed_together] == [2, 1]
