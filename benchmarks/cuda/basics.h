// What CUDA kernels called from JAX stand on, on a GPU and, for tests, on a CPU: numbers, and how arrays come in.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "xla/ffi/api/ffi.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#define GPU __device__ __forceinline__
#else
#define GPU inline
#endif

namespace ffi = xla::ffi;

constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a < b ? b : a; }

// Numbers in memory: bfloat16, or float32 where a test wants to see all digits.

#ifdef EXACT
#ifdef __CUDACC__
#error "on a GPU numbers are bfloat16: its matrix units take no others here"
#endif
using Half = float;
constexpr auto HALF = ffi::F32;
GPU float wide(Half x) { return x; }
GPU Half narrow(float x) { return x; }
#else
struct Half {
  uint16_t bits;
};
constexpr auto HALF = ffi::BF16;
#ifdef __CUDACC__
GPU float wide(Half x) { return __uint_as_float(uint32_t(x.bits) << 16); }
GPU Half narrow(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
#else
GPU float wide(Half x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
GPU Half narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) return {0x7fff};
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
#endif
#endif

struct alignas(8 * sizeof(Half)) Eight {
  Half v[8];
};
struct alignas(2 * sizeof(Half)) Two {
  Half v[2];
};

#ifdef __CUDACC__
GPU float exponential(float x) { return __expf(x); }
GPU float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
GPU float inverse_root(float x) { return rsqrtf(x); }
#else
GPU float exponential(float x) { return std::exp(x); }
GPU float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
GPU float inverse_root(float x) { return 1 / std::sqrt(x); }
#endif
GPU float silu(float x) { return x * sigmoid(x); }

// How it is called: arguments in order, each with the size that it must have.
struct Arguments {
  ffi::RemainingArgs given;
  ffi::RemainingRets results;
  int taken = 0, made = 0;
  std::string wrong;

  size_t count() {  // of the numbers in the next, for all runs, over which a call may be mapped
    auto got = given.get<ffi::AnyBuffer>(taken);
    return got.has_error() ? 0 : got->element_count();
  }
  template <class T>
  const T *next(const char *name, size_t count) {
    auto got = given.get<ffi::AnyBuffer>(taken++);
    auto type = std::is_same_v<T, int32_t> ? ffi::S32 : std::is_same_v<T, Half> ? HALF : ffi::F32;
    if (got.has_error() || got->element_count() != count || got->element_type() != type)
      wrong = wrong.empty() ? name : wrong;
    return got.has_error() ? nullptr : static_cast<const T *>(got->untyped_data());
  }
  template <class T>
  T *result(const char *name, size_t bytes) {
    auto got = results.get<ffi::AnyBuffer>(made++);
    if (got.has_error() || (*got)->size_bytes() != bytes) wrong = wrong.empty() ? name : wrong;
    return got.has_error() ? nullptr : static_cast<T *>((*got)->untyped_data());
  }
};

#ifdef __CUDACC__
inline const char *error_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }
inline ffi::Error failed(const char *what, cudaError_t error) {
  return ffi::Error::Internal(std::string(what) + ": " + cudaGetErrorString(error));
}
#endif

// A handler that JAX calls, and its attributes. Only on a GPU is there a stream, which comes first. What a kernel needs
// before its first launch is done by `prepare`, once, after it is loaded.
//
// With GRAPHS a call does no more than launch, and XLA may record it in a CUDA graph with what is around it.
#define GRAPHS {ffi::Traits::kCmdBufferCompatible}
#define NO_GRAPHS {}
#ifdef __CUDACC__
#define STREAM cudaStream_t stream,
#define ON_STREAM stream,
#define ON_GPU .Ctx<ffi::PlatformStream<cudaStream_t>>()
#define PREPARED error_of(prepare())
#else
#define STREAM
#define ON_STREAM
#define ON_GPU
#define PREPARED nullptr
#endif
#define HANDLER(name, traits, ...) \
  extern "C" const char *name##_prepare() { return PREPARED; } \
  XLA_FFI_DEFINE_HANDLER_SYMBOL( \
      name##_handler, call, ffi::Ffi::Bind() ON_GPU __VA_ARGS__.RemainingArgs().RemainingRets(), traits)
