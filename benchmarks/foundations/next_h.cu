// The next h of a dream step from its activated hidden layer, in one kernel on Hopper's matrix units: a product with
// a block-diagonal matrix, and all gates.
//
// A CTA has the weights of 64 columns of h in shared memory, which are 192 of the gates. One warpgroup loads tiles
// of 64 rows of the hidden layer; two others take the tiles in turns, multiply them, and make h of the sums without
// moving them: a thread has all three gates of its columns. So one of the two multiplies while the other writes.
//
// On a CPU, for tests, a warpgroup is a thread that does its lanes' work one lane after the other. What the matrix
// unit reads, it finds there as on a GPU: through a descriptor, in swizzled rows.
//
// Given when it is compiled: OWN, the columns of a block.
#include "basics.h"

#ifndef __CUDACC__
#include <atomic>
#include <memory>
#include <thread>
#include <vector>
#endif

constexpr int WARPGROUP = 128, CONSUMERS = 2, THREADS = WARPGROUP * (CONSUMERS + 1);
constexpr int ROWS = 64, COLUMNS = 64, GATES = 3 * COLUMNS, BUFFERS = 4, AHEAD = 2;
constexpr int LINE = 64, LINE_BYTES = 128;  // what a swizzled row of shared memory holds, in numbers and bytes
constexpr int LINES = OWN / LINE, PIECES = OWN / 8;  // of a row: such lines, and pieces of sixteen bytes
static_assert(OWN % LINE == 0);

// Shared memory, in bytes. Factors are cut into columns of 64 numbers, rows of which lie one below the other.
constexpr int WEIGHTS_LINE = GATES * LINE_BYTES, TILE_LINE = ROWS * LINE_BYTES, TILE = LINES * TILE_LINE;
constexpr int WEIGHTS_AT = 0, TILES_AT = LINES * WEIGHTS_LINE, BIAS_AT = TILES_AT + BUFFERS * TILE;
constexpr int FULL_AT = BIAS_AT + GATES * int(sizeof(float)), EMPTY_AT = FULL_AT + BUFFERS * 8;
constexpr int LATE_AT = EMPTY_AT + BUFFERS * 8, SHARED_BYTES = LATE_AT + 8;
static_assert(SHARED_BYTES <= 227 * 1024, "the weights of 64 columns do not fit");

struct Given {
  const Half *x, *weight;
  const float *bias;
  const Half *h;
  const int32_t *now;
  Half *rows_out, *blocks_out, *record;
  int blocks, count, parts, steps, width;
  bool one_now;  // for all runs
};

struct Cta {
  int run, block, column, row, tiles;  // its columns within the block; its first row, and how many tiles follow
  int warpgroup, thread;               // `thread` within the warpgroup
  char *shared;
};

// What a thread keeps. On a CPU there is that of every lane.
#ifdef __CUDACC__
#define FOR_EACH_LANE(c, lane) if ([[maybe_unused]] const int lane = (c).thread; true)
template <class T>
struct PerLane {
  T mine;
  GPU T &operator[](int) { return mine; }
};
#else
#define FOR_EACH_LANE(c, lane) for (int lane = 0; lane < WARPGROUP; ++lane)
template <class T>
struct PerLane {
  std::vector<T> of = std::vector<T>(WARPGROUP);
  T &operator[](int lane) { return of[lane]; }
};
#endif
struct Sums {
  float v[GATES / 2];
};
struct Before {
  Eight v[2][2];  // two rows, two times eight columns
};

// A barrier in shared memory: so many arrive, and who waits for its n-th turn gives the parity of n.
#ifdef __CUDACC__
GPU uint32_t address(const void *shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
GPU void init(void *barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(WARPGROUP) : "memory");
}
GPU void arrive(void *barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address(barrier)) : "memory");
}
GPU bool came(void *barrier, int parity) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(address(barrier)), "r"(parity)
      : "memory");
  return done;
}
// Who waits for longer than half a second, which all take together, no longer waits, and nor do the others. So there
// is a result that is no number rather than a GPU that hangs, or one on which no other program works, as after a trap.
GPU void wait(char *shared, int at, int parity) {
  if (came(shared + at, parity)) return;
  volatile int *late = reinterpret_cast<int *>(shared + LATE_AT);
  for (long long begin = clock64(); !came(shared + at, parity) && !*late;)
    if (clock64() - begin > 1ll << 30) *late = 1;
}
#else
GPU void init(void *barrier) { new (barrier) std::atomic<uint64_t>(0); }
GPU void arrive(void *barrier) { static_cast<std::atomic<uint64_t> *>(barrier)->fetch_add(1); }
GPU void wait(char *shared, int at, int parity) {
  auto barrier = reinterpret_cast<std::atomic<uint64_t> *>(shared + at);
  while (int(barrier->load() / WARPGROUP % 2) == parity) std::this_thread::yield();
}
#endif

// Sixteen bytes into shared memory, and all but the last so many copies of this thread done and visible to the
// matrix unit.
#ifdef __CUDACC__
GPU void copy(char *to, const Half *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)), "l"(from) : "memory");
}
GPU void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
GPU void copied() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
GPU void copy(char *to, const Half *from) { std::memcpy(to, from, 16); }
GPU void commit() {}
template <int PENDING>
GPU void copied() {}
#endif

// Where a piece of a row lies: the matrix unit finds it by the same rule, which spreads a column over all banks.
GPU int swizzled(int row, int piece, int line_bytes) {
  return piece / 8 * line_bytes + row * LINE_BYTES + (piece % 8 ^ row % 8) * 16;
}

// Rows of 128 bytes, swizzled, in groups of eight that follow each other.
GPU uint64_t descriptor(uint32_t at) {
  return uint64_t(at >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(8 * LINE_BYTES >> 4) << 32 | uint64_t(1) << 62;
}

// sums += tile * weights, over sixteen columns of the tile.
#ifdef __CUDACC__
#define FOUR(f, i) f(i), f(i + 1), f(i + 2), f(i + 3)
#define SIXTEEN(f, i) FOUR(f, i), FOUR(f, i + 4), FOUR(f, i + 8), FOUR(f, i + 12)
#define SUM(i) "+f"(sums.v[i])
GPU void matrix_unit(Sums &sums, uint64_t tile, uint64_t weights) {
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, add, 1, 1, 0, 0; }\n"
      : SIXTEEN(SUM, 0), SIXTEEN(SUM, 16), SIXTEEN(SUM, 32), SIXTEEN(SUM, 48), SIXTEEN(SUM, 64), SIXTEEN(SUM, 80)
      : "l"(tile), "l"(weights));
}
GPU void begin_products(Sums &sums) {
#pragma unroll
  for (int i = 0; i < GATES / 2; ++i) asm volatile("" : "+f"(sums.v[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU void end_products(Sums &sums) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < GATES / 2; ++i) asm volatile("" : "+f"(sums.v[i])::"memory");
}
#endif

// Column of the sums' part `j` that a lane has; and the column of h that it stands for, which gives each lane eight
// in a row. `next_h.py` orders the weights by this.
GPU int sum_column(int j, int lane) { return 8 * j + 2 * (lane % 4); }

GPU void multiply(Cta &c, PerLane<Sums> &sums, int buffer) {
#ifdef __CUDACC__
  uint32_t tile = address(c.shared + TILES_AT + buffer * TILE), weights = address(c.shared + WEIGHTS_AT);
  begin_products(sums[0]);
#pragma unroll
  for (int k = 0; k < OWN / 16; ++k) {
    int within = k % 4 * 32;
    matrix_unit(sums[0], descriptor(tile + k / 4 * TILE_LINE + within), descriptor(weights + k / 4 * WEIGHTS_LINE + within));
  }
  end_products(sums[0]);
#else
  // What the descriptor means: rows and groups of eight rows by their strides, then bits 4 to 6 of the address
  // exchanged with bits 7 to 9.
  auto read = [&](uint64_t from, int row, int k) {
    uint32_t start = (from & 0x3fff) << 4, group = (from >> 32 & 0x3fff) << 4;
    uint32_t at = start + row / 8 * group + row % 8 * LINE_BYTES + k * 2;
    return wide(*reinterpret_cast<Half *>(c.shared + (at ^ (at >> 7 & 7) << 4)));
  };
  for (int k = 0; k < OWN / 16; ++k) {
    uint64_t tile = descriptor(TILES_AT + buffer * TILE + k / 4 * TILE_LINE + k % 4 * 32);
    uint64_t weights = descriptor(WEIGHTS_AT + k / 4 * WEIGHTS_LINE + k % 4 * 32);
    for (int lane = 0; lane < WARPGROUP; ++lane)
      for (int i = 0; i < GATES / 2; ++i) {
        int row = lane / 32 * 16 + lane % 32 / 4 + i / 2 % 2 * 8, column = sum_column(i / 4, lane) + i % 2;
        for (int n = 0; n < 16; ++n) sums[lane].v[i] += read(tile, row, n) * read(weights, column, n);
      }
  }
#endif
}

GPU void load_tiles(const Cta &c, const Given &g) {
  const Half *x = g.x + (size_t(c.run * g.blocks + c.block) * g.count + c.row) * OWN;
  auto announce = [&](int tile) {
    FOR_EACH_LANE(c, lane) arrive(c.shared + FULL_AT + tile % BUFFERS * 8);
  };
  for (int tile = 0; tile < c.tiles; ++tile) {
    int buffer = tile % BUFFERS;
    wait(c.shared, EMPTY_AT + buffer * 8, tile / BUFFERS % 2 ^ 1);
    FOR_EACH_LANE(c, lane) {
#pragma unroll 8
      for (int i = lane; i < ROWS * PIECES; i += WARPGROUP) {
        int row = i / PIECES, piece = i % PIECES;
        copy(c.shared + TILES_AT + buffer * TILE + swizzled(row, piece, TILE_LINE), x + (tile * ROWS + row) * OWN + piece * 8);
      }
      commit();
    }
    copied<AHEAD>();
    if (tile >= AHEAD) announce(tile - AHEAD);
  }
  copied<0>();
  for (int tile = most(c.tiles - AHEAD, 0); tile < c.tiles; ++tile) announce(tile);
}

#ifdef __CUDACC__
GPU float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
GPU float tanh_fast(float x) { return std::tanh(x); }
#endif
GPU float logistic(float x) { return 0.5f + 0.5f * tanh_fast(0.5f * x); }

// h of eight columns of a row, from the sums of all three gates.
GPU Eight follow(const Sums &sums, int part, int half, const Eight &before) {
  Eight after;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    auto gate = [&](int n) { return sums.v[(n * (COLUMNS / 8) + part * 4 + i / 2) * 4 + half * 2 + i % 2]; };
    float candidate = tanh_fast(logistic(gate(0)) * gate(1)), update = logistic(gate(2) - 1);
    after.v[i] = narrow(update * candidate + (1 - update) * wide(before.v[i]));
  }
  return after;
}

GPU void make_h(Cta &c, const Given &g) {
  PerLane<Sums> sums;
  PerLane<Before> before;
  int deter = g.blocks * OWN, now = g.now[g.one_now ? 0 : c.run];
  const float *bias = reinterpret_cast<float *>(c.shared + BIAS_AT);
  for (int tile = c.warpgroup; tile < c.tiles; tile += CONSUMERS) {
    int buffer = tile % BUFFERS;
    auto row_of = [&](int lane, int half) { return c.row + tile * ROWS + lane / 32 * 16 + lane % 32 / 4 + half * 8; };
    auto column_of = [&](int lane, int part) { return c.column + part * 32 + lane % 4 * 8; };
    FOR_EACH_LANE(c, lane) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          size_t at = (size_t(c.run) * g.count + row_of(lane, half)) * deter + c.block * OWN + column_of(lane, part);
          before[lane].v[half][part] = *reinterpret_cast<const Eight *>(g.h + at);
        }
#pragma unroll
      for (int j = 0; j < GATES / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[lane].v[j * 4 + i] = bias[sum_column(j, lane) + i % 2];
    }
    wait(c.shared, FULL_AT + buffer * 8, tile / BUFFERS % 2);
    multiply(c, sums, buffer);
    FOR_EACH_LANE(c, lane) arrive(c.shared + EMPTY_AT + buffer * 8);
    FOR_EACH_LANE(c, lane) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          Eight after = follow(sums[lane], part, half, before[lane].v[half][part]);
          int row = row_of(lane, half), column = column_of(lane, part);
          size_t run_row = size_t(c.run) * g.count + row;
          *reinterpret_cast<Eight *>(g.rows_out + run_row * deter + c.block * OWN + column) = after;
          size_t block_row = size_t(c.run * g.blocks + c.block) * g.count + row;
          *reinterpret_cast<Eight *>(g.blocks_out + block_row * OWN + column) = after;
          size_t record_row = (size_t(c.run) * g.steps + now) * g.count + row;
          *reinterpret_cast<Eight *>(g.record + record_row * g.width + c.block * OWN + column) = after;
        }
    }
  }
}

// The CTA with this number: neighbours read the same rows.
GPU Cta place(const Given &g, int index, int warpgroup, int thread, char *shared) {
  constexpr int STEPS = OWN / COLUMNS;
  int rest = index / STEPS, rows = g.count / g.parts;
  int part = rest % g.parts, block = rest / g.parts % g.blocks, run = rest / g.parts / g.blocks;
  return {run, block, index % STEPS * COLUMNS, part * rows, rows / ROWS, warpgroup, thread, shared};
}

// By all threads of a CTA, of whom this is one.
GPU void load_weights(const Cta &c, const Given &g, int thread, int threads) {
  const Half *weight = g.weight + (size_t(c.run * g.blocks + c.block) * (OWN / COLUMNS) + c.column / COLUMNS) * GATES * OWN;
#pragma unroll 4
  for (int i = thread; i < GATES * PIECES; i += threads) {
    int row = i / PIECES, piece = i % PIECES;
    copy(c.shared + WEIGHTS_AT + swizzled(row, piece, WEIGHTS_LINE), weight + row * OWN + piece * 8);
  }
  commit();
  float *bias = reinterpret_cast<float *>(c.shared + BIAS_AT);
  for (int i = thread; i < GATES; i += threads) {
    int n = i % COLUMNS, column = n / 32 * 32 + n % 8 / 2 * 8 + n / 8 % 4 * 2 + n % 2;
    bias[i] = g.bias[(size_t(c.run * g.blocks + c.block) * 3 + i / COLUMNS) * OWN + c.column + column];
  }
  if (thread == 0) *reinterpret_cast<int *>(c.shared + LATE_AT) = 0;
  if (thread < BUFFERS) init(c.shared + FULL_AT + thread * 8), init(c.shared + EMPTY_AT + thread * 8);
  copied<0>();
}

#ifdef __CUDACC__
__global__ void __launch_bounds__(THREADS, 1) kernel(Given g) {
  extern __shared__ __align__(1024) char shared[];
  Cta c = place(g, blockIdx.x, threadIdx.x / WARPGROUP, threadIdx.x % WARPGROUP, shared);
  load_weights(c, g, threadIdx.x, THREADS);
  __syncthreads();
  if (c.warpgroup == CONSUMERS) load_tiles(c, g);
  else make_h(c, g);
  // By a thread that wrote a number there.
  if (threadIdx.x == 0 && *reinterpret_cast<volatile int *>(shared + LATE_AT))
    g.rows_out[(size_t(c.run) * g.count + c.row) * g.blocks * OWN + c.block * OWN + c.column] = narrow(NAN);
}

static cudaError_t prepare() {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
}

static ffi::Error launch(cudaStream_t stream, const Given &g, int ctas) {
  kernel<<<ctas, THREADS, SHARED_BYTES, stream>>>(g);
  auto error = cudaGetLastError();
  return error == cudaSuccess ? ffi::Error::Success() : failed("launch", error);
}
#else
static ffi::Error launch(const Given &g, int ctas) {
  for (int index = 0; index < ctas; ++index) {
    std::unique_ptr<char, decltype(&std::free)> shared(
        static_cast<char *>(std::aligned_alloc(1024, (SHARED_BYTES + 1023) / 1024 * 1024)), std::free);
    std::memset(shared.get(), 0xff, SHARED_BYTES);  // NaN
    for (int thread = 0; thread < BUFFERS; ++thread) load_weights(place(g, index, 0, 0, shared.get()), g, thread, BUFFERS);
    std::vector<std::thread> warpgroups;
    for (int warpgroup = 0; warpgroup <= CONSUMERS; ++warpgroup)
      warpgroups.emplace_back([&, warpgroup] {
        Cta c = place(g, index, warpgroup, 0, shared.get());
        if (warpgroup == CONSUMERS) load_tiles(c, g);
        else make_h(c, g);
      });
    for (auto &warpgroup : warpgroups) warpgroup.join();
  }
  return ffi::Error::Success();
}
#endif

static ffi::Error call(STREAM int32_t blocks, int32_t count, int32_t parts, int32_t steps, int32_t width,
                       ffi::RemainingArgs args, ffi::RemainingRets results) {
  Arguments a{args, results};
  Given g;
  g.blocks = blocks, g.count = count, g.parts = parts;
  size_t deter = blocks * OWN, runs = a.count() / (deter * count), all = runs * count * deter;
  g.x = a.next<Half>("x", all);
  g.weight = a.next<Half>("weight", runs * 3 * deter * OWN);
  g.bias = a.next<float>("bias", runs * 3 * deter);
  g.h = a.next<Half>("h", all);
  g.one_now = a.count() == 1;
  g.now = a.next<int32_t>("now", g.one_now ? 1 : runs);
  g.steps = steps, g.width = width;
  size_t recorded = runs * steps * count * width;
  a.next<Half>("record", recorded);  // which is written in place
  g.rows_out = a.result<Half>("rows", all * sizeof(Half));
  g.blocks_out = a.result<Half>("blocks", all * sizeof(Half));
  g.record = a.result<Half>("record", recorded * sizeof(Half));
  if (count % (parts * ROWS)) a.wrong = "count";
  if (width % 8 || width < int(deter)) a.wrong = "width";
  if (!a.wrong.empty()) return ffi::Error::InvalidArgument(a.wrong + " has another size or type");
  return launch(ON_STREAM g, int(runs) * blocks * (OWN / COLUMNS) * parts);
}

HANDLER(next_h, GRAPHS,
        .Attr<int32_t>("blocks").Attr<int32_t>("count").Attr<int32_t>("parts").Attr<int32_t>("steps").Attr<int32_t>(
            "width"));
