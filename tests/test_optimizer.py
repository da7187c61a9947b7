import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpld.config import OptimizerConfig
from gpld.optimizer import clip_by_tensor_norm, laprop, scale_by_momentum, scale_by_rms, scale_by_warmup
from tests.golden_files import Golden, assert_close


@pytest.mark.parametrize("case", ["default", "fast"])
def test_golden_trajectory(case):
    g = Golden("optimizer")
    cfg = {k: v.item() for k, v in g.under(f"cfg/{case}").items()}
    config = OptimizerConfig(
        learning_rate=cfg["lr"],
        warmup=int(cfg["warmup"]),
        clip=cfg["agc"],
        eps=cfg["eps"],
        beta1=cfg["beta1"],
        beta2=cfg["beta2"],
    )
    stages = {
        "agc": clip_by_tensor_norm(config.clip, config.clip_floor),
        "rms": scale_by_rms(config.beta2, config.eps),
        "momentum": scale_by_momentum(config.beta1),
    }
    params, grads = g.under("params0"), g.under("grads")
    whole = laprop(config)
    state, states = whole.init(params), {name: stage.init(params) for name, stage in stages.items()}
    for step in range(next(iter(grads.values())).shape[0]):
        signal = {name: grad[step] for name, grad in grads.items()}
        update, state = whole.update(signal, state, params)
        for name, stage in stages.items():
            signal, states[name] = stage.update(signal, states[name], params)
            for tensor, value in signal.items():
                assert_close(value, g[f"{case}/{name}/{tensor}"][step], 1e-4, f"{name}/{tensor}")
        params = optax.apply_updates(params, update)
        for tensor in params:
            assert_close(update[tensor], g[f"{case}/update/{tensor}"][step], 1e-4, f"update/{tensor}")
            assert_close(params[tensor], g[f"{case}/params/{tensor}"][step], 1e-4, f"params/{tensor}")


def test_first_update_is_exactly_zero_and_the_rate_is_reached_after_warmup():
    optimizer = laprop(OptimizerConfig(warmup=4, learning_rate=0.1))
    params = {"w": jnp.ones(3)}
    state = optimizer.init(params)
    sizes = []
    for _ in range(6):
        update, state = optimizer.update({"w": jnp.ones(3)}, state, params)
        sizes.append(float(-update["w"][0]))
    # A constant gradient is normalised to one, so the update is the rate itself.
    np.testing.assert_allclose(sizes, [0, 0.025, 0.05, 0.075, 0.1, 0.1], rtol=1e-4)
    assert sizes[0] == 0


def test_without_warmup_the_first_update_has_the_full_rate():
    optimizer = laprop(OptimizerConfig(warmup=0, learning_rate=0.1))
    params = jnp.ones(3)
    update, _ = optimizer.update(jnp.ones(3), optimizer.init(params), params)
    np.testing.assert_allclose(update, -0.1, rtol=1e-5)


def test_runs_of_one_program_have_their_own_learning_rates():
    params, grads = jnp.ones((2, 3)), jnp.ones((2, 3))

    def update(params, grads, rate, warmup):
        optimizer = optax.chain(scale_by_momentum(0.9), scale_by_warmup(rate, warmup))
        return optimizer.update(grads, optimizer.init(params), params)[0]

    steps = jax.vmap(update)(params, grads, jnp.array([0.1, 0.3]), jnp.array([0.0, 0.0]))
    np.testing.assert_allclose(steps[1], 3 * steps[0], rtol=1e-6)
    steps = jax.vmap(update)(params, grads, jnp.array([0.1, 0.3]), jnp.array([0.0, 5.0]))
    np.testing.assert_allclose(steps, [[-0.1] * 3, [0.0] * 3], rtol=1e-6)
