"""The kernel of `compare.py` in Triton's language."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """The logistic function."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def follow(reset, candidate, update, before):
    """The next h from the gates before their nonlinearities."""
    candidate = 2.0 * sigmoid(2.0 * sigmoid(reset) * candidate) - 1.0
    update = sigmoid(update - 1.0)
    return update * candidate + (1.0 - update) * before


@triton.jit
def next_h(
    x,
    weight,
    bias,
    h,
    count,
    blocks,
    rows_out,
    blocks_out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    OWN: tl.constexpr,
):
    """The next h of a tile of states and columns, written as rows and by blocks."""
    run = tl.program_id(2)
    steps: tl.constexpr = OWN // COLUMNS
    g = tl.program_id(1) // steps
    j = tl.program_id(1) % steps
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = j * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    block = run * blocks + g
    xs = x + (block * count + n)[:, None] * OWN + k[None]
    ws = weight + block * (3 * OWN * OWN) + k[:, None] * (3 * OWN) + c[None]
    reset = tl.zeros((ROWS, COLUMNS), tl.float32)
    candidate = tl.zeros((ROWS, COLUMNS), tl.float32)
    update = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, OWN, DEPTH):
        a = tl.load(xs)
        reset = tl.dot(a, tl.load(ws), reset)
        candidate = tl.dot(a, tl.load(ws + OWN), candidate)
        update = tl.dot(a, tl.load(ws + 2 * OWN), update)
        xs += DEPTH
        ws += DEPTH * 3 * OWN
    bs = bias + block * 3 * OWN + c
    reset += tl.load(bs)[None]
    candidate += tl.load(bs + OWN)[None]
    update += tl.load(bs + 2 * OWN)[None]
    at = (run * count + n)[:, None] * (blocks * OWN) + (g * OWN + c)[None]
    before = tl.load(h + at).to(tl.float32)
    after = follow(reset, candidate, update, before).to(rows_out.dtype.element_ty)
    tl.store(rows_out + at, after)
    tl.store(blocks_out + (block * count + n)[:, None] * OWN + c[None], after)


@triton.jit
def next_h_kept(
    x,
    weight,
    bias,
    h,
    count,
    blocks,
    rows_out,
    blocks_out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
    OWN: tl.constexpr,
):
    """The same of many tiles of states, past which the weights of some columns are kept."""
    run = tl.program_id(2)
    steps: tl.constexpr = OWN // COLUMNS
    g = tl.program_id(1) // steps
    j = tl.program_id(1) % steps
    c = j * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, OWN)
    block = run * blocks + g
    ws = weight + block * (3 * OWN * OWN) + k[:, None] * (3 * OWN) + c[None]
    w_reset = tl.load(ws)
    w_candidate = tl.load(ws + OWN)
    w_update = tl.load(ws + 2 * OWN)
    bs = bias + block * 3 * OWN + c
    b_reset = tl.load(bs)
    b_candidate = tl.load(bs + OWN)
    b_update = tl.load(bs + 2 * OWN)
    for i in tl.range(0, TILES, num_stages=STAGES):
        n = (tl.program_id(0) * TILES + i) * ROWS + tl.arange(0, ROWS)
        a = tl.load(x + (block * count + n)[:, None] * OWN + k[None])
        at = (run * count + n)[:, None] * (blocks * OWN) + (g * OWN + c)[None]
        before = tl.load(h + at).to(tl.float32)
        reset = tl.dot(a, w_reset) + b_reset[None]
        candidate = tl.dot(a, w_candidate) + b_candidate[None]
        update = tl.dot(a, w_update) + b_update[None]
        after = follow(reset, candidate, update, before).to(rows_out.dtype.element_ty)
        tl.store(rows_out + at, after)
        tl.store(blocks_out + (block * count + n)[:, None] * OWN + c[None], after)
