// The C interface over Model: arguments checked, exceptions turned into a status.
#include "model_api.h"

#include <new>

#include "model.h"

using ggh::Candidate;
using ggh::Model;

ggh_status ggh_model_create(ggh_pool* pool, int32_t mode, const ggh_model_config* config,
                            ggh_model** model) {
  if (pool == nullptr || config == nullptr || model == nullptr) return GGH_BAD_ARGUMENT;
  if (mode != GGH_EXACT && mode != GGH_FAST) return GGH_BAD_ARGUMENT;
  if (!Model::supports(*config)) return GGH_BAD_SIZE;
  *model = new (std::nothrow) ggh_model(*pool, static_cast<ggh_mode>(mode), *config);
  return *model == nullptr ? GGH_NO_MEMORY : GGH_OK;
}

void ggh_model_destroy(ggh_model* model) { delete model; }

ggh_status ggh_model_check(const ggh_model* model, int64_t op, const void* address) {
  return model == nullptr ? GGH_BAD_ARGUMENT : model->check(op, address);
}

ggh_status ggh_model_step(ggh_model* model, const ggh_store* store, const int32_t* record,
                          int64_t n_record, const int64_t* ops, int64_t n_ops, float* logits) {
  if (model == nullptr || store == nullptr || record == nullptr || ops == nullptr) {
    return GGH_BAD_ARGUMENT;
  }
  try {
    return model->run(*store, record, n_record, ops, n_ops, logits);
  } catch (const std::bad_alloc&) {
    return GGH_NO_MEMORY;
  }
}

size_t ggh_model_scratch_bytes(const ggh_model* model) { return model->scratch_bytes(); }

void ggh_model_times(const ggh_model* model, uint64_t* nanoseconds) {
  for (int i = 0; i < GGH_N_SECTIONS; ++i) nanoseconds[i] = model->times()[i];
}

ggh_status ggh_argmax(ggh_pool* pool, const float* logits, int64_t n_rows, int64_t n,
                      int64_t stride, int32_t* ids) {
  if (pool == nullptr || logits == nullptr || ids == nullptr) return GGH_BAD_ARGUMENT;
  if (n < 1 || n_rows < 0 || stride < n) return GGH_BAD_SIZE;
  const auto& ops = ggh::ops_kernels();
  pool->parallel_for(n_rows, [&](int64_t i, int) { ids[i] = ops.argmax(logits + i * stride, n); });
  return GGH_OK;
}

ggh_status ggh_log_sum_exp(ggh_pool* pool, const float* logits, int64_t n_rows, int64_t n,
                           int64_t stride, double* sums) {
  if (pool == nullptr || logits == nullptr || sums == nullptr) return GGH_BAD_ARGUMENT;
  if (n < 1 || n_rows < 0 || stride < n) return GGH_BAD_SIZE;
  const auto& ops = ggh::ops_kernels();
  pool->parallel_for(n_rows,
                     [&](int64_t i, int) { sums[i] = ops.log_sum_exp(logits + i * stride, n); });
  return GGH_OK;
}

ggh_status ggh_top_k(ggh_pool* pool, const float* logits, int64_t n_rows, int64_t n,
                     int64_t stride, int64_t k, int32_t* ids, float* values) {
  if (pool == nullptr || logits == nullptr || ids == nullptr || values == nullptr) {
    return GGH_BAD_ARGUMENT;
  }
  if (n < 1 || n_rows < 0 || stride < n || k < 1 || k > n) return GGH_BAD_SIZE;
  const auto& ops = ggh::ops_kernels();
  const size_t bytes = sizeof(Candidate) * static_cast<size_t>(k);
  pool->parallel_for(n_rows, [&](int64_t row, int thread) {
    auto* best = static_cast<Candidate*>(pool->scratch(thread, bytes));
    ops.top_k(logits + row * stride, n, k, best);
    for (int64_t i = 0; i < k; ++i) {
      ids[row * k + i] = best[i].id;
      values[row * k + i] = best[i].logit;
    }
  });
  return GGH_OK;
}
