// Causal attention of a tile of queries over the paged KV cache of one head.
//
// Softmax runs online over KV blocks of 256 tokens, counted from position 0. A query's result is
// merged block by block in that order and masked keys weigh exactly zero, so its bits do not depend
// on the tile it shares nor on how its prompt was cut.
#pragma once

#include <math.h>

#include "ops_kernels.h"
#include "ops_simd.h"

namespace ggh {
namespace GGH_OPS_ISA {

constexpr int kTileQueries = kRegisters == 32 ? 4 : 2;
constexpr int kValueVectors = 4;

// Online softmax over the blocks seen so far, per query: largest score, sum, weighted values.
struct AttentionScratch {
  float *scores, *values, *largest, *sum, *keep, *take;

  AttentionScratch(float* memory, int64_t n_queries, int64_t head_dim) {
    scores = memory;
    values = scores + n_queries * kKvBlock;
    largest = values + n_queries * head_dim;
    sum = largest + n_queries;
    keep = sum + n_queries;
    take = keep + n_queries;
  }
};

// The part of one KV block that a tile sees.
template <class T>
struct Keys {
  const T* k;
  const T* v;
  int64_t n;
};

template <class T>
static inline Keys<T> keys_of_block(const AttentionTile& tile, int64_t block) {
  const int64_t end = tile.first_position + tile.n_tokens - block * kKvBlock;
  const int64_t at = tile.blocks[block] * tile.block_stride;
  return {static_cast<const T*>(tile.k) + at, static_cast<const T*>(tile.v) + at,
          end < kKvBlock ? end : kKvBlock};
}

static inline const float* query(const AttentionTile& tile, int64_t i) {
  const int64_t t = i / tile.n_group, g = i % tile.n_group;
  return tile.q + t * tile.token_stride + g * 2 * tile.head_dim;
}

// Scores of N queries from `first` on against four keys from `key` on. Keys past the end repeat the
// last one; their scores are masked later.
template <int N, class T>
static inline void score_keys(const AttentionTile& tile, const Keys<T>& keys, int64_t first,
                              int64_t key, float* scores) {
  const float* q[N];
  const T* k[4];
  vf sums[N][4];
  for (int j = 0; j < 4; j++) {
    const int64_t at = key + j < keys.n ? key + j : keys.n - 1;
    k[j] = keys.k + at * tile.key_stride;
  }
  for (int i = 0; i < N; i++) {
    q[i] = query(tile, first + i);
    for (int j = 0; j < 4; j++) sums[i][j] = vset(0.0f);
  }
  for (int64_t c = 0; c < tile.head_dim; c += W) {
    vf kc[4];
    for (int j = 0; j < 4; j++) kc[j] = vload_kv(k[j] + c);
    for (int i = 0; i < N; i++) {
      const vf qc = vload(q[i] + c);
      for (int j = 0; j < 4; j++) sums[i][j] = vfma(qc, kc[j], sums[i][j]);
    }
  }
  for (int i = 0; i < N; i++) {
    const v4 four = vsum4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    memcpy(scores + (first + i) * kKvBlock + key, &four, sizeof four);
  }
}

template <class T>
static void score_block(const AttentionTile& tile, const Keys<T>& keys, float* scores) {
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  for (int64_t key = 0; key < keys.n; key += 4) {
    int64_t i = 0;
    for (; i + kTileQueries <= n_queries; i += kTileQueries) {
      score_keys<kTileQueries>(tile, keys, i, key, scores);
    }
    for (; i < n_queries; i++) score_keys<1>(tile, keys, i, key, scores);
  }
}

// Turns one query's scores into weights relative to the block's largest, zero from n_seen on, and
// moves its running maximum and sum. Returns the factors for the old and for the new values.
static inline void weigh_block(float* scores, int64_t n_seen, float* largest, float* sum,
                               float* keep, float* take) {
  const float none = -INFINITY;
  const int64_t padded = (n_seen + W - 1) / W * W;
  for (int64_t i = n_seen; i < padded; i++) scores[i] = none;
  vf top = vset(none);
  for (int64_t i = 0; i < padded; i += W) top = vmax(top, vload(scores + i));
  const float block_largest = vmax_lanes(top);
  vf total = vset(0.0f);
  for (int64_t i = 0; i < padded; i += W) {
    const vf weight = vexp(vload(scores + i) - vset(block_largest));
    vstore(scores + i, weight);
    total = total + weight;
  }
  for (int64_t i = n_seen; i < kKvBlock; i++) scores[i] = 0.0f;
  const float now = *largest > block_largest ? *largest : block_largest;
  *keep = expf(*largest - now);
  *take = expf(block_largest - now);
  *sum = *sum * *keep + vsum(total) * *take;
  *largest = now;
}

// values = values * keep + take * (weights @ V), N queries and C vectors of columns at a time.
template <int N, int C, class T>
static inline void add_values(const AttentionTile& tile, const Keys<T>& keys, int64_t first,
                              int64_t column, const AttentionScratch& s) {
  vf sums[N][C];
  for (int i = 0; i < N; i++)
    for (int c = 0; c < C; c++) sums[i][c] = vset(0.0f);
  const float* weights = s.scores + first * kKvBlock;
  const T* v = keys.v + column;
  for (int64_t key = 0; key < keys.n; key++, v += tile.key_stride) {
    vf vc[C];
    for (int c = 0; c < C; c++) vc[c] = vload_kv(v + c * W);
    for (int i = 0; i < N; i++) {
      const vf weight = vset(weights[i * kKvBlock + key]);
      for (int c = 0; c < C; c++) sums[i][c] = vfma(weight, vc[c], sums[i][c]);
    }
  }
  for (int i = 0; i < N; i++) {
    float* out = s.values + (first + i) * tile.head_dim + column;
    const vf keep = vset(s.keep[first + i]), take = vset(s.take[first + i]);
    for (int c = 0; c < C; c++) {
      vstore(out + c * W, vfma(sums[i][c], take, vload(out + c * W) * keep));
    }
  }
}

template <int N, class T>
static inline void add_all_columns(const AttentionTile& tile, const Keys<T>& keys, int64_t first,
                                   const AttentionScratch& s) {
  int64_t column = 0;
  for (; column + kValueVectors * W <= tile.head_dim; column += kValueVectors * W) {
    add_values<N, kValueVectors>(tile, keys, first, column, s);
  }
  for (; column < tile.head_dim; column += W) add_values<N, 1>(tile, keys, first, column, s);
}

template <class T>
static void absorb_block(const AttentionTile& tile, int64_t block, const AttentionScratch& s) {
  const Keys<T> keys = keys_of_block<T>(tile, block);
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  score_block(tile, keys, s.scores);
  for (int64_t i = 0; i < n_queries; i++) {
    const int64_t own_end = tile.first_position + i / tile.n_group + 1 - block * kKvBlock;
    weigh_block(s.scores + i * kKvBlock, own_end < keys.n ? own_end : keys.n, s.largest + i,
                s.sum + i, s.keep + i, s.take + i);
  }
  int64_t i = 0;
  for (; i + kTileQueries <= n_queries; i += kTileQueries) {
    add_all_columns<kTileQueries>(tile, keys, i, s);
  }
  for (; i < n_queries; i++) add_all_columns<1>(tile, keys, i, s);
}

// out = values / sum * sigmoid(gate).
static inline void finish_query(const AttentionTile& tile, int64_t i, const AttentionScratch& s) {
  const int64_t t = i / tile.n_group, g = i % tile.n_group;
  const float* gate = query(tile, i) + tile.head_dim;
  const float* values = s.values + i * tile.head_dim;
  float* out = tile.out + t * tile.out_stride + g * tile.head_dim;
  const vf share = vset(1.0f / s.sum[i]);
  for (int64_t c = 0; c < tile.head_dim; c += W) {
    vstore(out + c, vload(values + c) * share * vsigmoid(vload(gate + c)));
  }
}

static void attention_tile(const AttentionTile& tile, float* scratch) {
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  const AttentionScratch s(scratch, n_queries, tile.head_dim);
  memset(s.values, 0, sizeof(float) * n_queries * tile.head_dim);
  for (int64_t i = 0; i < n_queries; i++) {
    s.largest[i] = -INFINITY;
    s.sum[i] = 0.0f;
  }
  const int64_t last = (tile.first_position + tile.n_tokens - 1) / kKvBlock;
  for (int64_t block = 0; block <= last; block++) {
    if (tile.half) {
      absorb_block<uint16_t>(tile, block, s);
    } else {
      absorb_block<float>(tile, block, s);
    }
  }
  for (int64_t i = 0; i < n_queries; i++) finish_query(tile, i, s);
}

}  // namespace GGH_OPS_ISA
}  // namespace ggh
