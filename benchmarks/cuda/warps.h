// Warps of a thread block: how they meet, and how one multiplies sixteen rows. On a CPU each is a thread with one lane.
//
// Given when it is compiled: WARPS.
#pragma once

#include "basics.h"

#ifndef __CUDACC__
#include <memory>
#include <thread>
#include <vector>
#endif

constexpr int ROWS = 16;  // as many as a matrix unit takes
#ifdef __CUDACC__
constexpr int LANES = 32;
#else
constexpr int LANES = 1;
#endif
constexpr int THREADS = WARPS * LANES;
constexpr int aligned(int bytes) { return (bytes + 127) / 128 * 128; }

#ifndef __CUDACC__
struct Meeting {  // a barrier of so many threads
  unsigned of, arrived = 0;
  void wait() {
    unsigned until = (__atomic_fetch_add(&arrived, 1, __ATOMIC_ACQ_REL) / of + 1) * of;
    while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) < until) std::this_thread::yield();
  }
};
#endif

struct Warp {
  int thread, warp, lane;
  char *shared;
#ifndef __CUDACC__
  Meeting *within;
#endif

  template <class T>
  GPU T *at(int bytes) const {
    return reinterpret_cast<T *>(shared + bytes);
  }
};

#ifdef __CUDACC__
GPU void sync(const Warp &) { __syncthreads(); }
#else
GPU void sync(const Warp &c) { c.within->wait(); }
#endif

// What other CTAs have written, and is read once, is read from L2: L1 would keep it in vain. Who has waited for them at
// a barrier may read it through L1, too, which that empties.
#ifdef __CUDACC__
GPU float fresh(const float *x) { return __ldcg(x); }
#ifndef EXACT
GPU Half fresh(const Half *x) { return {__ldcg(reinterpret_cast<const unsigned short *>(x))}; }
#endif
template <bool FRESH>
GPU uint4 sixteen_bytes(const void *x) {
  auto from = static_cast<const uint4 *>(x);
  return FRESH ? __ldcg(from) : *from;
}
#else
template <class T>
GPU T fresh(const T *x) {
  return *x;
}
#endif

GPU float sum_of_lanes(float x) {
#ifdef __CUDACC__
#pragma unroll
  for (int far = LANES / 2; far; far /= 2) x += __shfl_xor_sync(~0u, x, far);
#endif
  return x;
}

// Products. A piece of a weight is 32 rows of 8 columns, in the order in which the lanes of a warp hold it: lane
// 4 n + q has rows 8 q to 8 q + 7 of column n. That lane loads as many columns of the other factor at once,
// though a matrix unit asks for them in another order: which is the same for both factors, and so none matters.

constexpr int DEPTH = 32, WIDE = 8, PIECE = DEPTH * WIDE / 8;

#ifdef __CUDACC__
struct Sum {
  float v[4];
};
GPU void matrix_unit(Sum &sum, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
struct Factor {
  uint4 upper, lower;
};
using Piece = uint4;
template <bool FRESH>
GPU Factor load_factor(const Half *x, int stride, int lane) {
  const Half *row = x + lane / 4 * stride + lane % 4 * 8;
  return {sixteen_bytes<FRESH>(row), sixteen_bytes<FRESH>(row + 8 * stride)};
}
template <bool FRESH>
GPU Piece load_piece(const Eight *piece, int lane) {
  return sixteen_bytes<FRESH>(piece + lane);
}
GPU void multiply(Sum &sum, const Factor &x, const Piece &w) {
  matrix_unit(sum, x.upper.x, x.lower.x, x.upper.y, x.lower.y, w.x, w.y);
  matrix_unit(sum, x.upper.z, x.lower.z, x.upper.w, x.lower.w, w.z, w.w);
}
GPU void store(const Sum &sum, float *to, int stride, int lane) {
  float *at = to + lane / 4 * stride + lane % 4 * 2;
  at[0] = sum.v[0];
  at[1] = sum.v[1];
  at[8 * stride] = sum.v[2];
  at[8 * stride + 1] = sum.v[3];
}
#else
struct Sum {
  float v[ROWS][WIDE];
};
struct Factor {
  const Half *x;
  int stride;
};
struct Piece {
  Eight v[PIECE];
};
template <bool>
GPU Factor load_factor(const Half *x, int stride, int) {
  return {x, stride};
}
template <bool>
GPU Piece load_piece(const Eight *piece, int) {
  Piece loaded;
  for (int i = 0; i < PIECE; ++i) loaded.v[i] = piece[i];  // the thread sanitizer does not see into std::copy
  return loaded;
}
GPU void multiply(Sum &sum, const Factor &x, const Piece &w) {
  for (int row = 0; row < ROWS; ++row)
    for (int n = 0; n < WIDE; ++n)
      for (int k = 0; k < DEPTH; ++k)
        sum.v[row][n] += wide(x.x[row * x.stride + k]) * wide(w.v[4 * n + k / 8].v[k % 8]);
}
GPU void store(const Sum &sum, float *to, int stride, int) {
  for (int row = 0; row < ROWS; ++row)
    for (int n = 0; n < WIDE; ++n) to[row * stride + n] = sum.v[row][n];
}
#endif

// The class whose part of the unit interval holds `uniform`.
template <int COUNT>
GPU int draw(const float *logits, float uniform, float unimix) {
  float x[COUNT], top = logits[0], sum = 0, below = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) top = fmaxf(top, logits[i]);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sum += x[i] = exponential(logits[i] - top);
  float share = (1 - unimix) / sum;
  int chosen = 0;
#pragma unroll
  for (int i = 0; i < COUNT - 1; ++i) {  // the last takes what rounding leaves
    below += x[i] * share + unimix / COUNT;
    chosen += below <= uniform;
  }
  return chosen;
}
