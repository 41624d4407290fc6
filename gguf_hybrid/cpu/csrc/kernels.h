// The table of kernels that each CPU variant fills, and the layouts that cross its boundary.
//
// A kernel works on a panel: 16 rows of a weight against all rows of activations that want them.
// It unpacks the panel's blocks so that lane r of a register belongs to row r, which gives every
// result one accumulator and one order of summation: blocks first to last, integers inside a block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace ggh {

constexpr int kPanelRows = 16;

// 32 activations: x = d * q. The partner of 32-element weight blocks.
struct Act32 {
  int8_t q[32];
  float d;
  int32_t sum;  // of q
};
static_assert(sizeof(Act32) == 40);

// 256 activations: x = d * q. The partner of the K types.
struct Act256 {
  int8_t q[256];
  int16_t sums16[16];  // of 16 q each
  int16_t sums32[8];   // of 32 q each
  float d;
  uint32_t padding[3];
};
static_assert(sizeof(Act256) == 320);

struct PanelArgs {
  const uint8_t* weights;  // 16 readable rows, row_stride bytes apart
  size_t row_stride;
  int64_t k;
  int n_rows;  // results wanted, 1 to 16
  const uint8_t* x;  // rows of Act32, Act256 or float, by the form of the type
  size_t x_row_bytes;
  const int32_t* x_rows;  // null: 0, 1, 2, ...
  const int32_t* y_rows;
  int64_t m;
  float* y;  // at the panel's first column
  int64_t y_stride;
  void* scratch;             // panel_scratch_bytes(), 64-byte aligned
  const uint8_t* read_next;  // what to fetch into the cache meanwhile: 16 rows, or null
};

using PanelFn = void (*)(const PanelArgs&);
using DecodeFn = void (*)(const uint8_t* blocks, int64_t k, float* out);

struct Kernels {
  const char* name;
  void (*quantize32)(const float* x, int64_t k, Act32* out);
  void (*quantize256)(const float* x, int64_t k, Act256* out);
  // By ggml type; null where there is none. `fast` holds the types with int8 activations.
  PanelFn fast[kTypeEnd];
  PanelFn exact[kTypeEnd];
  DecodeFn decode[kTypeEnd];
  // Scratch of one panel of k columns, enough for either mode.
  size_t (*panel_scratch_bytes)(int64_t k);
};

const Kernels& kernels_portable();
#if defined(__x86_64__) || defined(_M_X64)
const Kernels& kernels_avx2();
const Kernels& kernels_avx2vnni();
const Kernels& kernels_avx512();
#elif defined(__aarch64__)
const Kernels& kernels_neon();
#endif

// The variant of this process, chosen at first use.
const Kernels& kernels();
// Why GGH_CPU was not followed, or null.
const char* dispatch_problem();

}  // namespace ggh
