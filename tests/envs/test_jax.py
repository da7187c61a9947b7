"""Environments written in JAX, behind the interface of all backends."""

import numpy as np
import pytest

from gpld.config import ConfigError
from gpld.envs import CartPole, EnvironmentFailure, _jax_interfaces, check, make
from tests.envs.helpers import actions, run, same

OWN = "jax:tests.envs.jax_custom"


def ends(steps):
    return [(bool(step.is_last[0]), bool(step.is_terminal[0])) for step in steps]


def zeros(env, steps):
    return np.zeros((steps, env.count, env.spaces.actions), np.float32)


def test_like_brax():
    with make(f"{OWN}:Clock", count=2, seed=0, action_repeat=2) as env:
        assert env.spaces.obs == (("luck.drawn", (2,)), ("time", ()))
        assert (env.spaces.actions, env.spaces.discrete) == (2, False)
        steps = run(env, np.full((9, 2, 2), 0.25, np.float32))
    # Env steps 2, 4 and 5, at which the episode ends in the middle of an action, and again.
    assert [float(step.obs["time"][0]) for step in steps] == [0, 2, 4, 5, 0, 2, 4, 5, 0]
    assert [float(step.reward[0]) for step in steps] == [0, 1, 1, 0.5, 0, 1, 1, 0.5, 0]
    assert ends(steps)[:4] == [(False, False), (False, False), (False, False), (True, True)]
    drawn = np.stack([step.obs["luck.drawn"] for step in steps])
    assert (drawn[0] == drawn[3]).all()
    assert len({*drawn[[0, 4, 8]].ravel().tolist()}) == 12  # every episode of every stream is another


def test_actions_are_clipped():
    with make(f"{OWN}:Clock", count=1, seed=0, action_repeat=1) as env:
        assert run(env, np.full((2, 1, 2), 7.0, np.float32))[1].reward.tolist() == [2.0]


def test_an_end_by_truncation_or_by_the_limit_is_not_terminal():
    for task, limit in (("truncated", 1000), ("endless", 5)):
        with make(f"{OWN}:{task}", count=1, seed=0, action_repeat=2, limit=limit) as env:
            steps = run(env, zeros(env, 5))
        assert ends(steps) == [(False, False)] * 3 + [(True, False), (False, False)]
        assert float(steps[3].obs["time"][0]) == 5


@pytest.mark.parametrize("version", ["Walk", "NewWalk"])
def test_like_gymnax(version):
    with make(f"{OWN}:{version}", count=1, seed=0, action_repeat=1) as env:
        assert env.spaces.obs == (("observation", (3,)),)
        assert (env.spaces.actions, env.spaces.discrete) == (3, False)
        assert env.spaces.bounds == 3 * ((-2.0, 4.0),)
        high = np.ones((2, 1, 3), np.float32)
        steps = run(env, np.concatenate([zeros(env, 8), high]))
    # From [-1, 1] to [-2, 4].
    assert [float(step.reward[0]) for step in steps] == [0, *[3.0] * 6, 0, 12.0, 0]
    assert ends(steps)[6] == (True, False)  # by its time limit
    assert ends(steps)[8] == (True, True)
    noise = np.stack([step.obs["observation"][0] for step in steps[1:7]]) - 1
    assert len({*noise.ravel().tolist()}) == 18  # every step draws from a key of its own


def test_gymnax_s_parameters_and_choices():
    with make(f"{OWN}:with_params", count=1, seed=0, action_repeat=1) as env:
        assert ends(run(env, zeros(env, 3)))[2] == (True, False)
    with make(f"{OWN}:Choose", count=1, seed=0, action_repeat=1) as env:
        assert (env.spaces.actions, env.spaces.discrete, env.spaces.bounds) == (4, True, ())
        steps = run(env, np.eye(4, dtype=np.float32)[[0, 2, 3]][:, None])
    assert [float(step.reward[0]) for step in steps] == [0, 2, 3]
    assert ends(steps)[2] == (True, True)


def test_names_may_be_instances_or_of_a_registry(monkeypatch):
    monkeypatch.setitem(_jax_interfaces.REGISTRIES, OWN.removeprefix("jax:"), "registry.load")
    with make(f"{OWN}:instance", count=1, seed=0) as env:
        assert ends(run(env, zeros(env, 2)))[1] == (True, True)
    with make(f"{OWN}:ant", count=1, seed=0) as env:
        assert env.spaces.actions == 2
    with pytest.raises(EnvironmentFailure, match="cat cannot be made here: KeyError: 'cat'"):
        make(f"{OWN}:cat", count=1, seed=0)


def test_images():
    with make(f"{OWN}:Seer", count=2, seed=0, action_repeat=1) as env:
        assert env.spaces.images == ("observation",)
        one, two = run(env, zeros(env, 2))
    assert one.obs["observation"].dtype == np.uint8
    assert np.array_equal(one.obs["observation"] + np.uint8(1), two.obs["observation"])


def test_a_number_that_is_none_ends_the_episode_and_is_counted(caplog):
    with make(f"{OWN}:breaking", count=2, seed=0, action_repeat=1, restart_limit=3) as env:
        steps = run(env, np.ones((5, 2, 2), np.float32))
        assert [float(step.obs["time"][0]) for step in steps] == [0, 1, 2, 2, 0]
        assert [float(step.reward[0]) for step in steps] == [0, 2, 2, 0, 0]
        assert ends(steps)[3] == (True, False)
        assert [(fault.stream, fault.step) for fault in env.faults] == [(0, 3), (1, 3)]
        with pytest.raises(EnvironmentFailure, match="not finite 4 times, more than the 3 restarts allowed"):
            run(env, np.ones((4, 2, 2), np.float32))
    assert "environment restarted: stream 1, step 3, action [1, 1]" in caplog.text


def test_a_state_with_random_keys_is_restored():
    with make(f"{OWN}:Clock", count=2, seed=0) as env, make(f"{OWN}:Clock", count=2, seed=9) as other:
        sequence = actions(env, 12)
        run(env, sequence[:3])
        assert other.restore(env.save()) == []
        assert same(run(env, sequence[3:]), run(other, sequence[3:]))


def test_a_state_of_another_environment_begins_new_episodes(caplog):
    with make(f"{OWN}:Clock", count=2, seed=0) as env, make(f"{OWN}:Walk", count=2, seed=0) as other:
        run(other, zeros(other, 2))
        assert other.restore(env.save()) == [0, 1]
        assert other.step(zeros(other, 1)[0]).is_first.all()
        assert other.restore(b"x") == [0, 1]
    assert "the saved state of the environments cannot be used" in caplog.text


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "jax:nowhere:Ant",
            "task 'jax:nowhere:Ant' is not known: No module named 'nowhere'; is nowhere inst",
        ),
        (
            "jax:gpld.envs:CartPol",
            r"is not known: the module gpld.envs has no CartPol; did you mean CartPole\?",
        ),
        (f"{OWN}:Nothing", "is 'Nothing', which has neither Brax's interface .* nor gymnax's"),
        (f"{OWN}:NeedsMore", "NeedsMore cannot be made here: TypeError: .*missing 1 required"),
        (f"{OWN}:Changes", "Changes cannot be used: step returns another kind of state than reset"),
        (f"{OWN}:OnTheHost", "OnTheHost cannot be used: step raised ConcretizationTypeError: "),
        (f"{OWN}:Unbounded", r"has actions that the agent cannot take: unbounded: \[-2, inf\]; the agent"),
        (f"{OWN}:TwoRewards", "another kind of state than reset"),
        (
            f"{OWN}:OddImage",
            r"image 'observation' is \(15, 16, 3\); height and width must be multiples of 16",
        ),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line(task, message):
    with pytest.raises((ConfigError, EnvironmentFailure), match=message) as shown:
        make(task, count=1, seed=0)
    assert "\n" not in str(shown.value)


@pytest.mark.parametrize(
    ("task", "package"),
    [
        ("jax:brax.envs:ant", "brax"),
        ("jax:mujoco_playground:CheetahRun", "playground"),
        ("jax:gymnax:Pendulum-v1", "gymnax"),
    ],
)
def test_packages_of_environments_are_named_by_what_to_install(task, package, monkeypatch):
    module = task.split(":")[1].partition(".")[0]

    def missing(name):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("importlib.import_module", missing)
    message = f"is not known: No module named '{module}'; pip install {package}$"
    with pytest.raises(ConfigError, match=message):
        make(task, count=1, seed=0)


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("jax:gpld.envs:CartPole", []),
        (f"{OWN}:Clock", []),
        (f"{OWN}:Alike", ["warning in seed: seeds 0 and 1 start alike: does reset use its key?"]),
        (f"{OWN}:breaking", ["error in step: stream 0, step 3, action ["]),
        (f"{OWN}:at_once", ["error in episode: all end at their first step: does reset clear the end?"]),
        (f"{OWN}:Changes", [f"error in reset: {OWN}:Changes cannot be used: step returns another kind of"]),
    ],
)
def test_the_checker_finds_what_is_wrong(task, found):
    issues = [str(issue) for issue in check(task, steps=40)]
    assert [issue[: len(own)] for issue, own in zip(issues, found, strict=True)] == found


def test_there_are_no_pictures_and_no_other_backends():
    with pytest.raises(EnvironmentFailure, match="CartPole does not render"):
        make("jax:gpld.envs:CartPole", count=1, seed=0, render=True)
    with pytest.raises(ConfigError, match="backend: 'envpool' is not allowed; it must be auto for jax:gpld"):
        make("jax:gpld.envs:CartPole", count=1, seed=0, backend="envpool")


def test_the_cart_pole_swings_as_its_energy_says():
    import jax
    import jax.numpy as jnp

    env = CartPole()
    state = env.reset(jax.random.PRNGKey(0))
    assert float(state.obs["position"][1]) < -0.99  # it hangs
    assert 0 <= float(state.reward) < 0.01

    def energy(motion):
        v, angle, spin = (float(part) for part in motion[1:])
        pole = 0.5 * 0.1 * (v**2 + 2 * v * 0.5 * spin * np.cos(angle) + 4 / 3 * 0.25 * spin**2)
        return 0.5 * v**2 + pole + 0.1 * 9.81 * 0.5 * np.cos(angle)

    state = state._replace(motion=jnp.array([0.0, 0.0, 2.0, 0.0]))
    before = energy(state.motion)
    step = jax.jit(env.step)
    for _ in range(200):
        state = step(state, jnp.zeros(1))
    assert energy(state.motion) == pytest.approx(before, abs=0.01)
    for _ in range(300):
        state = step(state, jnp.ones(1))
    assert float(state.obs["position"][0]) == pytest.approx(1.8)  # the rail's end
