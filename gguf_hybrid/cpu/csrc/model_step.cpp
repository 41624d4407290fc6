#include "model_step.h"

#include <algorithm>
#include <cmath>

#include "ops_kernels.h"

namespace ggh {
namespace {

constexpr int64_t kRowHeader = 6;

bool all_below(const int32_t* ids, int64_t n, int64_t limit) {
  return std::all_of(ids, ids + n, [limit](int32_t id) { return id >= 0 && id < limit; });
}

bool is_sound(const Row& row, const ggh_store& store, int64_t n_vocab) {
  const int64_t end = int64_t{row.start} + row.n_tokens;
  return row.start >= 0 && row.state_read >= -1 && row.state_read < store.n_state_rows &&
         row.n_blocks * kKvBlock >= end && row.n_write >= 1 && row.n_write <= row.n_tokens &&
         row.n_logits >= 0 && row.n_logits <= row.n_tokens &&
         all_below(row.state_write, row.n_write, store.n_state_rows) &&
         all_below(row.tokens, row.n_tokens, n_vocab) &&
         all_below(row.blocks, row.n_blocks, store.n_blocks);
}

}  // namespace

bool Step::parse(const int32_t* record, int64_t n_record, const ggh_store& store,
                 int64_t n_vocab) {
  rows.clear();
  tokens.clear();
  row_of_token.clear();
  logit_index.clear();
  tiles.clear();
  n_tokens_ = n_logits_ = 0;
  if (n_record < 1 || record[0] < 1) return false;
  int64_t at = 1;
  for (int32_t r = 0; r < record[0]; ++r) {
    if (n_record - at < kRowHeader) return false;
    const int32_t* h = record + at;
    at += kRowHeader;
    Row row{h[0], h[1], h[2], h[3], h[4], h[5], nullptr, nullptr, nullptr, n_tokens_};
    if (row.n_tokens < 1 || row.n_write < 0 || row.n_blocks < 0) return false;
    if (n_record - at < int64_t{row.n_write} + row.n_tokens + row.n_blocks) return false;
    row.state_write = record + at;
    row.tokens = row.state_write + row.n_write;
    row.blocks = row.tokens + row.n_tokens;
    at += int64_t{row.n_write} + row.n_tokens + row.n_blocks;
    if (!is_sound(row, store, n_vocab)) return false;
    tokens.insert(tokens.end(), row.tokens, row.tokens + row.n_tokens);
    row_of_token.insert(row_of_token.end(), static_cast<size_t>(row.n_tokens), r);
    n_tokens_ += row.n_tokens;
    n_logits_ += row.n_logits;
    for (int64_t i = n_tokens_ - row.n_logits; i < n_tokens_; ++i) {
      logit_index.push_back(static_cast<int32_t>(i));
    }
    rows.push_back(row);
  }
  return at == n_record;
}

void Step::fill_rope(const std::vector<double>& inv_freq, double magnitude) {
  const size_t n_pairs = inv_freq.size();
  cos.resize(static_cast<size_t>(n_tokens_) * n_pairs);
  sin.resize(cos.size());
  size_t at = 0;
  for (const Row& row : rows) {
    for (int32_t t = 0; t < row.n_tokens; ++t) {
      for (size_t i = 0; i < n_pairs; ++i, ++at) {
        const double angle = (row.start + t) * inv_freq[i];
        cos[at] = static_cast<float>(std::cos(angle) * magnitude);
        sin[at] = static_cast<float>(std::sin(angle) * magnitude);
      }
    }
  }
}

void Step::cut_tiles(int64_t tokens_per_tile) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    for (int32_t t = 0; t < row.n_tokens;) {
      const int64_t position = int64_t{row.start} + t;
      const int64_t to_boundary = tokens_per_tile - position % tokens_per_tile;
      const auto n = static_cast<int32_t>(std::min<int64_t>(to_boundary, row.n_tokens - t));
      const auto n_blocks = static_cast<int32_t>(position / kKvBlock + 1);
      tiles.push_back({static_cast<int32_t>(r), t, n, n_blocks, 0});
      t += n;
    }
  }
  // The longest pasts first: the last task to finish should be a short one.
  std::stable_sort(tiles.begin(), tiles.end(), [](const TokenTile& a, const TokenTile& b) {
    return a.n_blocks > b.n_blocks;
  });
  n_tile_blocks_ = 0;
  for (TokenTile& tile : tiles) {
    tile.first_block = n_tile_blocks_;
    n_tile_blocks_ += tile.n_blocks;
  }
}

const TokenTile& Step::tile_of_block(int64_t block) const {
  const auto after = std::upper_bound(
      tiles.begin(), tiles.end(), block,
      [](int64_t wanted, const TokenTile& tile) { return wanted < tile.first_block; });
  return *(after - 1);
}

}  // namespace ggh
