"""A scan whose weight gradients are formed after it, one matrix product per layer.

Differentiating `lax.scan` adds every weight's gradient once per step: T small matrix products and T
additions of a weight-sized array, all in sequence. Here the backward scan only carries the gradients of
activations. Each layer is *tapped*: its input is recorded, and the gradient arriving at its output is read
off. Afterwards the layer is applied once to all its T*B recorded inputs and pulled back from all
T*B output gradients: one large product per layer.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from gpld.nets._layers import BlockLinear, Linear, RMSNorm


def _is_layer(node: Any) -> bool:
    return isinstance(node, Linear | BlockLinear | RMSNorm)


@jax.custom_vjp
def _tap(y: Array, gradient: Array) -> Array:
    """Return `y`; the gradient by the second argument is the one by `y`."""
    del gradient
    return y


_tap.defvjp(lambda y, _: (y, None), lambda _, g: (g, g))


class _Tapped:
    """Stands in for a layer inside one step of the scan."""

    def __init__(self, layer: Callable[[Array], Array], tap: Array | None):
        self.layer, self.tap, self.input = layer, tap, None

    def __call__(self, x: Array) -> Array:
        assert self.input is None, "a layer may be applied once per step"
        self.input = x
        y = self.layer(x)
        return y if self.tap is None else _tap(y, self.tap)


def deferred_scan(
    step: Callable[[Any, PyTree, PyTree], tuple[PyTree, PyTree]],
    layers: PyTree,
    carry: PyTree,
    xs: PyTree,
    *,
    unroll: int = 1,
) -> tuple[PyTree, PyTree]:
    """`lax.scan(partial(step, layers), carry, xs)`, with gradients by `layers` formed after the scan.

    `layers` is a pytree of `Linear`, `BlockLinear` and `RMSNorm` modules, which `step(layers, carry, x)`
    applies once each; `step` may close over nothing that is differentiated or batched.
    """
    nodes, structure = jax.tree.flatten(layers, is_leaf=_is_layer)
    assert all(map(_is_layer, nodes)), "only layers can be tapped"

    def plain(nodes, carry, xs):
        whole = structure.unflatten(nodes)
        return jax.lax.scan(lambda c, x: step(whole, c, x), carry, xs, unroll=unroll)

    def tapped_step(nodes, carry, x, taps):
        stand_ins = [_Tapped(node, tap) for node, tap in zip(nodes, taps, strict=True)]
        result = step(structure.unflatten(stand_ins), carry, x)
        return result, [stand_in.input for stand_in in stand_ins]

    def forward(nodes, carry, xs):
        first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
        steps = jax.tree.leaves(xs)[0].shape[0]
        _, inputs = eqx.filter_eval_shape(tapped_step, nodes, carry, first, [None] * len(nodes))
        outputs = [eqx.filter_eval_shape(node, x) for node, x in zip(nodes, inputs, strict=True)]
        taps = [jnp.zeros((steps, *y.shape), y.dtype) for y in outputs]

        def run(carry, xs, taps):
            def body(carry, x_and_taps):
                (carry, y), inputs = tapped_step(nodes, carry, *x_and_taps)
                return carry, (y, inputs)

            carry, (ys, inputs) = jax.lax.scan(body, carry, (xs, taps), unroll=unroll)
            return (carry, ys), inputs

        result, pull, inputs = jax.vjp(run, carry, xs, taps, has_aux=True)
        return result, (nodes, inputs, pull)

    def backward(residuals, gradients):
        nodes, inputs, pull = residuals
        carry_gradient, xs_gradient, output_gradients = pull(gradients)
        node_gradients = [
            jax.vjp(lambda node, x=x: node(x), node)[1](g)[0]
            for node, x, g in zip(nodes, inputs, output_gradients, strict=True)
        ]
        return node_gradients, carry_gradient, xs_gradient

    scan = jax.custom_vjp(plain)
    scan.defvjp(forward, backward)
    return scan(nodes, carry, xs)
