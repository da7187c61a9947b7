import re

import pytest

from gpld import doctor
from gpld.doctor import Finding, _examine
from gpld.doctor._examine import _ProbeResult
from gpld.machine import GL_PACKAGES, SIMULATORS, host_memory, install

WORKS, FAILS = _ProbeResult(True, "runs"), _ProbeResult(False, "ImportError: libfoo.so")
NO_ENVPOOL, NO_DM_CONTROL = (
    _ProbeResult(False, f"ModuleNotFoundError: No module named '{name}'")
    for name in ("envpool", "dm_control")
)


@pytest.fixture(scope="module")
def findings():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MUJOCO_GL", raising=False)  # which tests of environments may have set
        return {finding.subject: finding for finding in doctor.examine()}


def test_this_machine_can_train(findings):
    assert not [finding for finding in findings.values() if finding.stops_training]
    assert findings["dm_control engine"] == Finding("dm_control engine", "runs cartpole-swingup")


def test_versions_devices_and_memory_are_named(findings):
    import jax

    assert findings["jax"] == Finding("jax", jax.__version__)
    assert findings["mujoco"] == Finding("mujoco", SIMULATORS["mujoco"])
    assert jax.devices()[0].device_kind in findings["device"].detail
    assert f"{host_memory().total / 2**30:.1f} GiB of memory" in findings["host"].detail


def test_rendering_is_settled_one_way_or_the_other(findings):
    rendering = [finding for subject, finding in findings.items() if subject.startswith("rendering")]
    if len(rendering) == 1:
        assert re.search(r"MUJOCO_GL=(egl|osmesa|glfw)$", rendering[0].detail)
    else:
        assert len(rendering) == 3
        assert all("libegl1" in finding.remedy for finding in rendering)


def test_the_report_says_what_to_do():
    findings = [
        Finding("jax", "0.10.2"),
        Finding("rendering with egl", "no display", "install it"),
        Finding("device", "no driver", "fix it", stops_training=True),
    ]
    lines = doctor.report(findings).splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "note", "->", "STOPS", "->"]
    assert lines[0].endswith("jax: 0.10.2")
    assert lines[2].endswith("-> install it")
    assert lines[4].endswith("-> fix it")


@pytest.mark.parametrize(
    ("envpool", "dm_control", "stops", "remedies"),
    [
        (WORKS, WORKS, [False, False], [False, False]),
        (FAILS, WORKS, [False, False], [True, False]),
        (WORKS, FAILS, [False, False], [False, True]),
        (FAILS, FAILS, [True, True], [True, True]),
        (FAILS, NO_DM_CONTROL, [True, False], [True, True]),
        (NO_ENVPOOL, WORKS, [False, False], [True, False]),
        (NO_ENVPOOL, NO_DM_CONTROL, [False, False], [True, True]),
    ],
)
def test_one_engine_is_enough(envpool, dm_control, stops, remedies):
    found = list(_examine._engines(envpool, dm_control))
    assert [finding.stops_training for finding in found] == stops
    assert [bool(finding.remedy) for finding in found] == remedies
    works = envpool.ok or dm_control.ok
    instead = "the other one takes its place where it can"
    instead = instead if works else "gym:Name-v0 and jax:module:name train without it"
    assert all(finding.remedy.endswith(f"; {instead}") for finding in found if finding.remedy)


def test_a_library_that_is_missing_is_named_instead_of_the_package():
    missing = _ProbeResult(False, "ImportError: libOpenGL.so.0: cannot open shared object file")
    envpool, dm_control = _examine._engines(missing, FAILS)
    assert envpool.remedy.startswith(f"Debian: `apt install {GL_PACKAGES}`; ")
    assert dm_control.remedy.startswith(install("suite"))


def test_a_version_that_is_not_pinned_is_noted(monkeypatch):
    monkeypatch.setattr(_examine, "version", {"mujoco": "4.0.0"}.get)
    finding = _examine._package("mujoco")
    assert finding.detail == "4.0.0"
    assert finding.remedy == f"tested is {SIMULATORS['mujoco']}: {install('suite')}"


def test_a_missing_package_stops_training_but_simulators_are_optional(monkeypatch):
    def missing(name):
        raise _examine.PackageNotFoundError(name)

    monkeypatch.setattr(_examine, "version", missing)
    assert _examine._package("jax").stops_training
    for name in ("envpool", "dm_control", "mujoco"):
        assert not _examine._package(name).stops_training
        assert install("suite") in _examine._package(name).remedy


def test_a_broken_device_stops_training():
    finding = _examine._device(FAILS)
    assert finding.stops_training
    assert finding.detail == FAILS.text
    assert "JAX_PLATFORMS=cpu" in finding.remedy


def test_a_device_is_described():
    found = _ProbeResult(
        True, '{"platform": "gpu", "kind": "NVIDIA H200", "count": 2, "memory": 150323855360}'
    )
    assert _examine._device(found) == Finding("device", "2 x NVIDIA H200 (gpu), 140.0 GiB each")


def test_rendering_without_any_backend_is_not_fatal():
    found = list(_examine._rendering({"egl": FAILS, "osmesa": FAILS}))
    assert [finding.subject for finding in found] == ["rendering with egl", "rendering with osmesa"]
    assert not any(finding.stops_training for finding in found)
    (found,) = _examine._rendering({"egl": NO_DM_CONTROL, "osmesa": NO_DM_CONTROL})
    assert not found.stops_training
    assert found.remedy.endswith(install("suite"))
    only = _examine._rendering({"egl": FAILS, "osmesa": WORKS})
    assert [finding.detail for finding in only] == ["osmesa works (egl fails); MUJOCO_GL=osmesa"]


def test_a_probe_that_hangs_or_fails_is_reported(monkeypatch):
    assert _examine._probe("nothing", {}) == _ProbeResult(False, "KeyError: 'nothing'")
    monkeypatch.setattr(_examine, "PROBE_SECONDS", 0.01)
    assert _examine._probe("device", {}) == _ProbeResult(False, "no answer in 0 s")


def test_the_cache_folder(tmp_path):
    (tmp_path / "program").write_bytes(bytes(3 * 2**20))
    assert _examine._cache(tmp_path) == Finding("compilation cache", f"{tmp_path} (3 MiB)")
    assert not _examine._cache(tmp_path / "not" / "yet").remedy
