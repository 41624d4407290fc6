// One super-block of 256 weights for each K type and IQ4_XS. `importance` is null or one weight a
// value; with it llama.cpp uses other searches, and other bytes come out.
#pragma once

#include "quantize_search.h"

namespace ggh_quantize {

constexpr int kSuper = 256;

GGH_INLINE float sum_of_squares(const float *x, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// importance * sqrt(variance + x²), column by column.
template <int lanes, int n>
GGH_INLINE void importance_weights(const Floats<lanes> *x, const float *importance, float variance,
                                   Floats<lanes> *weights) {
  to_columns<lanes, n>(importance, weights);
  for (int i = 0; i < n; ++i) {
    weights[i] = weights[i] * square_root<lanes>(variance + x[i] * x[i]);
  }
}

template <int lanes, int n>
GGH_INLINE void column_sums(const Floats<lanes> *columns, float *sums) {
  Floats<lanes> sum = {};
  for (int i = 0; i < n; ++i) sum += columns[i];
  std::memcpy(sums, &sum, sizeof sum);
}

GGH_INLINE float largest(const float *values, int n) {
  float max = 0;
  for (int i = 0; i < n; ++i) max = values[i] > max ? values[i] : max;
  return max;
}

// Codes again, now that scale and minimum of each group are rounded: (x + minimum) / scale. Groups
// with scale 0 keep the codes of the search, as llama.cpp leaves them.
template <int lanes, int n>
GGH_INLINE void requantize(const Floats<lanes> *x, const float *scales, const float *minima,
                           int low, int high, Floats<lanes> *codes) {
  Floats<lanes> scale, minimum;
  std::memcpy(&scale, scales, sizeof scale);
  std::memcpy(&minimum, minima, sizeof minimum);
  const Ints<lanes> usable = scale != 0;
  for (int i = 0; i < n; ++i) {
    const Floats<lanes> l = code<lanes>((x[i] + minimum) / scale, low, high) - (float)low;
    codes[i] = select<lanes>(usable, l, codes[i]);
  }
}

// Four codes of two bits a byte: run t of 32 in each half goes to bits 2t.
GGH_INLINE void pack_two_bits(const uint8_t *codes, uint8_t *out) {
  for (int half = 0; half < 2; ++half, codes += 128, out += 32) {
    for (int i = 0; i < 32; ++i) {
      out[i] = (uint8_t)(codes[i] | codes[i + 32] << 2 | codes[i + 64] << 4 | codes[i + 96] << 6);
    }
  }
}

GGH_INLINE void store_half(uint16_t half, uint8_t *out) { std::memcpy(out, &half, sizeof half); }

// Q2_K: scales[16] (scale low, minimum high nibble), qs[64], d, dmin.
GGH_INLINE void block_q2_k(const float *values, const float *importance, uint8_t *out) {
  constexpr int lanes = 16, n = 16;
  Floats<lanes> x[n], weights[n], codes[n], minimum, scale;
  float scales[16], minima[16], sums[16];
  uint8_t scale_codes[16] = {}, min_codes[16] = {};
  float d, dmin;
  to_columns<lanes, n>(values, x);
  if (importance) {
    const float variance = sum_of_squares(values, kSuper) / kSuper;
    importance_weights<lanes, n>(x, importance, variance, weights);
    column_sums<lanes, n>(weights, sums);
    scale = search_scale_min<lanes, n, false, true>(x, weights, 3, {-0.9f, 0.05f, 36}, codes,
                                                    &minimum);
  } else {
    for (int i = 0; i < n; ++i) weights[i] = magnitude<lanes>(x[i]);
    scale = search_scale_min<lanes, n, true, false>(x, weights, 3, {-0.5f, 0.1f, 15}, codes,
                                                    &minimum);
  }
  std::memcpy(scales, &scale, sizeof scales);
  std::memcpy(minima, &minimum, sizeof minima);
  if (importance) {
    d = search_positive<16>(scales, sums, 15, scale_codes);
    dmin = search_positive<16>(minima, sums, 15, min_codes);
  } else {
    const float max_scale = largest(scales, 16), max_min = largest(minima, 16);
    const float inverse_scale = 15.f / max_scale, inverse_min = 15.f / max_min;
    for (int j = 0; j < 16; ++j) {
      if (max_scale > 0) scale_codes[j] = (uint8_t)nearest(inverse_scale * scales[j]);
      if (max_min > 0) min_codes[j] = (uint8_t)nearest(inverse_min * minima[j]);
    }
    d = max_scale > 0 ? max_scale / 15.f : 0;
    dmin = max_min > 0 ? max_min / 15.f : 0;
  }
  uint16_t half_d, half_dmin;
  d = rounded_to_half(d, &half_d);
  dmin = rounded_to_half(dmin, &half_dmin);
  for (int j = 0; j < 16; ++j) {
    out[j] = (uint8_t)(scale_codes[j] | min_codes[j] << 4);
    scales[j] = d * (out[j] & 15);
    minima[j] = dmin * (out[j] >> 4);
  }
  requantize<lanes, n>(x, scales, minima, 0, 3, codes);
  uint8_t bytes[kSuper];
  to_codes<lanes, n>(codes, bytes);
  pack_two_bits(bytes, out + 16);
  store_half(half_d, out + 80);
  store_half(half_dmin, out + 82);
}

// Q3_K: hmask[32], qs[64], scales[12] (16 of 6 bits), d.
GGH_INLINE void block_q3_k(const float *values, const float *importance, uint8_t *out) {
  constexpr int lanes = 16, n = 16;
  Floats<lanes> x[n], weights[n], codes[n];
  float scales[16], sums[16], zeros[16] = {};
  uint8_t scale_codes[16] = {};
  float d = 0;
  to_columns<lanes, n>(values, x);
  if (importance) {
    const float variance = 2 * sum_of_squares(values, kSuper) / kSuper;
    importance_weights<lanes, n>(x, importance, variance, weights);
    column_sums<lanes, n>(weights, sums);
    const Floats<lanes> scale = search_scale<lanes, n>(x, weights, 4, codes);
    // The second level is one group of 16 scales: the same search with all lanes alike.
    Floats<lanes> level_x[16], level_weights[16], level_codes[16];
    for (int j = 0; j < 16; ++j) {
      level_x[j] = all<lanes>(scale[j]);
      level_weights[j] = all<lanes>(sums[j]);
    }
    d = search_scale<lanes, 16>(level_x, level_weights, 32, level_codes)[0];
    for (int j = 0; j < 16; ++j) scale_codes[j] = (uint8_t)level_codes[j][0];
  } else {
    float group_codes[kSuper];
    for (int j = 0; j < 16; ++j) {
      scales[j] = refine_scale(values + n * j, 4, group_codes + n * j);
    }
    to_columns<lanes, n>(group_codes, codes);
    const float max_scale = extreme(scales, 16);
    if (max_scale != 0) {
      const float inverse = -32.f / max_scale;
      for (int j = 0; j < 16; ++j) {
        const int8_t l = (int8_t)nearest(inverse * scales[j]);
        scale_codes[j] = (uint8_t)(held(l, -32, 31) + 32);
      }
      d = 1 / inverse;
    }
  }
  uint16_t half_d;
  d = rounded_to_half(d, &half_d);
  uint8_t *packed = out + 96;
  std::memset(packed, 0, 12);
  for (int j = 0; j < 16; ++j) {
    packed[j % 8] |= (uint8_t)((scale_codes[j] & 15) << (j < 8 ? 0 : 4));
    packed[8 + j % 4] |= (uint8_t)(scale_codes[j] >> 4 << 2 * (j / 4));
    scales[j] = d * ((int)(scale_codes[j] & 63) - 32);
  }
  requantize<lanes, n>(x, scales, zeros, -4, 3, codes);
  uint8_t bytes[kSuper];
  to_codes<lanes, n>(codes, bytes);
  std::memset(out, 0, 32);
  for (int i = 0; i < kSuper; ++i) {
    out[i % 32] |= (uint8_t)(bytes[i] >> 2 << i / 32);
    bytes[i] &= 3;
  }
  pack_two_bits(bytes, out + 32);
  store_half(half_d, out + 108);
}

// Scales and minima of Q4_K and Q5_K: eight pairs of 6 bits in 12 bytes.
GGH_INLINE void pack_pairs(const uint8_t *scale_codes, const uint8_t *min_codes, uint8_t *packed) {
  for (int j = 0; j < 8; ++j) {
    const uint8_t s = scale_codes[j], m = min_codes[j];
    if (j < 4) {
      packed[j] = s;
      packed[j + 4] = m;
    } else {
      packed[j + 4] = (uint8_t)((s & 15) | (m & 15) << 4);
      packed[j - 4] |= (uint8_t)(s >> 4 << 6);
      packed[j] |= (uint8_t)(m >> 4 << 6);
    }
  }
}

// What a reader sees of pair j.
GGH_INLINE void unpack_pair(const uint8_t *packed, int j, int *scale, int *minimum) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *minimum = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    *minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
  }
}

// d, dmin and scales[12] of Q4_K (n_max 15) and Q5_K (31) into out[0..16), codes into `bytes`.
template <int n_max>
GGH_INLINE void header_q4_q5_k(const float *values, const float *importance, uint8_t *out,
                               uint8_t *bytes) {
  constexpr int lanes = 8, n = 32;
  constexpr Steps plain_steps = n_max == 15 ? Steps{-1.f, 0.1f, 20} : Steps{-0.5f, 0.1f, 15};
  Floats<lanes> x[n], weights[n], codes[n], minimum, scale;
  float scales[8], minima[8], sums[8];
  uint8_t scale_codes[8], min_codes[8];
  float d, dmin;
  to_columns<lanes, n>(values, x);
  if (importance) {
    const float variance = 2 * sum_of_squares(values, kSuper) / kSuper;
    importance_weights<lanes, n>(x, importance, variance, weights);
    column_sums<lanes, n>(weights, sums);
    scale = search_scale_min<lanes, n, false, true>(x, weights, n_max, {-0.9f, 0.05f, 36}, codes,
                                                    &minimum);
  } else {
    Floats<lanes> squares = {};
    for (int i = 0; i < n; ++i) squares += x[i] * x[i];
    const Floats<lanes> average = square_root<lanes>(squares / 32.f);
    for (int i = 0; i < n; ++i) weights[i] = average + magnitude<lanes>(x[i]);
    scale = search_scale_min<lanes, n, false, false>(x, weights, n_max, plain_steps, codes,
                                                     &minimum);
  }
  std::memcpy(scales, &scale, sizeof scales);
  std::memcpy(minima, &minimum, sizeof minima);
  if (importance) {
    d = search_positive<8>(scales, sums, 63, scale_codes);
    dmin = search_positive<8>(minima, sums, 63, min_codes);
  } else {
    const float max_scale = largest(scales, 8), max_min = largest(minima, 8);
    const float inverse_scale = max_scale > 0 ? 63.f / max_scale : 0.f;
    const float inverse_min = max_min > 0 ? 63.f / max_min : 0.f;
    for (int j = 0; j < 8; ++j) {
      scale_codes[j] = (uint8_t)nearest(inverse_scale * scales[j]);
      min_codes[j] = (uint8_t)nearest(inverse_min * minima[j]);
    }
    d = max_scale / 63.f;
    dmin = max_min / 63.f;
  }
  for (int j = 0; j < 8 && (n_max == 31 || !importance); ++j) {
    scale_codes[j] = scale_codes[j] < 63 ? scale_codes[j] : 63;
    min_codes[j] = min_codes[j] < 63 ? min_codes[j] : 63;
  }
  uint16_t half_d, half_dmin;
  d = rounded_to_half(d, &half_d);
  dmin = rounded_to_half(dmin, &half_dmin);
  store_half(half_d, out);
  store_half(half_dmin, out + 2);
  pack_pairs(scale_codes, min_codes, out + 4);
  for (int j = 0; j < 8; ++j) {
    int s, m;
    unpack_pair(out + 4, j, &s, &m);
    scales[j] = d * s;
    minima[j] = dmin * m;
  }
  requantize<lanes, n>(x, scales, minima, 0, n_max, codes);
  to_codes<lanes, n>(codes, bytes);
}

// Q4_K: d, dmin, scales[12], qs[128].
GGH_INLINE void block_q4_k(const float *values, const float *importance, uint8_t *out) {
  uint8_t codes[kSuper];
  header_q4_q5_k<15>(values, importance, out, codes);
  for (int i = 0; i < 128; ++i) {
    const int at = i / 32 * 64 + i % 32;
    out[16 + i] = (uint8_t)(codes[at] | codes[at + 32] << 4);
  }
}

// Q5_K: d, dmin, scales[12], qh[32], qs[128].
GGH_INLINE void block_q5_k(const float *values, const float *importance, uint8_t *out) {
  uint8_t codes[kSuper];
  header_q4_q5_k<31>(values, importance, out, codes);
  std::memset(out + 16, 0, 32);
  for (int i = 0; i < kSuper; ++i) out[16 + i % 32] |= (uint8_t)(codes[i] >> 4 << i / 32);
  for (int i = 0; i < 128; ++i) {
    const int at = i / 32 * 64 + i % 32;
    out[48 + i] = (uint8_t)((codes[at] & 15) | (codes[at + 32] & 15) << 4);
  }
}

// Q6_K: ql[128], qh[64], scales[16] (int8), d.
GGH_INLINE void block_q6_k(const float *values, const float *importance, uint8_t *out) {
  constexpr int lanes = 16, n = 16;
  Floats<lanes> x[n], weights[n], codes[n];
  float scales[16], zeros[16] = {};
  to_columns<lanes, n>(values, x);
  if (importance) {
    to_columns<lanes, n>(importance, weights);
  } else {
    for (int i = 0; i < n; ++i) weights[i] = x[i] * x[i];
  }
  const Floats<lanes> scale = search_scale<lanes, n>(x, weights, 32, codes);
  std::memcpy(scales, &scale, sizeof scales);
  const float max_scale = extreme(scales, 16);
  if (std::fabs(max_scale) < kAllZero) {
    std::memset(out, 0, 210);
    return;
  }
  const float inverse = -128.f / max_scale;
  uint16_t half_d;
  const float d = rounded_to_half(1 / inverse, &half_d);
  for (int j = 0; j < 16; ++j) {
    const int l = nearest(inverse * scales[j]);
    const int8_t stored = (int8_t)(l < 127 ? l : 127);
    out[192 + j] = (uint8_t)stored;
    scales[j] = d * stored;
  }
  requantize<lanes, n>(x, scales, zeros, -32, 31, codes);
  uint8_t bytes[kSuper];
  to_codes<lanes, n>(codes, bytes);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *q = bytes + 128 * half;
    uint8_t *low = out + 64 * half, *high = out + 128 + 32 * half;
    for (int i = 0; i < 32; ++i) {
      low[i] = (uint8_t)((q[i] & 15) | (q[i + 64] & 15) << 4);
      low[i + 32] = (uint8_t)((q[i + 32] & 15) | (q[i + 96] & 15) << 4);
      high[i] = (uint8_t)(q[i] >> 4 | q[i + 32] >> 4 << 2 | q[i + 64] >> 4 << 4 |
                          q[i + 96] >> 4 << 6);
    }
  }
  store_half(half_d, out + 208);
}

}  // namespace ggh_quantize
