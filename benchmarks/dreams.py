"""Dreams alone, in kernels as they are and in candidates for them, timed side by side on a GPU.

    python benchmarks/dreams.py --runs 1 8

A step of a dream is 16 kernels today. The candidates make up to four of it:

    hidden      own(h) + shared(active) and its sums of squares
    next h      norm, gates, GRU
    readers     the product of h with all that reads it, by cuBLAS
    chain       prior, classes, the policy of the new state, its action, and what enters the next step
    CUDA        GRU's product and gates in one kernel on Hopper's matrix units (`foundations/next_h.cu`)

Writes `dreams.json` as it measures. Those that do not compile are left out by name.
"""

import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tyro
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl
from jax.experimental.pallas import BlockSpec
from jaxtyping import Array, Float

from gpld import agent, fused, world_model
from gpld.analysis.cost import WALKER
from gpld.behavior import PolicyHead
from gpld.config import AgentConfig, Config, ConfigError, with_presets
from gpld.fused import kernels
from gpld.fused._imagine import Prior, _block_products, _policy
from gpld.fused._layers import activation
from gpld.fused._states import Dream
from gpld.fused.kernels import At, Part, Tile
from gpld.fused.kernels._step import Activation, _sampled, follow
from gpld.fused.kernels._tiles import activated, call, dot, interpreted, products, sigmoid, silu, tanh
from gpld.nets import NORM_EPS, cast, unrolled
from gpld.training.provenance import provenance
from gpld.world_model import DreamNoise, States

sys.path.append(str(Path(__file__).parent / "foundations"))

import next_h as next_h_in_cuda

ACTIONS = 16
"""Columns of an action inside a kernel: as many as a matrix unit takes."""


class Cuts(NamedTuple):
    """How the kernels of a candidate are tiled; None for those of today."""

    hidden: Tile | None = Tile(rows=128, columns=128, warps=8)
    gru: Tile = Tile(rows=64, columns=64, warps=4)
    chain: Tile | None = Tile(rows=16, columns=128, warps=8)
    stored: bool = False
    """Whether the chain stores what it makes and loads it in slices, beside those of the next matrix."""
    cuda: int = 0
    """Without `hidden`: thread blocks of the kernel in CUDA that share a block's rows; 0 for none."""


def hidden(
    h: Float[Array, "N D"],
    active: Float[Array, "N wide"],
    own: Float[Array, "G own own"],
    shared: Float[Array, "wide D"],
    bias: Float[Array, " D"],
    tile: Tile,
) -> tuple[Float[Array, "N D"], Float[Array, "N tiles"]]:
    """`own(h) + shared(active) + bias` of many rows, and the sums of squares of its tiles."""
    count, (blocks, inner, _) = h.shape[0], own.shape
    cut = tile.within(count, inner)
    rows, columns, steps = cut.rows, cut.columns, inner // cut.columns

    def kernel(h, active, own, shared, bias, out, squares):
        (total,) = products(lambda at: h[:, at], [own], cut)
        total += products(lambda at: active[:, at], [shared], cut)[0]
        total += bias[...][None]
        out[...] = total.astype(out.dtype)
        squares[...] = jnp.sum(jnp.square(total), axis=-1, keepdims=True)

    spread = BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (h, BlockSpec((rows, inner), lambda n, g, j: (n, g))),
            (active, BlockSpec((rows, active.shape[1]), lambda n, g, j: (n, 0))),
            (own, BlockSpec((None, inner, columns), lambda n, g, j: (g, 0, j))),
            (shared, BlockSpec((shared.shape[0], columns), lambda n, g, j: (0, g * steps + j))),
            (bias, BlockSpec((columns,), lambda n, g, j: (g * steps + j,))),
        ],
        (
            (Shape(h.shape, h.dtype), spread),
            (
                Shape((count, blocks * steps), jnp.float32),
                BlockSpec((rows, 1), lambda n, g, j: (n, g * steps + j)),
            ),
        ),
        cut,
    )


def next_h(
    x: Float[Array, "N D"],
    squares: Float[Array, "N tiles"],
    scale: Float[Array, " D"],
    h: Float[Array, "N D"],
    weight: Float[Array, "G own wide"],
    bias: Float[Array, " gates"],
    record: At,
    tile: Tile,
) -> tuple[Float[Array, "N D"], Float[Array, "T N F"]]:
    """The next h from what `hidden` gives, and as first columns of the record."""
    (count, width), (blocks, inner, _) = h.shape, weight.shape
    cut = tile.within(count, inner)
    rows, columns, steps = cut.rows, cut.columns, inner // cut.columns

    def kernel(x, squares, scale, h, weights, biases, out, kept):
        mean = jnp.sum(squares[...], axis=-1, keepdims=True) / width
        inverse = jax.lax.rsqrt(mean + NORM_EPS)
        sums = products(
            lambda at: silu(x[:, at].astype(jnp.float32) * inverse * scale[at][None]), weights, cut
        )
        gates = (y + b[...][None] for y, b in zip(sums, biases, strict=True))
        after = follow(*gates, h[...].astype(jnp.float32)).astype(out.dtype)
        out[...] = after
        kept[...] = after

    spread = BlockSpec((rows, columns), lambda n, g, j: (n, g * steps + j))
    return call(
        kernel,
        (count // rows, blocks, steps),
        [
            (x, BlockSpec((rows, inner), lambda n, g, j: (n, g))),
            (squares, BlockSpec((rows, squares.shape[1]), lambda n, g, j: (n, 0))),
            (scale, BlockSpec((inner,), lambda n, g, j: (g,))),
            (h, spread),
            [
                (weight, BlockSpec((None, inner, columns), lambda n, g, j, i=i: (g, 0, i * steps + j)))
                for i in range(3)
            ],
            [
                (bias, BlockSpec((columns,), lambda n, g, j, i=i: ((3 * g + i) * steps + j,)))
                for i in range(3)
            ],
        ],
        ((Shape(h.shape, h.dtype), spread), (record, spread)),
        cut,
    )


class Layer(NamedTuple):
    """A matrix, and what is done to its product before the next one."""

    weight: Float[Array, "in out"]
    activation: Activation


class Chain(NamedTuple):
    """All within a row that follows the product of h with its readers."""

    prior: Activation
    """Of the prior's first layer."""
    prior_layers: list[Layer]
    classes: tuple[Float[Array, "hidden KC"], Float[Array, " KC"]]
    z_readers: Float[Array, "KC readers"]
    """The policy's, then the next step's."""
    policy: Activation
    policy_layers: list[Layer]
    outputs: list[tuple[Float[Array, "units A"], Float[Array, " A"]]]
    """Of mean and deviation, `ACTIONS` columns each."""
    action: Float[Array, "A hidden"]
    enter: list[Activation]
    """Of h, z and the action."""

    @classmethod
    def of(cls, prior: Prior, policy: PolicyHead) -> "Chain":
        """The layers of a model and a policy that are in the compute type."""
        cell, mlp = prior.cell, prior.head.mlp
        more = [Layer(layer.linear.weight, activation(layer)) for layer in mlp.layers[1:]]
        own = [Layer(layer.linear.weight, activation(layer)) for layer in policy.mlp.layers[1:]]
        outputs = []
        for name in ("mean", "stddev"):
            linear = policy.outputs[name]
            wide = ACTIONS - linear.bias.shape[0]
            outputs.append((jnp.pad(linear.weight, ((0, 0), (0, wide))), jnp.pad(linear.bias, (0, wide))))
        a_in = cell.a_in.linear.weight
        return cls(
            activation(mlp.layers[0]),
            more,
            (prior.head.out.weight, prior.head.out.bias),
            prior.z_readers,
            activation(policy.mlp.layers[0]),
            own,
            outputs,
            jnp.pad(a_in, ((0, ACTIONS - a_in.shape[0]), (0, 0))),
            [activation(dense) for dense in (cell.h_in, cell.z_in, cell.a_in)],
        )


def chain(
    layers: Chain,
    h_product: Float[Array, "N readers"],
    uniform: Float[Array, "N K"],
    noise: Float[Array, "N A"],
    records: tuple[At, At],
    spread: tuple[float, float, float],
    tile: Tile,
    stored: bool,
) -> tuple[Array, Array, Array, Array]:
    """Records with z and the policy's first product, the action, and what enters the next step."""
    unimix, low, high = spread
    count, hidden = h_product.shape[0], layers.action.shape[1]
    code = layers.classes[0].shape[1]
    classes = code // uniform.shape[1]
    cut = tile.within(count, code)
    rows, columns = cut.rows, max(cut.columns, classes)
    chunks = code // columns

    def act(x, pair):
        bias, scale = pair
        return activated(x if bias is None else x + bias[...][None], scale[...])

    def kernel(
        policy_h, enter_h, prior_h, uniform, noise, out, readers, layers, kept, product, action, active, store
    ):
        def times(y, weights):
            if not stored:
                return (dot(y, weight[...]) for weight in weights)
            barrier()
            store[...] = y.astype(store.dtype)
            return loaded(store, weights)

        def loaded(x, weights):
            barrier()
            return (products(lambda at: x[:, at], [weight], cut)[0] for weight in weights)

        y = act(prior_h[...].astype(jnp.float32), layers.prior)
        for layer in layers.prior_layers:
            y = act(*times(y, [layer.weight]), layer.activation)
        to_policy, entered = policy_h[...].astype(jnp.float32), jnp.zeros((rows, hidden), jnp.float32)
        few = columns // classes
        for j, logits in enumerate(times(y, out)):
            at = pl.ds(j * columns, columns)
            logits = logits + layers.classes[1][at][None]
            z = _sampled(logits, uniform[:, pl.ds(j * few, few)], unimix).astype(kept.dtype)
            kept[:, at] = z
            if not stored:
                to_policy += dot(z, readers[0][at, :])
                entered += dot(z, readers[1][at, :])
        if stored:
            more, entered = loaded(kept, readers)
            to_policy += more
        product[...] = to_policy.astype(product.dtype)
        y = act(to_policy, layers.policy)
        for layer in layers.policy_layers:
            y = act(*times(y, [layer.weight]), layer.activation)
        mean, deviation = (dot(y, weight[...]) + bias[...][None] for weight, bias in layers.outputs)
        a = tanh(mean) + (low + (high - low) * sigmoid(deviation + 2)) * noise[...]
        action[...] = a
        a = a / jnp.maximum(1, jnp.abs(a))
        parts = (enter_h[...].astype(jnp.float32), entered, dot(a, layers.action[...]))
        for i, (x, pair) in enumerate(zip(parts, layers.enter, strict=True)):
            active[:, pl.ds(i * hidden, hidden)] = act(x, pair).astype(active.dtype)

    def whole(x):
        return (x, BlockSpec(x.shape, lambda n: (0,) * x.ndim))

    def row(width, at=0):
        return BlockSpec((rows, width), lambda n: (n, at))

    record, policy_record = records
    deter = record.shape[-1] - code
    *results, _ = call(
        kernel,
        (count // rows,),
        [
            *((h_product, row(hidden, i)) for i in range(3)),
            (uniform, row(uniform.shape[1])),
            (noise, row(ACTIONS)),
            [(layers.classes[0], BlockSpec((hidden, columns), lambda n, j=j: (0, j))) for j in range(chunks)],
            [(layers.z_readers, BlockSpec((code, hidden), lambda n, j=j: (0, j))) for j in range(2)],
            jax.tree.map(whole, layers),
        ],
        (
            (record, row(code, deter // code)),
            (policy_record, row(hidden)),
            (Shape((count, ACTIONS), jnp.float32), row(ACTIONS)),
            (Shape((count, 3 * hidden), h_product.dtype), row(3 * hidden)),
            (Shape((count, hidden), h_product.dtype), row(hidden)),
        ),
        cut,
    )
    return tuple(results)


def barrier() -> None:
    """Let all threads of a tile see what each has stored."""
    if not interpreted():
        from jax.experimental.pallas import triton

        triton.debug_barrier()


def imagine(
    rssm: world_model.RSSM,
    policy: PolicyHead,
    start: States,
    noise: DreamNoise,
    *,
    cuts: Cuts,
    unroll: int,
) -> Dream:
    """What `RSSM.imagine` computes, in four kernels a step."""
    rssm, policy, start = jax.lax.stop_gradient((rssm, policy, start))
    prior, policy = Prior.of(rssm, policy, start.h.dtype), cast(policy, start.h.dtype)
    steps, cell = len(noise.classes), prior.cell
    layers, spread = Chain.of(prior, policy), (rssm.unimix, policy.min_std, policy.max_std)
    state = prior.begin(start, steps)
    products = kernels.empty_record(state.z_product[:, : layers.action.shape[1]], steps + 1)
    actions = noise.actions.shape[-1]

    def enter(h_product, z_product, action):
        action = world_model.bounded(action.astype(start.h.dtype))
        parts = [Part(h_product, 1), Part(z_product, 1)]
        return kernels.enter(parts, (action, cell.a_in.linear.weight), layers.enter)

    # The first state is given, and acts as it does today.
    choice, products = _policy(policy, state.policy_parts, At(products, jnp.zeros(1, jnp.int32)))
    first = choice.sample(noise.actions[0])
    active = enter(state.h_product, state.z_product, first)
    # The state after the last step acts, too, which nobody looks at.
    later = jnp.concatenate([noise.actions[1:], noise.actions[:1]])
    later = jnp.pad(later, ((0, 0), (0, 0), (0, ACTIONS - actions)))
    given = noise.classes, later, jnp.arange(1, steps + 1, dtype=jnp.int32)[:, None]

    packed = next_h_in_cuda.packed(cell.gates.weight) if cuts.cuda else None

    def follow_h(h, blocks, active, record):
        if cuts.hidden is None:
            own = _block_products(blocks, cell.own)
            x = kernels.activate_hidden(own, active @ prior.shared, cell.bias, cell.norm.scale)
            if cuts.cuda:
                return next_h_in_cuda.next_h(x, packed, cell.gates.bias, h, record, parts=cuts.cuda)
            return kernels.gru_blocks(_block_products(x, cell.gates.weight), cell.gates.bias, h, record)
        x, squares = hidden(h, active, cell.own, prior.shared, cell.bias, cuts.hidden)
        h, record = next_h(
            x, squares, cell.norm.scale, h, cell.gates.weight, cell.gates.bias, record, cuts.gru
        )
        return h, blocks, record

    def follow_row(h_product, uniform, noise, records):
        if cuts.chain is not None:
            return chain(layers, h_product, uniform, noise, records, spread, cuts.chain, cuts.stored)
        y = [Part(h_product, 2)]
        for layer, after in itertools.pairwise(prior.head.mlp.layers):
            y = [Part(kernels.dense(y, activation(layer), after.linear.weight))]
        out, last = prior.head.out, activation(prior.head.mlp.layers[-1])
        z, record = kernels.draw(y, last, out.weight, out.bias, uniform, rssm.unimix, records[0])
        z_product = z @ prior.z_readers
        choice, products = _policy(policy, [Part(h_product), Part(z_product)], records[1])
        action = choice.sample(noise[:, :actions])
        return record, products, action, enter(h_product, z_product, action)

    def step(carry, given):
        h, blocks, active, record, products = carry
        uniform, noise, now = given
        h, blocks, record = follow_h(h, blocks, active, At(record, now))
        records = At(record, now), At(products, now)
        record, products, action, active = follow_row(h @ prior.h_readers, uniform, noise, records)
        return (h, blocks, active, record, products), action[:, :actions]

    blocks = state.h_blocks if cuts.hidden is None else jnp.zeros(0)
    carry = start.h, blocks, active, state.record, products
    (*_, record, products), action = jax.lax.scan(step, carry, given, unroll=unrolled(steps, unroll))
    deter = start.h.shape[-1]
    action = jnp.concatenate([first[None], action[:-1]])
    return Dream(record[..., :deter], record[..., deter:], action, record, products)


def today(
    rssm: world_model.RSSM, policy: PolicyHead, start: States, noise: DreamNoise, *, unroll: int
) -> Dream:
    """As an update dreams."""
    own = fused.replaced(rssm, fused.IN_KERNELS)
    return own.imagine(policy, start, noise, unroll=unroll)


CANDIDATES: dict[str, Callable[..., Dream]] = {
    "today": today,
    **{
        name: partial(imagine, cuts=cuts)
        for name, cuts in {
            "both": Cuts(),
            "both, stored": Cuts(stored=True),
            "both, stored, 32 rows": Cuts(chain=Tile(rows=32, columns=128, warps=8), stored=True),
            "recurrence": Cuts(chain=None),
            "recurrence, wide": Cuts(
                Tile(rows=128, columns=256, warps=8), Tile(rows=64, columns=128, warps=8), None
            ),
            "recurrence, tall": Cuts(
                Tile(rows=128, columns=128, warps=8, stages=4), Tile(rows=128, columns=64, warps=8), None
            ),
            "recurrence, small": Cuts(
                Tile(rows=64, columns=128, warps=4), Tile(rows=64, columns=32, warps=4, stages=4), None
            ),
            **{
                f"next h in CUDA, {parts} parts": Cuts(hidden=None, chain=None, cuda=parts)
                for parts in (1, 2, 4, 8)
            },
            "chain": Cuts(hidden=None),
            "chain, 4 warps": Cuts(hidden=None, chain=Tile(rows=16, columns=128, warps=4)),
            "chain, 32 rows": Cuts(hidden=None, chain=Tile(rows=32, columns=128, warps=8)),
            "chain, stored": Cuts(hidden=None, stored=True),
            "chain, stored, 32 rows": Cuts(
                hidden=None, chain=Tile(rows=32, columns=128, warps=8), stored=True
            ),
            "chain, stored, 64 rows": Cuts(
                hidden=None, chain=Tile(rows=64, columns=128, warps=8), stored=True
            ),
        }.items()
    },
}


@dataclasses.dataclass
class Options:
    """Options of the benchmark."""

    runs: tuple[int, ...] = (1, 8)
    """Runs in one program."""
    preset: tuple[str, ...] = ("12m", "gpu")
    """Presets of the agent."""
    only: tuple[str, ...] = tuple(CANDIDATES)
    """Candidates that are timed."""
    repeats: int = 9
    """Timed calls; their median is reported."""
    out: Path = dataclasses.field(default=Path("results"), repr=False)
    """Folder for the JSON."""


Inputs = tuple[world_model.RSSM, PolicyHead, States, DreamNoise]


def random_inputs(config: Config, key: Array) -> Inputs:
    """A fresh agent, states to dream from, and noise."""
    model = config.agent.model
    keys = jax.random.split(key, 5)
    states = config.replay.batch * config.replay.length
    dtype, shape = jnp.dtype(config.agent.compute), (states, model.stoch)
    z = jax.nn.one_hot(jax.random.randint(keys[0], shape, 0, model.classes), model.classes, dtype=dtype)
    h = jnp.tanh(jax.random.normal(keys[1], (states, model.deter))).astype(dtype)
    made = agent.init(config.agent, WALKER, keys[2]).model
    dreams = (config.agent.behavior.horizon, states)
    noise = DreamNoise(
        jax.random.uniform(keys[3], (*dreams, model.stoch)), made.policy.draw_noise(dreams, key=keys[4])
    )
    return made.world.dynamics, made.policy, States(h, z.reshape(states, -1)), noise


def program(config: AgentConfig, name: str, inputs: Any) -> Any:
    """A compiled program that dreams once."""
    dream = partial(CANDIDATES[name], unroll=config.unroll)
    return jax.jit(jax.vmap(dream)).lower(*inputs).compile()


def measure(compiled: Any, inputs: Inputs, repeats: int) -> dict[str, float]:
    """Milliseconds of a dream, for each run."""
    jax.block_until_ready(compiled(*inputs))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(8):
            out = compiled(*inputs)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - begin) / 8 * 1e3 / inputs[2].h.shape[0])
    return {"ms": statistics.median(times), "spread": max(times) - min(times)}


def main(options: Options) -> list[dict]:
    """Measure, print and write."""
    if unknown := set(options.only) - set(CANDIDATES):
        raise ConfigError(f"only: {min(unknown)!r} is no candidate; allowed are {', '.join(CANDIDATES)}")
    config = with_presets(Config(task="walker-walk"), options.preset)
    rows: list[dict] = []
    record = {"provenance": provenance(), "options": str(options), "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(len(options.only))
    for runs in options.runs:
        keys = jax.random.split(jax.random.key(0), runs)
        inputs = jax.jit(jax.vmap(partial(random_inputs, config)))(keys)
        made = {name: pool.submit(program, config.agent, name, inputs) for name in options.only}
        wait(made.values())  # compilers would take time from a dream that waits for the CPU
        reference = None
        for name in options.only:
            try:
                compiled = made[name].result()
                dream = compiled(*inputs)
                reference = dream if reference is None else reference
                # Where a class is drawn otherwise by rounding, that dream goes its own way.
                same = (dream.z[:, :1] == reference.z[:, :1]).all(-1).mean()
                found = {"same": float(same), **measure(compiled, inputs, options.repeats)}
            except Exception as error:  # of whatever kind: the others are timed
                found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
            rows.append({"runs": runs, "candidate": name, **found})
            print(json.dumps(rows[-1]), flush=True)
            (options.out / "dreams.json").write_text(json.dumps(record, indent=2) + "\n")
            if "failed" in found:
                next_h_in_cuda.libraries.stop_if_dead(name)
    return rows


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ConfigError as error:
        raise SystemExit(f"dreams.py: {error}") from None
