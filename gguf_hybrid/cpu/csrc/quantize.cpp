// Rows of weights to ggml blocks: reading the source, choosing the block function, nothing else.
// Each type is one function, so that each can be compiled for wider vectors as well.
#include "quantize.h"

#include <vector>

#include "quantize_32.h"

#if defined(__x86_64__) && defined(__gnu_linux__)
#define GGH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GGH_CLONES
#endif

namespace ggh_quantize {
namespace {

enum Type {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30
};

using RowFunction = void (*)(const float *x, const float *importance, int64_t k, uint8_t *out);

#define GGH_SUPER_ROW(name, nbytes)                                                             \
  GGH_CLONES void row_##name(const float *x, const float *importance, int64_t k, uint8_t *out) { \
    for (int64_t at = 0; at < k; at += kSuper, out += nbytes) {                                  \
      block_##name(x + at, importance ? importance + at : nullptr, out);                         \
    }                                                                                            \
  }
GGH_SUPER_ROW(q2_k, 84)
GGH_SUPER_ROW(q3_k, 110)
GGH_SUPER_ROW(q4_k, 144)
GGH_SUPER_ROW(q5_k, 176)
GGH_SUPER_ROW(q6_k, 210)
GGH_SUPER_ROW(iq4_xs, 136)
#undef GGH_SUPER_ROW

// d, qh (five bits only), qs of each block.
template <int half>
GGH_INLINE void row_symmetric(const float *x, const float *importance, int64_t k, uint8_t *out) {
  const Row row = {x, importance, importance ? sum_of_squares(x, (int)k) / k : 0};
  const int64_t n_blocks = k / kBlock;
  uint8_t codes[8 * kBlock];
  float d[8];
  for (int64_t first = 0; first < n_blocks; first += 8) {
    if (importance) search_symmetric<half>(row, first, n_blocks, d, codes);
    for (int64_t b = 0; b < 8 && first + b < n_blocks; ++b) {
      uint8_t *block_codes = codes + kBlock * b;
      if (!importance) d[b] = codes_symmetric<half>(x + (first + b) * kBlock, block_codes);
      store_half(to_half(d[b]), out);
      if (half == 16) pack_fifth_bits(block_codes, out + 2);
      pack_nibbles(block_codes, out + (half == 16 ? 6 : 2));
      out += half == 16 ? 22 : 18;
    }
  }
}

// d, m, qh (five bits only), qs of each block.
template <int n_max>
GGH_INLINE void row_from_min(const float *x, const float *importance, int64_t k, uint8_t *out) {
  const Row row = {x, importance, importance ? sum_of_squares(x, (int)k) / k : 0};
  const int64_t n_blocks = k / kBlock;
  uint8_t codes[8 * kBlock];
  float d[8], minima[8];
  for (int64_t first = 0; first < n_blocks; first += 8) {
    if (importance) search_from_min<n_max>(row, first, n_blocks, d, minima, codes);
    for (int64_t b = 0; b < 8 && first + b < n_blocks; ++b) {
      uint8_t *block_codes = codes + kBlock * b;
      if (!importance) {
        d[b] = codes_from_min<n_max>(x + (first + b) * kBlock, block_codes, &minima[b]);
      }
      store_half(to_half(d[b]), out);
      store_half(to_half(minima[b]), out + 2);
      if (n_max == 31) pack_fifth_bits(block_codes, out + 4);
      pack_nibbles(block_codes, out + (n_max == 31 ? 8 : 4));
      out += n_max == 31 ? 24 : 20;
    }
  }
}

#define GGH_BLOCK_ROW(name, function)                                                           \
  GGH_CLONES void row_##name(const float *x, const float *importance, int64_t k, uint8_t *out) { \
    function(x, importance, k, out);                                                             \
  }
GGH_BLOCK_ROW(q4_0, row_symmetric<8>)
GGH_BLOCK_ROW(q5_0, row_symmetric<16>)
GGH_BLOCK_ROW(q4_1, row_from_min<15>)
GGH_BLOCK_ROW(q5_1, row_from_min<31>)
#undef GGH_BLOCK_ROW

GGH_CLONES void row_iq4_nl(const float *x, const float *importance, int64_t k, uint8_t *out) {
  const Row row = {x, importance, 0};
  for (int64_t first = 0; first < k / kBlock; first += 8) {
    blocks_iq4_nl(row, first, k / kBlock, out + 18 * first);
  }
}

GGH_CLONES void row_q8_0(const float *x, const float *, int64_t k, uint8_t *out) {
  for (int64_t at = 0; at < k; at += kBlock, out += 34) block_q8_0(x + at, out);
}

GGH_CLONES void row_f16(const float *x, const float *, int64_t k, uint8_t *out) {
  for (int64_t i = 0; i < k; ++i) store_half(to_half(x[i]), out + 2 * i);
}

GGH_CLONES void row_bf16(const float *x, const float *, int64_t k, uint8_t *out) {
  for (int64_t i = 0; i < k; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    store_half((uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16), out + 2 * i);
  }
}

void row_f32(const float *x, const float *, int64_t k, uint8_t *out) {
  std::memcpy(out, x, k * sizeof(float));
}

struct Target {
  RowFunction row;
  int block;
  int nbytes;
};

Target target(int32_t type) {
  switch (type) {
    case F32: return {row_f32, 1, 4};
    case F16: return {row_f16, 1, 2};
    case BF16: return {row_bf16, 1, 2};
    case Q4_0: return {row_q4_0, kBlock, 18};
    case Q4_1: return {row_q4_1, kBlock, 20};
    case Q5_0: return {row_q5_0, kBlock, 22};
    case Q5_1: return {row_q5_1, kBlock, 24};
    case Q8_0: return {row_q8_0, kBlock, 34};
    case IQ4_NL: return {row_iq4_nl, kBlock, 18};
    case Q2_K: return {row_q2_k, kSuper, 84};
    case Q3_K: return {row_q3_k, kSuper, 110};
    case Q4_K: return {row_q4_k, kSuper, 144};
    case Q5_K: return {row_q5_k, kSuper, 176};
    case Q6_K: return {row_q6_k, kSuper, 210};
    case IQ4_XS: return {row_iq4_xs, kSuper, 136};
    default: return {nullptr, 1, 0};
  }
}

// One source row as float32; false if a value is not finite.
GGH_CLONES bool read_row(int32_t type, const void *src, int64_t k, float *x) {
  if (type == F32) {
    std::memcpy(x, src, k * sizeof(float));
  } else if (type == F16) {
    for (int64_t i = 0; i < k; ++i) x[i] = from_half(((const uint16_t *)src)[i]);
  } else {
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t bits = (uint32_t)((const uint16_t *)src)[i] << 16;
      std::memcpy(x + i, &bits, sizeof bits);
    }
  }
  uint32_t not_finite = 0;
  for (int64_t i = 0; i < k; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    not_finite |= (bits & 0x7f800000u) == 0x7f800000u;
  }
  return !not_finite;
}

}  // namespace
}  // namespace ggh_quantize

int32_t ggh_quantize_rows(int32_t src_type, const void *src, int32_t dst_type, void *dst,
                          int64_t n_rows, int64_t k, const float *importance) {
  using namespace ggh_quantize;
  const Target to = target(dst_type);
  if (!to.row || (src_type != F32 && src_type != F16 && src_type != BF16)) {
    return GGH_QUANTIZE_BAD_TYPE;
  }
  if (n_rows < 0 || k <= 0 || k % to.block) return GGH_QUANTIZE_BAD_SIZE;
  std::vector<float> x(k);
  const int64_t src_nbytes = k * (src_type == F32 ? 4 : 2);
  const int64_t dst_nbytes = k / to.block * to.nbytes;
  for (int64_t row = 0; row < n_rows; ++row) {
    if (!read_row(src_type, (const uint8_t *)src + row * src_nbytes, k, x.data())) {
      return GGH_QUANTIZE_NOT_FINITE;
    }
    to.row(x.data(), importance, k, (uint8_t *)dst + row * dst_nbytes);
  }
  return GGH_QUANTIZE_OK;
}
