// Sixteen 32-bit lanes in two AVX2 registers (AVX2, FMA, F16C; AVX-VNNI where the file is compiled
// for it). Names and results as in simd_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVXVNNI__)
#define GGH_ISA avx2vnni
#else
#define GGH_ISA avx2
#endif

namespace ggh::GGH_ISA {

constexpr int kTile = 2;
constexpr int kFloatTile = 2;
#if defined(__AVXVNNI__)
constexpr const char* kName = "avx2-vnni";
constexpr int kFlip = 0x80;
#else
constexpr const char* kName = "avx2";
constexpr int kFlip = 0;
#endif

struct Ints {
  __m256i low;  // lanes 0 to 7
  __m256i high;
};
struct Floats {
  __m256 low;
  __m256 high;
};
using Table = __m256i;

inline Ints ints(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
inline __m256i load8(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Ints load(const void* p) { return {load8(p), load8(static_cast<const char*>(p) + 32)}; }
inline void store(void* p, Ints v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v.low);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.high);
}
inline Ints broadcast(const void* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return ints(v);
}
inline Ints bits_and(Ints a, Ints b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
inline Ints bits_or(Ints a, Ints b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
inline Ints bits_xor(Ints a, Ints b) {
  return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
template <int n>
inline Ints shift_left(Ints a) {
  return {_mm256_slli_epi32(a.low, n), _mm256_slli_epi32(a.high, n)};
}
template <int n>
inline Ints shift_right(Ints a) {
  return {_mm256_srli_epi32(a.low, n), _mm256_srli_epi32(a.high, n)};
}
template <int n>
inline Ints shift_right_signed(Ints a) {
  return {_mm256_srai_epi32(a.low, n), _mm256_srai_epi32(a.high, n)};
}
inline Ints add(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Ints multiply(Ints a, Ints b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}

inline Ints load_bytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline Ints load_signed_bytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
inline Ints shift_right(Ints a, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(a.low, count), _mm256_srl_epi32(a.high, count)};
}

inline Table table(const int8_t* values) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
}
inline Ints lookup(Table t, Ints indices) {
  return {_mm256_shuffle_epi8(t, indices.low), _mm256_shuffle_epi8(t, indices.high)};
}

#if defined(__AVXVNNI__)
inline Ints dot4(Ints acc, Ints codes, Ints x) {
  return {_mm256_dpbusd_avx_epi32(acc.low, codes.low, x.low),
          _mm256_dpbusd_avx_epi32(acc.high, codes.high, x.high)};
}
inline Ints dot4_wide(Ints acc, Ints codes, Ints x) { return dot4(acc, codes, x); }
inline Ints dot2(Ints acc, Ints a, Ints b) {
  return {_mm256_dpwssd_avx_epi32(acc.low, a.low, b.low),
          _mm256_dpwssd_avx_epi32(acc.high, a.high, b.high)};
}
#else
// Pairs of products stay within 16 bits: 127 * 127 * 2 and 128 * 127 * 2 do.
inline __m256i dot4_8(__m256i acc, __m256i codes, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(codes, x);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Ints dot4(Ints acc, Ints codes, Ints x) {
  return {dot4_8(acc.low, codes.low, x.low), dot4_8(acc.high, codes.high, x.high)};
}
// |w| * (sign of w times x): maddubs wants one unsigned side.
inline __m256i dot4_wide_8(__m256i acc, __m256i codes, __m256i x) {
  return dot4_8(acc, _mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
}
inline Ints dot4_wide(Ints acc, Ints codes, Ints x) {
  return {dot4_wide_8(acc.low, codes.low, x.low), dot4_wide_8(acc.high, codes.high, x.high)};
}
inline Ints dot2(Ints acc, Ints a, Ints b) {
  return {_mm256_add_epi32(acc.low, _mm256_madd_epi16(a.low, b.low)),
          _mm256_add_epi32(acc.high, _mm256_madd_epi16(a.high, b.high))};
}
#endif

inline Floats floats(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
inline Floats load_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store_floats(float* p, Floats v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Floats add(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats multiply(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats fused(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline __m256 half_low_8(__m256i a) {
  const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(low),
                                          _mm256_extracti128_si256(low, 1));
  return _mm256_cvtph_ps(packed);
}
inline Floats half_low(Ints a) { return {half_low_8(a.low), half_low_8(a.high)}; }
inline Floats half_high(Ints a) { return half_low(shift_right<16>(a)); }
inline Floats load_halves(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline float sum(Floats a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline __m256i sixteen_bytes_of_two(const uint8_t* p, size_t stride4) {
  const auto at = [](const uint8_t* q) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(at(p)), at(p + stride4), 1);
}
inline void load_transposed_8(const uint8_t* p, size_t stride, __m256i out[4]) {
  const __m256i a = sixteen_bytes_of_two(p, 4 * stride);
  const __m256i b = sixteen_bytes_of_two(p + stride, 4 * stride);
  const __m256i c = sixteen_bytes_of_two(p + 2 * stride, 4 * stride);
  const __m256i d = sixteen_bytes_of_two(p + 3 * stride, 4 * stride);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b);
  const __m256i ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d);
  const __m256i cd_high = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}
inline void load_transposed(const uint8_t* p, size_t stride, Ints out[4]) {
  __m256i low[4];
  __m256i high[4];
  load_transposed_8(p, stride, low);
  load_transposed_8(p + 8 * stride, stride, high);
  for (int j = 0; j < 4; ++j) out[j] = {low[j], high[j]};
}

inline Ints gather_u16(const uint8_t* p, size_t stride) {
  const auto at = [&](size_t r) {
    int16_t v;
    std::memcpy(&v, p + r * stride, sizeof v);
    return v;
  };
  return {_mm256_cvtepu16_epi32(
              _mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))),
          _mm256_cvtepu16_epi32(
              _mm_setr_epi16(at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15)))};
}

}  // namespace ggh::GGH_ISA
