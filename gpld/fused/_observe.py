"""The posterior along sequences, with a gradient that costs little more than its two scans.

Forwards, a scan carries h and z and remembers nothing else. All that the losses and the gradient need of a
step follows from its h and z, so it is computed after the scan, for all T steps at once. Backwards, a scan
carries the gradients of h and z through derivatives computed in the same way; and when the gradients of all
h and z are known, those of the parameters are again formed for all T steps at once.

Both scans exist twice: in XLA, and in GPU kernels.
"""

import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpld import world_model
from gpld.distributions import mixed_softmax, sample_classes
from gpld.fused import kernels
from gpld.fused._cell import Cell, Gates, hidden_layer, next_h, open_gates
from gpld.fused._layers import activation, block_product
from gpld.fused.kernels import Activation, At, NormSlope, Part
from gpld.nets import MLPHead, add_bias, cast, unrolled


class Layers(eqx.Module):
    """What the scan reads: the recurrent step, and the posterior with its first layer cut."""

    cell: Cell
    first: Float[Array, "D hidden"]
    """The part of the posterior's first matrix that reads h."""
    head: MLPHead
    """The posterior without its first linear map."""
    stoch: int = eqx.field(static=True)
    unimix: float = eqx.field(static=True)

    def posterior(self, first: Float[Array, "*N hidden"]) -> tuple[list[Array], Float[Array, "*N KC"]]:
        """Outputs of the linear maps of all hidden layers, given that of the first; and the logits."""
        layers, outputs = self.head.mlp.layers, [first]
        for layer, following in itertools.pairwise(layers):
            outputs.append(following.linear(layer.activate(outputs[-1])))
        return outputs, self.head.out(layers[-1].activate(outputs[-1]))


class Inputs(NamedTuple):
    """What the scan is given for every step, `[T, B, ...]`."""

    keep: Float[Array, "T B 1"]
    """Zero where an episode starts and nothing before it is to be remembered."""
    action_part: Float[Array, "T B D"]
    e_part: Float[Array, "T B hidden"]
    uniform: Float[Array, "T B K"]


class Outputs(NamedTuple):
    """What depends on the parameters in a differentiable way; or the gradients of that."""

    h: Float[Array, "*N D"]
    z: Float[Array, "*N KC"]
    """Sampled, one-hot, with the gradient of the probabilities."""
    first: Float[Array, "*N hidden"]
    logits: Float[Array, "*N KC"]


def observe(
    rssm: world_model.RSSM,
    start: world_model.States,
    e: Float[Array, "T B E"],
    prev_action: Float[Array, "T B A"],
    is_first: Bool[Array, "T B"],
    uniform: Float[Array, "T B K"],
    *,
    unroll: int,
    in_kernels: bool,
) -> Outputs:
    """What `RSSM.observe` computes. No gradient flows to z of `start`."""
    cell, posterior = Cell.of(rssm, e.dtype), cast(rssm.posterior, e.dtype)
    linear, deter = posterior.mlp.layers[0].linear, start.h.shape[-1]
    keep = ~is_first[..., None]
    given = Inputs(
        keep.astype(jnp.float32),
        cell.action_part(jnp.where(keep, prev_action, 0).astype(e.dtype)),
        add_bias(e @ linear.weight[deter:], linear.bias),
        uniform,
    )
    head = eqx.tree_at(lambda head: head.mlp.layers[0].linear, posterior, None)
    layers = Layers(cell, linear.weight[:deter], head, rssm.stoch, rssm.unimix)
    return _scan(layers, (start.h, start.z), given, unroll=unrolled(len(e), unroll), in_kernels=in_kernels)


def _scan(
    layers: Layers, start: tuple[Array, Array], given: Inputs, *, unroll: int, in_kernels: bool
) -> Outputs:
    run, run_back = (_fused_run, _fused_run_back) if in_kernels else (_run, _run_back)

    @jax.custom_vjp
    def scan(layers, h, z, given):
        return forward(layers, h, z, given)[0]

    def forward(layers, h, z, given):
        hs, zs = run(layers, (h, z), given, unroll=unroll)
        before = tuple(
            jnp.concatenate([first[None], rest[:-1]]) * given.keep.astype(rest.dtype)
            for first, rest in ((h, hs), (z, zs))
        )
        again, vjp, local = jax.vjp(
            lambda layers, parts: _all_steps(layers, *before, *parts),
            layers,
            (given.action_part, given.e_part),
            has_aux=True,
        )
        return Outputs(hs, zs, again.first, again.logits), (layers, given, vjp, local)

    def backward(residuals, outer):
        layers, given, vjp, local = residuals
        zeros = (jnp.zeros_like(outer.h[0]), jnp.zeros_like(outer.z[0]))
        before = run_back(layers, local, outer, given.keep, zeros, unroll=unroll)
        dh, dz = (
            direct + jnp.concatenate([later[1:], last[None]])
            for direct, later, last in zip((outer.h, outer.z), before, zeros, strict=True)
        )
        dlayers, (daction, de) = vjp(outer._replace(h=dh, z=dz))
        dgiven = Inputs(jnp.zeros_like(given.keep), daction, de, jnp.zeros_like(given.uniform))
        return dlayers, before[0][0], zeros[1], dgiven

    scan.defvjp(forward, backward)
    return scan(layers, *start, given)


def _readers(layers: Layers) -> Float[Array, "D both"]:
    """What reads h, as one matrix: the posterior's first layer, and the next step's."""
    return jnp.concatenate([layers.first, layers.cell.h_in.linear.weight], axis=1)


def _run(
    layers: Layers, start: tuple[Array, Array], given: Inputs, *, unroll: int
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """h and z of all steps."""
    cell, readers, width = layers.cell, _readers(layers), layers.first.shape[1]

    def step(carry, x):
        h, z, read = carry
        keep = x.keep.astype(h.dtype)
        h, z = h * keep, z * keep
        entered = add_bias(read[:, width:] * keep, cell.h_in.linear.bias), cell.z_in.linear(z)
        h = next_h(open_gates(cell, hidden_layer(cell, h, entered, x.action_part)), h)
        read = h @ readers
        logits = layers.posterior(read[:, :width] + x.e_part)[1]
        probs = mixed_softmax(logits.reshape(*x.uniform.shape, -1), layers.unimix)
        z = jax.nn.one_hot(sample_classes(probs, x.uniform), probs.shape[-1], dtype=logits.dtype)
        z = z.reshape(logits.shape)
        return (h, z, read), (h, z)

    return jax.lax.scan(step, (*start, start[0] @ readers), given, unroll=unroll)[1]


def _fused_run(
    layers: Layers, start: tuple[Array, Array], given: Inputs, *, unroll: int
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """`_run` in GPU kernels."""
    cell, readers, out = layers.cell, _readers(layers), layers.head.out
    # The bias is in `e_part`.
    first_activation = Activation(None, layers.head.mlp.layers[0].norm.scale)

    def step(carry, now):
        h, z, read, hs, zs = carry
        x = Inputs(*(At(all_steps, now) for all_steps in given))
        entered = [Part(read, 1), Part(z @ cell.z_in.linear.weight)]
        activations = [activation(cell.h_in), activation(cell.z_in)]
        y, squares = kernels.hidden(h, entered, activations, x.action_part, cell.own, cell.shared, x.keep)
        scale, (weight, bias) = cell.norm.scale, (cell.gates.weight, cell.gates.bias)
        h, hs = kernels.gru(y, squares, scale, h, weight, bias, x.keep, At(hs, now))
        read = kernels.read(h, readers)
        first = [Part(read), Part(x.e_part)]
        record = At(zs, now)
        z, zs = kernels.draw(first, first_activation, out.weight, out.bias, x.uniform, layers.unimix, record)
        return (h, z, read, hs, zs), None

    steps = len(given.keep)
    records = [kernels.empty_record(like, steps) for like in start]
    now = jnp.arange(steps, dtype=jnp.int32)[:, None]
    carry = (*start, kernels.read(start[0], readers), *records)
    *_, hs, zs = jax.lax.scan(step, carry, now, unroll=unroll)[0]
    return hs, zs


class _Local(NamedTuple):
    """Derivatives of one step's nonlinearities at its state."""

    h_in: NormSlope
    z_in: NormSlope
    norm: NormSlope
    gates: Gates
    """Of the next h by the gates."""
    last: Float[Array, "*N D"]
    """Of the next h by the last, the gates held fixed."""
    posterior: list[NormSlope]
    probs: Float[Array, "*N KC"]
    """Of the classes, before the uniform share."""


def _all_steps(
    layers: Layers,
    h: Float[Array, "T B D"],
    z: Float[Array, "T B KC"],
    action_part: Float[Array, "T B D"],
    e_part: Float[Array, "T B hidden"],
) -> tuple[Outputs, _Local]:
    """All steps at once, each from the h and z before it; and their local derivatives."""
    cell = layers.cell
    entered = cell.h_in.linear(h), cell.z_in.linear(z)
    x = hidden_layer(cell, h, entered, action_part)
    opened = open_gates(cell, x)
    after = next_h(opened, h)
    outputs, logits = layers.posterior(after @ layers.first + e_part)
    probs = jax.nn.softmax(logits.astype(jnp.float32).reshape(*logits.shape[:-1], layers.stoch, -1))
    probs = probs.reshape(logits.shape)
    local = _Local(
        h_in=NormSlope.at(entered[0], cell.h_in.norm.scale),
        z_in=NormSlope.at(entered[1], cell.z_in.norm.scale),
        norm=NormSlope.at(x, cell.norm.scale),
        **_gru_slopes(opened, h),
        posterior=[
            NormSlope.at(y, d.norm.scale) for d, y in zip(layers.head.mlp.layers, outputs, strict=True)
        ],
        probs=probs,
    )
    soft = ((1 - layers.unimix) * probs).astype(logits.dtype)
    return Outputs(after, soft, outputs[0], logits), jax.lax.stop_gradient(local)


def _gru_slopes(gates: Gates, h: Float[Array, "*N D"]) -> dict[str, Array | Gates]:
    reset, update = jax.nn.sigmoid(gates.reset), jax.nn.sigmoid(gates.update - 1)
    candidate = jnp.tanh(reset * gates.candidate)
    dproduct = update * (1 - jnp.square(candidate))
    slopes = Gates(
        reset=dproduct * gates.candidate * reset * (1 - reset),
        candidate=dproduct * reset,
        update=(candidate - h) * update * (1 - update),
    )
    return {"gates": slopes, "last": 1 - update}


def _run_back(
    layers: Layers,
    local: _Local,
    outer: Outputs,
    keep: Float[Array, "T B 1"],
    zeros: tuple[Float[Array, "B D"], Float[Array, "B KC"]],
    *,
    unroll: int,
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """Of all steps, the gradients by the h and z before them.

    `outer` has the gradients of a step's results that come from outside the scan.
    """
    cell = layers.cell
    blocks = cell.gates.weight.shape[0]

    def transposed(x: Float[Array, "*N wide"], weight: Float[Array, "G in out"]) -> Float[Array, "*N _"]:
        y = block_product(x.reshape(*x.shape[:-1], blocks, -1), weight.swapaxes(1, 2))
        return y.reshape(*x.shape[:-1], -1)

    def step(later, x):
        local, outer, keep = x
        probs = local.probs.reshape(*later[1].shape[:-1], layers.stoch, -1)
        dclass = (outer.z + later[1]).astype(jnp.float32).reshape(probs.shape)
        mean = jnp.sum(probs * dclass, axis=-1, keepdims=True)
        dlogits = ((1 - layers.unimix) * probs * (dclass - mean)).reshape(later[1].shape)
        g = (outer.logits + dlogits.astype(outer.logits.dtype)) @ layers.head.out.weight.T
        for layer, slope in zip(layers.head.mlp.layers[:0:-1], local.posterior[:0:-1], strict=True):
            g = slope.vjp(g) @ layer.linear.weight.T
        g = local.posterior[0].vjp(g) + outer.first

        dh = outer.h + later[0] + g @ layers.first.T
        dgates = [(dh * slope).reshape(*dh.shape[:-1], blocks, -1) for slope in local.gates]
        dgates = jnp.stack(dgates, axis=-2).reshape(*dh.shape[:-1], -1)
        dhidden = local.norm.vjp(transposed(dgates, cell.gates.weight))
        dh_in, dz_in = jnp.split(dhidden @ cell.shared.T, 2, axis=-1)
        before_h = dh * local.last + transposed(dhidden, cell.own)
        before_h += local.h_in.vjp(dh_in) @ cell.h_in.linear.weight.T
        before_z = local.z_in.vjp(dz_in) @ cell.z_in.linear.weight.T
        before = before_h * keep.astype(before_h.dtype), before_z * keep.astype(before_z.dtype)
        return before, before

    return jax.lax.scan(step, zeros, (local, outer, keep), reverse=True, unroll=unroll)[1]


def _fused_run_back(
    layers: Layers,
    local: _Local,
    outer: Outputs,
    keep: Float[Array, "T B 1"],
    zeros: tuple[Float[Array, "B D"], Float[Array, "B KC"]],
    *,
    unroll: int,
) -> tuple[Float[Array, "T B D"], Float[Array, "T B KC"]]:
    """`_run_back` in GPU kernels."""
    cell, head = layers.cell, layers.head
    blocks, deter = cell.gates.weight.shape[0], zeros[0].shape[-1]
    entered = NormSlope(
        *(jnp.concatenate(pair, axis=-1) for pair in zip(local.h_in, local.z_in, strict=True))
    )
    weight = jnp.concatenate([cell.h_in.linear.weight, cell.z_in.linear.weight])

    def step(carry, now):
        later, record = carry
        here, inputs, out, kept = jax.tree.map(
            lambda all_steps: At(all_steps, now), (local, entered, outer, keep)
        )
        dactive = kernels.vjp_draw(
            out.z,
            Part(later, deter // zeros[1].shape[-1]),
            out.logits,
            here.probs,
            head.out.weight,
            layers.stoch,
            layers.unimix,
        )
        dgates, dlast = kernels.vjp_gru(
            dactive, here.posterior[0], out.first, [out.h, later], layers.first, here.gates, here.last, blocks
        )
        dunit, along = kernels.vjp_gates(dgates, here.norm, cell.gates.weight)
        dhidden, dh = kernels.vjp_hidden(dunit, along, here.norm, dlast, cell.own)
        dactive = kernels.read(dhidden, cell.shared, transposed=True)
        return kernels.vjp_inputs(dactive, inputs, weight, dh, kept, At(record, now)), None

    steps = len(keep)
    start = jnp.concatenate(zeros, axis=-1)
    # Not like `start`, which is the same for all runs: a copy of its record would be made for each.
    record = kernels.empty_record(jnp.concatenate([outer.h[0], outer.z[0]], axis=-1), steps)
    now = jnp.arange(steps, dtype=jnp.int32)[:, None]
    (_, before), _ = jax.lax.scan(step, (start, record), now, reverse=True, unroll=unroll)
    return before[..., :deter], before[..., deter:]
