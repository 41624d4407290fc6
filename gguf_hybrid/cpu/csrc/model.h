// A loaded model: its sizes, its scratch memory and the operations of a step.
//
// An operation leaves its result in `pending` and the next norm adds it to the residual stream, so
// that the addition costs no job of its own. Scratch buffers only grow, to the largest step seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "matmul.h"
#include "model_api.h"
#include "model_step.h"
#include "ops_kernels.h"
#include "pool.h"

namespace ggh {

// float32 scratch, 64-byte aligned, not cleared; grows and never shrinks.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();
  // Room for n floats; the old contents are lost when it has to grow.
  float* reserve(int64_t n);
  float* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// Adds the time until its end to one section.
class Timer {
 public:
  Timer(uint64_t* times, ggh_section section);
  ~Timer();

 private:
  uint64_t* total_;
  std::chrono::steady_clock::time_point start_;
};

class Model {
 public:
  Model(Pool& pool, ggh_mode mode, const ggh_model_config& config);

  static bool supports(const ggh_model_config& config);
  ggh_status check(int64_t op, const void* address) const;
  ggh_status run(const ggh_store& store, const int32_t* record, int64_t n_record,
                 const int64_t* ops, int64_t n_ops, float* logits);
  size_t scratch_bytes() const;
  const uint64_t* times() const { return times_; }

 private:
  // One matrix times the shared input, into rows of `stride` floats.
  struct Target {
    const ggh_weight& weight;
    float* y;
    int64_t stride;
  };

  ggh_status check_delta_net(const ggh_delta_net& net) const;
  ggh_status check_attention(const ggh_attention& block) const;
  ggh_status check_dense(const ggh_dense& block) const;
  ggh_status check_experts(const ggh_experts& block) const;
  ggh_status check_head(const ggh_head& head) const;

  void dispatch(const ggh_store& store, int64_t op, int64_t index, const void* address,
                float* logits);
  void embed(const ggh_weight& embedding);
  void load(const float* x);
  void store_activations(float* out);
  void delta_net(const ggh_delta_net& net, const ggh_store& store, int64_t layer);
  void attend(const ggh_attention& block, const ggh_store& store, int64_t layer);
  void dense(const ggh_dense& block);
  void experts(const ggh_experts& block);
  void head(const ggh_head& head, float* logits);

  // Adds what is pending to x and leaves the normed rows in input_.
  void norm_input(const float* weight);
  void settle();
  // input_ times each target's matrix, one job.
  void project(const std::vector<Target>& targets);
  // rows [m, k] times one matrix; the result [m, n_embd] becomes pending.
  void project_out(const ggh_weight& weight, const float* rows, int64_t m);

  void find_states(const ggh_store& store, int64_t layer);
  void run_delta_head(const ggh_delta_net& net, int64_t row, int64_t v_head, bool stream,
                      float* scratch);
  void rotate_and_cache(const ggh_attention& block, const ggh_store& store, int64_t layer,
                        int64_t token, int64_t kv_head);
  void attend_by_tile(const ggh_store& store, int64_t layer);
  void attend_by_block(const ggh_store& store, int64_t layer);
  AttentionTile attention_tile(const ggh_store& store, int64_t layer, const TokenTile& tile,
                               int64_t kv_head) const;
  size_t attention_scratch_bytes() const;
  int64_t tokens_per_tile() const;
  void route_tokens(const ggh_experts& block);
  void run_experts(const ggh_experts& block);
  void run_shared_expert(const ggh_experts& block);
  void silu_rows(float* gate, const float* up, int64_t m, int64_t n);

  int64_t key_dim() const { return int64_t{c_.ssm_group_count} * c_.ssm_state_size; }
  int64_t value_dim() const { return int64_t{c_.ssm_time_step_rank} * c_.ssm_state_size; }
  int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }

  Pool& pool_;
  const OpsKernels& ops_;
  ggh_mode mode_;
  ggh_model_config c_;
  std::vector<double> inv_freq_;
  uint64_t times_[GGH_N_SECTIONS] = {0};

  Step step_;
  Activations input_, hidden_;
  std::vector<Product> products_;
  ExpertPairs pairs_;
  std::vector<const float*> state_in_;  // [rows] of the current layer
  std::vector<float*> state_out_;       // [rows][n_write]
  std::vector<int64_t> first_state_;    // [rows] index into state_out_
  std::vector<int32_t> expert_ids_, pair_rows_;
  Buffer x_, normed_, result_;
  Buffer qkv_, z_, beta_, alpha_, mixed_;
  Buffer q_, k_, v_, partials_;
  Buffer gate_, up_, routes_, route_weights_, expert_out_, shared_gate_, shared_up_, shared_out_,
      shared_scale_;
  const float* pending_ = nullptr;
};

}  // namespace ggh

struct ggh_model : ggh::Model {
  using ggh::Model::Model;
};
