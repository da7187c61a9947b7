// All steps of the posterior in one kernel: what `gpld.fused._observe._run` computes. Three barriers a step:
//
//   read    h times all that reads it                                          | barrier
//   enter   posterior, classes, z through z_in, each cluster for itself;
//           a tile of the hidden layer, and its sums of squares                | barrier
//   follow  gates, and a tile of the next h                                    | barrier
//
#include "common.h"

using Read = Product<READ_TILES, READ_DEPTH / DEPTH>;
using Out = Product<LOGITS / WIDE, HIDDEN / DEPTH>;
using Inner = Product<MINE / WIDE, OWN / DEPTH>;
using Shared = Product<MINE / WIDE, BOTH / DEPTH>;
using Gates = Product<3 * MINE / WIDE, OWN / DEPTH>;

// Shared memory, in bytes.
constexpr int BLOCK_STRIDE = most(OWN, HIDDEN) + PAD, BOTH_STRIDE = BOTH + PAD;
constexpr int BLOCK_AT = 0;  // posterior's hidden layer; later the activated block
constexpr int BOTH_AT = BLOCK_AT + aligned(ROWS * BLOCK_STRIDE * sizeof(Half));
constexpr int ENTERED_AT = BOTH_AT + aligned(ROWS * BOTH_STRIDE * sizeof(Half));
constexpr int SUMS_AT = ENTERED_AT + aligned(ROWS * HIDDEN * sizeof(float));
constexpr int INNER_AT =
    SUMS_AT + most(most(Read::SUM_BYTES, Out::SUM_BYTES), most(Shared::SUM_BYTES, Gates::SUM_BYTES));
constexpr int H_AT = INNER_AT + Inner::SUM_BYTES;
constexpr int ACTION_AT = H_AT + aligned(ROWS * MINE * sizeof(float));
constexpr int UNIFORM_AT = ACTION_AT + aligned(ROWS * MINE * sizeof(Half));
constexpr int KEEP_AT = UNIFORM_AT + aligned(ROWS * VARIABLES * sizeof(float));
constexpr int CHOSEN_AT = KEEP_AT + aligned(ROWS * sizeof(float));
constexpr int VECTORS_AT = CHOSEN_AT + aligned(ROWS * STOCH);
// Vectors, in floats.
constexpr int FIRST_SCALE = 0, H_BIAS = HIDDEN, H_SCALE = 2 * HIDDEN, Z_BIAS = 3 * HIDDEN, Z_SCALE = 4 * HIDDEN;
constexpr int OUT_BIAS = 5 * HIDDEN, NORM_SCALE = OUT_BIAS + LOGITS, GATES_BIAS = NORM_SCALE + OWN;
constexpr int Z_IN_AT = VECTORS_AT + aligned((GATES_BIAS + 3 * MINE) * sizeof(float));
constexpr int WEIGHTS_AT = Z_IN_AT + aligned(Z * ENTERED * sizeof(Half));

// Scratch of a group, in bytes.
constexpr int PARTS_AT = COUNTER_BYTES, SQUARES_AT = PARTS_AT + PARTS * ROWS * BOTH * int(sizeof(float));
constexpr int X_AT = SQUARES_AT + aligned(ROWS * CTAS * sizeof(float));
constexpr int REST_AT = X_AT + aligned(ROWS * DETER * sizeof(Half));

// Last are those that may best be streamed: of `read`, whose other factor comes from L2 as well, and of `own`, which are
// multiplied while others are waited for.
using OutWeights = Weights<Out, Start<WEIGHTS_AT>>;
using GatesWeights = Weights<Gates, OutWeights>;
using SharedWeights = Weights<Shared, GatesWeights>;
using InnerWeights = Weights<Inner, SharedWeights>;
using ReadWeights = Weights<Read, InnerWeights>;
constexpr int SHARED_BYTES = RING ? SHARED_LIMIT : ReadWeights::KEPT_END, STREAMED = ReadWeights::STREAMED_END;
constexpr int SCRATCH = REST_AT + CTAS * STREAMED;
static_assert(WEIGHTS_AT <= RING_AT, "without room for any weight");

struct Given {
  const Half *h, *z_product;
  const float *keep;
  const Half *action, *e;
  const float *uniform;
  const Half *own, *shared, *gates, *first, *h_in, *z_in, *out;
  const float *h_bias, *h_scale, *z_bias, *z_scale, *norm_scale, *gates_bias, *first_scale, *out_bias;
  float unimix;
  int steps, batch;
  Half *h_out, *z_out;
  char *scratch;
  int scratch_bytes;
};

// Copies what is read in every step: each CTA its shares of the weights, and vectors.
GPU void load(const Cta &c, const Given &g, const Place &p) {
  size_t run = p.run;
  int reader = c.index % READERS * Read::WIDTH, from = c.index / READERS * READ_DEPTH;
  const Half *first = g.first + (run * DETER + from) * HIDDEN, *h_in = g.h_in + (run * DETER + from) * HIDDEN;
  ReadWeights::pack(c, [=](int k, int n) {
    n += reader;
    return n < HIDDEN ? first + k * HIDDEN + n : h_in + k * HIDDEN + n - HIDDEN;
  });
  int inside = p.column - p.block * OWN;
  const Half *own = g.own + (run * BLOCKS + p.block) * OWN * OWN + inside;
  InnerWeights::pack(c, [=](int k, int n) { return own + k * OWN + n; });
  const Half *out = g.out + run * HIDDEN * Z + c.rank * LOGITS;
  OutWeights::pack(c, [=](int k, int n) { return out + k * Z + n; });
  const Half *shared = g.shared + run * BOTH * DETER + p.column;
  SharedWeights::pack(c, [=](int k, int n) { return shared + k * DETER + n; });
  const Half *gates = g.gates + (run * BLOCKS + p.block) * OWN * 3 * OWN + inside;
  GatesWeights::pack(c, [=](int k, int n) { return gates + k * 3 * OWN + n / MINE * OWN + n % MINE; });

  const Half *z_in = g.z_in + run * Z * HIDDEN + c.rank * ENTERED;
  for (int i = c.thread; i < Z * ENTERED; i += THREADS)
    c.at<Half>(Z_IN_AT)[i] = z_in[i / ENTERED * HIDDEN + i % ENTERED];
  float *vectors = c.at<float>(VECTORS_AT);
  copy(c, g.first_scale + run * HIDDEN, vectors + FIRST_SCALE, HIDDEN);
  copy(c, g.h_bias + run * HIDDEN, vectors + H_BIAS, HIDDEN);
  copy(c, g.h_scale + run * HIDDEN, vectors + H_SCALE, HIDDEN);
  copy(c, g.z_bias + run * HIDDEN, vectors + Z_BIAS, HIDDEN);
  copy(c, g.z_scale + run * HIDDEN, vectors + Z_SCALE, HIDDEN);
  copy(c, g.out_bias + run * Z + c.rank * LOGITS, vectors + OUT_BIAS, LOGITS);
  copy(c, g.norm_scale + run * DETER + p.block * OWN, vectors + NORM_SCALE, OWN);
  for (int i = 0; i < 3; ++i)
    copy(c, g.gates_bias + (run * BLOCKS + p.block) * 3 * OWN + i * OWN + inside, vectors + GATES_BIAS + i * MINE, MINE);
  const Half *h = g.h + (run * p.batch + p.row) * DETER + p.column;
  for (int i = c.thread; i < ROWS * MINE; i += THREADS) c.at<float>(H_AT)[i] = wide(h[i / MINE * DETER + i % MINE]);
  sync(c);
  begin_stream(c);
}

// RMS norm and SiLU of 16 rows that `from(row, k)` gives.
template <int WIDTH, class From>
GPU void activate(const Cta &c, From from, const float *scale, Half *to, int stride) {
  by_row(c, [&](int row) {
    float x[WIDTH / LANES], squares = 0;
#pragma unroll
    for (int i = 0; i < WIDTH / LANES; ++i) x[i] = from(row, i * LANES + c.lane);
#pragma unroll
    for (int i = 0; i < WIDTH / LANES; ++i) squares += x[i] * x[i];
    float inverse = inverse_root(sum_of_lanes(squares) / WIDTH + NORM_EPS);
#pragma unroll
    for (int i = 0; i < WIDTH / LANES; ++i) {
      int k = i * LANES + c.lane;
      to[row * stride + k] = narrow(silu(x[i] * inverse * scale[k]));
    }
  });
}

// What `enter` will need and no other CTA makes.
GPU void fetch(const Cta &c, const Given &g, const Place &p, int t) {
  if (t > 0) {
    const float *uniform = p.step(g.uniform, t - 1, STOCH) + c.rank * VARIABLES;
    for (int i = c.thread; i < ROWS * VARIABLES; i += THREADS)
      c.at<float>(UNIFORM_AT)[i] = uniform[i / VARIABLES * STOCH + i % VARIABLES];
  }
  if (t == g.steps) return;
  const float *keep = p.step(g.keep, t, 1);
  for (int i = c.thread; i < ROWS; i += THREADS) c.at<float>(KEEP_AT)[i] = keep[i];
  const Half *action = p.step(g.action, t, DETER) + p.column;
  for (int i = c.thread; i < ROWS * MINE; i += THREADS)
    c.at<Half>(ACTION_AT)[i] = action[i / MINE * DETER + i % MINE];
}

// h through the rest of h_in.
GPU void enter_h(const Cta &c, const float *parts) {
  const float *vectors = c.at<float>(VECTORS_AT), *keep = c.at<float>(KEEP_AT);
  auto entered = [&](int row, int k) { return read_total(parts, row, HIDDEN + k) * keep[row] + vectors[H_BIAS + k]; };
  activate<HIDDEN>(c, entered, vectors + H_SCALE, c.at<Half>(BOTH_AT), BOTH_STRIDE);
}

// The classes of step t, in all of the cluster. Each of its CTAs draws some variables.
GPU void posterior(const Cta &c, const Given &g, const Place &p, const float *parts, int t) {
  const float *vectors = c.at<float>(VECTORS_AT);
  const Half *e = p.step(g.e, t, HIDDEN);
  auto first = [&](int row, int k) { return read_total(parts, row, k) + wide(e[row * HIDDEN + k]); };
  activate<HIDDEN>(c, first, vectors + FIRST_SCALE, c.at<Half>(BLOCK_AT), BLOCK_STRIDE);
  sync(c);
  float *sums = c.at<float>(SUMS_AT);
  OutWeights::run<false>(c, c.at<Half>(BLOCK_AT), BLOCK_STRIDE, sums);
  sync(c);
  for (int i = c.thread; i < ROWS * VARIABLES; i += THREADS) {
    int row = i % ROWS, variable = i / ROWS;
    float logits[CLASSES];
#pragma unroll
    for (int k = 0; k < CLASSES; ++k) {
      int column = variable * CLASSES + k;
      logits[k] = Out::total(sums, row, column) + vectors[OUT_BIAS + column];
    }
    int chosen = draw<CLASSES>(logits, c.at<float>(UNIFORM_AT)[row * VARIABLES + variable], g.unimix);
    uint8_t *to = c.at<uint8_t>(CHOSEN_AT) + row * STOCH + c.rank * VARIABLES + variable;
    for (int rank = 0; rank < CLUSTER; ++rank) *remote(c, to, rank) = uint8_t(chosen);
  }
}

// z as it is given back: every CTA knows all of it, and writes some columns.
GPU void record(const Cta &c, const Given &g, const Place &p, int t) {
  constexpr int COLUMNS = Z / CTAS;
  Half *z = p.step(g.z_out, t, Z);
  for (int i = c.thread; i < ROWS * COLUMNS; i += THREADS) {
    int row = i / COLUMNS, column = c.index * COLUMNS + i % COLUMNS;
    int chosen = c.at<uint8_t>(CHOSEN_AT)[row * STOCH + column / CLASSES];
    z[row * Z + column] = narrow(chosen == column % CLASSES ? 1.0f : 0.0f);
  }
}

// z times z_in, in all of the cluster: the rows of the classes that were drawn.
GPU void enter_z(const Cta &c, const Given &g, const Place &p, int t) {
  const Half *z_in = c.at<Half>(Z_IN_AT), *start = g.z_product + (size_t(p.run) * p.batch + p.row) * HIDDEN;
  for (int i = c.thread; i < ROWS * ENTERED / 2; i += THREADS) {
    int row = i / (ENTERED / 2), column = i % (ENTERED / 2) * 2, to = row * HIDDEN + c.rank * ENTERED + column;
    float left = 0, right = 0;
    if (t == 0) {
      left = wide(start[to]), right = wide(start[to + 1]);
    } else {
      const uint8_t *chosen = c.at<uint8_t>(CHOSEN_AT) + row * STOCH;
#pragma unroll 8
      for (int k = 0; k < STOCH; ++k) {
        Two weights = *reinterpret_cast<const Two *>(z_in + (k * CLASSES + chosen[k]) * ENTERED + column);
        left += wide(weights.v[0]), right += wide(weights.v[1]);
      }
    }
    float *entered = c.at<float>(ENTERED_AT) + to;
    for (int rank = 0; rank < CLUSTER; ++rank) {
      float *there = remote(c, entered, rank);
      there[0] = left, there[1] = right;
    }
  }
  if (t > 0) record(c, g, p, t - 1);
  sync_cluster(c);
}

// A tile of the hidden layer before its norm, and its sums of squares.
GPU void hidden(const Cta &c, const Place &p, Half *x, float *squares) {
  const float *vectors = c.at<float>(VECTORS_AT), *keep = c.at<float>(KEEP_AT), *entered = c.at<float>(ENTERED_AT);
  Half *both = c.at<Half>(BOTH_AT);
  auto from_z = [&](int row, int k) { return entered[row * HIDDEN + k] * keep[row] + vectors[Z_BIAS + k]; };
  activate<HIDDEN>(c, from_z, vectors + Z_SCALE, both + HIDDEN, BOTH_STRIDE);
  sync(c);
  float *sums = c.at<float>(SUMS_AT), *inner = c.at<float>(INNER_AT);
  SharedWeights::run<false>(c, both, BOTH_STRIDE, sums);
  sync(c);
  by_row(c, [&](int row) {
    float total = 0;
    for (int column = c.lane; column < MINE; column += LANES) {
      float value = Inner::total(inner, row, column) * keep[row] + Shared::total(sums, row, column);
      value += wide(c.at<Half>(ACTION_AT)[row * MINE + column]);
      x[row * DETER + p.column + column] = narrow(value);
      total += value * value;
    }
    total = sum_of_lanes(total);
    if (c.lane == 0) squares[row * CTAS + c.index] = total;
  });
}

// A tile of the next h, from the block of the hidden layer that it reads.
GPU void follow(const Cta &c, const Place &p, const Half *x, const float *squares, Half *h) {
  const float *vectors = c.at<float>(VECTORS_AT), *keep = c.at<float>(KEEP_AT);
  Half *block = c.at<Half>(BLOCK_AT);
  by_row(c, [&](int row) {
    float value[OWN / LANES], total = 0;
#pragma unroll
    for (int i = 0; i < OWN / LANES; ++i) value[i] = wide(fresh(x + row * DETER + p.block * OWN + i * LANES + c.lane));
    for (int i = c.lane; i < CTAS; i += LANES) total += fresh(squares + row * CTAS + i);
    float inverse = inverse_root(sum_of_lanes(total) / DETER + NORM_EPS);
#pragma unroll
    for (int i = 0; i < OWN / LANES; ++i) {
      int k = i * LANES + c.lane;
      block[row * BLOCK_STRIDE + k] = narrow(silu(value[i] * inverse * vectors[NORM_SCALE + k]));
    }
  });
  sync(c);
  float *sums = c.at<float>(SUMS_AT);
  GatesWeights::run<false>(c, block, BLOCK_STRIDE, sums);
  sync(c);
  for (int i = c.thread; i < ROWS * MINE; i += THREADS) {
    int row = i / MINE, column = i % MINE;
    float gate[3];
#pragma unroll
    for (int j = 0; j < 3; ++j)
      gate[j] = Gates::total(sums, row, j * MINE + column) + vectors[GATES_BIAS + j * MINE + column];
    float *before = c.at<float>(H_AT) + i;
    float candidate = 2 * sigmoid(2 * sigmoid(gate[0]) * gate[1]) - 1, update = sigmoid(gate[2] - 1);
    Half after = narrow(update * candidate + (1 - update) * (*before * keep[row]));
    h[row * DETER + p.column + column] = after;
    *before = wide(after);
  }
}

GPU void observe(Cta &c, const Given &g) {
  Place p = place(c, g.steps, g.batch);
  char *scratch = g.scratch + size_t(c.group) * SCRATCH;
  float *parts = reinterpret_cast<float *>(scratch + PARTS_AT), *squares = reinterpret_cast<float *>(scratch + SQUARES_AT);
  Half *x = reinterpret_cast<Half *>(scratch + X_AT);
  int part = c.index / READERS, reader = c.index % READERS * Read::WIDTH;
  c.rest = scratch + REST_AT + size_t(c.index) * STREAMED;
  load(c, g, p);
  for (int t = 0; t <= g.steps; ++t) {
    const Half *h = t ? p.step(g.h_out, t - 1, DETER) : g.h + (size_t(p.run) * g.batch + p.row) * DETER;
    float *sums = c.at<float>(SUMS_AT);
    ReadWeights::run<true>(c, h + part * READ_DEPTH, DETER, sums);
    sync(c);
    for (int i = c.thread; i < ROWS * Read::WIDTH; i += THREADS) {
      int row = i / Read::WIDTH, n = i % Read::WIDTH;
      parts[(part * ROWS + row) * BOTH + reader + n] = Read::total(sums, row, n);
    }
    arrive(c);
    fetch(c, g, p, t);
    if (t < g.steps) InnerWeights::run<true>(c, h + p.block * OWN, DETER, c.at<float>(INNER_AT));
    else InnerWeights::skip(c);
    wait(c);
    if (t > 0) posterior(c, g, p, parts, t - 1);
    else OutWeights::skip(c);
    if (t < g.steps) enter_h(c, parts);  // by warps that draw nothing, at the same time
    sync_cluster(c);
    if (t == g.steps) {
      record(c, g, p, t - 1);
      break;
    }
    enter_z(c, g, p, t);
    hidden(c, p, x, squares);
    arrive(c);
    wait(c);
    follow(c, p, x, squares, p.step(g.h_out, t, DETER));
    arrive(c);
    wait(c);
  }
  end_stream(c);
}

extern "C" int observe_scratch() { return SCRATCH; }
extern "C" int observe_shared() { return SHARED_BYTES; }
extern "C" int observe_streamed() { return STREAMED; }

static ffi::Error call(STREAM float unimix, int32_t steps, int32_t batch, ffi::RemainingArgs args,
                       ffi::RemainingRets results) {
  Arguments a{args, results};
  Given g;
  size_t all = a.count() / DETER, wide = all / batch, every = all * steps;
  g.h = a.next<Half>("h", all * DETER);
  g.z_product = a.next<Half>("z_product", all * HIDDEN);
  g.keep = a.next<float>("keep", every);
  g.action = a.next<Half>("action", every * DETER);
  g.e = a.next<Half>("e", every * HIDDEN);
  g.uniform = a.next<float>("uniform", every * STOCH);
  g.own = a.next<Half>("own", wide * DETER * OWN);
  g.shared = a.next<Half>("shared", wide * BOTH * DETER);
  g.gates = a.next<Half>("gates", wide * DETER * 3 * OWN);
  g.first = a.next<Half>("first", wide * DETER * HIDDEN);
  g.h_in = a.next<Half>("h_in", wide * DETER * HIDDEN);
  g.z_in = a.next<Half>("z_in", wide * Z * HIDDEN);
  g.out = a.next<Half>("out", wide * HIDDEN * Z);
  g.h_bias = a.next<float>("h_bias", wide * HIDDEN);
  g.h_scale = a.next<float>("h_scale", wide * HIDDEN);
  g.z_bias = a.next<float>("z_bias", wide * HIDDEN);
  g.z_scale = a.next<float>("z_scale", wide * HIDDEN);
  g.norm_scale = a.next<float>("norm_scale", wide * DETER);
  g.gates_bias = a.next<float>("gates_bias", wide * 3 * DETER);
  g.first_scale = a.next<float>("first_scale", wide * HIDDEN);
  g.out_bias = a.next<float>("out_bias", wide * Z);
  int groups = int(all / ROWS);
  g.h_out = a.result<Half>("hs", every * DETER * sizeof(Half));
  g.z_out = a.result<Half>("zs", every * Z * sizeof(Half));
  g.scratch = a.result<char>("scratch", size_t(groups) * SCRATCH);
  if (batch % ROWS) a.wrong = "batch";
  if (!a.wrong.empty()) return ffi::Error::InvalidArgument(a.wrong + " has another size or type");
  g.unimix = unimix, g.steps = steps, g.batch = batch, g.scratch_bytes = SCRATCH;
  return launch<Given, observe>(ON_STREAM g, groups, SHARED_BYTES);
}

#ifdef __CUDACC__
static cudaError_t prepare() { return make_room<Given, observe>(SHARED_BYTES); }
#endif
HANDLER(observe, NO_GRAPHS, .Attr<float>("unimix").Attr<int32_t>("steps").Attr<int32_t>("batch"));
