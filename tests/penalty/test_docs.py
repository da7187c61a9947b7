"""The code of docs/penalty.md runs, and gives the penalty."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .heads import penalty_rows, random_head

TEXT = (Path(__file__).parents[2] / "docs" / "penalty.md").read_text()
JAX_CODE, TORCH_CODE = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_the_jax_code_estimates_the_penalty():
    namespace = {}
    exec(JAX_CODE, namespace)
    head = random_head(jax.random.key(0), classes=16)
    u = jnp.broadcast_to(jax.random.normal(jax.random.key(1), (1, 7)), (2000, 7))
    value = jax.jit(namespace["smoothness"])(head, u, jax.random.key(2))
    np.testing.assert_allclose(value, jnp.mean(penalty_rows(head, u[0])), rtol=0.05)


def test_the_pytorch_code_estimates_the_penalty():
    torch = pytest.importorskip("torch")
    namespace = {}
    exec(TORCH_CODE, namespace)
    kernel = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
    u = torch.tensor([0.1, -0.2, 0.3, 0.5]).expand(2000, 4)

    def posterior(u):
        return (u @ kernel).unflatten(1, (2, 3)).softmax(-1)

    torch.manual_seed(0)
    value = namespace["smoothness"](posterior, u)
    p = posterior(u[:1])[0].detach()
    slopes = torch.diag_embed(p) - p[:, :, None] * p[:, None]  # softmax's Jacobians
    jacobians = torch.einsum("kce,dke->kcd", slopes, kernel.detach().unflatten(1, (2, 3)))
    assert value.item() == pytest.approx(jacobians.square().sum().item() / 2, rel=0.05)
    value.backward()
    assert kernel.grad.norm() > 0
