"""The posterior along sequences, with a gradient that costs little more than its two scans.

Forwards, a scan carries h and z and remembers nothing else. All that the losses and the gradient need of a
step follows from its h and z, so it is computed after the scan, for all T steps at once. Backwards, a scan
carries the gradients by h and z through derivatives computed in the same way; and when the gradients of all
h and z are known, those of the parameters are again formed for all T steps at once.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpld import kernels
from gpld.kernels import Activation, At, Part, Slope
from gpld.nets import BlockLinear, Head, Linear, unrolled
from gpld.world_model._record import empty_record
from gpld.world_model._recurrence import Cell, Gates, draw, gates, gru, hidden


class Layers(eqx.Module):
    """What the scan reads: the recurrent step, and the posterior with its first layer cut."""

    cell: Cell
    first: Linear
    """The part of the posterior's first layer that reads h."""
    head: Head
    """The rest of the posterior."""
    stoch: int = eqx.field(static=True)
    unimix: float = eqx.field(static=True)

    def posterior(self, first: Float[Array, "*N hidden"]) -> tuple[list[Array], Float[Array, "*N KC"]]:
        """From the first layer's output before its norm to those of all layers, and the logits."""
        outputs = self.head.mlp.preactivations(first)
        return outputs, self.head.out(self.head.mlp.layers[-1].activate(outputs[-1]))


class Given(NamedTuple):
    """What a scan is given, `[T, B, ...]`: its input to every step."""

    keep: Float[Array, "T B 1"]
    """Zero where an episode starts and nothing before it is to be remembered."""
    action_part: Float[Array, "T B D"]
    e_part: Float[Array, "T B hidden"]
    uniform: Float[Array, "T B K"]


class States(NamedTuple):
    """What depends on the parameters in a differentiable way."""

    h: Float[Array, "*N D"]
    z: Float[Array, "*N KC"]
    """Sampled, one-hot, with the gradient of the probabilities."""
    first: Float[Array, "*N hidden"]
    logits: Float[Array, "*N KC"]


def posterior_scan(
    layers: Layers, start: tuple[Array, Array], given: Given, *, unroll: int, fused: bool
) -> States:
    """Posterior states from `start`, h `[B, D]` and z `[B, K*C]`. No gradient flows to z of `start`."""
    unroll = unrolled(given.keep.shape[0], unroll)

    @jax.custom_vjp
    def scan(layers, h, z, given):
        return forward(layers, h, z, given)[0]

    def forward(layers, h, z, given):
        hs, zs = _run(layers, (h, z), given, unroll=unroll, fused=fused)
        before = tuple(
            jnp.concatenate([first[None], rest[:-1]]) * given.keep.astype(rest.dtype)
            for first, rest in ((h, hs), (z, zs))
        )
        again, pull, local = jax.vjp(
            lambda layers, parts: _steps(layers, *before, *parts),
            layers,
            (given.action_part, given.e_part),
            has_aux=True,
        )
        return States(hs, zs, again.first, again.logits), (layers, given, pull, local)

    def backward(residuals, outer):
        layers, given, pull, local = residuals
        zeros = (jnp.zeros_like(outer.h[0]), jnp.zeros_like(outer.z[0]))
        run_back = _fused_run_back if fused else _run_back
        before = run_back(layers, local, outer, given.keep, zeros, unroll=unroll)
        h, z = (
            direct + jnp.concatenate([later[1:], last[None]])
            for direct, later, last in zip((outer.h, outer.z), before, zeros, strict=True)
        )
        by_layers, (by_action, by_e) = pull(outer._replace(h=h, z=z))
        by_given = Given(jnp.zeros_like(given.keep), by_action, by_e, jnp.zeros_like(given.uniform))
        return by_layers, before[0][0], zeros[1], by_given

    scan.defvjp(forward, backward)
    return scan(layers, *start, given)


def _run(
    layers: Layers, start: tuple[Array, Array], given: Given, *, unroll: int, fused: bool
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """h and z of all steps."""
    cell, head = layers.cell, layers.head
    width = layers.first.weight.shape[1]
    # What reads h is one product: the posterior's first layer, and the next step's first.
    readers = jnp.concatenate([layers.first.weight, cell.h_in.linear.weight], axis=1)

    def step(carry, x):
        h, z, read = carry
        keep = x.keep.astype(h.dtype)
        h, z = h * keep, z * keep
        entered = cell.h_in.linear.add_bias(read[:, width:] * keep), cell.z_in.linear(z)
        h = gru(gates(cell, hidden(cell, h, entered, x.action_part)), h)
        read = h @ readers
        z = draw(layers.posterior(read[:, :width] + x.e_part)[1], x.uniform, layers.unimix)
        return (h, z, read), (h, z)

    if not fused:
        return jax.lax.scan(step, (*start, start[0] @ readers), given, unroll=unroll)[1]

    out = head.out
    # The bias is in `e_part`.
    activation = Activation(None, head.mlp.layers[0].norm.scale)

    def fused_step(carry, now):
        h, z, read, hs, zs = carry
        x = Given(*(At(all_steps, now) for all_steps in given))
        entered = [Part(read, 1), Part(z @ cell.z_in.linear.weight)]
        activations = [cell.h_in.activation, cell.z_in.activation]
        y, squares = kernels.hidden(
            h, entered, activations, x.action_part, cell.own.weight, cell.shared.weight, x.keep
        )
        scale, (weight, bias) = cell.norm.scale, (cell.gates.weight, cell.gates.bias)
        h, hs = kernels.gru(y, squares, scale, h, weight, bias, x.keep, At(hs, now))
        read = kernels.read(h, readers)
        first = [Part(read), Part(x.e_part)]
        z, zs = kernels.draw(first, activation, out.weight, out.bias, x.uniform, layers.unimix, At(zs, now))
        return (h, z, read, hs, zs), None

    steps = len(given.keep)
    records = [empty_record(like, steps) for like in start]
    now = jnp.arange(steps, dtype=jnp.int32)[:, None]
    carry = (*start, kernels.read(start[0], readers), *records)
    *_, hs, zs = jax.lax.scan(fused_step, carry, now, unroll=unroll)[0]
    return hs, zs


class _Local(NamedTuple):
    """Derivatives of one step's nonlinearities at its state."""

    h_in: Slope
    z_in: Slope
    norm: Slope
    gates: Gates
    """Of the next h by the gates."""
    last: Float[Array, "*N D"]
    """Of the next h by the last, the gates held fixed."""
    posterior: list[Slope]
    probs: Float[Array, "*N KC"]
    """Of the classes, before the uniform share."""


def _steps(
    layers: Layers,
    h: Float[Array, "T B D"],
    z: Float[Array, "T B KC"],
    action_part: Float[Array, "T B D"],
    e_part: Float[Array, "T B hidden"],
) -> tuple[States, _Local]:
    """All steps at once, each from the h and z before it; and their local derivatives."""
    cell = layers.cell
    entered = cell.h_in.linear(h), cell.z_in.linear(z)
    x = hidden(cell, h, entered, action_part)
    opened = gates(cell, x)
    after = gru(opened, h)
    outputs, logits = layers.posterior(layers.first(after) + e_part)
    probs = jax.nn.softmax(logits.astype(jnp.float32).reshape(*logits.shape[:-1], layers.stoch, -1))
    probs = probs.reshape(logits.shape)
    local = _Local(
        h_in=Slope.at(entered[0], cell.h_in.norm.scale),
        z_in=Slope.at(entered[1], cell.z_in.norm.scale),
        norm=Slope.at(x, cell.norm.scale),
        **_gru_slopes(opened, h),
        posterior=[Slope.at(y, d.norm.scale) for d, y in zip(layers.head.mlp.layers, outputs, strict=True)],
        probs=probs,
    )
    soft = ((1 - layers.unimix) * probs).astype(logits.dtype)
    return States(after, soft, outputs[0], logits), jax.lax.stop_gradient(local)


def _gru_slopes(gates: Gates, h: Float[Array, "*N D"]) -> dict[str, Array | Gates]:
    reset, update = jax.nn.sigmoid(gates.reset), jax.nn.sigmoid(gates.update - 1)
    candidate = jnp.tanh(reset * gates.candidate)
    by_product = update * (1 - jnp.square(candidate))
    slopes = Gates(
        reset=by_product * gates.candidate * reset * (1 - reset),
        candidate=by_product * reset,
        update=(candidate - h) * update * (1 - update),
    )
    return {"gates": slopes, "last": 1 - update}


def _run_back(
    layers: Layers,
    local: _Local,
    outer: States,
    keep: Float[Array, "T B 1"],
    zeros: tuple[Float[Array, "B D"], Float[Array, "B KC"]],
    *,
    unroll: int,
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """Of all steps, the gradients by the h and z before them."""

    def step(carry, x):
        before = _pull_step(layers, *x, *carry)
        return before, before

    return jax.lax.scan(step, zeros, (local, outer, keep), reverse=True, unroll=unroll)[1]


def _pull_step(
    layers: Layers,
    local: _Local,
    outer: States,
    keep: Float[Array, "B 1"],
    later_h: Float[Array, "B D"],
    later_z: Float[Array, "B KC"],
) -> tuple[Float[Array, "B D"], Float[Array, "B KC"]]:
    """From the gradients by a step's states to those by the h and z before it.

    `outer` has the gradients that come from outside the scan, `later_h` and `later_z` those from later steps.
    """
    cell = layers.cell
    blocks = cell.gates.weight.shape[0]
    probs = local.probs.reshape(*later_z.shape[:-1], layers.stoch, -1)
    by_class = (outer.z + later_z).astype(jnp.float32).reshape(probs.shape)
    mean = jnp.sum(probs * by_class, axis=-1, keepdims=True)
    by_logits = ((1 - layers.unimix) * probs * (by_class - mean)).reshape(later_z.shape)
    g = (outer.logits + by_logits.astype(outer.logits.dtype)) @ layers.head.out.weight.T
    for layer, slope in zip(layers.head.mlp.layers[:0:-1], local.posterior[:0:-1], strict=True):
        g = slope.pull(g) @ layer.linear.weight.T
    g = local.posterior[0].pull(g) + outer.first

    by_h = outer.h + later_h + g @ layers.first.weight.T
    by_gates = [(by_h * slope).reshape(*by_h.shape[:-1], blocks, -1) for slope in local.gates]
    by_gates = jnp.stack(by_gates, axis=-2).reshape(*by_h.shape[:-1], -1)
    by_hidden = local.norm.pull(_transposed(cell.gates)(by_gates))
    by_h_in, by_z_in = jnp.split(by_hidden @ cell.shared.weight.T, 2, axis=-1)
    before_h = by_h * local.last + _transposed(cell.own)(by_hidden)
    before_h += local.h_in.pull(by_h_in) @ cell.h_in.linear.weight.T
    before_z = local.z_in.pull(by_z_in) @ cell.z_in.linear.weight.T
    return before_h * keep.astype(before_h.dtype), before_z * keep.astype(before_z.dtype)


def _fused_run_back(
    layers: Layers,
    local: _Local,
    outer: States,
    keep: Float[Array, "T B 1"],
    zeros: tuple[Float[Array, "B D"], Float[Array, "B KC"]],
    *,
    unroll: int,
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """`_run_back` in GPU kernels."""
    cell, head = layers.cell, layers.head
    blocks, deter = cell.gates.weight.shape[0], zeros[0].shape[-1]
    entered = Slope(*(jnp.concatenate(pair, axis=-1) for pair in zip(local.h_in, local.z_in, strict=True)))
    weight = jnp.concatenate([cell.h_in.linear.weight, cell.z_in.linear.weight])

    def step(carry, now):
        later, record = carry
        here, into, out, kept = jax.tree.map(
            lambda all_steps: At(all_steps, now), (local, entered, outer, keep)
        )
        by_active = kernels.pull_draw(
            out.z,
            Part(later, deter // zeros[1].shape[-1]),
            out.logits,
            here.probs,
            head.out.weight,
            layers.stoch,
            layers.unimix,
        )
        by_gates, by_last = kernels.pull_gru(
            by_active,
            here.posterior[0],
            out.first,
            [out.h, later],
            layers.first.weight,
            here.gates,
            here.last,
            blocks,
        )
        by_unit, along = kernels.pull_gates(by_gates, here.norm, cell.gates.weight)
        by_hidden, by_h = kernels.pull_hidden(by_unit, along, here.norm, by_last, cell.own.weight)
        by_active = kernels.read(by_hidden, cell.shared.weight, transposed=True)
        return kernels.pull_entered(by_active, into, weight, by_h, kept, At(record, now)), None

    steps = len(keep)
    start = jnp.concatenate(zeros, axis=-1)
    # Not like `start`, which is the same for all runs: a copy of its record would be made for each.
    record = empty_record(jnp.concatenate([outer.h[0], outer.z[0]], axis=-1), steps)
    now = jnp.arange(steps, dtype=jnp.int32)[:, None]
    (_, before), _ = jax.lax.scan(step, (start, record), now, reverse=True, unroll=unroll)
    return before[..., :deter], before[..., deter:]


def _transposed(layer: BlockLinear) -> BlockLinear:
    return BlockLinear(layer.weight.swapaxes(1, 2), None)
