// The types with blocks of 32 weights, and IQ4_XS, whose super-block is eight of them.
#pragma once

#include <cfloat>

#include "quantize_k.h"

namespace ggh_quantize {

constexpr int kBlock = 32;

// Sixteen bytes of low nibbles: code i and code i + 16 share a byte.
GGH_INLINE void pack_nibbles(const uint8_t *codes, uint8_t *out) {
  for (int i = 0; i < 16; ++i) out[i] = (uint8_t)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

// The fifth bit of each code.
GGH_INLINE void pack_fifth_bits(const uint8_t *codes, uint8_t *out) {
  uint32_t bits = 0;
  for (int i = 0; i < kBlock; ++i) bits |= (uint32_t)(codes[i] >> 4 & 1) << i;
  std::memcpy(out, &bits, sizeof bits);
}

// Q4_0 (half 8) and Q5_0 (half 16) without importance: the extreme value becomes code 0.
template <int half>
GGH_INLINE float codes_symmetric(const float *x, uint8_t *codes) {
  const float d = extreme(x, kBlock) / -half;
  const float inverse = d != 0 ? 1.f / d : 0.f;
  for (int i = 0; i < kBlock; ++i) {
    const int l = (int8_t)(x[i] * inverse + (half + 0.5f));
    codes[i] = (uint8_t)(l < 2 * half - 1 ? l : 2 * half - 1);
  }
  return d;
}

// Q4_1 (n_max 15) and Q5_1 (31) without importance: codes from minimum to maximum.
template <int n_max>
GGH_INLINE float codes_from_min(const float *x, uint8_t *codes, float *minimum) {
  float min = FLT_MAX, max = -FLT_MAX;
  for (int i = 0; i < kBlock; ++i) {
    min = x[i] < min ? x[i] : min;
    max = x[i] > max ? x[i] : max;
  }
  const float d = (max - min) / n_max;
  const float inverse = d != 0 ? 1.f / d : 0.f;
  for (int i = 0; i < kBlock; ++i) {
    const int l = (int8_t)((x[i] - min) * inverse + 0.5f);
    codes[i] = (uint8_t)(n_max == 31 || l < n_max ? l : n_max);
  }
  *minimum = min;
  return d;
}

// The blocks of one row, eight at a time: a lane a block. `variance` is that of the whole row.
struct Row {
  const float *x;
  const float *importance;
  float variance;
};

// x and importance of eight blocks from `first`; blocks beyond the row are zeros.
GGH_INLINE void load_blocks(const Row &row, int64_t first, int64_t n_blocks, Floats<8> *x,
                            Floats<8> *weights) {
  const int64_t present = n_blocks - first < 8 ? n_blocks - first : 8;
  float values[8 * kBlock] = {}, importance[8 * kBlock] = {};
  std::memcpy(values, row.x + first * kBlock, present * kBlock * sizeof(float));
  to_columns<8, kBlock>(values, x);
  if (row.importance) {
    std::memcpy(importance, row.importance + first * kBlock, present * kBlock * sizeof(float));
  }
  to_columns<8, kBlock>(importance, weights);
}

// Q4_0 and Q5_0 with importance.
template <int half>
GGH_INLINE void search_symmetric(const Row &row, int64_t first, int64_t n_blocks, float *d,
                                 uint8_t *codes) {
  Floats<8> x[kBlock], weights[kBlock], columns[kBlock];
  load_blocks(row, first, n_blocks, x, weights);
  for (int i = 0; i < kBlock; ++i) {
    weights[i] = weights[i] * square_root<8>(row.variance + x[i] * x[i]);
  }
  const Floats<8> scale = search_scale<8, kBlock>(x, weights, half, columns);
  std::memcpy(d, &scale, sizeof scale);
  to_codes<8, kBlock>(columns, codes);
}

// Q4_1 and Q5_1 with importance.
template <int n_max>
GGH_INLINE void search_from_min(const Row &row, int64_t first, int64_t n_blocks, float *d,
                                float *minima, uint8_t *codes) {
  Floats<8> x[kBlock], weights[kBlock], columns[kBlock], minimum;
  load_blocks(row, first, n_blocks, x, weights);
  for (int i = 0; i < kBlock; ++i) {
    weights[i] = weights[i] * square_root<8>(row.variance + x[i] * x[i]);
  }
  const Floats<8> scale = search_scale_min<8, kBlock, false, true>(
      x, weights, n_max, {-0.9f, 0.05f, 36}, columns, &minimum);
  minimum = -minimum;
  std::memcpy(d, &scale, sizeof scale);
  std::memcpy(minima, &minimum, sizeof minimum);
  to_codes<8, kBlock>(columns, codes);
}

// Weights of the IQ4 searches: x², or importance * sqrt(variance + x²).
GGH_INLINE void lut_weights(const Floats<8> *x, bool importance, Floats<8> variance,
                            Floats<8> *weights) {
  for (int i = 0; i < kBlock; ++i) {
    const Floats<8> squares = x[i] * x[i];
    weights[i] = importance ? weights[i] * square_root<8>(variance + squares) : squares;
  }
}

// IQ4_NL, eight blocks: d, qs[16] each. The variance is that of each block.
GGH_INLINE void blocks_iq4_nl(const Row &row, int64_t first, int64_t n_blocks, uint8_t *out) {
  Floats<8> x[kBlock], weights[kBlock], columns[kBlock], squares = {};
  load_blocks(row, first, n_blocks, x, weights);
  for (int i = 0; i < kBlock; ++i) squares += x[i] * x[i];
  lut_weights(x, row.importance != nullptr, squares * (2.f / kBlock), weights);
  const Floats<8> scale = search_lut_scale<8>(x, weights);
  const Floats<8> inverse = select<8>(scale != 0, 1.f / scale, Floats<8>{});
  for (int i = 0; i < kBlock; ++i) columns[i] = lut_index<8>(inverse * x[i]);
  uint8_t codes[8 * kBlock];
  to_codes<8, kBlock>(columns, codes);
  for (int64_t b = 0; b < 8 && first + b < n_blocks; ++b) {
    store_half(to_half(scale[b]), out + 18 * b);
    pack_nibbles(codes + kBlock * b, out + 18 * b + 2);
  }
}

// IQ4_XS: d, scales_h (u16), scales_l[4], qs[128].
GGH_INLINE void block_iq4_xs(const float *values, const float *importance, uint8_t *out) {
  const Row row = {values, importance, 0};
  Floats<8> x[kBlock], weights[kBlock], columns[kBlock], inverse = {};
  load_blocks(row, 0, 8, x, weights);
  const float variance = sum_of_squares(values, kSuper) * (2.f / kSuper);
  lut_weights(x, importance != nullptr, all<8>(variance), weights);
  const Floats<8> scale = search_lut_scale<8>(x, weights);
  float scales[8];
  std::memcpy(scales, &scale, sizeof scales);
  const float d = -extreme(scales, 8) / 32;
  const float inverse_d = d != 0 ? 1 / d : 0.f;
  uint16_t high = 0;
  std::memset(out + 4, 0, 4);
  for (int b = 0; b < 8; ++b) {
    const int l = held(nearest(inverse_d * scales[b]), -32, 31);
    const float rounded = d * l;
    inverse[b] = rounded != 0 ? 1 / rounded : 0.f;
    out[4 + b / 2] |= (uint8_t)(((l + 32) & 15) << 4 * (b % 2));
    high |= (uint16_t)((l + 32) >> 4 << 2 * b);
  }
  store_half(to_half(d), out);
  store_half(high, out + 2);
  for (int i = 0; i < kBlock; ++i) columns[i] = lut_index<8>(inverse * x[i]);
  uint8_t codes[kSuper];
  to_codes<8, kBlock>(columns, codes);
  for (int b = 0; b < 8; ++b) pack_nibbles(codes + kBlock * b, out + 8 + 16 * b);
}

// Q8_0: d, qs[32]. Ties away from zero. A d so small that 1/d overflows is 0 as f16: codes 0.
GGH_INLINE void block_q8_0(const float *x, uint8_t *out) {
  float size = 0;
  for (int i = 0; i < kBlock; ++i) size = size > std::fabs(x[i]) ? size : std::fabs(x[i]);
  const float d = size / 127;
  float inverse = d != 0 ? 1.f / d : 0.f;
  inverse = inverse <= FLT_MAX ? inverse : 0.f;
  store_half(to_half(d), out);
  for (int i = 0; i < kBlock; ++i) {
    const float value = x[i] * inverse;
    const int whole = (int)value;
    const float rest = value - whole;
    out[2 + i] = (uint8_t)(int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
  }
}

}  // namespace ggh_quantize
