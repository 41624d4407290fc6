// The C interface: checks every size, then calls the C++ core. No exception leaves it.
#include <new>
#include <system_error>
#include <vector>

#include "ggh.h"
#include "kernels.h"
#include "matmul.h"
#include "pool.h"

namespace {

using ggh::Activations;
using ggh::ExpertPairs;
using ggh::Product;

constexpr int32_t kMaxThreads = 1024;

template <class Fn>
ggh_status guarded(Fn fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return GGH_NO_MEMORY;
  }
}

ggh_status check_products(ggh_pool* pool, int32_t mode, const float* x, int64_t x_stride,
                          int64_t m, int32_t n_weights, const ggh_weight* weights,
                          float* const* y, const int64_t* y_strides) {
  if (pool == nullptr || x == nullptr || weights == nullptr) return GGH_BAD_ARGUMENT;
  if (y == nullptr || y_strides == nullptr) return GGH_BAD_ARGUMENT;
  if (mode != GGH_EXACT && mode != GGH_FAST) return GGH_BAD_ARGUMENT;
  if (m < 0 || n_weights < 1 || x_stride < weights[0].k) return GGH_BAD_SIZE;
  for (int32_t i = 0; i < n_weights; ++i) {
    const ggh_status status = ggh::check_weight(weights[i], weights[0].k);
    if (status != GGH_OK) return status;
    if (y[i] == nullptr) return GGH_BAD_ARGUMENT;
    if (y_strides[i] < weights[i].n) return GGH_BAD_SIZE;
  }
  return GGH_OK;
}

ggh_status check_pairs(int64_t m, int64_t n_pairs, const int32_t* expert_ids,
                       const int32_t* x_rows, int32_t n_weights, const ggh_weight* weights) {
  if (n_pairs < 0) return GGH_BAD_SIZE;
  if (expert_ids == nullptr || x_rows == nullptr) return GGH_BAD_ARGUMENT;
  for (int32_t i = 0; i < n_weights; ++i) {
    if (weights[i].n_slabs != weights[0].n_slabs) return GGH_BAD_SIZE;
  }
  for (int64_t p = 0; p < n_pairs; ++p) {
    if (expert_ids[p] < 0 || expert_ids[p] >= weights[0].n_slabs) return GGH_BAD_ARGUMENT;
    if (x_rows[p] < 0 || x_rows[p] >= m) return GGH_BAD_ARGUMENT;
  }
  return GGH_OK;
}

// Decodes whole rows, a few a task.
void dequantize(ggh::Pool& pool, const ggh_weight& weight, const int64_t* rows, int64_t n_rows,
                float* dst, int64_t dst_stride) {
  const auto decode = ggh::kernels().decode[weight.type];
  const auto* data = static_cast<const uint8_t*>(weight.data);
  pool.parallel_for(n_rows, [&](int64_t i, int) {
    const auto row = static_cast<size_t>(rows != nullptr ? rows[i] : i);
    decode(data + row * weight.row_stride, weight.k, dst + i * dst_stride);
  });
}

void multiply(ggh::Pool& pool, Activations& x, int32_t mode, const std::vector<Product>& products) {
  ggh::matmul(pool, x, static_cast<ggh_mode>(mode), products.data(), products.size());
}

template <class Act>
void copy_codes(const std::vector<Act>& blocks, int8_t* codes, float* scales) {
  for (const Act& block : blocks) {
    for (const int8_t q : block.q) *codes++ = q;
    *scales++ = block.d;
  }
}

}  // namespace

int32_t ggh_abi_version(void) { return GGH_ABI_VERSION; }
const char* ggh_cpu_variant(void) { return ggh::kernels().name; }
const char* ggh_cpu_problem(void) { return ggh::dispatch_problem(); }

ggh_pool* ggh_pool_create(int32_t n_threads) {
  if (n_threads < 1 || n_threads > kMaxThreads) return nullptr;
  try {
    return new ggh_pool(n_threads);
  } catch (const std::bad_alloc&) {
    return nullptr;
  } catch (const std::system_error&) {  // the system refuses a thread
    return nullptr;
  }
}

void ggh_pool_destroy(ggh_pool* pool) { delete pool; }

ggh_status ggh_pool_limit(ggh_pool* pool, int32_t n_threads) {
  if (pool == nullptr) return GGH_BAD_ARGUMENT;
  if (n_threads < 1 || n_threads > pool->size()) return GGH_BAD_SIZE;
  pool->limit(n_threads);
  return GGH_OK;
}

int64_t ggh_block_size(int32_t type) { return ggh::block_size(type).elements; }

size_t ggh_row_bytes(int32_t type, int64_t k) {
  const ggh::BlockSize size = ggh::block_size(type);
  if (size.elements == 0 || k <= 0 || k % size.elements != 0) return 0;
  return static_cast<size_t>(k / size.elements) * size.bytes;
}

ggh_status ggh_dequantize_rows(ggh_pool* pool, const ggh_weight* weight, const int64_t* rows,
                               int64_t n_rows, float* dst, int64_t dst_stride) {
  if (pool == nullptr || weight == nullptr || dst == nullptr) return GGH_BAD_ARGUMENT;
  const ggh_status status = ggh::check_weight(*weight, weight->k);
  if (status != GGH_OK) return status;
  if (n_rows < 0 || dst_stride < weight->k) return GGH_BAD_SIZE;
  if (rows == nullptr && n_rows > weight->n) return GGH_BAD_SIZE;
  for (int64_t i = 0; rows != nullptr && i < n_rows; ++i) {
    if (rows[i] < 0 || rows[i] >= weight->n) return GGH_BAD_ARGUMENT;
  }
  dequantize(*pool, *weight, rows, n_rows, dst, dst_stride);
  return GGH_OK;
}

ggh_status ggh_quantize_activations(const float* x, int64_t x_stride, int64_t m, int64_t k,
                                    int64_t block, int8_t* codes, float* scales) {
  if (x == nullptr || codes == nullptr || scales == nullptr) return GGH_BAD_ARGUMENT;
  if (block != 32 && block != 256) return GGH_BAD_ARGUMENT;
  if (m < 0 || k <= 0 || k % block != 0 || x_stride < k) return GGH_BAD_SIZE;
  return guarded([&] {
    std::vector<ggh::Act32> blocks32(block == 32 ? static_cast<size_t>(k / 32) : 0);
    std::vector<ggh::Act256> blocks256(block == 256 ? static_cast<size_t>(k / 256) : 0);
    for (int64_t i = 0; i < m; ++i) {
      int8_t* row_codes = codes + i * k;
      float* row_scales = scales + i * (k / block);
      if (block == 32) {
        ggh::kernels().quantize32(x + i * x_stride, k, blocks32.data());
        copy_codes(blocks32, row_codes, row_scales);
      } else {
        ggh::kernels().quantize256(x + i * x_stride, k, blocks256.data());
        copy_codes(blocks256, row_codes, row_scales);
      }
    }
    return GGH_OK;
  });
}

ggh_status ggh_matmul(ggh_pool* pool, int32_t mode, const float* x, int64_t x_stride, int64_t m,
                      int32_t n_weights, const ggh_weight* weights, float* const* y,
                      const int64_t* y_strides) {
  const ggh_status status =
      check_products(pool, mode, x, x_stride, m, n_weights, weights, y, y_strides);
  if (status != GGH_OK) return status;
  return guarded([&] {
    Activations activations;
    activations.assign(x, x_stride, m, weights[0].k);
    std::vector<Product> products;
    for (int32_t i = 0; i < n_weights; ++i) {
      products.push_back({weights[i], y[i], y_strides[i], m, nullptr, nullptr});
    }
    multiply(*pool, activations, mode, products);
    return GGH_OK;
  });
}

ggh_status ggh_matmul_experts(ggh_pool* pool, int32_t mode, const float* x, int64_t x_stride,
                              int64_t m, int64_t n_pairs, const int32_t* expert_ids,
                              const int32_t* x_rows, int32_t n_weights, const ggh_weight* weights,
                              float* const* y, const int64_t* y_strides) {
  ggh_status status = check_products(pool, mode, x, x_stride, m, n_weights, weights, y, y_strides);
  if (status != GGH_OK) return status;
  status = check_pairs(m, n_pairs, expert_ids, x_rows, n_weights, weights);
  if (status != GGH_OK) return status;
  return guarded([&] {
    Activations activations;
    activations.assign(x, x_stride, m, weights[0].k);
    ExpertPairs pairs;
    pairs.assign(weights[0].n_slabs, n_pairs, expert_ids, x_rows);
    std::vector<Product> products;
    for (int32_t i = 0; i < n_weights; ++i) {
      pairs.append(weights[i], y[i], y_strides[i], products);
    }
    multiply(*pool, activations, mode, products);
    return GGH_OK;
  });
}
