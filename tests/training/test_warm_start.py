import shutil
from functools import partial

import jax
import numpy as np
import pytest

from gpld import agent, config as options
from gpld.config import ConfigError, override, validate
from gpld.training import _lock, saved, train, warm_start
from tests.training.helpers import opened, tiny


def parameters(model):
    """By path, of a model of one run or of the first of several."""
    return {name: np.asarray(leaf) for name, leaf in warm_start._named(model).items()}


def begun(small_run, tmp_path, **changes):
    """Parameters of a run as it begins."""
    config = override(saved.load(small_run).config, {"seed": 9, **changes})
    with opened(override(config, {"replay": {"storage": "device"}}), tmp_path / "run") as training:
        first = jax.tree.map(lambda x: x[0], training.state.agent)
    value, slow = jax.tree.leaves(first.model.value), jax.tree.leaves(first.slow_value)
    assert all(np.array_equal(a, b) for a, b in zip(value, slow, strict=True))
    return parameters(first.model)


@pytest.mark.parametrize(
    ("init", "taken"),
    [
        ("", ("encoder.", "decoder.")),
        ("dynamics.p*, value", ("dynamics.posterior.", "dynamics.prior.", "value.")),
        ("*", ("",)),
    ],
)
def test_exactly_the_named_parts_are_taken(small_run, tmp_path, init, taken):
    there = parameters(saved.load(small_run).model)
    fresh = begun(small_run, tmp_path / "fresh")
    warm = begun(small_run, tmp_path / "warm", init_from=str(small_run), init=init)
    assert fresh.keys() == warm.keys() == there.keys()
    for name in warm:
        expected = there if name.startswith(taken) else fresh
        np.testing.assert_array_equal(warm[name], expected[name], err_msg=name)
    # Not the same anyway: the source has another seed.
    differ = [name for name in warm if not np.array_equal(there[name], fresh[name])]
    assert any(name.startswith(taken) for name in differ)


def refused(small_run, init, **sizes):
    """What is said of a run with other sizes."""
    trained = saved.load(small_run)
    config = override(trained.config, {"agent": {"model": sizes}, "init_from": str(small_run), "init": init})
    with pytest.raises(ConfigError) as error:
        warm_start.initialize(config, shapes(config, trained.spaces))
    return str(error.value).splitlines()


def shapes(config, spaces):
    """Three fresh agents, of which only the shapes are made."""
    fresh = jax.vmap(partial(agent.init, config.agent, spaces))
    return jax.eval_shape(fresh, jax.random.split(jax.random.key(0), 3))


def test_other_shapes_are_refused_by_name(small_run):
    first, *rest = refused(small_run, "encoder,dynamics", units=12)
    assert first == f"init_from: {small_run} has other parameters than this run in 4 of 27 places"
    assert "  encoder.mlp.layers.0.linear.weight: [5, 8] there, [5, 12] here" in rest
    # Where e goes in; the rest of the dynamics is alike.
    assert [line for line in rest if "dynamics" in line] == [
        "  dynamics.posterior.mlp.layers.0.linear.weight: [24, 8] there, [28, 8] here"
    ]


def test_other_layers_are_refused_by_name(small_run):
    _, *rest = refused(small_run, "encoder", encoder_layers=2)
    assert rest == [
        "  encoder.mlp.layers.1.linear.weight: not there, [8, 8] here",
        "  encoder.mlp.layers.1.linear.bias: not there, [8] here",
        "  encoder.mlp.layers.1.norm.scale: not there, [8] here",
    ]


def test_parts_that_do_not_exist_are_refused(small_run, tmp_path):
    with pytest.raises(
        ConfigError, match=r"init: 'encodr' is not a part.* one of encoder, dynamics, decoder"
    ):
        begun(small_run, tmp_path, init_from=str(small_run), init="encodr")
    with pytest.raises(ConfigError, match="init: 'encoder,' is not allowed"):
        validate(tiny(init_from=str(small_run), init="encoder,"))
    with pytest.raises(
        ConfigError, match=r"init: 'encoder' is not allowed; it must be empty without init_from"
    ):
        validate(tiny(init="encoder"))


@pytest.mark.parametrize(
    ("there", "message"), [(False, "is not the folder of a run"), (True, "has no checkpoint yet")]
)
def test_a_run_that_nothing_can_be_taken_of_is_named_by_its_option(small_run, tmp_path, there, message):
    source = tmp_path / "source"
    source.mkdir()
    for name in (saved.CONFIG, saved.SPACES) if there else ():
        shutil.copy(small_run / name, source)
    with pytest.raises(ConfigError, match=f"^init_from: .*{source}.* {message}"):
        warm_start.initialize(tiny(init_from=str(source)), shapes(tiny(), saved.read_spaces(small_run)))


@pytest.mark.parametrize(
    ("source", "init", "message"),
    [
        ("nowhere", "", "^init_from: 'nowhere' is not the folder"),
        (None, "encodr", "^init: 'encodr' is not a part"),
    ],
)
def test_a_wrong_source_is_refused_before_anything_is_told_or_kept(
    small_run, tmp_path, capsys, source, init, message
):
    config = override(saved.load(small_run).config, {"init_from": source or str(small_run), "init": init})
    with pytest.raises(ConfigError, match=message):
        train(config, tmp_path / "run")
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run" / saved.CONFIG).exists()


def test_a_run_that_has_begun_needs_its_source_no_more(small_run, tmp_path, capsys):
    source = shutil.copytree(small_run, tmp_path / "source")
    changes = {"init_from": str(source), "env_steps": 200, "eval": {"every": 0}}
    config = override(saved.load(small_run).config, changes)
    train(config, tmp_path / "run")
    shutil.rmtree(source)
    assert train(override(config, {"env_steps": 300}), tmp_path / "run").finished
    assert "resumed at 200 env steps" in capsys.readouterr().out


def test_a_fresh_run_of_before_goes_on_whatever_it_says_about_parts(small_run, tmp_path):
    config = saved.load(small_run).config
    options.save(override(config, {"init": "encoder,decoder"}), tmp_path / saved.CONFIG)
    with _lock.locked(config, tmp_path):
        pass
    with (
        pytest.raises(ConfigError, match=f"init_from: '' there, '{small_run}' now"),
        _lock.locked(override(config, {"init_from": str(small_run)}), tmp_path),
    ):
        pass


@pytest.mark.parametrize(("there", "now"), [("", "encoder,decoder"), ("encoder,decoder", "")])
def test_parts_are_the_same_whether_the_default_is_named_or_not(small_run, tmp_path, there, now):
    config = override(saved.load(small_run).config, {"init_from": str(small_run)})
    options.save(override(config, {"init": there}), tmp_path / saved.CONFIG)
    with _lock.locked(override(config, {"init": now}), tmp_path):
        pass
    with (
        pytest.raises(ConfigError, match="init: 'encoder,decoder' there, 'encoder' now"),
        _lock.locked(override(config, {"init": "encoder"}), tmp_path),
    ):
        pass
