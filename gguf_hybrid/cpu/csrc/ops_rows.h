// Row kernels: norms, gates and sums over one token's vector.
#pragma once

#include <math.h>

#include "ops_simd.h"

namespace ggh {
namespace GGH_OPS_ISA {

// Sum of squares in double, eight running sums: the order is the same for every vector width.
static inline double sum_squares(const float* x, int64_t n) {
  double sums[8] = {0};
  for (int64_t i = 0; i < n; i += 8) {
    for (int j = 0; j < 8; j++) {
      const double value = x[i + j];
      sums[j] += value * value;
    }
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static inline float rms_scale(const float* x, int64_t n, float eps) {
  return static_cast<float>(1.0 / sqrt(sum_squares(x, n) / static_cast<double>(n) + eps));
}

static void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += W) vstore(x + i, vload(x + i) + vload(y + i));
}

static void add_norm(float* x, const float* delta, const float* weight, float eps, int64_t n,
                     float* y) {
  if (delta != nullptr) add(x, delta, n);
  const vf scale = vset(rms_scale(x, n, eps));
  for (int64_t i = 0; i < n; i += W) vstore(y + i, vload(x + i) * scale * vload(weight + i));
}

static void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += W) vstore(y + i, vsilu(vload(gate + i)) * vload(up + i));
}

static void to_cache(const float* x, int64_t n, bool half, void* y) {
  if (!half) {
    memcpy(y, x, sizeof(float) * n);
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(y);
  for (int64_t i = 0; i < n; i += W) store_half(out + i, vload(x + i));
}

static void rope_head(float* x, const float* weight, float eps, int64_t head_dim, const float* cos,
                      const float* sin, int64_t n_pairs, float scale) {
  const vf norm = vset(rms_scale(x, head_dim, eps));
  for (int64_t i = 0; i < head_dim; i += W) vstore(x + i, vload(x + i) * norm * vload(weight + i));
  for (int64_t i = 0; i < n_pairs; i++) {
    const float a = x[i], b = x[i + n_pairs];
    x[i] = a * cos[i] - b * sin[i];
    x[i + n_pairs] = a * sin[i] + b * cos[i];
  }
  for (int64_t i = 0; i < head_dim; i += W) vstore(x + i, vload(x + i) * vset(scale));
}

}  // namespace GGH_OPS_ISA
}  // namespace ggh
