#include "model.h"

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ggh {
namespace {

constexpr int64_t kOpWords = 3;
constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Large buffers lie on huge pages where the system has them: a prompt walks them with strides of
// many pages.
void* allocate(size_t bytes) {
  const size_t alignment = bytes < kHugePage ? kLine : kHugePage;
  void* memory = std::aligned_alloc(alignment, round_up(bytes, alignment));
#if defined(__linux__)
  if (memory != nullptr && alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  const auto passed = std::chrono::steady_clock::now() - start;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

bool is_aligned(const ggh_store& store) {
  const auto base = reinterpret_cast<uintptr_t>(store.states);
  const auto strides = store.state_row_stride | store.state_layer_stride;
  return (base | static_cast<uintptr_t>(strides)) % kLine == 0;
}

}  // namespace

Buffer::~Buffer() { std::free(data_); }

float* Buffer::reserve(int64_t n) {
  const size_t wanted = round_up(static_cast<size_t>(n) * sizeof(float), kLine);
  if (wanted <= bytes_) return data_;
  std::free(data_);
  data_ = static_cast<float*>(allocate(wanted));
  bytes_ = data_ == nullptr ? 0 : wanted;
  if (data_ == nullptr) throw std::bad_alloc();
  return data_;
}

Timer::Timer(uint64_t* times, ggh_section section)
    : total_(times + section), start_(std::chrono::steady_clock::now()) {}

Timer::~Timer() { *total_ += nanoseconds_since(start_); }

Model::Model(Pool& pool, ggh_mode mode, const ggh_model_config& config)
    : pool_(pool),
      ops_(ops_kernels()),
      mode_(mode),
      c_(config),
      inv_freq_(config.rope_inv_freq, config.rope_inv_freq + config.n_rot / 2) {}

ggh_status Model::run(const ggh_store& store, const int32_t* record, int64_t n_record,
                      const int64_t* ops, int64_t n_ops, float* logits) {
  if (!is_aligned(store)) return GGH_BAD_ARGUMENT;
  if (!step_.parse(record, n_record, store, c_.n_vocab)) return GGH_BAD_ARGUMENT;
  step_.fill_rope(inv_freq_, c_.rope_magnitude);
  step_.cut_tiles(tokens_per_tile());
  x_.reserve(step_.n_tokens() * c_.n_embd);
  pending_ = nullptr;
  for (int64_t i = 0; i < n_ops; ++i, ops += kOpWords) {
    dispatch(store, ops[0], ops[1], reinterpret_cast<const void*>(ops[2]), logits);
  }
  return GGH_OK;
}

void Model::dispatch(const ggh_store& store, int64_t op, int64_t index, const void* address,
                     float* logits) {
  switch (op) {
    case GGH_OP_EMBED:
      return embed(*static_cast<const ggh_weight*>(address));
    case GGH_OP_DELTA_NET:
      return delta_net(*static_cast<const ggh_delta_net*>(address), store, index);
    case GGH_OP_ATTEND:
      return attend(*static_cast<const ggh_attention*>(address), store, index);
    case GGH_OP_DENSE:
      return dense(*static_cast<const ggh_dense*>(address));
    case GGH_OP_EXPERTS:
      return experts(*static_cast<const ggh_experts*>(address));
    case GGH_OP_LOGITS:
      return head(*static_cast<const ggh_head*>(address), logits);
    case GGH_OP_LOAD:
      return load(static_cast<const float*>(address));
    case GGH_OP_STORE:
      return store_activations(reinterpret_cast<float*>(const_cast<void*>(address)));
  }
}

void Model::embed(const ggh_weight& embedding) {
  const Timer timer(times_, GGH_TIME_EMBED);
  ggh_dequantize_rows(static_cast<ggh_pool*>(&pool_), &embedding, step_.tokens.data(),
                      step_.n_tokens(), x_.data(), c_.n_embd);
}

void Model::load(const float* x) {
  std::memcpy(x_.data(), x, sizeof(float) * static_cast<size_t>(step_.n_tokens() * c_.n_embd));
  pending_ = nullptr;
}

void Model::store_activations(float* out) {
  settle();
  std::memcpy(out, x_.data(), sizeof(float) * static_cast<size_t>(step_.n_tokens() * c_.n_embd));
}

void Model::settle() {
  if (pending_ == nullptr) return;
  for (int64_t t = 0; t < step_.n_tokens(); ++t) {
    ops_.add(x_.data() + t * c_.n_embd, pending_ + t * c_.n_embd, c_.n_embd);
  }
  pending_ = nullptr;
}

void Model::norm_input(const float* weight) {
  const Timer timer(times_, GGH_TIME_NORM);
  const int64_t n = c_.n_embd;
  float* normed = normed_.reserve(step_.n_tokens() * n);
  pool_.parallel_for(step_.n_tokens(), [&](int64_t t, int) {
    const float* delta = pending_ == nullptr ? nullptr : pending_ + t * n;
    ops_.add_norm(x_.data() + t * n, delta, weight, c_.rms_eps, n, normed + t * n);
  });
  pending_ = nullptr;
  input_.assign(normed, n, step_.n_tokens(), n);
}

void Model::project(const std::vector<Target>& targets) {
  products_.clear();
  for (const Target& target : targets) {
    products_.push_back(
        {target.weight, target.y, target.stride, step_.n_tokens(), nullptr, nullptr});
  }
  matmul(pool_, input_, mode_, products_.data(), products_.size());
}

void Model::project_out(const ggh_weight& weight, const float* rows, int64_t m) {
  hidden_.assign(rows, weight.k, m, weight.k);
  float* result = result_.reserve(m * c_.n_embd);
  const Product product{weight, result, c_.n_embd, m, nullptr, nullptr};
  matmul(pool_, hidden_, mode_, &product, 1);
  pending_ = result;
}

void Model::head(const ggh_head& head, float* logits) {
  const Timer timer(times_, GGH_TIME_LOGITS);
  const int64_t n = c_.n_embd, m = step_.n_logits();
  if (m == 0) return;
  float* normed = normed_.reserve(m * n);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t t = step_.logit_index[static_cast<size_t>(i)];
    float* row = normed + i * n;
    std::memcpy(row, x_.data() + t * n, sizeof(float) * static_cast<size_t>(n));
    const float* delta = pending_ == nullptr ? nullptr : pending_ + t * n;
    ops_.add_norm(row, delta, head.norm, c_.rms_eps, n, row);
  }
  input_.assign(normed, n, m, n);
  const Product product{head.output, logits, c_.n_vocab, m, nullptr, nullptr};
  matmul(pool_, input_, mode_, &product, 1);
}

size_t Model::scratch_bytes() const {
  size_t total = 0;
  for (const Buffer* buffer :
       {&x_,       &normed_,     &result_,        &qkv_,        &z_,           &beta_,
        &alpha_,   &mixed_,      &q_,             &k_,          &v_,           &partials_,
        &gate_,    &up_,         &routes_,        &route_weights_, &expert_out_,
        &shared_gate_, &shared_up_, &shared_out_, &shared_scale_}) {
    total += buffer->bytes();
  }
  return total;
}

}  // namespace ggh
