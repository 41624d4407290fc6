// One float vector type per instruction set, so that each kernel is written once.
//
// ops_kernels.cpp is compiled once per instruction set with other compiler flags; everything here
// lives in a namespace named after the set and is `static`, so that no code built for a newer
// processor can be linked into the portable table. Products and sums are contracted only where
// `vfma` says so (the library is built with -ffp-contract=off): a kernel gives the same bits
// wherever it is inlined.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(GGH_OPS_PORTABLE)
#define GGH_OPS_ISA portable
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define GGH_OPS_ISA avx512
#define GGH_OPS_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define GGH_OPS_ISA avx2
#define GGH_OPS_AVX2 1
#include <immintrin.h>
#elif defined(__aarch64__)
#define GGH_OPS_ISA neon
#define GGH_OPS_NEON 1
#include <arm_neon.h>
#else
#error "this file needs the flags of its instruction set, or GGH_OPS_PORTABLE"
#endif

namespace ggh {
namespace GGH_OPS_ISA {

#if defined(GGH_OPS_AVX512)

typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
constexpr int kRegisters = 32;
static inline vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vset(float x) { return _mm512_set1_ps(x); }
static inline vf load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline void store_half(uint16_t* p, vf x) {
  const __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}
static inline void store_stream(float* p, vf x) { _mm512_stream_ps(p, x); }
static inline void stream_fence() { _mm_sfence(); }
static inline bool any_greater(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}

#elif defined(GGH_OPS_AVX2)

typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
constexpr int kRegisters = 16;
static inline vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vset(float x) { return _mm256_set1_ps(x); }
static inline vf load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline void store_half(uint16_t* p, vf x) {
  const __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
}
static inline void store_stream(float* p, vf x) { _mm256_stream_ps(p, x); }
static inline void stream_fence() { _mm_sfence(); }
static inline bool any_greater(vf a, vf b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}

#elif defined(GGH_OPS_NEON)

typedef float32x4_t vf;
typedef int32_t vi __attribute__((vector_size(16)));
constexpr int kRegisters = 32;
static inline vf vfma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vmax(vf a, vf b) { return vmaxq_f32(a, b); }
static inline vf vmin(vf a, vf b) { return vminq_f32(a, b); }
static inline vf vset(float x) { return vdupq_n_f32(x); }
static inline vf load_half(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void store_half(uint16_t* p, vf x) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
static inline bool any_greater(vf a, vf b) { return vmaxvq_u32(vcgtq_f32(a, b)) != 0; }

#else

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
constexpr int kRegisters = 16;
static inline vf vfma(vf a, vf b, vf c) { return a * b + c; }
static inline vf vmax(vf a, vf b) {
  for (int i = 0; i < 4; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
  return b;
}
static inline vf vmin(vf a, vf b) {
  for (int i = 0; i < 4; i++) b[i] = a[i] < b[i] ? a[i] : b[i];
  return b;
}
static inline vf vset(float x) { return vf{x, x, x, x}; }

// IEEE half to float by rescaling the exponent; exact for subnormals too.
static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  uint32_t bits = static_cast<uint32_t>(h & 0x7fff) << 13;
  float magnitude;
  memcpy(&magnitude, &bits, 4);
  magnitude *= 5.192296858534828e33f;  // 2^112 moves a half's exponent bias to a float's
  memcpy(&bits, &magnitude, 4);
  if ((h & 0x7c00) == 0x7c00) bits |= 0x7f800000;
  bits |= sign;
  memcpy(&magnitude, &bits, 4);
  return magnitude;
}

// Round to nearest, ties to even. Adding a power of two 13 exponents above the value's leaves the
// eleven bits that a half keeps.
static inline uint16_t float_to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  uint32_t exponent = bits & 0x7f800000;
  if (exponent < 0x38800000) exponent = 0x38800000;
  const uint32_t magic_bits = exponent + (13u << 23);
  float magic, magnitude;
  memcpy(&magic, &magic_bits, 4);
  memcpy(&magnitude, &bits, 4);
  magnitude += magic;
  memcpy(&bits, &magnitude, 4);
  return sign | static_cast<uint16_t>(((exponent - 0x38800000) >> 13) + (bits & 0x1fff));
}

static inline vf load_half(const uint16_t* p) {
  return vf{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
static inline void store_half(uint16_t* p, vf x) {
  for (int i = 0; i < 4; i++) p[i] = float_to_half(x[i]);
}
static inline bool any_greater(vf a, vf b) {
  const vi greater = a > b;
  return (greater[0] | greater[1] | greater[2] | greater[3]) != 0;
}

#endif

constexpr int W = sizeof(vf) / sizeof(float);

static inline vf vload(const float* p) {
  vf x;
  memcpy(&x, p, sizeof x);
  return x;
}
static inline void vstore(float* p, vf x) { memcpy(p, &x, sizeof x); }

#if !defined(GGH_OPS_AVX512) && !defined(GGH_OPS_AVX2)
// Stores past the caches exist on x86 only.
static inline void store_stream(float* p, vf x) { vstore(p, x); }
static inline void stream_fence() {}
#endif

static inline vf vload_kv(const float* p) { return vload(p); }
static inline vf vload_kv(const uint16_t* p) { return load_half(p); }

typedef float v4 __attribute__((vector_size(16)));

// The lanes of x folded to four, halves first: the one reduction order of every dot product.
static inline v4 fold4(vf x) {
  v4 part[W / 4];
  memcpy(part, &x, sizeof x);
  for (int n = W / 8; n >= 1; n /= 2)
    for (int i = 0; i < n; i++) part[i] = part[i] + part[i + n];
  return part[0];
}

static inline float vsum(vf x) {
  const v4 f = fold4(x);
  return (f[0] + f[2]) + (f[1] + f[3]);
}

// The four sums vsum would give, at once.
static inline v4 vsum4(vf a, vf b, vf c, vf d) {
  const v4 fa = fold4(a), fb = fold4(b), fc = fold4(c), fd = fold4(d);
  const v4 ab_low = __builtin_shufflevector(fa, fb, 0, 4, 1, 5);
  const v4 ab_high = __builtin_shufflevector(fa, fb, 2, 6, 3, 7);
  const v4 cd_low = __builtin_shufflevector(fc, fd, 0, 4, 1, 5);
  const v4 cd_high = __builtin_shufflevector(fc, fd, 2, 6, 3, 7);
  const v4 ab = ab_low + ab_high, cd = cd_low + cd_high;
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
     __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

static inline float vmax_lanes(vf x) {
  float lanes[W];
  memcpy(lanes, &x, sizeof x);
  float best = lanes[0];
  for (int i = 1; i < W; i++) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// exp(x) to about 1 ulp between the smallest normal result (1.2e-38, also for -inf) and the
// largest. NaN stays NaN: the second operand of vmax and vmin wins then. The polynomial is the
// degree 5 minimax of (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2 (Cephes, expf).
static inline vf vexp(vf x) {
  const vf low = vset(-87.33654f), high = vset(88.37f), shift = vset(12582912.0f);
  const vf y = vmin(high, vmax(low, x));
  const vf t = vfma(y, vset(1.44269504f), shift);
  const vf n = t - shift;
  vf r = vfma(n, vset(-0.693359375f), y);
  r = vfma(n, vset(2.12194440e-4f), r);
  vf p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  p = vfma(p, r * r, r) + vset(1.0f);
  vi bits, exponent;
  memcpy(&bits, &p, sizeof p);
  memcpy(&exponent, &t, sizeof t);
  bits += exponent << 23;
  memcpy(&p, &bits, sizeof p);
  return p;
}

static inline vf vsigmoid(vf x) { return vset(1.0f) / (vset(1.0f) + vexp(-x)); }
static inline vf vsilu(vf x) { return x / (vset(1.0f) + vexp(-x)); }

}  // namespace GGH_OPS_ISA
}  // namespace ggh
