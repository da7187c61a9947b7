"""An MLP head described by its arrays, its forward pass, and the slopes of its layers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from gpld.penalty._estimators import Rows, take_rows


class Hidden(NamedTuple):
    """A hidden layer: linear, norm, activation."""

    kernel: jax.Array
    """`[in, out]`."""
    bias: jax.Array | None = None
    """`[out]`."""
    scale: jax.Array | None = None
    """Scale of the norm, `[out]`."""
    shift: jax.Array | None = None
    """Shift of the norm, `[out]`."""


class Output(NamedTuple):
    """The linear map to the logits."""

    kernel: jax.Array
    """`[in, K * C]`."""
    bias: jax.Array | None = None
    """`[K * C]`."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("layers", "out"),
    meta_fields=("rows", "norm", "eps", "activation", "unimix"),
)
@dataclass(frozen=True)
class Head:
    """Layers of linear, norm and activation, then linear, softmax per row, and unimix. A pytree.

    The defaults are DreamerV3's posterior and prior.
    """

    layers: tuple[Hidden, ...]
    """Hidden layers, the one that reads the state first."""
    out: Output
    rows: int
    """K: number of categorical distributions."""
    norm: Literal["rms", "layer"] | None = "rms"
    """Norm after each hidden linear map."""
    eps: float = 1e-4
    """Added to the mean square (or variance) inside the norm."""
    activation: str | Callable[[jax.Array], jax.Array] = "silu"
    """Name of a function in `jax.nn`, or any elementwise function."""
    unimix: float = 0.01
    """Share of the uniform distribution mixed into every row."""

    def __post_init__(self) -> None:
        if self.norm not in ("rms", "layer", None):
            raise ValueError(f"norm must be 'rms', 'layer' or None, not {self.norm!r}")
        if isinstance(self.activation, str) and not hasattr(jax.nn, self.activation):
            raise ValueError(f"activation must be a function or named in jax.nn, not {self.activation!r}")
        if not self.layers:
            raise ValueError("layers must hold at least one hidden layer")


class Slope(NamedTuple):
    """Derivative of one hidden layer's output by its preactivation: (I - unit unit') diag.

    A norm's Jacobian is a diagonal minus a rank-one matrix, and the activation's is diagonal.
    """

    diag: jax.Array
    """`[N, width]`."""
    unit: jax.Array | None
    """`[N, width]`, or None without norm."""


def first_preactivation(head: Head, u: jax.Array) -> jax.Array:
    """Preactivation `y [..., hidden]` of the first layer at states `u [..., d]`."""
    first = head.layers[0]
    y = u @ first.kernel
    return y if first.bias is None else y + jnp.broadcast_to(first.bias, y.shape)


def dot(a: jax.Array, b: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`a @ b` with operands in `dtype`, accumulated and returned in the type of `b`."""
    return jnp.matmul(a.astype(dtype), b.astype(dtype), preferred_element_type=b.dtype)


def restrict(head: Head, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Kernel `[width, rows, C]` and bias `[rows, C]` of the output layer, for the given rows only."""
    kernel, bias = head.out
    bias = jnp.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias
    kernel = kernel.reshape(kernel.shape[0], head.rows, -1)
    return take_rows(kernel, rows, axis=1), take_rows(bias.reshape(head.rows, -1), rows)


def centred(head: Head, kernel: jax.Array) -> jax.Array:
    """A hidden layer's kernel as the norm sees it: layer norm is RMS norm of a centred preactivation."""
    return kernel - jnp.mean(kernel, axis=1, keepdims=True) if head.norm == "layer" else kernel


def activate(head: Head, layer: Hidden, y: jax.Array) -> tuple[jax.Array, Slope]:
    """Output `[N, width]` of a hidden layer at preactivation `y [N, width]`, and its slope there."""
    gain, unit, n = jnp.ones_like(y), None, y
    if head.norm is not None:
        y = y - jnp.mean(y, axis=1, keepdims=True) if head.norm == "layer" else y
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=1, keepdims=True) + head.eps)
        scale = gain if layer.scale is None else jnp.broadcast_to(layer.scale, y.shape)
        unit = y * inverse / y.shape[1] ** 0.5
        gain, n = inverse * scale, y * inverse * scale
        n = n if layer.shift is None else n + jnp.broadcast_to(layer.shift, n.shape)
    activation = getattr(jax.nn, head.activation) if isinstance(head.activation, str) else head.activation
    a, derivative = jax.jvp(activation, (n,), (jnp.ones_like(n),))
    return a, Slope(gain * derivative, unit)


def hidden_layers(head: Head, y: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, list[Slope]]:
    """Last hidden output `[N, width]` and the slopes of all layers, from the first preactivation."""
    a, slope = activate(head, head.layers[0], y)
    slopes = [slope]
    for layer in head.layers[1:]:
        y = dot(a, layer.kernel, dtype)
        y = y if layer.bias is None else y + layer.bias[None]
        a, slope = activate(head, layer, y)
        slopes.append(slope)
    return a, slopes
