// The Gated DeltaNet mixer of a step.
#include "model.h"

namespace ggh {
namespace {

// States of a step that are larger than this have left the caches before the next step.
constexpr int64_t kCachedStateBytes = 8 << 20;

}  // namespace

void Model::delta_net(const ggh_delta_net& net, const ggh_store& store, int64_t layer) {
  const int64_t n = step_.n_tokens(), n_heads = c_.ssm_time_step_rank;
  norm_input(net.norm);
  {
    const Timer timer(times_, GGH_TIME_MIXER_IN);
    project({{net.qkv, qkv_.reserve(n * conv_dim()), conv_dim()},
             {net.gate, z_.reserve(n * value_dim()), value_dim()},
             {net.beta, beta_.reserve(n * n_heads), n_heads},
             {net.alpha, alpha_.reserve(n * n_heads), n_heads}});
  }
  {
    const Timer timer(times_, GGH_TIME_DELTA_RULE);
    mixed_.reserve(n * value_dim());
    find_states(store, layer);
    const auto n_rows = static_cast<int64_t>(step_.rows.size());
    const bool stream = n_rows * store.state_row_stride > kCachedStateBytes;
    const size_t bytes =
        sizeof(float) * static_cast<size_t>(delta_scratch_floats(c_.ssm_state_size));
    pool_.parallel_for(n_rows * n_heads, [&](int64_t task, int thread) {
      run_delta_head(net, task / n_heads, task % n_heads, stream,
                     static_cast<float*>(pool_.scratch(thread, bytes)));
    });
  }
  const Timer timer(times_, GGH_TIME_MIXER_OUT);
  project_out(net.out, mixed_.data(), n);
}

void Model::find_states(const ggh_store& store, int64_t layer) {
  const auto state = [&](int32_t row) {
    return reinterpret_cast<float*>(store.states + row * store.state_row_stride +
                                    layer * store.state_layer_stride);
  };
  state_in_.clear();
  state_out_.clear();
  first_state_.clear();
  for (const Row& row : step_.rows) {
    state_in_.push_back(row.state_read < 0 ? nullptr : state(row.state_read));
    first_state_.push_back(static_cast<int64_t>(state_out_.size()));
    for (int32_t w = 0; w < row.n_write; ++w) state_out_.push_back(state(row.state_write[w]));
  }
}

void Model::run_delta_head(const ggh_delta_net& net, int64_t row, int64_t v_head,
                           bool stream, float* scratch) {
  const Row& r = step_.rows[static_cast<size_t>(row)];
  const int64_t dim = c_.ssm_state_size, n_v = c_.ssm_time_step_rank, n_k = c_.ssm_group_count;
  const int64_t k_head = c_.tiled_v_heads ? v_head % n_k : v_head / (n_v / n_k);
  const int64_t first_of_k_head = c_.tiled_v_heads ? k_head : k_head * (n_v / n_k);
  DeltaHead head;
  head.n_tokens = r.n_tokens;
  head.dim = dim;
  head.conv_dim = conv_dim();
  head.conv_kernel = c_.ssm_conv_kernel;
  head.q_channel = k_head * dim;
  head.k_channel = key_dim() + k_head * dim;
  head.v_channel = 2 * key_dim() + v_head * dim;
  head.owns_qk = v_head == first_of_k_head;
  head.qkv = qkv_.data() + r.first * conv_dim();
  head.z = z_.data() + r.first * value_dim() + v_head * dim;
  head.z_stride = value_dim();
  head.beta = beta_.data() + r.first * n_v + v_head;
  head.alpha = alpha_.data() + r.first * n_v + v_head;
  head.beta_stride = n_v;
  head.conv_weight = net.conv;
  head.dt_bias = net.dt_bias[v_head];
  head.a = net.a[v_head];
  head.norm = net.ssm_norm;
  head.eps = c_.rms_eps;
  head.state_in = state_in_[static_cast<size_t>(row)];
  head.n_write = r.n_write;
  head.state_out = state_out_.data() + first_state_[static_cast<size_t>(row)];
  head.delta_offset = (c_.ssm_conv_kernel - 1) * conv_dim() + v_head * dim * dim;
  head.stream = stream;
  head.out = mixed_.data() + r.first * value_dim() + v_head * dim;
  ops_.delta_head(head, scratch);
}

}  // namespace ggh
