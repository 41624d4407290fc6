// Sixteen 32-bit lanes in one AVX-512 register (F, BW, VL, DQ, VNNI): the vocabulary that kernels
// are written in. Every simd_*.h offers the same names with the same results, bit for bit.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define GGH_ISA avx512

namespace ggh::avx512 {

constexpr const char* kName = "avx512";
constexpr int kTile = 8;       // activation rows that share one pass over unpacked weights
constexpr int kFloatTile = 4;  // rows and columns of the float32 micro kernel
// Signed 8-bit codes are stored with this bit pattern flipped: vpdpbusd takes unsigned weights.
constexpr int kFlip = 0x80;

using Ints = __m512i;
using Floats = __m512;
using Table = __m512i;  // 16 bytes to look up nibbles in

inline Ints ints(int32_t v) { return _mm512_set1_epi32(v); }
inline Ints load(const void* p) { return _mm512_loadu_si512(p); }
inline void store(void* p, Ints v) { _mm512_storeu_si512(p, v); }
// The four bytes at p in every lane.
inline Ints broadcast(const void* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm512_set1_epi32(v);
}
inline Ints bits_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints bits_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
inline Ints bits_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
template <int n>
inline Ints shift_left(Ints a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
inline Ints shift_right(Ints a) {
  return _mm512_srli_epi32(a, n);
}
template <int n>
inline Ints shift_right_signed(Ints a) {
  return _mm512_srai_epi32(a, n);
}
inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints multiply(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }

// Sixteen bytes, one a lane, without and with sign.
inline Ints load_bytes(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline Ints load_signed_bytes(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline Ints shift_right(Ints a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }

inline Table table(const int8_t* values) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
}
// values[index] for each byte of `indices`, all below 16.
inline Ints lookup(Table t, Ints indices) { return _mm512_shuffle_epi8(t, indices); }

// acc + the sum of four products in each lane: codes below 128 times signed bytes.
inline Ints dot4(Ints acc, Ints codes, Ints x) { return _mm512_dpbusd_epi32(acc, codes, x); }
// The same for any signed codes stored flipped by kFlip; the caller takes kFlip * sum(x) off.
inline Ints dot4_wide(Ints acc, Ints codes, Ints x) { return _mm512_dpbusd_epi32(acc, codes, x); }
// acc + the sum of two products of signed 16-bit numbers in each lane.
inline Ints dot2(Ints acc, Ints a, Ints b) { return _mm512_dpwssd_epi32(acc, a, b); }

inline Floats floats(float v) { return _mm512_set1_ps(v); }
inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
inline void store_floats(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
// a * b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
// The f16 in the low half of each lane.
inline Floats half_low(Ints a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
inline Floats half_high(Ints a) { return half_low(shift_right<16>(a)); }
// Sixteen f16 in a row.
inline Floats load_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
// Sum of the lanes: i with i + 8, then i + 4, i + 2, i + 1.
inline float sum(Floats a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline Ints sixteen_bytes_of_four(const uint8_t* p, size_t stride4) {
  const auto at = [](const uint8_t* q) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  };
  Ints v = _mm512_castsi128_si512(at(p));
  v = _mm512_inserti32x4(v, at(p + stride4), 1);
  v = _mm512_inserti32x4(v, at(p + 2 * stride4), 2);
  return _mm512_inserti32x4(v, at(p + 3 * stride4), 3);
}

// out[j], lane r = the j-th 4 bytes of the 16 bytes at p + r * stride, for rows r of 16.
inline void load_transposed(const uint8_t* p, size_t stride, Ints out[4]) {
  const Ints a = sixteen_bytes_of_four(p, 4 * stride);
  const Ints b = sixteen_bytes_of_four(p + stride, 4 * stride);
  const Ints c = sixteen_bytes_of_four(p + 2 * stride, 4 * stride);
  const Ints d = sixteen_bytes_of_four(p + 3 * stride, 4 * stride);
  const Ints ab_low = _mm512_unpacklo_epi32(a, b);
  const Ints ab_high = _mm512_unpackhi_epi32(a, b);
  const Ints cd_low = _mm512_unpacklo_epi32(c, d);
  const Ints cd_high = _mm512_unpackhi_epi32(c, d);
  out[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// The 16-bit number at p + r * stride in lane r.
inline Ints gather_u16(const uint8_t* p, size_t stride) {
  const auto at = [&](size_t r) {
    int16_t v;
    std::memcpy(&v, p + r * stride, sizeof v);
    return v;
  };
  return _mm512_cvtepu16_epi32(_mm256_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6),
                                                 at(7), at(8), at(9), at(10), at(11), at(12),
                                                 at(13), at(14), at(15)));
}

}  // namespace ggh::avx512
