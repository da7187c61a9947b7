"""The penalty for PyTorch models: the names and meanings of `gpld.penalty`, on batches of tensors.

Unlike their JAX namesakes, maps take a batch: `fn` goes from states `[N, d]` to rows `[N, K, C]`, treating
every state by itself, and the estimators return `[N]`. Random numbers come from a `torch.Generator`, or from
PyTorch's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from gpld.penalty import schedules
from gpld.penalty._sampling import Noise, Scaling, sampled_count

Map = Callable[[Tensor], Tensor]
Rows = int | Tensor | None


def hutchinson(
    fn: Map,
    u: Tensor,
    generator: torch.Generator | None = None,
    *,
    probes: int = 1,
    rows: Rows = None,
    noise: Noise = "rademacher",
) -> Tensor:
    """Unbiased estimate of the mean over rows of the squared Frobenius norm of row i's Jacobian.

    Args:
        fn: the map from `u [N, d]` to `[N, K, C]`; its parameters may be differentiated by.
        u: states, `[N, d]`.
        generator: source of random numbers, PyTorch's own by default.
        probes: random probes per row and state; the estimate is their mean.
        rows: all rows (None), the first `rows`, or the rows of an index tensor.
        noise: distribution of the probes.

    Returns:
        `[N]`. One evaluation of `fn` serves all rows and probes.
    """
    u, q = _evaluate(fn, u, rows)
    epsilon = draw_probes((probes, *q.shape), noise, generator=generator, dtype=q.dtype, device=q.device)
    return _pulled_back(q, u, epsilon)


def probed(fn: Map, u: Tensor, epsilon: Tensor, *, rows: Rows = None) -> Tensor:
    """The estimate of `hutchinson` from given probes `epsilon [P, N, rows, C]`: `[N]`."""
    u, q = _evaluate(fn, u, rows)
    return _pulled_back(q, u, epsilon)


def exact(fn: Map, u: Tensor, *, rows: Rows = None) -> Tensor:
    """Mean over rows of the squared Frobenius norm of row i's Jacobian, by reverse mode: `[N]`."""
    u, q = _evaluate(fn, u, rows)
    classes = q.shape[2]
    basis = torch.eye(classes, dtype=q.dtype, device=q.device)[:, None, None].expand(classes, *q.shape)
    return classes * _pulled_back(q, u, basis)


def _evaluate(fn: Map, u: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    u = u if u.requires_grad else u.detach().requires_grad_()
    q = fn(u)
    if q.ndim != 3 or len(q) != len(u):
        raise ValueError(f"the map must return [N, K, C] of states {list(u.shape)}, not {list(q.shape)}")
    return u, take_rows(q, rows, dim=1)


def _pulled_back(q: Tensor, u: Tensor, epsilon: Tensor) -> Tensor:
    probes, _, rows, _ = epsilon.shape
    own_row = torch.eye(rows, dtype=q.dtype, device=q.device)[:, None, :, None]
    cotangents = (own_row[None] * epsilon[:, None].to(q.dtype)).flatten(0, 1)  # [P * row, N, K, C]
    (gradients,) = torch.autograd.grad(q, u, cotangents, create_graph=True, is_grads_batched=True)
    return gradients.square().sum(dim=(0, 2)) / (probes * rows)


def take_rows(x: Tensor, rows: Rows, dim: int = 0) -> Tensor:
    """All rows of a dimension, its first `rows`, or the rows of an index tensor."""
    if rows is None:
        return x
    if isinstance(rows, Tensor):
        return x.index_select(dim, rows)
    if not 0 < rows <= x.shape[dim]:
        raise ValueError(f"rows must be between 1 and {x.shape[dim]}, not {rows}")
    return x.narrow(dim, 0, rows)


class Hidden(NamedTuple):
    """A hidden layer: linear, norm, activation. `kernel` is `[in, out]`: `linear.weight.T` of a module."""

    kernel: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


class Output(NamedTuple):
    """The linear map to the logits: kernel `[in, K * C]` and bias `[K * C]`."""

    kernel: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Head:
    """Layers of linear, norm and activation, then linear, softmax per row, and unimix."""

    layers: tuple[Hidden, ...]
    """Hidden layers, the one that reads the state first."""
    out: Output
    rows: int
    """K: number of categorical distributions."""
    norm: Literal["rms", "layer"] | None = "rms"
    """Norm after each hidden linear map."""
    eps: float = 1e-4
    """Added to the mean square (or variance) inside the norm."""
    activation: Map = torch.nn.functional.silu
    """Any elementwise function."""
    unimix: float = 0.01
    """Share of the uniform distribution mixed into every row."""


def first_preactivation(head: Head, u: Tensor) -> Tensor:
    """Preactivation `y [..., hidden]` of the first layer at states `u [..., d]`."""
    return _linear(u, head.layers[0])


def closed_form(head: Head, y: Tensor, epsilon: Tensor | None = None, *, rows: Rows = None) -> Tensor:
    """Mean over rows of the squared Frobenius norm of row i's Jacobian by the state: `[N]`.

    Args:
        head: the head; its gradient is that of differentiating the full Jacobian.
        y: first preactivation `[N, hidden]`, which a model has computed anyway; its gradient reaches the
            state.
        epsilon: probes `[P, N, rows, C]` (`draw_probes`) for an unbiased estimate, or None for the exact
            value, which costs as much as C probes.
        rows: all rows (None), the first `rows`, or the rows of an index tensor.
    """
    return closed_form_rows(head, y, epsilon, rows=rows).mean(dim=1)


def closed_form_rows(head: Head, y: Tensor, epsilon: Tensor | None = None, *, rows: Rows = None) -> Tensor:
    """Squared Frobenius norm of every row's Jacobian at each state, `[N, rows]`: see `closed_form`."""
    a, slopes = _hidden_layers(head, y)
    kernel = take_rows(head.out.kernel.unflatten(1, (head.rows, -1)), rows, dim=1)  # [width, rows, C]
    logits = torch.einsum("nh,hkc->nkc", a, kernel)
    if head.out.bias is not None:
        logits = logits + take_rows(head.out.bias.unflatten(0, (head.rows, -1)), rows)
    probs = logits.softmax(dim=-1)
    if epsilon is None:
        basis = torch.eye(probs.shape[2], dtype=probs.dtype, device=probs.device)
        return probs.shape[2] * _squared_norms(head, kernel, slopes, probs, basis[:, None, None])
    return _squared_norms(head, kernel, slopes, probs, epsilon.to(probs.dtype))


def _squared_norms(
    head: Head, kernel: Tensor, slopes: list[tuple[Tensor, Tensor | None]], probs: Tensor, epsilon: Tensor
) -> Tensor:
    """Mean over probes of the squared norms of row-wise cotangents, pulled back to the state: `[N, rows]`."""
    cotangents = probs * (epsilon - (probs * epsilon).sum(dim=-1, keepdim=True))
    v = torch.einsum("pnkc,hkc->pknh", cotangents, kernel)
    kernels = [_centred(head, layer.kernel) for layer in head.layers]
    for i, (diag, unit) in reversed(list(enumerate(slopes))):
        v = diag * v
        v = v if unit is None else v - unit * (unit * v).sum(dim=-1, keepdim=True)
        v = v @ kernels[i].T if i else v
    gram = kernels[0].T @ kernels[0]  # the wide state never appears: |W g|^2 = g' (W'W) g
    return (1 - head.unimix) ** 2 * ((v @ gram) * v).sum(dim=-1).mean(dim=0).T


def _hidden_layers(head: Head, y: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor | None]]]:
    """Last hidden output, and of each layer the diagonal and the unit vector of its slope."""
    slopes = []
    for i, layer in enumerate(head.layers):
        y = _linear(a, layer) if i else y
        gain, unit, n = torch.ones_like(y), None, y
        if head.norm is not None:
            y = y - y.mean(dim=-1, keepdim=True) if head.norm == "layer" else y
            inverse = torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + head.eps)
            unit, gain = y * inverse / y.shape[-1] ** 0.5, inverse * gain
            gain = gain if layer.scale is None else gain * layer.scale
            n = y * gain if layer.shift is None else y * gain + layer.shift
        a, derivative = _with_derivative(head.activation, n)
        slopes.append((gain * derivative, unit))
    return a, slopes


def _with_derivative(activation: Map, n: Tensor) -> tuple[Tensor, Tensor]:
    n = n if n.requires_grad else n.detach().requires_grad_()
    a = activation(n)
    (derivative,) = torch.autograd.grad(a, n, torch.ones_like(a), create_graph=True)
    return a, derivative


def _centred(head: Head, kernel: Tensor) -> Tensor:
    """Layer norm is RMS norm of a centred preactivation."""
    return kernel - kernel.mean(dim=1, keepdim=True) if head.norm == "layer" else kernel


def _linear(x: Tensor, layer: Hidden) -> Tensor:
    return x @ layer.kernel if layer.bias is None else x @ layer.kernel + layer.bias


def sample_states(
    total: int, rho: float, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Indices of a fraction `rho` of `total` states, uniformly and without replacement."""
    return torch.randperm(total, generator=generator, device=device)[: sampled_count(total, rho)]


def draw_probes(
    shape: tuple[int, ...],
    noise: Noise = "rademacher",
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Random probes of identity covariance: signs, or standard normal numbers."""
    if noise == "gaussian":
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)
    if noise != "rademacher":
        raise ValueError(f"noise must be 'rademacher' or 'gaussian', not {noise!r}")
    bits = torch.randint(0, 2, shape, generator=generator, device=device)
    return (2 * bits - 1).to(torch.get_default_dtype() if dtype is None else dtype)


def average(values: Tensor, total: int, scaling: Scaling = "sampled") -> Tensor:
    """Mean penalty from the sampled states' values: over them ("sampled"), or over all `total` ("all")."""
    if scaling == "sampled":
        return values.mean()
    if scaling != "all":
        raise ValueError(f"scaling must be 'sampled' or 'all', not {scaling!r}")
    return values.sum() / total


def coefficient(
    kind: schedules.Kind,
    updates: int,
    base: float,
    *,
    start: int = 0,
    table: Sequence[tuple[int, float]] = (),
    **options: float,
) -> float:
    """Weight of the penalty after `updates` updates: `gpld.penalty.schedules.coefficient` as a number."""
    return float(schedules.coefficient(kind, updates, base, start=start, table=table, **options))
