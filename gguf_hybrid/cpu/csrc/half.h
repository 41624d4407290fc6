// f16 and bf16 numbers without hardware help. Static on purpose: files compiled for different
// processors must not share one copy of an inline function.
#pragma once

#include <cstdint>
#include <cstring>

namespace ggh {

static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Exact; subnormals, infinities and NaN included.
static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // As a float with the exponent bias of f16 the number is 2^112 times too small; the product is
  // exact and turns subnormals into normal numbers.
  const float value = float_from_bits(magnitude << 13) * 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return float_from_bits(sign | bits);
}

static inline float bfloat_to_float(uint16_t bfloat) {
  return float_from_bits(static_cast<uint32_t>(bfloat) << 16);
}

}  // namespace ggh
