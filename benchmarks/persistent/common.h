// What the persistent kernels stand on, on a GPU and, for tests, on a CPU.
//
// The CPU has the same warps, each a thread with one lane: so what is to happen between warps and between CTAs
// happens there, too, barriers included. Only the product of two tiles, loads past a cache and the barriers
// themselves are written twice.
//
// A group of CTAS thread blocks works on 16 rows of one run. Where a product's weights are read in every step,
// a CTA keeps its share of them in shared memory, as far as there is room, and streams the rest: straight from L2, or
// through a ring in shared memory, ahead of what is multiplied.
//
// Given when it is compiled: DETER, BLOCKS, HIDDEN, STOCH, CLASSES; CTAS of a group, CLUSTER, WARPS; SHARED_LIMIT, in
// bytes; and RING, those of them that are the ring, or 0.
#pragma once

#include "warps.h"

#ifdef __CUDACC__
#include <cooperative_groups.h>
#else
#include <deque>
#endif

static_assert(ROWS % WARPS == 0);
constexpr int COUNTER_BYTES = 128;  // the counter of a group's barrier has a line of its own

// Who waits for whom.

struct Cta : Warp {
  int group, index, rank;  // its place in the group, and in the cluster
  unsigned *counter, target;
  char *rest;  // its weights that have no room in shared memory
#ifndef __CUDACC__
  Meeting *cluster;
  char **shared_of;  // the cluster
  mutable std::deque<std::pair<Eight *, Piece>> under_way;
#endif
  // Of the ring: where its warp reads next, what it asks for next, and how much it streams in a step.
  mutable int slot = 0, next = 0, layers = 0;
};

#ifdef __CUDACC__
GPU void sync_cluster(const Cta &) {
  if constexpr (CLUSTER > 1) cooperative_groups::this_cluster().sync();
  else __syncthreads();
}
template <class T>
GPU T *remote(const Cta &, T *mine, int rank) {
  if constexpr (CLUSTER > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
  else return mine;
}
GPU void count_in(unsigned *counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// After about a second, which no CTA is late by, nobody waits at this barrier or the next ones. So there is a result
// that is no number rather than a GPU that hangs, or one on which no other program works, as after a trap.
constexpr unsigned PATIENCE = 1u << 20, GIVEN_UP = 1u << 31;
GPU void give_up(unsigned *counter, unsigned tries) {
  if (tries > PATIENCE) asm volatile("red.relaxed.gpu.global.or.b32 [%0], %1;" ::"l"(counter), "r"(GIVEN_UP) : "memory");
}
GPU unsigned counted(unsigned *counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
#else
GPU void sync_cluster(const Cta &c) { c.cluster->wait(); }
template <class T>
GPU T *remote(const Cta &c, T *mine, int rank) {
  return reinterpret_cast<T *>(c.shared_of[rank] + (reinterpret_cast<char *>(mine) - c.shared));
}
GPU void count_in(unsigned *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE); }
GPU void give_up(unsigned *, unsigned) {}
GPU unsigned counted(unsigned *counter) {
  std::this_thread::yield();
  return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}
#endif

// The barrier of a group is in two halves, between which there is time for what needs no other CTA.
GPU void arrive(Cta &c) {
  c.target += CTAS;
  sync(c);
  if (c.thread == 0) count_in(c.counter);
}
GPU void wait(Cta &c) {
  if (c.thread == 0)
    for (unsigned tries = 0; counted(c.counter) < c.target; ++tries) give_up(c.counter, tries);
  sync(c);
}

// The sizes of a product of sixteen rows with a CTA's share of a matrix: TILES_ tiles of 8 columns, each over STEPS_
// pieces. Warps without a tile of their own share one's sum.
template <int TILES_, int STEPS_>
struct Product {
  static constexpr int TILES = TILES_, STEPS = STEPS_, WIDTH = TILES * WIDE;
  static constexpr int splits() {
    int n = 1;
    while (TILES * n * 2 <= WARPS && STEPS % (n * 2) == 0) n *= 2;
    return n;
  }
  static constexpr int SPLITS = splits(), STRIDE = WIDTH + 1, TILE_BYTES = STEPS * PIECE * sizeof(Eight);
  static constexpr int SUM_BYTES = aligned(SPLITS * ROWS * STRIDE * sizeof(float));

  GPU static float total(const float *sums, int row, int column) {
    float sum = 0;
#pragma unroll
    for (int split = 0; split < SPLITS; ++split) sum += sums[(split * ROWS + row) * STRIDE + column];
    return sum;
  }
};

// `at(k, n)` is where the weight of input k and output n lies, `place(tile, step)` where a piece of them goes.
template <class P, class At, class To>
GPU void pack_pieces(const Cta &c, At at, To place) {
#pragma unroll 4
  for (int i = c.thread; i < P::TILES * P::STEPS * PIECE; i += THREADS) {
    int lane = i % PIECE, step = i / PIECE % P::STEPS, tile = i / PIECE / P::STEPS;
    Eight eight;
#pragma unroll
    for (int k = 0; k < 8; ++k) eight.v[k] = *at(step * DEPTH + lane % 4 * 8 + k, tile * WIDE + lane / 4);
    place(tile, step)[lane] = eight;
  }
}

constexpr int divisor(int of, int at_most) {
  int n = least(of, at_most);
  while (of % n) --n;
  return n;
}

// Where the first weights lie, in shared memory.
template <int AT>
struct Start {
  static constexpr int KEPT_END = AT, STREAMED_END = 0;
};

// A product, and where its weights lie: after those of another, kept while there is room, the rest streamed.
template <class P, class Before>
struct Placed : P {
  static constexpr int KEPT_TILES = least((SHARED_LIMIT - Before::KEPT_END) / P::TILE_BYTES, P::TILES);
  static constexpr int KEPT_END = Before::KEPT_END + KEPT_TILES * P::TILE_BYTES;
  static constexpr int STREAMED_END = Before::STREAMED_END + (P::TILES - KEPT_TILES) * P::TILE_BYTES;

  GPU static Eight *kept(const Cta &c, int tile) { return c.at<Eight>(Before::KEPT_END + tile * P::TILE_BYTES); }
  GPU static Eight *streamed(const Cta &c, int tile) {
    return reinterpret_cast<Eight *>(c.rest + Before::STREAMED_END + (tile - KEPT_TILES) * P::TILE_BYTES);
  }

  template <class At>
  GPU static void pack(const Cta &c, At at) {
    pack_pieces<P>(c, at, [&](int tile, int step) {
      return (tile < KEPT_TILES ? kept(c, tile) : streamed(c, tile)) + step * PIECE;
    });
  }

  // FRESH: whether other CTAs have written x. What the warps of several tiles read comes from L2 once.
  template <bool FRESH>
  GPU static void run(const Cta &c, const Half *x, int stride, float *sums) {
    for (int job = c.warp; job < P::TILES * P::SPLITS; job += WARPS) {
      int tile = job % P::TILES, split = job / P::TILES, from = split * (P::STEPS / P::SPLITS);
      float *to = sums + split * ROWS * P::STRIDE + tile * WIDE;
      if (tile < KEPT_TILES) some<FRESH, false>(c, x + from * DEPTH, stride, kept(c, tile) + from * PIECE, to);
      else some<FRESH, true>(c, x + from * DEPTH, stride, streamed(c, tile) + from * PIECE, to);
    }
  }
  GPU static void skip(const Cta &) {}

 private:
  // Pieces are asked for together: a warp that waits for each in turn gets little from L2.
  template <bool FRESH, bool STREAMED>
  GPU static void some(const Cta &c, const Half *x, int stride, const Eight *pieces, float *to) {
    constexpr int EACH = P::STEPS / P::SPLITS, AHEAD = divisor(EACH, STREAMED ? 8 : 4);
    Sum sum = {};
    for (int i = 0; i < EACH; i += AHEAD) {
      Piece loaded[AHEAD];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) loaded[j] = load_piece<STREAMED>(pieces + (i + j) * PIECE, c.lane);
#pragma unroll
      for (int j = 0; j < AHEAD; ++j)
        multiply(sum, load_factor<FRESH && P::TILES == 1>(x + (i + j) * DEPTH, stride, c.lane), loaded[j]);
    }
    store(sum, to, P::STRIDE, c.lane);
  }
};

// The ring. Each warp has its own part, and alone asks for what comes there and reads it: when it has taken a few
// pieces, it asks for as many that it takes later. So what it multiplies next is under way while it waits for others.
// Weights lie in the order in which they are taken, which is the same in all steps: after the last come the first.

constexpr int PIECE_BYTES = PIECE * sizeof(Eight), LAYER = WARPS * PIECE_BYTES;
constexpr int TAKEN = 2;  // pieces at once
constexpr int SLOTS = RING / LAYER, RING_AT = SHARED_LIMIT - RING;
static_assert(RING % (TAKEN * LAYER) == 0 && (RING == 0 || RING_AT % 128 == 0), "not such a ring");

#ifdef __CUDACC__
// A lane reads what it has copied itself, and so waits for no other.
GPU void ask(const Cta &c, const Eight *from, Eight *to) {
  auto at = uint32_t(__cvta_generic_to_shared(to + c.lane));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from + c.lane) : "memory");
}
GPU void asked(const Cta &) { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until no more than so many times TAKEN pieces are under way.
template <int TIMES>
GPU void await(const Cta &) {
  asm volatile("cp.async.wait_group %0;" ::"n"(TIMES) : "memory");
}
#else
// A copy reads and spoils at once, and is there no sooner than it is waited for.
GPU void ask(const Cta &c, const Eight *from, Eight *to) {
  c.under_way.emplace_back(to, load_piece<false>(from, c.lane));
  std::memset(static_cast<void *>(to), 0xff, PIECE_BYTES);  // NaN
}
GPU void asked(const Cta &) {}
template <int TIMES>
GPU void await(const Cta &c) {
  for (; c.under_way.size() > TIMES * TAKEN; c.under_way.pop_front()) {
    auto &[to, piece] = c.under_way.front();
    for (int i = 0; i < PIECE; ++i) to[i] = piece.v[i];
  }
}
#endif

GPU Eight *slot(const Cta &c) { return c.at<Eight>(RING_AT) + (c.warp * SLOTS + c.slot) * PIECE; }
GPU void ask_next(const Cta &c) {
  auto from = reinterpret_cast<const Eight *>(c.rest) + (c.next * WARPS + c.warp) * PIECE;
#pragma unroll
  for (int i = 0; i < TAKEN; ++i) ask(c, from + i * WARPS * PIECE, slot(c) + i * PIECE);
  asked(c);
  c.slot = c.slot + TAKEN < SLOTS ? c.slot + TAKEN : 0;
  c.next = c.next + TAKEN < c.layers ? c.next + TAKEN : 0;
}
GPU void take(const Cta &c, Piece *pieces) {
  await<most(SLOTS / TAKEN - 1, 0)>(c);
#pragma unroll
  for (int i = 0; i < TAKEN; ++i) pieces[i] = load_piece<false>(slot(c) + i * PIECE, c.lane);
  ask_next(c);
}

// After all weights lie where they belong.
GPU void begin_stream(const Cta &c) {
  for (int i = 0; i < SLOTS && c.layers > 0; i += TAKEN) ask_next(c);
}
// When no more are taken: no copy is left to come.
GPU void end_stream(const Cta &c) {
  if constexpr (RING > 0) await<0>(c);
}

// A product whose weights are kept and streamed in layers, which have one piece of each warp. Products are packed in
// the order in which they are run, or skipped.
template <class P, class Before>
struct Ringed : P {
  static constexpr int EACH = P::STEPS / P::SPLITS, TURNS = P::TILES * P::SPLITS / WARPS, LAYERS = EACH * TURNS;
  static_assert(P::TILES * P::SPLITS % WARPS == 0 && EACH % TAKEN == 0, "no ring where warps multiply unlike much");
  static constexpr int KEPT = least((RING_AT - Before::KEPT_END) / LAYER / TAKEN * TAKEN, LAYERS);
  static constexpr int STREAMED = LAYERS - KEPT;
  static constexpr int KEPT_END = Before::KEPT_END + KEPT * LAYER;
  static constexpr int STREAMED_END = Before::STREAMED_END + STREAMED * LAYER;

  template <class At>
  GPU static void pack(const Cta &c, At at) {
    pack_pieces<P>(c, at, [&](int tile, int step) {
      int job = step / EACH * P::TILES + tile, layer = step % EACH * TURNS + job / WARPS;
      Eight *to = layer < STREAMED ? reinterpret_cast<Eight *>(c.rest + (c.layers + layer) * LAYER) : kept(c, layer);
      return to + job % WARPS * PIECE;
    });
    c.layers += STREAMED;
  }

  // A warp has one or more tiles, which read the same of x, or a part of the sum of one.
  template <bool FRESH>
  GPU static void run(const Cta &c, const Half *x, int stride, float *sums) {
    constexpr int AHEAD = divisor(EACH / TAKEN, (FRESH ? 8 : 4) / TAKEN) * TAKEN;
    int split = c.warp / P::TILES;
    x += split * EACH * DEPTH;
    Sum sum[TURNS] = {};
#pragma unroll 1
    for (int i = 0; i < EACH; i += AHEAD) {
      Factor factor[AHEAD];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j)
        factor[j] = load_factor<FRESH && P::TILES == 1>(x + (i + j) * DEPTH, stride, c.lane);
#pragma unroll
      for (int j = 0; j < AHEAD * TURNS; j += TAKEN) {
        Piece pieces[TAKEN];
        if (i * TURNS + j < STREAMED) {
          take(c, pieces);
        } else {
#pragma unroll
          for (int k = 0; k < TAKEN; ++k)
            pieces[k] = load_piece<false>(kept(c, i * TURNS + j + k) + c.warp * PIECE, c.lane);
        }
#pragma unroll
        for (int k = 0; k < TAKEN; ++k) multiply(sum[(j + k) % TURNS], factor[(j + k) / TURNS], pieces[k]);
      }
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      store(sum[turn], sums + split * ROWS * P::STRIDE + (c.warp + turn * WARPS) % P::TILES * WIDE, P::STRIDE, c.lane);
  }
  GPU static void skip(const Cta &c) {
    Piece pieces[TAKEN];
    for (int i = 0; i < STREAMED; i += TAKEN) take(c, pieces);
  }

 private:
  GPU static Eight *kept(const Cta &c, int layer) {
    return c.at<Eight>(Before::KEPT_END) + (layer - STREAMED) * WARPS * PIECE;
  }
};

template <class P, class Before>
using Weights = std::conditional_t<(RING > 0), Ringed<P, Before>, Placed<P, Before>>;

// One row to a warp at a time.
template <class Do>
GPU void by_row(const Cta &c, Do one) {
#pragma unroll
  for (int row = c.warp; row < ROWS; row += WARPS) one(row);
}

GPU void copy(const Cta &c, const float *from, float *to, int count) {
  for (int i = c.thread; i < count; i += THREADS) to[i] = from[i];
}

// The model, and the shares of a CTA in it.

constexpr int OWN = DETER / BLOCKS, Z = STOCH * CLASSES, BOTH = 2 * HIDDEN;
constexpr float NORM_EPS = 1e-4f;

// Columns of h, of logits and variables of z, of what z_in gives.
constexpr int MINE = DETER / CTAS, LOGITS = Z / CLUSTER, VARIABLES = STOCH / CLUSTER, ENTERED = HIDDEN / CLUSTER;
// With more CTAs than tiles in `read`, several share the sum of one.
constexpr int READ_TILES = most(BOTH / WIDE / CTAS, 1), READERS = BOTH / WIDE / READ_TILES, PARTS = CTAS / READERS;
constexpr int READ_DEPTH = DETER / PARTS;

static_assert(OWN % MINE == 0 && MINE % WIDE == 0 && OWN % DEPTH == 0 && HIDDEN % DEPTH == 0);
static_assert(CTAS % READERS == 0 && READ_DEPTH % DEPTH == 0 && CTAS % CLUSTER == 0 && DETER % CTAS == 0);
static_assert(STOCH % CLUSTER == 0 && LOGITS % WIDE == 0 && ENTERED % 2 == 0 && Z % CTAS == 0 && CLASSES <= 256);

constexpr int PAD = 32;  // between rows of a factor, so that lanes meet different banks

// What a CTA knows of its place.
struct Place {
  int run, row, steps, batch, column, block;
  template <class T>
  GPU T *step(T *all, int t, int width) const {
    return all + ((size_t(run) * steps + t) * batch + row) * width;
  }
};

GPU Place place(const Cta &c, int steps, int batch) {
  int groups_of_run = batch / ROWS, column = c.index * MINE;
  return {c.group / groups_of_run, c.group % groups_of_run * ROWS, steps, batch, column, column / OWN};
}

// The sum of the parts of a product whose depth several CTAs share.
GPU float read_total(const float *parts, int row, int column) {
  float sum = 0;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) sum += fresh(parts + (part * ROWS + row) * BOTH + column);
  return sum;
}

// Runs `work` on all CTAs of all groups, whose counters begin each group's scratch.
#ifdef __CUDACC__
template <class Given, void work(Cta &, const Given &)>
__global__ void __launch_bounds__(THREADS, 1) kernel(Given given) {
  extern __shared__ __align__(128) char shared[];
  int index = blockIdx.x % CTAS, thread = threadIdx.x;
  unsigned *counter = reinterpret_cast<unsigned *>(given.scratch + size_t(blockIdx.x / CTAS) * given.scratch_bytes);
  Cta cta{{thread, thread / LANES, thread % LANES, shared}, int(blockIdx.x) / CTAS, index, index % CLUSTER, counter, 0, nullptr};
  work(cta, given);
  // By the thread that wrote a number there.
  if (index == 0 && thread == 0 && counted(counter) >= GIVEN_UP)
    *place(cta, given.steps, given.batch).step(given.h_out, 0, DETER) = narrow(NAN);
}

struct Launch : cudaLaunchConfig_t {
  cudaLaunchAttribute with[2];

  Launch(int groups, int shared_bytes, cudaStream_t on) : cudaLaunchConfig_t{} {
    with[0].id = cudaLaunchAttributeClusterDimension;
    with[0].val.clusterDim.x = CLUSTER;
    with[0].val.clusterDim.y = with[0].val.clusterDim.z = 1;
    with[1].id = cudaLaunchAttributeCooperative;
    with[1].val.cooperative = 1;
    gridDim = dim3(groups * CTAS), blockDim = dim3(THREADS);
    dynamicSmemBytes = shared_bytes, stream = on;
    attrs = with, numAttrs = 2;
  }
};

static int room;  // CTAs that the GPU holds at once

template <class Given, void work(Cta &, const Given &)>
static cudaError_t make_room(int shared_bytes) {
  auto *entry = kernel<Given, work>;
  auto error = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error == cudaSuccess && CLUSTER > 8)
    error = cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  Launch one(1, shared_bytes, nullptr);
  one.numAttrs = 1;
  int clusters = 0;
  error = cudaOccupancyMaxActiveClusters(&clusters, entry, &one);
  room = clusters * CLUSTER;
  return error;
}

template <class Given, void work(Cta &, const Given &)>
static ffi::Error launch(cudaStream_t stream, const Given &given, int groups, int shared_bytes) {
  if (groups * CTAS > room)
    return ffi::Error::InvalidArgument(std::to_string(groups * CTAS) + " CTAs are asked for; at once there is room for " +
                                       std::to_string(room));
  auto error = cudaMemset2DAsync(given.scratch, given.scratch_bytes, 0, sizeof(unsigned), groups, stream);
  if (error != cudaSuccess) return failed("memset", error);
  Launch all(groups, shared_bytes, stream);
  error = cudaLaunchKernelEx(&all, kernel<Given, work>, given);
  if (error != cudaSuccess) {
    // It is said nowhere that a cooperative launch may have clusters. All fit, so an ordinary one does the same.
    cudaGetLastError();
    all.numAttrs = 1;
    error = cudaLaunchKernelEx(&all, kernel<Given, work>, given);
  }
  return error == cudaSuccess ? ffi::Error::Success() : failed("launch", error);
}
#else
template <class Given, void work(Cta &, const Given &)>
ffi::Error launch(const Given &given, int groups, int shared_bytes) {
  int ctas = groups * CTAS;
  std::vector<Meeting> within(ctas, Meeting{WARPS}), clusters(ctas / CLUSTER, Meeting{WARPS * CLUSTER});
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<char *> shared;
  for (int i = 0; i < ctas; ++i) {
    memory.emplace_back(new char[shared_bytes + 128]);
    std::memset(memory[i].get(), 0xff, shared_bytes + 128);  // NaN
    shared.push_back(memory[i].get() + 128 - reinterpret_cast<uintptr_t>(memory[i].get()) % 128);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < ctas; ++i) {
    auto counter = reinterpret_cast<unsigned *>(given.scratch + size_t(i / CTAS) * given.scratch_bytes);
    if (i % CTAS == 0) std::memset(counter, 0xff, given.scratch_bytes), *counter = 0;  // NaN
    for (int thread = 0; thread < WARPS; ++thread) {
      int index = i % CTAS;
      Cta cta{{thread, thread, 0, shared[i], &within[i]}, i / CTAS, index, index % CLUSTER, counter, 0, nullptr,
              &clusters[i / CLUSTER], &shared[i / CLUSTER * CLUSTER]};
      threads.emplace_back([cta, &given]() mutable { work(cta, given); });
    }
  }
  for (auto &thread : threads) thread.join();
  return ffi::Error::Success();
}
#endif
