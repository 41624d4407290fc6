// Products of float32 activations with GGUF weights: what model operations written in C++ call.
//
// An operation fills one Activations object with its input and multiplies it with as many weights
// as share that input; the int8 forms are made on first need and kept until the next assign().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ggh.h"
#include "pool.h"

namespace ggh {

// How a product reads its activations.
enum class Form { kFloat, kQ8x32, kQ8x256 };

// The form that weights of this type take in this mode. The type must have a kernel.
Form activation_form(int type, ggh_mode mode);

// m rows of k float32 values and, when a product asked for them, their int8 forms. Reused from
// step to step: the memory only grows.
class Activations {
 public:
  // Points at x without a copy; x must outlive the products. x_stride in elements.
  void assign(const float* x, int64_t x_stride, int64_t m, int64_t k);
  // Makes the form's rows if this input has none yet.
  void require(Pool& pool, Form form);

  int64_t m() const { return m_; }
  int64_t k() const { return k_; }
  // Row storage of a form that was required.
  const uint8_t* rows(Form form) const { return rows_[static_cast<int>(form)].data; }
  size_t row_bytes(Form form) const { return rows_[static_cast<int>(form)].stride; }

 private:
  struct Rows {
    std::vector<uint8_t> memory;
    const uint8_t* data = nullptr;
    size_t stride = 0;
    bool ready = false;
  };
  uint8_t* reserve(Rows& rows, size_t stride);
  void copy_padded(Pool& pool, Rows& rows);

  const float* x_ = nullptr;
  int64_t x_stride_ = 0;
  int64_t m_ = 0;
  int64_t k_ = 0;
  Rows rows_[3];
};

// y[y_rows[i]] = weight @ x[x_rows[i]] for i < m. A null index list stands for 0, 1, 2, ...
// weight.data points at the slab to use; n_slabs and slab_stride are not looked at.
struct Product {
  ggh_weight weight;
  float* y;
  int64_t y_stride;
  int64_t m;
  const int32_t* x_rows;
  const int32_t* y_rows;
};

// Runs all products as one job of the pool. Sizes must have been checked (see check_weight).
void matmul(Pool& pool, Activations& x, ggh_mode mode, const Product* products, size_t n_products);

// Pairs (expert, x row) sorted by expert: one Product an expert and weight, appended to products.
// The index lists live in this object; it must outlive the products.
class ExpertPairs {
 public:
  void assign(int64_t n_experts, int64_t n_pairs, const int32_t* expert_ids, const int32_t* x_rows);
  // y[p] = weight[expert_ids[p]] @ x[x_rows[p]].
  void append(const ggh_weight& weight, float* y, int64_t y_stride,
              std::vector<Product>& products) const;

 private:
  std::vector<int64_t> first_;   // [n_experts + 1] start of each expert's pairs
  std::vector<int32_t> x_rows_;  // [n_pairs] sorted by expert, stable
  std::vector<int32_t> pairs_;   // [n_pairs] pair number, same order
};

// GGH_OK, or why a weight of these sizes cannot be used with rows of k activations.
ggh_status check_weight(const ggh_weight& weight, int64_t k);

}  // namespace ggh
