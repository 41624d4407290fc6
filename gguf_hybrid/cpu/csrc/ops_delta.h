// Causal convolution, gated delta rule and gated norm of one V head.
//
// The rule runs token by token for prompts too: a prompt then gives the bits of the same tokens fed
// one at a time, and 128 x 128 states in the first cache level make it a small part of a prompt.
// The state is kept k-major (row i holds k dimension i of every v dimension), so that M k and M q
// are sums of rows and need no sum across lanes. Columns are independent: a block of them stays in
// cache while it absorbs a run of tokens.
#pragma once

#include <math.h>

#include "ops_kernels.h"
#include "ops_rows.h"
#include "ops_simd.h"

namespace ggh {
namespace GGH_OPS_ISA {

constexpr int64_t kDeltaColumns = 32;

// Scratch of one head: activations of kDeltaTokens tokens and the state in blocks of columns.
struct DeltaScratch {
  float *q, *k, *v, *o, *decay, *beta, *state;

  DeltaScratch(float* memory, int64_t dim) {
    const int64_t rows = kDeltaTokens * dim;
    q = memory;
    k = q + rows;
    v = k + rows;
    o = v + rows;
    decay = o + rows;
    beta = decay + kDeltaTokens;
    state = beta + kDeltaTokens;
  }
};

// Pre-convolution channels of token t of the row; negative t reaches into the stored state.
// Null stands for zeros.
static inline const float* conv_row(const DeltaHead& head, int64_t t) {
  if (t >= 0) return head.qkv + t * head.conv_dim;
  if (head.state_in == nullptr) return nullptr;
  return head.state_in + (t + head.conv_kernel - 1) * head.conv_dim;
}

// y[dim] = silu(convolution) of the channels from `channel` on, at token t.
static inline void convolve(const DeltaHead& head, int64_t t, int64_t channel, float* y) {
  for (int64_t c = 0; c < head.dim; c += W) {
    vf sum = vset(0.0f);
    for (int64_t tap = 0; tap < head.conv_kernel; tap++) {
      const float* row = conv_row(head, t + tap - (head.conv_kernel - 1));
      if (row == nullptr) continue;
      const float* weight = head.conv_weight + tap * head.conv_dim;
      sum = vfma(vload(row + channel + c), vload(weight + channel + c), sum);
    }
    vstore(y + c, vsilu(sum));
  }
}

static inline void l2_normalize(float* x, int64_t n, float eps) {
  const vf scale = vset(static_cast<float>(1.0 / sqrt(sum_squares(x, n) + eps)));
  for (int64_t i = 0; i < n; i += W) vstore(x + i, vload(x + i) * scale);
}

static inline float softplus(float x) { return x > 20.0f ? x : logf(1.0f + expf(x)); }

static inline void prefetch_row(const float* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(float)) __builtin_prefetch(row + i);
}

// Rows of neighbouring tokens lie a whole layer apart, which no hardware prefetcher follows: fetch
// the inputs of a token a few tokens early, and its gate, which is needed after the rule.
static inline void prefetch_token(const DeltaHead& head, int64_t t) {
  constexpr int64_t kAhead = 4;
  prefetch_row(head.z + t * head.z_stride, head.dim);
  if (t + kAhead >= head.n_tokens) return;
  const float* qkv = head.qkv + (t + kAhead) * head.conv_dim;
  prefetch_row(qkv + head.q_channel, head.dim);
  prefetch_row(qkv + head.k_channel, head.dim);
  prefetch_row(qkv + head.v_channel, head.dim);
}

// Tokens t0 .. t0 + n - 1: unit q and k, v, decay exp(g) and write strength beta.
static void prepare_tokens(const DeltaHead& head, int64_t t0, int64_t n, const DeltaScratch& s) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t t = t0 + i;
    prefetch_token(head, t);
    convolve(head, t, head.q_channel, s.q + i * head.dim);
    convolve(head, t, head.k_channel, s.k + i * head.dim);
    convolve(head, t, head.v_channel, s.v + i * head.dim);
    l2_normalize(s.q + i * head.dim, head.dim, head.eps);
    l2_normalize(s.k + i * head.dim, head.dim, head.eps);
    const float alpha = head.alpha[t * head.beta_stride] + head.dt_bias;
    s.decay[i] = expf(softplus(alpha) * head.a);
    s.beta[i] = 1.0f / (1.0f + expf(-head.beta[t * head.beta_stride]));
  }
}

// A block of columns of the state: row i at data + i * stride.
struct Columns {
  float* data;
  int64_t stride;
};

// One token for C vectors of columns. `from` may be `to`. The sums of a column do not depend on C.
// kStream writes past the caches and needs 64-byte aligned rows.
template <int C, bool kStream>
static inline void delta_token(Columns from, Columns to, int64_t dim, const float* q,
                               const float* k, const float* v, float decay, float beta,
                               float scale, float* o) {
  vf even[C], odd[C], d[C];
  for (int c = 0; c < C; c++) even[c] = odd[c] = vset(0.0f);
  for (int64_t i = 0; i < dim; i += 2) {
    const float* row = from.data + i * from.stride;
    const vf k0 = vset(k[i]), k1 = vset(k[i + 1]);
    for (int c = 0; c < C; c++) even[c] = vfma(k0, vload(row + c * W), even[c]);
    for (int c = 0; c < C; c++) odd[c] = vfma(k1, vload(row + from.stride + c * W), odd[c]);
  }
  const vf g = vset(decay);
  for (int c = 0; c < C; c++) {
    d[c] = vset(beta) * (vload(v + c * W) - g * (even[c] + odd[c]));
    even[c] = odd[c] = vset(0.0f);
  }
  const auto store = kStream ? store_stream : vstore;
  for (int64_t i = 0; i < dim; i += 2) {
    const float* row = from.data + i * from.stride;
    float* out = to.data + i * to.stride;
    const vf k0 = vset(k[i]), k1 = vset(k[i + 1]), q0 = vset(q[i]), q1 = vset(q[i + 1]);
    for (int c = 0; c < C; c++) {
      const vf m = vfma(k0, d[c], vload(row + c * W) * g);
      store(out + c * W, m);
      even[c] = vfma(q0, m, even[c]);
    }
    for (int c = 0; c < C; c++) {
      const vf m = vfma(k1, d[c], vload(row + from.stride + c * W) * g);
      store(out + to.stride + c * W, m);
      odd[c] = vfma(q1, m, odd[c]);
    }
  }
  for (int c = 0; c < C; c++) vstore(o + c * W, (even[c] + odd[c]) * vset(scale));
}

// Where the state after token t goes: a pool row for the last n_write tokens, else scratch.
static inline Columns columns_after(const DeltaHead& head, int64_t t, int64_t column,
                                    float* state) {
  const int64_t from_end = head.n_tokens - 1 - t;
  if (from_end < head.n_write) {
    return {head.state_out[from_end] + head.delta_offset + column, head.dim};
  }
  return {state + column * head.dim, kDeltaColumns};
}

static inline Columns columns_before(const DeltaHead& head, int64_t t, int64_t column,
                                     int64_t n_columns, float* state) {
  if (t > 0) return columns_after(head, t - 1, column, state);
  if (head.state_in != nullptr) {
    return {const_cast<float*>(head.state_in) + head.delta_offset + column, head.dim};
  }
  memset(state + column * head.dim, 0, sizeof(float) * head.dim * n_columns);
  return {state + column * head.dim, n_columns};
}

// All columns in blocks of C vectors, each through tokens t0 .. t0 + n - 1.
template <int C, bool kStream>
static void absorb_columns(const DeltaHead& head, int64_t t0, int64_t n, const DeltaScratch& s) {
  const float scale = 1.0f / sqrtf(static_cast<float>(head.dim));
  for (int64_t column = 0; column < head.dim; column += C * W) {
    for (int64_t i = 0; i < n; i++) {
      const Columns from = columns_before(head, t0 + i, column, C * W, s.state);
      const Columns to = columns_after(head, t0 + i, column, s.state);
      const int64_t row = i * head.dim;
      delta_token<C, kStream>(from, to, head.dim, s.q + row, s.k + row, s.v + row + column,
                              s.decay[i], s.beta[i], scale, s.o + row + column);
    }
  }
}

// A single token streams whole rows of the state from memory to memory; a run of tokens keeps a
// narrow block of columns in the first cache level.
static void absorb_tokens(const DeltaHead& head, int64_t t0, int64_t n, const DeltaScratch& s) {
  constexpr int kNarrow = kDeltaColumns / W, kWide = kRegisters / 4;
  if (head.n_tokens > 1 || head.dim % (kWide * W) != 0) {
    absorb_columns<kNarrow, false>(head, t0, n, s);
  } else if (head.stream) {
    absorb_columns<kWide, true>(head, t0, n, s);
    stream_fence();
  } else {
    absorb_columns<kWide, false>(head, t0, n, s);
  }
}

// out = RMS(o) * norm * silu(z).
static void gate_tokens(const DeltaHead& head, int64_t t0, int64_t n, const DeltaScratch& s) {
  for (int64_t i = 0; i < n; i++) {
    const float* o = s.o + i * head.dim;
    const float* z = head.z + (t0 + i) * head.z_stride;
    float* out = head.out + (t0 + i) * head.z_stride;
    const vf scale = vset(rms_scale(o, head.dim, head.eps));
    for (int64_t c = 0; c < head.dim; c += W) {
      vstore(out + c, vload(o + c) * scale * vload(head.norm + c) * vsilu(vload(z + c)));
    }
  }
}

static inline void save_conv_channels(const DeltaHead& head, int64_t channel) {
  for (int64_t w = 0; w < head.n_write; w++) {
    for (int64_t tap = 0; tap < head.conv_kernel - 1; tap++) {
      const int64_t t = head.n_tokens - 1 - w + tap - (head.conv_kernel - 2);
      const float* row = conv_row(head, t);
      float* out = head.state_out[w] + tap * head.conv_dim + channel;
      if (row != nullptr) {
        memcpy(out, row + channel, sizeof(float) * head.dim);
      } else {
        memset(out, 0, sizeof(float) * head.dim);
      }
    }
  }
}

static void delta_head(const DeltaHead& head, float* scratch) {
  const DeltaScratch s(scratch, head.dim);
  for (int64_t t0 = 0; t0 < head.n_tokens; t0 += kDeltaTokens) {
    const int64_t left = head.n_tokens - t0;
    const int64_t n = left < kDeltaTokens ? left : kDeltaTokens;
    prepare_tokens(head, t0, n, s);
    absorb_tokens(head, t0, n, s);
    gate_tokens(head, t0, n, s);
  }
  save_conv_channels(head, head.v_channel);
  if (head.owns_qk) {
    save_conv_channels(head, head.q_channel);
    save_conv_channels(head, head.k_channel);
  }
}

}  // namespace GGH_OPS_ISA
}  // namespace ggh
