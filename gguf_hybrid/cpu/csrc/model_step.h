// The step record in the library's own terms.
#pragma once

#include <cstdint>
#include <vector>

#include "model_api.h"

namespace ggh {

// Consecutive tokens of one sequence; see gguf_hybrid.step.Row.
struct Row {
  int32_t start;
  int32_t n_tokens;
  int32_t state_read;
  int32_t n_write;
  int32_t n_logits;
  int32_t n_blocks;
  const int32_t* state_write;
  const int32_t* tokens;
  const int32_t* blocks;
  int64_t first;  // index of the first token in the step
};

// Tokens of one row that attend together. They lie in one KV block and see n_blocks of them, which
// are numbered from first_block on among those of all tiles.
struct TokenTile {
  int32_t row;
  int32_t token;  // within the row
  int32_t n_tokens;
  int32_t n_blocks;
  int64_t first_block;
};

// All rows of a step, and what is the same for every layer: rotary tables and token tiles.
// Reused from step to step; points into the record.
class Step {
 public:
  // False when the record is damaged: counts that do not add up, ids out of range.
  bool parse(const int32_t* record, int64_t n_record, const ggh_store& store, int64_t n_vocab);
  void fill_rope(const std::vector<double>& inv_freq, double magnitude);
  void cut_tiles(int64_t tokens_per_tile);

  int64_t n_tokens() const { return n_tokens_; }
  int64_t n_logits() const { return n_logits_; }
  // KV blocks of all tiles together, and the tile that one of them belongs to.
  int64_t n_tile_blocks() const { return n_tile_blocks_; }
  const TokenTile& tile_of_block(int64_t block) const;

  std::vector<Row> rows;
  std::vector<int64_t> tokens;         // [n_tokens] token ids
  std::vector<int32_t> row_of_token;   // [n_tokens]
  std::vector<int32_t> logit_index;    // [n_logits] tokens that want logits
  std::vector<float> cos, sin;         // [n_tokens, n_rot / 2]
  std::vector<TokenTile> tiles;

 private:
  int64_t n_tokens_ = 0;
  int64_t n_logits_ = 0;
  int64_t n_tile_blocks_ = 0;
};

}  // namespace ggh
