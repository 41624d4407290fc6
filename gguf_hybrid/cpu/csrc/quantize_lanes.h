// Lanes: one group of weights a lane, so that a search whose sums must run in a fixed order inside
// each group still fills the vector unit. A vector holds element i of every group.
//
// Every expression here and in quantize_search.h keeps the order of llama.cpp's float operations,
// and no multiply-add may be fused (-ffp-contract=off): the bytes depend on the last bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define GGH_INLINE static inline __attribute__((always_inline))

namespace ggh_quantize {

template <int lanes>
struct Lanes;

template <>
struct Lanes<8> {
  typedef float Float __attribute__((vector_size(32)));
  typedef int32_t Int __attribute__((vector_size(32)));
};

template <>
struct Lanes<16> {
  typedef float Float __attribute__((vector_size(64)));
  typedef int32_t Int __attribute__((vector_size(64)));
};

template <int lanes>
using Floats = typename Lanes<lanes>::Float;
template <int lanes>
using Ints = typename Lanes<lanes>::Int;

template <int lanes>
GGH_INLINE Floats<lanes> all(float value) {
  return Floats<lanes>{} + value;
}

// Round to the nearest integer, ties to even, by adding 1.5 * 2^23; the masks give the same
// garbage as llama.cpp's for values beyond 2^22, which degenerate groups do produce.
GGH_INLINE int nearest(float value) {
  const float shifted = value + 12582912.f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  return (bits & 0x007fffff) - 0x00400000;
}

template <int lanes>
GGH_INLINE Ints<lanes> nearest(Floats<lanes> value) {
  return ((Ints<lanes>)(value + 12582912.f) & 0x007fffff) - 0x00400000;
}

template <int lanes>
GGH_INLINE Floats<lanes> as_float(Ints<lanes> value) {
  return __builtin_convertvector(value, Floats<lanes>);
}

template <int lanes>
GGH_INLINE Floats<lanes> select(Ints<lanes> mask, Floats<lanes> yes, Floats<lanes> no) {
  return (Floats<lanes>)(((Ints<lanes>)yes & mask) | ((Ints<lanes>)no & ~mask));
}

template <int lanes>
GGH_INLINE Floats<lanes> magnitude(Floats<lanes> value) {
  return (Floats<lanes>)((Ints<lanes>)value & 0x7fffffff);
}

template <int lanes>
GGH_INLINE Floats<lanes> square_root(Floats<lanes> value) {
  for (int lane = 0; lane < lanes; ++lane) value[lane] = std::sqrt(value[lane]);
  return value;
}

// The nearest integer of each lane, held between low and high, as a float.
template <int lanes>
GGH_INLINE Floats<lanes> code(Floats<lanes> value, int low, int high) {
  Ints<lanes> rounded = nearest<lanes>(value);
  const Ints<lanes> floor = Ints<lanes>{} + low, ceiling = Ints<lanes>{} + high;
  const Ints<lanes> above = rounded > ceiling;
  rounded = (ceiling & above) | (rounded & ~above);
  const Ints<lanes> below = rounded < floor;
  return as_float<lanes>((floor & below) | (rounded & ~below));
}

// Consecutive groups of n values as columns: columns[i][lane] = values[lane * n + i].
template <int lanes, int n>
GGH_INLINE void to_columns(const float *values, Floats<lanes> *columns) {
  for (int i = 0; i < n; ++i) {
    for (int lane = 0; lane < lanes; ++lane) columns[i][lane] = values[lane * n + i];
  }
}

// Columns of codes back to bytes, group after group.
template <int lanes, int n>
GGH_INLINE void to_codes(const Floats<lanes> *columns, uint8_t *codes) {
  for (int i = 0; i < n; ++i) {
    const Ints<lanes> column = __builtin_convertvector(columns[i], Ints<lanes>);
    for (int lane = 0; lane < lanes; ++lane) codes[lane * n + i] = (uint8_t)column[lane];
  }
}

// f16 with round to nearest even; too large becomes infinity.
GGH_INLINE uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (size < 0x38800000u) {
    // Subnormal: adding 0.5 lines the f16 unit up with the last bit of the float.
    float small;
    std::memcpy(&small, &size, sizeof small);
    small += 0.5f;
    uint32_t shifted;
    std::memcpy(&shifted, &small, sizeof shifted);
    return (uint16_t)(sign | (shifted - 0x3f000000u));
  }
  const uint32_t odd = size >> 13 & 1u;
  return (uint16_t)(sign | (size + 0xc8000fffu + odd) >> 13);
}

GGH_INLINE float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t size = half & 0x7fffu;
  uint32_t bits = size << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;  // exact: moves the exponent from f16's bias to float's
  std::memcpy(&bits, &value, sizeof bits);
  if (size >= 0x7c00u) bits = 0x7f800000u | (size & 0x3ffu) << 13;
  bits |= sign;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

GGH_INLINE float rounded_to_half(float value, uint16_t *half) {
  *half = to_half(value);
  return from_half(*half);
}

}  // namespace ggh_quantize
