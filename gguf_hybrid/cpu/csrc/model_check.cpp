// Refuses models and blocks that the operations cannot run, before anything is computed.
#include "model.h"

namespace ggh {
namespace {

constexpr int kVector = 16;      // floats that every row kernel may take at once
constexpr int kDeltaColumns = 32;
constexpr int kMaxStateSize = 256;

bool is_multiple(int64_t value, int64_t unit) { return value > 0 && value % unit == 0; }

ggh_status check_matrix(const ggh_weight& weight, int64_t n, int64_t k) {
  if (weight.data == nullptr) return GGH_BAD_ARGUMENT;
  if (weight.n != n || weight.k != k) return GGH_BAD_SIZE;
  return check_weight(weight, k);
}

template <class... Status>
ggh_status first_problem(Status... status) {
  for (const ggh_status s : {status...}) {
    if (s != GGH_OK) return s;
  }
  return GGH_OK;
}

template <class... Pointer>
ggh_status check_vectors(Pointer... vector) {
  for (const float* v : {vector...}) {
    if (v == nullptr) return GGH_BAD_ARGUMENT;
  }
  return GGH_OK;
}

}  // namespace

bool Model::supports(const ggh_model_config& c) {
  return is_multiple(c.n_embd, kVector) && c.n_vocab > 0 && is_multiple(c.head_dim, kVector) &&
         c.n_head_kv > 0 && is_multiple(c.n_head, c.n_head_kv) && c.n_rot >= 0 &&
         c.n_rot % 2 == 0 && c.n_rot <= c.head_dim &&
         is_multiple(c.ssm_state_size, kDeltaColumns) && c.ssm_state_size <= kMaxStateSize &&
         c.ssm_group_count > 0 && is_multiple(c.ssm_time_step_rank, c.ssm_group_count) &&
         c.ssm_conv_kernel >= 2 && c.n_expert_used >= 0 && c.rope_inv_freq != nullptr;
}

ggh_status Model::check(int64_t op, const void* address) const {
  if (address == nullptr) return GGH_BAD_ARGUMENT;
  switch (op) {
    case GGH_OP_EMBED:
      return check_matrix(*static_cast<const ggh_weight*>(address), c_.n_vocab, c_.n_embd);
    case GGH_OP_DELTA_NET:
      return check_delta_net(*static_cast<const ggh_delta_net*>(address));
    case GGH_OP_ATTEND:
      return check_attention(*static_cast<const ggh_attention*>(address));
    case GGH_OP_DENSE:
      return check_dense(*static_cast<const ggh_dense*>(address));
    case GGH_OP_EXPERTS:
      return check_experts(*static_cast<const ggh_experts*>(address));
    case GGH_OP_LOGITS:
      return check_head(*static_cast<const ggh_head*>(address));
    case GGH_OP_LOAD:
    case GGH_OP_STORE:
      return GGH_OK;
    default:
      return GGH_BAD_ARGUMENT;
  }
}

ggh_status Model::check_delta_net(const ggh_delta_net& net) const {
  const int64_t n = c_.n_embd, n_heads = c_.ssm_time_step_rank;
  return first_problem(check_vectors(net.norm, net.conv, net.dt_bias, net.a, net.ssm_norm),
                       check_matrix(net.qkv, conv_dim(), n), check_matrix(net.gate, value_dim(), n),
                       check_matrix(net.beta, n_heads, n), check_matrix(net.alpha, n_heads, n),
                       check_matrix(net.out, n, value_dim()));
}

ggh_status Model::check_attention(const ggh_attention& block) const {
  const int64_t n = c_.n_embd, q_dim = int64_t{c_.n_head} * c_.head_dim;
  const int64_t kv_dim = int64_t{c_.n_head_kv} * c_.head_dim;
  return first_problem(check_vectors(block.norm, block.q_norm, block.k_norm),
                       check_matrix(block.q, 2 * q_dim, n), check_matrix(block.k, kv_dim, n),
                       check_matrix(block.v, kv_dim, n), check_matrix(block.out, n, q_dim));
}

ggh_status Model::check_dense(const ggh_dense& block) const {
  const int64_t n = c_.n_embd, width = block.gate.n;
  if (!is_multiple(width, kVector)) return GGH_BAD_SIZE;
  return first_problem(check_vectors(block.norm), check_matrix(block.gate, width, n),
                       check_matrix(block.up, width, n), check_matrix(block.down, n, width));
}

ggh_status Model::check_experts(const ggh_experts& block) const {
  const int64_t n = c_.n_embd, width = block.gate.n, n_expert = block.router.n;
  if (!is_multiple(width, kVector) || c_.n_expert_used < 1 || c_.n_expert_used > n_expert) {
    return GGH_BAD_SIZE;
  }
  for (const ggh_weight* stack : {&block.gate, &block.up, &block.down}) {
    if (stack->n_slabs != n_expert) return GGH_BAD_SIZE;
  }
  const ggh_status routed = first_problem(
      check_vectors(block.norm), check_matrix(block.router, n_expert, n),
      check_matrix(block.gate, width, n), check_matrix(block.up, width, n),
      check_matrix(block.down, n, width));
  if (routed != GGH_OK || block.shared_router.data == nullptr) return routed;
  const int64_t shared = block.shared_gate.n;
  if (!is_multiple(shared, kVector)) return GGH_BAD_SIZE;
  return first_problem(check_matrix(block.shared_router, 1, n),
                       check_matrix(block.shared_gate, shared, n),
                       check_matrix(block.shared_up, shared, n),
                       check_matrix(block.shared_down, n, shared));
}

ggh_status Model::check_head(const ggh_head& head) const {
  return first_problem(check_vectors(head.norm), check_matrix(head.output, c_.n_vocab, c_.n_embd));
}

}  // namespace ggh
