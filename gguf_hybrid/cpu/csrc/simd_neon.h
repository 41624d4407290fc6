// Sixteen 32-bit lanes in four NEON registers (ARMv8.2 with the dot-product instructions: Apple
// M1 and later, Graviton 2 and later). Names and results as in simd_avx512.h.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define GGH_ISA neon

namespace ggh::neon {

constexpr const char* kName = "neon";
constexpr int kTile = 2;
constexpr int kFloatTile = 2;
constexpr int kFlip = 0;  // sdot takes signed weights

struct Ints {
  int32x4_t part[4];
};
struct Floats {
  float32x4_t part[4];
};
using Table = int8x16_t;

template <class Fn>
inline Ints each(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}
template <class Fn>
inline Floats each_float(Fn fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}
inline int8x16_t bytes(int32x4_t v) { return vreinterpretq_s8_s32(v); }
inline uint32x4_t unsigned_lanes(int32x4_t v) { return vreinterpretq_u32_s32(v); }

inline Ints ints(int32_t v) {
  return each([&](int) { return vdupq_n_s32(v); });
}
inline Ints load(const void* p) {
  const auto* lanes = static_cast<const int32_t*>(p);
  return each([&](int i) { return vld1q_s32(lanes + 4 * i); });
}
inline void store(void* p, Ints v) {
  auto* lanes = static_cast<int32_t*>(p);
  for (int i = 0; i < 4; ++i) vst1q_s32(lanes + 4 * i, v.part[i]);
}
inline Ints broadcast(const void* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return ints(v);
}
inline Ints bits_and(Ints a, Ints b) {
  return each([&](int i) { return vandq_s32(a.part[i], b.part[i]); });
}
inline Ints bits_or(Ints a, Ints b) {
  return each([&](int i) { return vorrq_s32(a.part[i], b.part[i]); });
}
inline Ints bits_xor(Ints a, Ints b) {
  return each([&](int i) { return veorq_s32(a.part[i], b.part[i]); });
}
// Shifts by a register: the immediate forms do not take 0.
template <int n>
inline Ints shift_left(Ints a) {
  return each([&](int i) { return vshlq_s32(a.part[i], vdupq_n_s32(n)); });
}
template <int n>
inline Ints shift_right(Ints a) {
  return each([&](int i) {
    return vreinterpretq_s32_u32(vshlq_u32(unsigned_lanes(a.part[i]), vdupq_n_s32(-n)));
  });
}
template <int n>
inline Ints shift_right_signed(Ints a) {
  return each([&](int i) { return vshlq_s32(a.part[i], vdupq_n_s32(-n)); });
}
inline Ints add(Ints a, Ints b) {
  return each([&](int i) { return vaddq_s32(a.part[i], b.part[i]); });
}
inline Ints multiply(Ints a, Ints b) {
  return each([&](int i) { return vmulq_s32(a.part[i], b.part[i]); });
}

inline Ints load_bytes(const void* p) {
  const uint8x16_t bytes = vld1q_u8(static_cast<const uint8_t*>(p));
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
  const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
inline Ints load_signed_bytes(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
           vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))}};
}
inline Ints shift_right(Ints a, int n) {
  const int32x4_t count = vdupq_n_s32(-n);
  return each([&](int i) {
    return vreinterpretq_s32_u32(vshlq_u32(unsigned_lanes(a.part[i]), count));
  });
}

inline Table table(const int8_t* values) { return vld1q_s8(values); }
inline Ints lookup(Table t, Ints indices) {
  return each([&](int i) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(t, vreinterpretq_u8_s32(indices.part[i])));
  });
}

inline Ints dot4(Ints acc, Ints codes, Ints x) {
  return each([&](int i) {
    return vdotq_s32(acc.part[i], bytes(codes.part[i]), bytes(x.part[i]));
  });
}
inline Ints dot4_wide(Ints acc, Ints codes, Ints x) { return dot4(acc, codes, x); }
inline Ints dot2(Ints acc, Ints a, Ints b) {
  return each([&](int i) {
    const int16x8_t p = vreinterpretq_s16_s32(a.part[i]);
    const int16x8_t q = vreinterpretq_s16_s32(b.part[i]);
    const int32x4_t low = vmull_s16(vget_low_s16(p), vget_low_s16(q));
    const int32x4_t high = vmull_high_s16(p, q);
    return vaddq_s32(acc.part[i], vpaddq_s32(low, high));
  });
}

inline Floats floats(float v) {
  return each_float([&](int) { return vdupq_n_f32(v); });
}
inline Floats load_floats(const float* p) {
  return each_float([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store_floats(float* p, Floats v) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.part[i]);
}
inline Floats to_floats(Ints a) {
  return each_float([&](int i) { return vcvtq_f32_s32(a.part[i]); });
}
inline Floats add(Floats a, Floats b) {
  return each_float([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Floats multiply(Floats a, Floats b) {
  return each_float([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Floats fused(Floats a, Floats b, Floats c) {
  return each_float([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
inline Floats half_low(Ints a) {
  return each_float([&](int i) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(unsigned_lanes(a.part[i]))));
  });
}
inline Floats half_high(Ints a) { return half_low(shift_right<16>(a)); }
inline Floats load_halves(const void* p) {
  const auto* halves = static_cast<const uint16_t*>(p);
  return each_float([&](int i) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + 4 * i)));
  });
}
inline float sum(Floats a) {
  const float32x4_t low = vaddq_f32(a.part[0], a.part[2]);
  const float32x4_t high = vaddq_f32(a.part[1], a.part[3]);
  const float32x4_t four = vaddq_f32(low, high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

inline void load_transposed_4(const uint8_t* p, size_t stride, int32x4_t out[4]) {
  const auto row = [&](size_t r) { return vreinterpretq_s32_u8(vld1q_u8(p + r * stride)); };
  const int32x4x2_t ab = vtrnq_s32(row(0), row(1));
  const int32x4x2_t cd = vtrnq_s32(row(2), row(3));
  out[0] = vcombine_s32(vget_low_s32(ab.val[0]), vget_low_s32(cd.val[0]));
  out[1] = vcombine_s32(vget_low_s32(ab.val[1]), vget_low_s32(cd.val[1]));
  out[2] = vcombine_s32(vget_high_s32(ab.val[0]), vget_high_s32(cd.val[0]));
  out[3] = vcombine_s32(vget_high_s32(ab.val[1]), vget_high_s32(cd.val[1]));
}
inline void load_transposed(const uint8_t* p, size_t stride, Ints out[4]) {
  for (size_t i = 0; i < 4; ++i) {
    int32x4_t quads[4];
    load_transposed_4(p + 4 * i * stride, stride, quads);
    for (int j = 0; j < 4; ++j) out[j].part[i] = quads[j];
  }
}
inline Ints gather_u16(const uint8_t* p, size_t stride) {
  int32_t lanes[16];
  for (size_t r = 0; r < 16; ++r) {
    uint16_t v;
    std::memcpy(&v, p + r * stride, sizeof v);
    lanes[r] = v;
  }
  return load(lanes);
}

}  // namespace ggh::neon
