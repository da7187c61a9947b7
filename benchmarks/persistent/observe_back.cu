// The gradient through all steps in one kernel: what `gpld.fused._observe._run_back` computes. Three barriers a step:
//
//   draw    from z through the posterior, each cluster for itself; a tile of h; its gates    | barrier
//   gates   a tile of the normed hidden layer, and its product with the norm's direction     | barrier
//   shared  that tile towards h_in and z_in                                                  | barrier
//   enter   a tile of the h before, and a cluster's share of the z before
//
// The norm of the hidden layer takes away a multiple of its direction, after a sum over the whole row. Products
// with the direction are known for all steps beforehand, so what needs the sum is taken away after the products.
#include "common.h"

static_assert(ENTERED % WIDE == 0 && CLASSES % 8 == 0);

using Out = Product<ENTERED / WIDE, Z / DEPTH>;
using First = Product<MINE / WIDE, HIDDEN / DEPTH>;
using Gates = Product<MINE / WIDE, 3 * OWN / DEPTH>;
using Shared = Product<READ_TILES, READ_DEPTH / DEPTH>;
using Inner = Product<MINE / WIDE, OWN / DEPTH>;
using HIn = Product<MINE / WIDE, HIDDEN / DEPTH>;
using ZIn = Product<LOGITS / WIDE, HIDDEN / DEPTH>;

// What is given for a tile of h, in the order of the arrays below.
enum Tile { DH, RESET, CANDIDATE, UPDATE, LAST, SLOPE, UNIT, TILES };

// Shared memory, in bytes.
constexpr int Z_STRIDE = Z + PAD, HIDDEN_STRIDE = HIDDEN + PAD, MANY = ROWS * MINE, CODE = ROWS * LOGITS;
constexpr int DLOGITS_AT = 0;
constexpr int DACTIVE_AT = DLOGITS_AT + aligned(ROWS * Z_STRIDE * sizeof(Half));
constexpr int H_ROWS_AT = DACTIVE_AT + aligned(ROWS * HIDDEN * sizeof(float));
constexpr int Z_ROWS_AT = H_ROWS_AT + aligned(ROWS * HIDDEN_STRIDE * sizeof(Half));
constexpr int SUMS_AT = Z_ROWS_AT + aligned(ROWS * HIDDEN_STRIDE * sizeof(Half));
constexpr int SUMS_BYTES = most(most(most(Out::SUM_BYTES, First::SUM_BYTES), most(Gates::SUM_BYTES, Shared::SUM_BYTES)),
                                HIn::SUM_BYTES);
constexpr int Z_SUMS_AT = SUMS_AT + SUMS_BYTES, INNER_AT = Z_SUMS_AT + ZIn::SUM_BYTES;
constexpr int TILES_AT = INNER_AT + Inner::SUM_BYTES;
constexpr int ALONG_TILE_AT = TILES_AT + aligned(TILES * MANY * sizeof(Half));  // of own with the direction
constexpr int PROBS_AT = ALONG_TILE_AT + aligned(MANY * sizeof(float));
constexpr int OUTER_Z_AT = PROBS_AT + aligned(CODE * sizeof(float));
constexpr int OUTER_LOGITS_AT = OUTER_Z_AT + aligned(CODE * sizeof(Half));
constexpr int LATER_H_AT = OUTER_LOGITS_AT + aligned(CODE * sizeof(Half));
constexpr int LATER_Z_AT = LATER_H_AT + aligned(MANY * sizeof(float));
constexpr int DLAST_AT = LATER_Z_AT + aligned(CODE * sizeof(float));
constexpr int KEEP_AT = DLAST_AT + aligned(MANY * sizeof(float));
constexpr int INVERSE_AT = KEEP_AT + aligned(ROWS * sizeof(float)), MEAN_AT = INVERSE_AT + aligned(ROWS * sizeof(float));
constexpr int WEIGHTS_AT = MEAN_AT + aligned(ROWS * sizeof(float));

// Scratch of a group, in bytes.
constexpr int PARTS_AT = COUNTER_BYTES, ALONG_AT = PARTS_AT + PARTS * ROWS * BOTH * int(sizeof(float));
constexpr int DGATES_AT = ALONG_AT + aligned(ROWS * CTAS * sizeof(float));
constexpr int DUNIT_AT = DGATES_AT + aligned(ROWS * 3 * DETER * sizeof(Half));
constexpr int REST_AT = DUNIT_AT + aligned(ROWS * DETER * sizeof(Half));

using OutWeights = Weights<Out, Start<WEIGHTS_AT>>;
using ZInWeights = Weights<ZIn, OutWeights>;
using FirstWeights = Weights<First, ZInWeights>;
using HInWeights = Weights<HIn, FirstWeights>;
using SharedWeights = Weights<Shared, HInWeights>;
using InnerWeights = Weights<Inner, SharedWeights>;
using GatesWeights = Weights<Gates, InnerWeights>;
constexpr int SHARED_BYTES = RING ? SHARED_LIMIT : GatesWeights::KEPT_END, STREAMED = GatesWeights::STREAMED_END;
constexpr int SCRATCH = REST_AT + CTAS * STREAMED;
static_assert(WEIGHTS_AT <= RING_AT, "without room for any weight");

// Of RMS norm and SiLU, at one input.
struct NormSlope {
  const Half *slope, *unit;
  const float *inverse;
};

struct Given {
  const float *keep;
  const Half *outer_h, *outer_z, *outer_first, *outer_logits;
  const float *probs;
  const Half *gates[3], *last;
  NormSlope norm, posterior, h_in, z_in;
  const float *own_along, *shared_along;  // the direction of the norm times `own` and `shared`
  const Half *out, *first, *gates_weight, *own, *shared, *h_weight, *z_weight;
  float unimix;
  int steps, batch;
  Half *h_out, *z_out;
  char *scratch;
  int scratch_bytes;
};

GPU void load(const Cta &c, const Given &g, const Place &p) {
  size_t run = p.run;
  const Half *out = g.out + (run * HIDDEN + c.rank * ENTERED) * Z;
  OutWeights::pack(c, [=](int k, int n) { return out + n * Z + k; });
  const Half *first = g.first + (run * DETER + p.column) * HIDDEN, *h_in = g.h_weight + (run * DETER + p.column) * HIDDEN;
  FirstWeights::pack(c, [=](int k, int n) { return first + n * HIDDEN + k; });
  // Blocks of `own` and `gates` lie one below the other, and so their rows are as many as h has columns.
  const Half *own = g.own + (run * DETER + p.column) * OWN, *gates = g.gates_weight + (run * DETER + p.column) * 3 * OWN;
  GatesWeights::pack(c, [=](int k, int n) { return gates + n * 3 * OWN + k; });
  int reader = c.index % READERS * Shared::WIDTH, from = c.index / READERS * READ_DEPTH;
  const Half *shared = g.shared + (run * BOTH + reader) * DETER + from;
  SharedWeights::pack(c, [=](int k, int n) { return shared + n * DETER + k; });
  InnerWeights::pack(c, [=](int k, int n) { return own + n * OWN + k; });
  HInWeights::pack(c, [=](int k, int n) { return h_in + n * HIDDEN + k; });
  const Half *z_in = g.z_weight + (run * Z + c.rank * LOGITS) * HIDDEN;
  ZInWeights::pack(c, [=](int k, int n) { return z_in + n * HIDDEN + k; });
  for (int i = c.thread; i < MANY; i += THREADS) c.at<float>(LATER_H_AT)[i] = 0;
  for (int i = c.thread; i < CODE; i += THREADS) c.at<float>(LATER_Z_AT)[i] = 0;
}

// RMS norm and SiLU backwards, of rows that are a warp's. What is given is loaded before it is needed.
struct Rows {
  static constexpr int EACH = HIDDEN / LANES, TURNS = ROWS / WARPS;
  float slope[TURNS][EACH], unit[TURNS][EACH], inverse[TURNS];

  GPU void load(const Cta &c, const Place &p, const NormSlope &from, int t) {
    const Half *slopes = p.step(from.slope, t, HIDDEN), *units = p.step(from.unit, t, HIDDEN);
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      int row = c.warp + turn * WARPS;
      inverse[turn] = p.step(from.inverse, t, 1)[row];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        slope[turn][i] = wide(slopes[row * HIDDEN + i * LANES + c.lane]);
        unit[turn][i] = wide(units[row * HIDDEN + i * LANES + c.lane]);
      }
    }
  }
  // From a gradient by the activations to that by the input, plus `more`.
  template <class From, class More>
  GPU void through(const Cta &c, From from, More more, Half *to) const {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      int row = c.warp + turn * WARPS;
      float x[EACH], along = 0;
#pragma unroll
      for (int i = 0; i < EACH; ++i) x[i] = from(row, i * LANES + c.lane) * slope[turn][i];
#pragma unroll
      for (int i = 0; i < EACH; ++i) along += x[i] * unit[turn][i];
      along = sum_of_lanes(along) / HIDDEN;
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        int k = i * LANES + c.lane;
        to[row * HIDDEN_STRIDE + k] = narrow(inverse[turn] * (x[i] - unit[turn][i] * along) + more(row, k));
      }
    }
  }
};

// What step t reads first, into memory that step t + 1 reads no more.
GPU void fetch(const Cta &c, const Given &g, const Place &p, int t) {
  const float *probs = p.step(g.probs, t, Z) + c.rank * LOGITS;
  const Half *dz = p.step(g.outer_z, t, Z) + c.rank * LOGITS, *dlogits = p.step(g.outer_logits, t, Z) + c.rank * LOGITS;
  for (int i = c.thread; i < CODE; i += THREADS) {
    int at = i / LOGITS * Z + i % LOGITS;
    float prob = probs[at];
    Half by_z = dz[at], by_logits = dlogits[at];
    c.at<float>(PROBS_AT)[i] = prob;
    c.at<Half>(OUTER_Z_AT)[i] = by_z;
    c.at<Half>(OUTER_LOGITS_AT)[i] = by_logits;
  }
  const Half *all[] = {p.step(g.outer_h, t, DETER),  p.step(g.gates[0], t, DETER), p.step(g.gates[1], t, DETER),
                       p.step(g.gates[2], t, DETER), p.step(g.last, t, DETER)};
  for (int i = c.thread; i < MANY; i += THREADS) {
    int at = i / MINE * DETER + p.column + i % MINE;
    Half values[5];
#pragma unroll
    for (int j = 0; j < 5; ++j) values[j] = all[j][at];
#pragma unroll
    for (int j = 0; j < 5; ++j) c.at<Half>(TILES_AT)[j * MANY + i] = values[j];
  }
}

// And what it reads later.
GPU void fetch_norm(const Cta &c, const Given &g, const Place &p, int t) {
  const Half *slope = p.step(g.norm.slope, t, DETER), *unit = p.step(g.norm.unit, t, DETER);
  for (int i = c.thread; i < MANY; i += THREADS) {
    int at = i / MINE * DETER + p.column + i % MINE;
    Half values[] = {slope[at], unit[at]};
    c.at<Half>(TILES_AT)[SLOPE * MANY + i] = values[0];
    c.at<Half>(TILES_AT)[UNIT * MANY + i] = values[1];
  }
}
GPU void fetch_along(const Cta &c, const Given &g, const Place &p, int t) {
  const float *along = p.step(g.own_along, t, DETER) + p.column;
  for (int i = c.thread; i < MANY; i += THREADS) c.at<float>(ALONG_TILE_AT)[i] = along[i / MINE * DETER + i % MINE];
  for (int i = c.thread; i < ROWS; i += THREADS) {
    c.at<float>(KEEP_AT)[i] = p.step(g.keep, t, 1)[i];
    c.at<float>(INVERSE_AT)[i] = p.step(g.norm.inverse, t, 1)[i];
  }
}

// The gradient by logits, of a CTA's variables, to all of the cluster.
GPU void undraw(const Cta &c, const Given &g) {
  const float *all_probs = c.at<float>(PROBS_AT), *all_later = c.at<float>(LATER_Z_AT);
  for (int i = c.thread; i < ROWS * VARIABLES; i += THREADS) {
    int row = i % ROWS, from = row * LOGITS + i / ROWS * CLASSES;
    float by_class[CLASSES], mean = 0;
#pragma unroll
    for (int k = 0; k < CLASSES; ++k) {
      by_class[k] = wide(c.at<Half>(OUTER_Z_AT)[from + k]) + all_later[from + k];
      mean += all_probs[from + k] * by_class[k];
    }
    Eight total[CLASSES / 8];
#pragma unroll
    for (int k = 0; k < CLASSES; ++k) {
      float by_logit = (1 - g.unimix) * all_probs[from + k] * (by_class[k] - mean);
      total[k / 8].v[k % 8] = narrow(wide(c.at<Half>(OUTER_LOGITS_AT)[from + k]) + by_logit);
    }
    Half *to = c.at<Half>(DLOGITS_AT) + row * Z_STRIDE + c.rank * LOGITS + i / ROWS * CLASSES;
    for (int rank = 0; rank < CLUSTER; ++rank) {
      Eight *there = reinterpret_cast<Eight *>(remote(c, to, rank));
#pragma unroll
      for (int k = 0; k < CLASSES / 8; ++k) there[k] = total[k];
    }
  }
}

// The gradient by the posterior's hidden layer, in all of the cluster; by its input, as a factor.
GPU void posterior(const Cta &c, const Given &g, const Place &p, int t) {
  Rows rows;
  rows.load(c, p, g.posterior, t);
  undraw(c, g);
  sync_cluster(c);
  float *sums = c.at<float>(SUMS_AT);
  OutWeights::run<false>(c, c.at<Half>(DLOGITS_AT), Z_STRIDE, sums);
  sync(c);
  for (int i = c.thread; i < ROWS * ENTERED; i += THREADS) {
    int row = i / ENTERED, n = i % ENTERED;
    float *to = c.at<float>(DACTIVE_AT) + row * HIDDEN + c.rank * ENTERED + n, value = Out::total(sums, row, n);
    for (int rank = 0; rank < CLUSTER; ++rank) *remote(c, to, rank) = value;
  }
  const Half *outer = p.step(g.outer_first, t, HIDDEN);
  sync_cluster(c);
  auto from = [&](int row, int k) { return c.at<float>(DACTIVE_AT)[row * HIDDEN + k]; };
  auto more = [&](int row, int k) { return wide(outer[row * HIDDEN + k]); };
  rows.through(c, from, more, c.at<Half>(H_ROWS_AT));
  sync(c);
}

// A tile of the gradient by h, and so by the gates.
GPU void by_gates(const Cta &c, const Place &p, Half *dgates) {
  float *sums = c.at<float>(SUMS_AT);
  FirstWeights::run<false>(c, c.at<Half>(H_ROWS_AT), HIDDEN_STRIDE, sums);
  sync(c);
  const Half *tiles = c.at<Half>(TILES_AT);
  for (int i = c.thread; i < MANY; i += THREADS) {
    int row = i / MINE, column = i % MINE;
    float total = First::total(sums, row, column) + wide(tiles[DH * MANY + i]) + c.at<float>(LATER_H_AT)[i];
    Half *to = dgates + row * 3 * DETER + p.block * 3 * OWN + p.column % OWN + column;
#pragma unroll
    for (int j = 0; j < 3; ++j) to[j * OWN] = narrow(total * wide(tiles[(RESET + j) * MANY + i]));
    c.at<float>(DLAST_AT)[i] = total * wide(tiles[LAST * MANY + i]);
  }
}

// A tile of the gradient by the normed hidden layer, and its part along the norm's direction.
GPU void by_unit(const Cta &c, const Place &p, const Half *dgates, Half *dunit, float *along) {
  float *sums = c.at<float>(SUMS_AT);
  GatesWeights::run<true>(c, dgates + p.block * 3 * OWN, 3 * DETER, sums);
  sync(c);
  const Half *tiles = c.at<Half>(TILES_AT);
  by_row(c, [&](int row) {
    float part = 0;
    for (int column = c.lane; column < MINE; column += LANES) {
      int i = row * MINE + column;
      float value = Gates::total(sums, row, column) * wide(tiles[SLOPE * MANY + i]);
      dunit[row * DETER + p.column + column] = narrow(value);
      part += value * wide(tiles[UNIT * MANY + i]);
    }
    part = sum_of_lanes(part);
    if (c.lane == 0) along[row * CTAS + c.index] = part;
  });
}

// A part of a product with `shared`, then what needs no other CTA's.
GPU void by_shared(Cta &c, const Given &g, const Place &p, const Half *dunit, const float *along, float *parts, int t) {
  int part = c.index / READERS, reader = c.index % READERS * Shared::WIDTH;
  float *sums = c.at<float>(SUMS_AT);
  SharedWeights::run<true>(c, dunit + part * READ_DEPTH, DETER, sums);
  sync(c);
  for (int i = c.thread; i < ROWS * Shared::WIDTH; i += THREADS) {
    int row = i / Shared::WIDTH, n = i % Shared::WIDTH;
    parts[(part * ROWS + row) * BOTH + reader + n] = Shared::total(sums, row, n);
  }
  arrive(c);
  InnerWeights::run<true>(c, dunit + p.block * OWN, DETER, c.at<float>(INNER_AT));
  by_row(c, [&](int row) {
    float total = 0;
    for (int i = c.lane; i < CTAS; i += LANES) total += fresh(along + row * CTAS + i);
    total = sum_of_lanes(total) / DETER;
    if (c.lane == 0) c.at<float>(MEAN_AT)[row] = total;
  });
  if (t > 0) fetch_norm(c, g, p, t - 1);
}

// Gradients by the h and z before: a tile of the one, a cluster's share of the other.
GPU void before(Cta &c, const Given &g, const Place &p, const float *parts, int t) {
  Rows from_h, from_z;
  from_h.load(c, p, g.h_in, t);
  from_z.load(c, p, g.z_in, t);
  wait(c);
  const float *inverse = c.at<float>(INVERSE_AT), *mean = c.at<float>(MEAN_AT), *keep = c.at<float>(KEEP_AT);
  const float *shared = p.step(g.shared_along, t, BOTH);
  auto by_h = [&](int row, int k) { return inverse[row] * (read_total(parts, row, k) - mean[row] * shared[row * BOTH + k]); };
  auto by_z = [&](int row, int k) { return by_h(row, HIDDEN + k); };
  auto nothing = [](int, int) { return 0.0f; };
  from_h.through(c, by_h, nothing, c.at<Half>(H_ROWS_AT));
  from_z.through(c, by_z, nothing, c.at<Half>(Z_ROWS_AT));
  sync(c);
  float *sums = c.at<float>(SUMS_AT), *z_sums = c.at<float>(Z_SUMS_AT), *inner = c.at<float>(INNER_AT);
  HInWeights::run<false>(c, c.at<Half>(H_ROWS_AT), HIDDEN_STRIDE, sums);
  ZInWeights::run<false>(c, c.at<Half>(Z_ROWS_AT), HIDDEN_STRIDE, z_sums);
  sync(c);
  Half *dh = p.step(g.h_out, t, DETER) + p.column, *dz = p.step(g.z_out, t, Z) + c.rank * LOGITS;
  for (int i = c.thread; i < MANY; i += THREADS) {
    int row = i / MINE, column = i % MINE;
    float own = inverse[row] * (Inner::total(inner, row, column) - mean[row] * c.at<float>(ALONG_TILE_AT)[i]);
    Half total = narrow((HIn::total(sums, row, column) + own + c.at<float>(DLAST_AT)[i]) * keep[row]);
    dh[row * DETER + column] = total;
    c.at<float>(LATER_H_AT)[i] = wide(total);
  }
  for (int i = c.thread; i < CODE; i += THREADS) {
    int row = i / LOGITS, column = i % LOGITS;
    Half total = narrow(ZIn::total(z_sums, row, column) * keep[row]);
    c.at<float>(LATER_Z_AT)[i] = wide(total);
    // Every cluster has it, and writes some rows.
    if (row % (CTAS / CLUSTER) == c.index / CLUSTER) dz[row * Z + column] = total;
  }
  sync(c);
}

GPU void observe_back(Cta &c, const Given &g) {
  Place p = place(c, g.steps, g.batch);
  char *scratch = g.scratch + size_t(c.group) * SCRATCH;
  float *parts = reinterpret_cast<float *>(scratch + PARTS_AT), *along = reinterpret_cast<float *>(scratch + ALONG_AT);
  Half *dgates = reinterpret_cast<Half *>(scratch + DGATES_AT), *dunit = reinterpret_cast<Half *>(scratch + DUNIT_AT);
  c.rest = scratch + REST_AT + size_t(c.index) * STREAMED;
  load(c, g, p);
  fetch(c, g, p, g.steps - 1);
  fetch_norm(c, g, p, g.steps - 1);
  // No CTA writes to another's memory before that runs.
  sync_cluster(c);
  begin_stream(c);
  for (int t = g.steps - 1; t >= 0; --t) {
    posterior(c, g, p, t);
    by_gates(c, p, dgates);
    arrive(c);
    if (t > 0) fetch(c, g, p, t - 1);
    wait(c);
    by_unit(c, p, dgates, dunit, along);
    arrive(c);
    fetch_along(c, g, p, t);
    wait(c);
    by_shared(c, g, p, dunit, along, parts, t);
    before(c, g, p, parts, t);
  }
  end_stream(c);
}

extern "C" int observe_back_scratch() { return SCRATCH; }
extern "C" int observe_back_shared() { return SHARED_BYTES; }
extern "C" int observe_back_streamed() { return STREAMED; }

static ffi::Error call(STREAM float unimix, int32_t steps, int32_t batch, ffi::RemainingArgs args,
                       ffi::RemainingRets results) {
  Arguments a{args, results};
  Given g;
  size_t every = a.count(), all = every / steps, wide = all / batch;
  auto slope = [&](const char *name, int width) {
    NormSlope found;
    found.slope = a.next<Half>(name, every * width);
    found.unit = a.next<Half>(name, every * width);
    found.inverse = a.next<float>(name, every);
    return found;
  };
  g.keep = a.next<float>("keep", every);
  g.outer_h = a.next<Half>("h", every * DETER);
  g.outer_z = a.next<Half>("z", every * Z);
  g.outer_first = a.next<Half>("first", every * HIDDEN);
  g.outer_logits = a.next<Half>("logits", every * Z);
  g.probs = a.next<float>("probs", every * Z);
  for (auto &gate : g.gates) gate = a.next<Half>("gates", every * DETER);
  g.last = a.next<Half>("last", every * DETER);
  g.norm = slope("norm", DETER);
  g.posterior = slope("posterior", HIDDEN);
  g.h_in = slope("h_in", HIDDEN);
  g.z_in = slope("z_in", HIDDEN);
  g.own_along = a.next<float>("own_along", every * DETER);
  g.shared_along = a.next<float>("shared_along", every * BOTH);
  g.out = a.next<Half>("out", wide * HIDDEN * Z);
  g.first = a.next<Half>("first", wide * DETER * HIDDEN);
  g.gates_weight = a.next<Half>("gates", wide * DETER * 3 * OWN);
  g.own = a.next<Half>("own", wide * DETER * OWN);
  g.shared = a.next<Half>("shared", wide * BOTH * DETER);
  g.h_weight = a.next<Half>("h_in", wide * DETER * HIDDEN);
  g.z_weight = a.next<Half>("z_in", wide * Z * HIDDEN);
  int groups = int(all / ROWS);
  g.h_out = a.result<Half>("dh", every * DETER * sizeof(Half));
  g.z_out = a.result<Half>("dz", every * Z * sizeof(Half));
  g.scratch = a.result<char>("scratch", size_t(groups) * SCRATCH);
  if (batch % ROWS) a.wrong = "batch";
  if (!a.wrong.empty()) return ffi::Error::InvalidArgument(a.wrong + " has another size or type");
  g.unimix = unimix, g.steps = steps, g.batch = batch, g.scratch_bytes = SCRATCH;
  return launch<Given, observe_back>(ON_STREAM g, groups, SHARED_BYTES);
}

#ifdef __CUDACC__
static cudaError_t prepare() { return make_room<Given, observe_back>(SHARED_BYTES); }
#endif
HANDLER(observe_back, NO_GRAPHS, .Attr<float>("unimix").Attr<int32_t>("steps").Attr<int32_t>("batch"));
