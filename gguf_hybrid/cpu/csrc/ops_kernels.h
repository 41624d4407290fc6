// The per-thread kernels of the model operations, one table per instruction set.
//
// A kernel computes one independent piece (a token, a head of a row, a tile of queries) and never
// starts a job of its own; model_*.cpp deals the pieces out. Sizes are those that
// ggh_model_create() accepts: vectors of a multiple of 16 floats, delta heads of a multiple of 32.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ggh {

// One V head of one row through convolution, delta rule and gated norm, for all the row's tokens.
// Pointers to activations are at the row's first token; strides count floats.
struct DeltaHead {
  int64_t n_tokens;
  int64_t dim;
  int64_t conv_dim;
  int64_t conv_kernel;
  int64_t q_channel, k_channel, v_channel;  // first channel of each head in [q | k | v]
  bool owns_qk;                             // this head also writes the state of q and k channels
  const float* qkv;                         // stride conv_dim
  const float* z;                           // this head's D, stride z_stride
  int64_t z_stride;
  const float* beta;   // this head's scalar before the sigmoid, stride beta_stride
  const float* alpha;  // likewise, before the bias
  int64_t beta_stride;
  const float* conv_weight;  // [conv_kernel, conv_dim], the last tap meets the current token
  float dt_bias, a;
  const float* norm;  // [dim]
  float eps;
  // A state is [conv_kernel - 1, conv_dim] of the row's last inputs, then, delta_offset floats from
  // its start, this head's [dim, dim], k-major.
  const float* state_in;  // null for zeros
  int64_t n_write;        // states after the last n_write tokens, newest first
  float* const* state_out;
  int64_t delta_offset;
  bool stream;  // new states will not be read while they could still be cached
  float* out;   // this head's D, stride z_stride
};


// Tokens that a DeltaHead convolves ahead of the rule.
constexpr int64_t kDeltaTokens = 32;

constexpr int64_t delta_scratch_floats(int64_t dim) {
  return 4 * kDeltaTokens * dim + 2 * kDeltaTokens + dim * dim;
}

// Queries of neighbouring tokens that share one KV head, against that head's whole past.
// K and V of position p: element (block of p) * block_stride + (p % kKvBlock) * key_stride.
constexpr int64_t kKvBlock = 256;

struct AttentionTile {
  int64_t n_tokens;        // all in one KV block
  int64_t first_position;  // of the tile's first token
  int64_t n_group;         // query heads per KV head
  int64_t head_dim;
  const float* q;  // token t, head g: q + t * token_stride + g * 2 * head_dim; the gate follows q
  int64_t token_stride;
  const int32_t* blocks;
  const void* k;  // of this layer and KV head in block 0
  const void* v;
  int64_t block_stride, key_stride;  // in elements of the cache type
  bool half;                         // f16 cache, else f32
  float* out;                        // token t, head g: out + t * out_stride + g * head_dim
  int64_t out_stride;
};

// KV blocks that the last token of a tile sees.
static inline int64_t attention_blocks(const AttentionTile& tile) {
  return (tile.first_position + tile.n_tokens - 1) / kKvBlock + 1;
}

// What one KV block contributes to a tile.
constexpr int64_t attention_partial_floats(int64_t n_queries, int64_t head_dim) {
  return n_queries * (head_dim + 2);
}

constexpr int64_t attention_scratch_floats(int64_t n_queries, int64_t head_dim) {
  return n_queries * kKvBlock + 2 * attention_partial_floats(n_queries, head_dim);
}

struct Candidate {
  float logit;
  int32_t id;
};

struct OpsKernels {
  // x += delta (if not null), then y = x / sqrt(mean(x^2) + eps) * weight.
  void (*add_norm)(float* x, const float* delta, const float* weight, float eps, int64_t n,
                   float* y);
  void (*add)(float* x, const float* y, int64_t n);
  // y = silu(gate) * up; y may be gate.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*delta_head)(const DeltaHead& head, float* scratch);
  // One head: norm, rotation of the first 2 * n_pairs values by half-split pairs, times scale.
  void (*rope_head)(float* x, const float* weight, float eps, int64_t head_dim, const float* cos,
                    const float* sin, int64_t n_pairs, float scale);
  // Stores x as f16 or f32.
  void (*to_cache)(const float* x, int64_t n, bool half, void* y);
  void (*attention_tile)(const AttentionTile& tile, float* scratch);
  // The same in two steps with the same bits: each KV block on its own, then all of them merged.
  void (*attention_block)(const AttentionTile& tile, int64_t block, float* partial, float* scratch);
  void (*attention_merge)(const AttentionTile& tile, const float* partials, float* scratch);
  // Softmax over n_expert, the n_used most probable in descending order (the lower id first among
  // equals), weights renormalised to sum to scale. Scratch: n_expert + 2 * n_used floats.
  void (*route)(const float* logits, int64_t n_expert, int64_t n_used, float scale, int32_t* ids,
                float* weights, float* scratch);
  // y = sum over i of weights[i] * rows[i], in that order, plus sigmoid(*gate) * shared when given.
  void (*mix_experts)(const float* rows, int64_t n_rows, const float* weights, const float* gate,
                      const float* shared, int64_t n, float* y);
  int32_t (*argmax)(const float* x, int64_t n);
  // log(sum(exp(x))).
  double (*log_sum_exp)(const float* x, int64_t n);
  // The k largest in descending order, the lower id first among equals; k <= n.
  void (*top_k)(const float* x, int64_t n, int64_t k, Candidate* best);
};

// The table for this processor: follows ggh_cpu_variant().
const OpsKernels& ops_kernels();

}  // namespace ggh
