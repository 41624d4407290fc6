// The gated attention of a step over paged KV.
#include "model.h"

namespace ggh {
namespace {

constexpr int64_t kTileQueries = 32;
// Fewer tasks than this for each thread are cut into smaller ones.
constexpr int64_t kTasksPerThread = 4;

// Where K and V of one KV head start in block 0, and the strides between positions and blocks.
struct HeadCache {
  uint8_t* k;
  uint8_t* v;
  int64_t key_bytes;
  int64_t block_bytes;

  uint8_t* at(uint8_t* base, const Row& row, int64_t position) const {
    return base + row.blocks[position / kKvBlock] * block_bytes +
           position % kKvBlock * key_bytes;
  }
};

HeadCache head_cache(const ggh_store& store, const ggh_model_config& c, int64_t layer,
                     int64_t kv_head) {
  const int64_t head_bytes = c.head_dim * (store.kv_half ? 2 : 4);
  const int64_t key_bytes = c.n_head_kv * head_bytes;
  uint8_t* k = store.kv + layer * store.block_layer_stride + kv_head * head_bytes;
  return {k, k + kKvBlock * key_bytes, key_bytes, store.block_stride};
}

}  // namespace

// A power of two, so that no tile crosses a KV block.
int64_t Model::tokens_per_tile() const {
  const int64_t n_group = c_.n_head / c_.n_head_kv;
  int64_t n = 1;
  while (2 * n * n_group <= kTileQueries) n *= 2;
  return n;
}

void Model::attend(const ggh_attention& block, const ggh_store& store, int64_t layer) {
  const int64_t n = step_.n_tokens(), q_dim = int64_t{c_.n_head} * c_.head_dim;
  const int64_t kv_dim = int64_t{c_.n_head_kv} * c_.head_dim;
  norm_input(block.norm);
  {
    const Timer timer(times_, GGH_TIME_MIXER_IN);
    project({{block.q, q_.reserve(n * 2 * q_dim), 2 * q_dim},
             {block.k, k_.reserve(n * kv_dim), kv_dim},
             {block.v, v_.reserve(n * kv_dim), kv_dim}});
  }
  {
    const Timer timer(times_, GGH_TIME_ATTENTION);
    mixed_.reserve(n * q_dim);
    const int64_t n_kv = c_.n_head_kv;
    pool_.parallel_for(n * n_kv, [&](int64_t task, int) {
      rotate_and_cache(block, store, layer, task / n_kv, task % n_kv);
    });
    const auto n_tiles = static_cast<int64_t>(step_.tiles.size());
    if (n_tiles * n_kv < kTasksPerThread * pool_.n_threads() && step_.n_tile_blocks() > n_tiles) {
      attend_by_block(store, layer);
    } else {
      attend_by_tile(store, layer);
    }
  }
  const Timer timer(times_, GGH_TIME_MIXER_OUT);
  project_out(block.out, mixed_.data(), n);
}

size_t Model::attention_scratch_bytes() const {
  const int64_t n_queries = tokens_per_tile() * c_.n_head / c_.n_head_kv;
  return sizeof(float) *
         static_cast<size_t>(attention_scratch_floats(n_queries, c_.head_dim));
}

void Model::attend_by_tile(const ggh_store& store, int64_t layer) {
  const int64_t n_kv = c_.n_head_kv;
  const size_t bytes = attention_scratch_bytes();
  const auto n_tiles = static_cast<int64_t>(step_.tiles.size());
  pool_.parallel_for(n_tiles * n_kv, [&](int64_t task, int thread) {
    const TokenTile& tile = step_.tiles[static_cast<size_t>(task / n_kv)];
    ops_.attention_tile(attention_tile(store, layer, tile, task % n_kv),
                        static_cast<float*>(pool_.scratch(thread, bytes)));
  });
}

// Few sequences with long pasts: every KV block is a task, and the merge a short second job.
void Model::attend_by_block(const ggh_store& store, int64_t layer) {
  const int64_t n_kv = c_.n_head_kv, n_group = c_.n_head / c_.n_head_kv;
  const size_t bytes = attention_scratch_bytes();
  const int64_t size = attention_partial_floats(tokens_per_tile() * n_group, c_.head_dim);
  const auto n_tiles = static_cast<int64_t>(step_.tiles.size());
  float* partials = partials_.reserve(step_.n_tile_blocks() * n_kv * size);
  // Of tile and head: the partials of its blocks, one after the other.
  const auto partials_of = [&](const TokenTile& tile, int64_t kv_head) {
    return partials + (tile.first_block * n_kv + kv_head * tile.n_blocks) * size;
  };
  pool_.parallel_for(step_.n_tile_blocks() * n_kv, [&](int64_t task, int thread) {
    const TokenTile& tile = step_.tile_of_block(task / n_kv);
    const int64_t kv_head = task % n_kv, block = task / n_kv - tile.first_block;
    const AttentionTile t = attention_tile(store, layer, tile, kv_head);
    const int64_t own = attention_partial_floats(t.n_tokens * n_group, c_.head_dim);
    ops_.attention_block(t, block, partials_of(tile, kv_head) + block * own,
                         static_cast<float*>(pool_.scratch(thread, bytes)));
  });
  pool_.parallel_for(n_tiles * n_kv, [&](int64_t task, int thread) {
    const TokenTile& tile = step_.tiles[static_cast<size_t>(task / n_kv)];
    ops_.attention_merge(attention_tile(store, layer, tile, task % n_kv),
                         partials_of(tile, task % n_kv),
                         static_cast<float*>(pool_.scratch(thread, bytes)));
  });
}

// Norm and rope of one token's K head and of the query heads that share it; K and V into the cache.
void Model::rotate_and_cache(const ggh_attention& block, const ggh_store& store, int64_t layer,
                             int64_t token, int64_t kv_head) {
  const int64_t dim = c_.head_dim, n_pairs = c_.n_rot / 2, n_group = c_.n_head / c_.n_head_kv;
  const Row& row = step_.rows[static_cast<size_t>(step_.row_of_token[static_cast<size_t>(token)])];
  const float* cos = step_.cos.data() + token * n_pairs;
  const float* sin = step_.sin.data() + token * n_pairs;
  float* q = q_.data() + (token * c_.n_head + kv_head * n_group) * 2 * dim;
  for (int64_t g = 0; g < n_group; ++g) {
    ops_.rope_head(q + g * 2 * dim, block.q_norm, c_.rms_eps, dim, cos, sin, n_pairs,
                   c_.attention_scale);
  }
  float* k = k_.data() + (token * c_.n_head_kv + kv_head) * dim;
  const float* v = v_.data() + (token * c_.n_head_kv + kv_head) * dim;
  ops_.rope_head(k, block.k_norm, c_.rms_eps, dim, cos, sin, n_pairs, 1.0f);

  const int64_t position = row.start + token - row.first;
  const HeadCache cache = head_cache(store, c_, layer, kv_head);
  ops_.to_cache(k, dim, store.kv_half != 0, cache.at(cache.k, row, position));
  ops_.to_cache(v, dim, store.kv_half != 0, cache.at(cache.v, row, position));
}

AttentionTile Model::attention_tile(const ggh_store& store, int64_t layer, const TokenTile& tile,
                                    int64_t kv_head) const {
  const Row& row = step_.rows[static_cast<size_t>(tile.row)];
  const HeadCache cache = head_cache(store, c_, layer, kv_head);
  const int64_t dim = c_.head_dim, n_group = c_.n_head / c_.n_head_kv;
  const int64_t element = store.kv_half ? 2 : 4;
  const int64_t token = row.first + tile.token;
  AttentionTile t;
  t.n_tokens = tile.n_tokens;
  t.first_position = row.start + tile.token;
  t.n_group = n_group;
  t.head_dim = dim;
  t.q = q_.data() + (token * c_.n_head + kv_head * n_group) * 2 * dim;
  t.token_stride = c_.n_head * 2 * dim;
  t.blocks = row.blocks;
  t.k = cache.k;
  t.v = cache.v;
  t.block_stride = cache.block_bytes / element;
  t.key_stride = cache.key_bytes / element;
  t.half = store.kv_half != 0;
  t.out = mixed_.data() + (token * c_.n_head + kv_head * n_group) * dim;
  t.out_stride = c_.n_head * dim;
  return t;
}

}  // namespace ggh
