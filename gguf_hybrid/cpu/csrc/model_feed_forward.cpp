// Dense and expert feed-forward of a step.
#include "model.h"

namespace ggh {
namespace {

// Tasks of the elementwise job: pieces of a row, long enough to be worth handing out.
constexpr int64_t kPiece = 2048;

}  // namespace

void Model::silu_rows(float* gate, const float* up, int64_t m, int64_t n) {
  const int64_t per_row = (n + kPiece - 1) / kPiece;
  pool_.parallel_for(m * per_row, [&](int64_t task, int) {
    const int64_t start = task % per_row * kPiece, left = n - start;
    const int64_t at = task / per_row * n + start;
    ops_.silu_mul(gate + at, up + at, left < kPiece ? left : kPiece, gate + at);
  });
}

void Model::dense(const ggh_dense& block) {
  const int64_t n = step_.n_tokens(), width = block.gate.n;
  norm_input(block.norm);
  {
    const Timer timer(times_, GGH_TIME_FFN_IN);
    project({{block.gate, gate_.reserve(n * width), width},
             {block.up, up_.reserve(n * width), width}});
    silu_rows(gate_.data(), up_.data(), n, width);
  }
  const Timer timer(times_, GGH_TIME_FFN_OUT);
  project_out(block.down, gate_.data(), n);
}

void Model::experts(const ggh_experts& block) {
  norm_input(block.norm);
  route_tokens(block);
  run_experts(block);
  const bool shared = block.shared_router.data != nullptr;
  if (shared) run_shared_expert(block);

  const Timer timer(times_, GGH_TIME_FFN_OUT);
  const int64_t n = c_.n_embd, n_used = c_.n_expert_used;
  float* result = result_.reserve(step_.n_tokens() * n);
  pool_.parallel_for(step_.n_tokens(), [&](int64_t t, int) {
    const float* gate = shared ? shared_scale_.data() + t : nullptr;
    const float* rest = shared ? shared_out_.data() + t * n : nullptr;
    ops_.mix_experts(expert_out_.data() + t * n_used * n, n_used,
                     route_weights_.data() + t * n_used, gate, rest, n, result + t * n);
  });
  pending_ = result;
}

void Model::route_tokens(const ggh_experts& block) {
  const Timer timer(times_, GGH_TIME_ROUTER);
  const int64_t n = step_.n_tokens(), n_expert = block.router.n, n_used = c_.n_expert_used;
  project({{block.router, routes_.reserve(n * n_expert), n_expert}});
  route_weights_.reserve(n * n_used);
  expert_ids_.resize(static_cast<size_t>(n * n_used));
  pair_rows_.resize(expert_ids_.size());
  const float scale = c_.expert_weights_scale == 0.0f ? 1.0f : c_.expert_weights_scale;
  const size_t bytes = sizeof(float) * static_cast<size_t>(n_expert + 2 * n_used);
  pool_.parallel_for(n, [&](int64_t t, int thread) {
    ops_.route(routes_.data() + t * n_expert, n_expert, n_used, scale,
               expert_ids_.data() + t * n_used, route_weights_.data() + t * n_used,
               static_cast<float*>(pool_.scratch(thread, bytes)));
    for (int64_t i = 0; i < n_used; ++i) {
      pair_rows_[static_cast<size_t>(t * n_used + i)] = static_cast<int32_t>(t);
    }
  });
  pairs_.assign(n_expert, n * n_used, expert_ids_.data(), pair_rows_.data());
}

void Model::run_experts(const ggh_experts& block) {
  const int64_t n_pairs = step_.n_tokens() * c_.n_expert_used, width = block.gate.n;
  {
    const Timer timer(times_, GGH_TIME_FFN_IN);
    products_.clear();
    pairs_.append(block.gate, gate_.reserve(n_pairs * width), width, products_);
    pairs_.append(block.up, up_.reserve(n_pairs * width), width, products_);
    matmul(pool_, input_, mode_, products_.data(), products_.size());
    silu_rows(gate_.data(), up_.data(), n_pairs, width);
  }
  const Timer timer(times_, GGH_TIME_FFN_OUT);
  for (size_t p = 0; p < pair_rows_.size(); ++p) pair_rows_[p] = static_cast<int32_t>(p);
  pairs_.assign(block.router.n, n_pairs, expert_ids_.data(), pair_rows_.data());
  hidden_.assign(gate_.data(), width, n_pairs, width);
  products_.clear();
  pairs_.append(block.down, expert_out_.reserve(n_pairs * c_.n_embd), c_.n_embd, products_);
  matmul(pool_, hidden_, mode_, products_.data(), products_.size());
}

void Model::run_shared_expert(const ggh_experts& block) {
  const int64_t n = step_.n_tokens(), width = block.shared_gate.n;
  {
    const Timer timer(times_, GGH_TIME_FFN_IN);
    project({{block.shared_router, shared_scale_.reserve(n), 1},
             {block.shared_gate, shared_gate_.reserve(n * width), width},
             {block.shared_up, shared_up_.reserve(n * width), width}});
    silu_rows(shared_gate_.data(), shared_up_.data(), n, width);
  }
  const Timer timer(times_, GGH_TIME_FFN_OUT);
  hidden_.assign(shared_gate_.data(), width, n, width);
  const Product product{block.shared_down, shared_out_.reserve(n * c_.n_embd), c_.n_embd, n,
                        nullptr, nullptr};
  matmul(pool_, hidden_, mode_, &product, 1);
}

}  // namespace ggh
