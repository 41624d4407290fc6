// Router and vocabulary kernels: softmax, top-k, argmax, log-sum-exp over one row of logits.
#pragma once

#include <math.h>

#include "ops_kernels.h"
#include "ops_rows.h"
#include "ops_simd.h"

namespace ggh {
namespace GGH_OPS_ISA {

// The smallest divisor of the routed weights (qwen35_gguf graph: 2^-14).
constexpr float kMinWeightSum = 6.103515625e-5f;

static float largest(const float* x, int64_t n) {
  vf top = vset(-INFINITY);
  int64_t i = 0;
  for (; i + W <= n; i += W) top = vmax(top, vload(x + i));
  float best = vmax_lanes(top);
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  return best;
}

// Keeps `best` sorted: descending by logit, among equals the earlier one stays in front.
static inline void insert_candidate(Candidate* best, int64_t k, Candidate next) {
  int64_t at = k - 1;
  for (; at > 0 && best[at - 1].logit < next.logit; at--) best[at] = best[at - 1];
  best[at] = next;
}

static void top_k(const float* x, int64_t n, int64_t k, Candidate* best) {
  for (int64_t i = 0; i < k; i++) insert_candidate(best, i + 1, {x[i], static_cast<int32_t>(i)});
  int64_t i = k;
  while (i < n) {
    if (i + W <= n && !any_greater(vload(x + i), vset(best[k - 1].logit))) {
      i += W;
      continue;
    }
    const int64_t end = i + W < n ? i + W : n;
    for (; i < end; i++) {
      if (x[i] > best[k - 1].logit) insert_candidate(best, k, {x[i], static_cast<int32_t>(i)});
    }
  }
}

static int32_t argmax(const float* x, int64_t n) {
  const float best = largest(x, n);
  for (int64_t i = 0; i < n; i++) {
    if (x[i] == best) return static_cast<int32_t>(i);
  }
  return 0;  // all NaN
}

static double log_sum_exp(const float* x, int64_t n) {
  const float best = largest(x, n);
  double total = 0.0;
  constexpr int64_t kRun = 1024;  // vector sums stay short, so that float rounding stays small
  for (int64_t start = 0; start < n; start += kRun) {
    const int64_t end = start + kRun < n ? start + kRun : n;
    vf sum = vset(0.0f);
    int64_t i = start;
    for (; i + W <= end; i += W) sum = sum + vexp(vload(x + i) - vset(best));
    total += vsum(sum);
    for (; i < end; i++) total += expf(x[i] - best);
  }
  return static_cast<double>(best) + log(total);
}

static void route(const float* logits, int64_t n_expert, int64_t n_used, float scale, int32_t* ids,
                  float* weights, float* scratch) {
  Candidate* best = reinterpret_cast<Candidate*>(scratch);
  float* p = scratch + 2 * n_used;
  const float top = largest(logits, n_expert);
  float total = 0.0f;
  for (int64_t i = 0; i < n_expert; i++) {
    p[i] = expf(logits[i] - top);
    total += p[i];
  }
  for (int64_t i = 0; i < n_expert; i++) p[i] /= total;
  top_k(p, n_expert, n_used, best);
  float chosen = 0.0f;
  for (int64_t i = 0; i < n_used; i++) chosen += best[i].logit;
  const float divisor = chosen > kMinWeightSum ? chosen : kMinWeightSum;
  for (int64_t i = 0; i < n_used; i++) {
    ids[i] = best[i].id;
    weights[i] = best[i].logit / divisor * scale;
  }
}

static void mix_experts(const float* rows, int64_t n_rows, const float* weights, const float* gate,
                        const float* shared, int64_t n, float* y) {
  const vf share = gate == nullptr ? vset(0.0f) : vsigmoid(vset(*gate));
  for (int64_t c = 0; c < n; c += W) {
    vf sum = vload(rows + c) * vset(weights[0]);
    for (int64_t i = 1; i < n_rows; i++) {
      sum = sum + vload(rows + i * n + c) * vset(weights[i]);
    }
    if (gate != nullptr) sum = sum + share * vload(shared + c);
    vstore(y + c, sum);
  }
}

}  // namespace GGH_OPS_ISA
}  // namespace ggh
