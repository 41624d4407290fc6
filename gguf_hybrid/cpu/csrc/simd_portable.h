// Sixteen 32-bit lanes in plain C++ for every other processor, and as the reference of the rest.
// Names and results as in simd_avx512.h; needs a little-endian machine, as GGUF files do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.h"

#define GGH_ISA portable

namespace ggh::portable {

constexpr const char* kName = "portable";
constexpr int kTile = 2;
constexpr int kFloatTile = 2;
constexpr int kFlip = 0;

struct Ints {
  uint32_t lane[16];
};
struct Floats {
  float lane[16];
};
struct Table {
  int8_t values[16];
};

template <class Fn>
inline Ints each(Fn fn) {
  Ints out;
  for (int i = 0; i < 16; ++i) out.lane[i] = fn(i);
  return out;
}
template <class Fn>
inline Floats each_float(Fn fn) {
  Floats out;
  for (int i = 0; i < 16; ++i) out.lane[i] = fn(i);
  return out;
}

inline Ints ints(int32_t v) {
  return each([&](int) { return static_cast<uint32_t>(v); });
}
inline Ints load(const void* p) {
  Ints out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline void store(void* p, Ints v) { std::memcpy(p, &v, sizeof v); }
inline Ints broadcast(const void* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return ints(v);
}
inline Ints bits_and(Ints a, Ints b) {
  return each([&](int i) { return a.lane[i] & b.lane[i]; });
}
inline Ints bits_or(Ints a, Ints b) {
  return each([&](int i) { return a.lane[i] | b.lane[i]; });
}
inline Ints bits_xor(Ints a, Ints b) {
  return each([&](int i) { return a.lane[i] ^ b.lane[i]; });
}
template <int n>
inline Ints shift_left(Ints a) {
  return each([&](int i) { return a.lane[i] << n; });
}
template <int n>
inline Ints shift_right(Ints a) {
  return each([&](int i) { return a.lane[i] >> n; });
}
template <int n>
inline Ints shift_right_signed(Ints a) {
  return each([&](int i) {
    return static_cast<uint32_t>(static_cast<int32_t>(a.lane[i]) >> n);
  });
}
inline Ints add(Ints a, Ints b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Ints multiply(Ints a, Ints b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}

inline Ints load_bytes(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return each([&](int i) { return static_cast<uint32_t>(bytes[i]); });
}
inline Ints load_signed_bytes(const void* p) {
  const auto* bytes = static_cast<const int8_t*>(p);
  return each([&](int i) { return static_cast<uint32_t>(static_cast<int32_t>(bytes[i])); });
}
inline Ints shift_right(Ints a, int n) {
  return each([&](int i) { return a.lane[i] >> n; });
}

inline Table table(const int8_t* values) {
  Table out;
  std::memcpy(out.values, values, sizeof out.values);
  return out;
}
inline int32_t byte_of(uint32_t lane, int j) {
  return static_cast<int8_t>(static_cast<uint8_t>(lane >> (8 * j)));
}
inline int32_t word_of(uint32_t lane, int j) {
  return static_cast<int16_t>(static_cast<uint16_t>(lane >> (16 * j)));
}
inline Ints lookup(Table t, Ints indices) {
  return each([&](int i) {
    uint32_t lane = 0;
    for (int j = 0; j < 4; ++j) {
      const auto value = static_cast<uint8_t>(t.values[byte_of(indices.lane[i], j)]);
      lane |= static_cast<uint32_t>(value) << (8 * j);
    }
    return lane;
  });
}

inline Ints dot4_wide(Ints acc, Ints codes, Ints x) {
  return each([&](int i) {
    int32_t dot = 0;
    for (int j = 0; j < 4; ++j) dot += byte_of(codes.lane[i], j) * byte_of(x.lane[i], j);
    return acc.lane[i] + static_cast<uint32_t>(dot);
  });
}
inline Ints dot4(Ints acc, Ints codes, Ints x) { return dot4_wide(acc, codes, x); }
inline Ints dot2(Ints acc, Ints a, Ints b) {
  return each([&](int i) {
    const int32_t dot = word_of(a.lane[i], 0) * word_of(b.lane[i], 0) +
                        word_of(a.lane[i], 1) * word_of(b.lane[i], 1);
    return acc.lane[i] + static_cast<uint32_t>(dot);
  });
}

inline Floats floats(float v) {
  return each_float([&](int) { return v; });
}
inline Floats load_floats(const float* p) {
  Floats out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline void store_floats(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
inline Floats to_floats(Ints a) {
  return each_float([&](int i) { return static_cast<float>(static_cast<int32_t>(a.lane[i])); });
}
inline Floats add(Floats a, Floats b) {
  return each_float([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Floats multiply(Floats a, Floats b) {
  return each_float([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats fused(Floats a, Floats b, Floats c) {
  return each_float([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
inline Floats half_low(Ints a) {
  return each_float([&](int i) { return half_to_float(static_cast<uint16_t>(a.lane[i])); });
}
inline Floats half_high(Ints a) { return half_low(shift_right<16>(a)); }
inline Floats load_halves(const void* p) {
  uint16_t halves[16];
  std::memcpy(halves, p, sizeof halves);
  return each_float([&](int i) { return half_to_float(halves[i]); });
}
inline float sum(Floats a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.lane[i] += a.lane[i + width];
  }
  return a.lane[0];
}

inline void load_transposed(const uint8_t* p, size_t stride, Ints out[4]) {
  for (size_t r = 0; r < 16; ++r) {
    for (size_t j = 0; j < 4; ++j) std::memcpy(&out[j].lane[r], p + r * stride + 4 * j, 4);
  }
}
inline Ints gather_u16(const uint8_t* p, size_t stride) {
  return each([&](int r) {
    uint16_t v;
    std::memcpy(&v, p + static_cast<size_t>(r) * stride, sizeof v);
    return static_cast<uint32_t>(v);
  });
}

}  // namespace ggh::portable
