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

// What one KV block contributes to each query: its largest score, the sum of its weights relative
// to that score, and the weighted sum of its values.
struct Partial {
  float *largest, *sum, *values;

  Partial(float* memory, int64_t n_queries)
      : largest(memory), sum(memory + n_queries), values(memory + 2 * n_queries) {}
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

// K of the keys that come next, and V of these keys for when their scores are known: a step over
// many sequences finds neither in a cache.
template <class T>
static inline void prefetch_keys(const AttentionTile& tile, const Keys<T>& keys, int64_t key) {
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(T);
  const int64_t end = key + 4 < keys.n ? key + 4 : keys.n;
  for (int64_t at = key; at < end; at++) {
    const T* v = keys.v + at * tile.key_stride;
    const T* k = keys.k + (at + kAhead < keys.n ? at + kAhead : at) * tile.key_stride;
    for (int64_t c = 0; c < tile.head_dim; c += kLine) {
      __builtin_prefetch(k + c);
      __builtin_prefetch(v + c, 0, 2);
    }
  }
}

template <class T>
static void score_block(const AttentionTile& tile, const Keys<T>& keys, float* scores) {
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  for (int64_t key = 0; key < keys.n; key += 4) {
    prefetch_keys(tile, keys, key);
    int64_t i = 0;
    for (; i + kTileQueries <= n_queries; i += kTileQueries) {
      score_keys<kTileQueries>(tile, keys, i, key, scores);
    }
    for (; i < n_queries; i++) score_keys<1>(tile, keys, i, key, scores);
  }
}

// Turns one query's scores into weights relative to the block's largest, zero from n_seen on.
static inline void weigh_block(float* scores, int64_t n_seen, float* largest, float* sum) {
  const float none = -INFINITY;
  const int64_t padded = (n_seen + W - 1) / W * W;
  for (int64_t i = n_seen; i < padded; i++) scores[i] = none;
  vf top = vset(none);
  for (int64_t i = 0; i < padded; i += W) top = vmax(top, vload(scores + i));
  *largest = vmax_lanes(top);
  vf total = vset(0.0f);
  for (int64_t i = 0; i < padded; i += W) {
    const vf weight = vexp(vload(scores + i) - vset(*largest));
    vstore(scores + i, weight);
    total = total + weight;
  }
  for (int64_t i = n_seen; i < kKvBlock; i++) scores[i] = 0.0f;
  *sum = vsum(total);
}

// values = weights @ V for N queries and C vectors of columns.
template <int N, int C, class T>
static inline void weigh_values(const AttentionTile& tile, const Keys<T>& keys, int64_t first,
                                int64_t column, const float* scores, float* values) {
  vf sums[N][C];
  for (int i = 0; i < N; i++)
    for (int c = 0; c < C; c++) sums[i][c] = vset(0.0f);
  const float* weights = scores + first * kKvBlock;
  const T* v = keys.v + column;
  for (int64_t key = 0; key < keys.n; key++, v += tile.key_stride) {
    vf vc[C];
    for (int c = 0; c < C; c++) vc[c] = vload_kv(v + c * W);
    for (int i = 0; i < N; i++) {
      const vf weight = vset(weights[i * kKvBlock + key]);
      for (int c = 0; c < C; c++) sums[i][c] = vfma(weight, vc[c], sums[i][c]);
    }
  }
  float* out = values + first * tile.head_dim + column;
  for (int i = 0; i < N; i++)
    for (int c = 0; c < C; c++) vstore(out + i * tile.head_dim + c * W, sums[i][c]);
}

template <int N, class T>
static inline void weigh_all_columns(const AttentionTile& tile, const Keys<T>& keys, int64_t first,
                                     const float* scores, float* values) {
  int64_t column = 0;
  for (; column + kValueVectors * W <= tile.head_dim; column += kValueVectors * W) {
    weigh_values<N, kValueVectors>(tile, keys, first, column, scores, values);
  }
  for (; column < tile.head_dim; column += W) {
    weigh_values<N, 1>(tile, keys, first, column, scores, values);
  }
}

template <class T>
static void attend_block(const AttentionTile& tile, int64_t block, float* scores,
                         const Partial& partial) {
  const Keys<T> keys = keys_of_block<T>(tile, block);
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  score_block(tile, keys, scores);
  for (int64_t i = 0; i < n_queries; i++) {
    const int64_t own_end = tile.first_position + i / tile.n_group + 1 - block * kKvBlock;
    weigh_block(scores + i * kKvBlock, own_end < keys.n ? own_end : keys.n, partial.largest + i,
                partial.sum + i);
  }
  int64_t i = 0;
  for (; i + kTileQueries <= n_queries; i += kTileQueries) {
    weigh_all_columns<kTileQueries>(tile, keys, i, scores, partial.values);
  }
  for (; i < n_queries; i++) weigh_all_columns<1>(tile, keys, i, scores, partial.values);
}

static inline void attend_any_block(const AttentionTile& tile, int64_t block, float* scores,
                                    const Partial& partial) {
  if (tile.half) {
    attend_block<uint16_t>(tile, block, scores, partial);
  } else {
    attend_block<float>(tile, block, scores, partial);
  }
}

static inline void clear(const AttentionTile& tile, const Partial& total) {
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  memset(total.values, 0, sizeof(float) * n_queries * tile.head_dim);
  for (int64_t i = 0; i < n_queries; i++) {
    total.largest[i] = -INFINITY;
    total.sum[i] = 0.0f;
  }
}

// Takes the next block's contribution into the total of the blocks before it.
static inline void merge(const AttentionTile& tile, const Partial& next, const Partial& total) {
  for (int64_t i = 0; i < tile.n_tokens * tile.n_group; i++) {
    const float before = total.largest[i], block = next.largest[i];
    const float now = before > block ? before : block;
    const float keep = expf(before - now), take = expf(block - now);
    total.largest[i] = now;
    total.sum[i] = total.sum[i] * keep + next.sum[i] * take;
    float* values = total.values + i * tile.head_dim;
    const float* more = next.values + i * tile.head_dim;
    for (int64_t c = 0; c < tile.head_dim; c += W) {
      vstore(values + c, vfma(vload(more + c), vset(take), vload(values + c) * vset(keep)));
    }
  }
}

// out = values / sum * sigmoid(gate).
static inline void finish(const AttentionTile& tile, const Partial& total) {
  for (int64_t i = 0; i < tile.n_tokens * tile.n_group; i++) {
    const int64_t t = i / tile.n_group, g = i % tile.n_group;
    const float* gate = query(tile, i) + tile.head_dim;
    const float* values = total.values + i * tile.head_dim;
    float* out = tile.out + t * tile.out_stride + g * tile.head_dim;
    const vf share = vset(1.0f / total.sum[i]);
    for (int64_t c = 0; c < tile.head_dim; c += W) {
      vstore(out + c, vload(values + c) * share * vsigmoid(vload(gate + c)));
    }
  }
}

static void attention_tile(const AttentionTile& tile, float* scratch) {
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  const int64_t size = attention_partial_floats(n_queries, tile.head_dim);
  const Partial next(scratch, n_queries), total(scratch + size, n_queries);
  clear(tile, total);
  const int64_t n_blocks = attention_blocks(tile);
  for (int64_t block = 0; block < n_blocks; block++) {
    attend_any_block(tile, block, scratch + 2 * size, next);
    merge(tile, next, total);
  }
  finish(tile, total);
}

static void attention_block(const AttentionTile& tile, int64_t block, float* partial,
                            float* scratch) {
  attend_any_block(tile, block, scratch, Partial(partial, tile.n_tokens * tile.n_group));
}

static void attention_merge(const AttentionTile& tile, const float* partials, float* scratch) {
  const int64_t n_queries = tile.n_tokens * tile.n_group;
  const int64_t size = attention_partial_floats(n_queries, tile.head_dim);
  const Partial total(scratch, n_queries);
  clear(tile, total);
  const int64_t n_blocks = attention_blocks(tile);
  for (int64_t block = 0; block < n_blocks; block++) {
    merge(tile, Partial(const_cast<float*>(partials) + block * size, n_queries), total);
  }
  finish(tile, total);
}

}  // namespace GGH_OPS_ISA
}  // namespace ggh
