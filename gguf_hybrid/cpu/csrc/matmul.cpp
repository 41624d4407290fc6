#include "matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace ggh {
namespace {

// Rows of activations prepared by one task, in elements: less is not worth waking anyone.
constexpr int64_t kPrepareElements = 16384;
// Tasks a thread gets on average: enough to even out, few enough to stream through memory.
constexpr int64_t kTasksPerThread = 16;

size_t panel_offset(const ggh_weight& weight, int64_t panel) {
  return static_cast<size_t>(panel * kPanelRows) * weight.row_stride;
}

int64_t n_panels(const ggh_weight& weight) { return (weight.n + kPanelRows - 1) / kPanelRows; }

size_t round_up_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// One panel of a product on one thread.
class PanelRun {
 public:
  PanelRun(const Product& product, const Activations& x, ggh_mode mode, Pool& pool, int thread)
      : product_(product), weight_(product.weight) {
    const Form form = activation_form(weight_.type, mode);
    const Kernels& table = kernels();
    run_ = form == Form::kFloat ? table.exact[weight_.type] : table.fast[weight_.type];
    row_bytes_ = ggh_row_bytes(weight_.type, weight_.k);
    const size_t copy_bytes = round_up_64(row_bytes_ * kPanelRows);
    const size_t panel_bytes = table.panel_scratch_bytes(weight_.k);
    copy_ = static_cast<uint8_t*>(pool.scratch(thread, copy_bytes + panel_bytes));
    args_ = {};
    args_.scratch = copy_ + copy_bytes;
    args_.k = weight_.k;
    args_.x = x.rows(form);
    args_.x_row_bytes = x.row_bytes(form);
    args_.x_rows = product.x_rows;
    args_.y_rows = product.y_rows;
    args_.m = product.m;
    args_.y_stride = product.y_stride;
  }

  void operator()(int64_t panel) {
    const auto* data = static_cast<const uint8_t*>(weight_.data);
    const int64_t rows = std::min<int64_t>(kPanelRows, weight_.n - panel * kPanelRows);
    args_.weights = data + panel_offset(weight_, panel);
    args_.row_stride = weight_.row_stride;
    args_.n_rows = static_cast<int>(rows);
    args_.y = product_.y + panel * kPanelRows;
    const bool more = (panel + 2) * kPanelRows <= weight_.n;
    args_.read_next = more ? args_.weights + kPanelRows * weight_.row_stride : nullptr;
    if (rows < kPanelRows) copy_padded(static_cast<size_t>(rows));
    run_(args_);
  }

 private:
  // Kernels read sixteen rows: zeros stand in for those past the end.
  void copy_padded(size_t rows) {
    std::memset(copy_, 0, row_bytes_ * kPanelRows);
    for (size_t r = 0; r < rows; ++r) {
      std::memcpy(copy_ + r * row_bytes_, args_.weights + r * weight_.row_stride, row_bytes_);
    }
    args_.weights = copy_;
    args_.row_stride = row_bytes_;
  }

  const Product& product_;
  const ggh_weight& weight_;
  PanelFn run_;
  size_t row_bytes_;
  uint8_t* copy_;
  PanelArgs args_;
};

// Panels [first, last) of one product.
struct Task {
  const Product* product;
  int64_t first;
  int64_t last;
};

std::vector<Task> split(const Product* products, size_t n_products, int n_threads) {
  int64_t total = 0;
  for (size_t i = 0; i < n_products; ++i) total += n_panels(products[i].weight);
  const int64_t size = std::max<int64_t>(1, total / (n_threads * kTasksPerThread));
  std::vector<Task> tasks;
  for (size_t i = 0; i < n_products; ++i) {
    if (products[i].m == 0) continue;
    const int64_t end = n_panels(products[i].weight);
    for (int64_t first = 0; first < end; first += size) {
      tasks.push_back({&products[i], first, std::min(first + size, end)});
    }
  }
  return tasks;
}

bool is_padding_needed(int64_t k) { return k % 16 != 0; }

}  // namespace

Form activation_form(int type, ggh_mode mode) {
  if (mode == GGH_EXACT || kernels().fast[type] == nullptr) return Form::kFloat;
  return block_size(type).elements == 256 ? Form::kQ8x256 : Form::kQ8x32;
}

ggh_status check_weight(const ggh_weight& weight, int64_t k) {
  const BlockSize size = block_size(weight.type);
  if (size.elements == 0) return GGH_BAD_TYPE;
  if (weight.data == nullptr) return GGH_BAD_ARGUMENT;
  if (weight.k != k || k <= 0 || k % size.elements != 0 || weight.n <= 0) return GGH_BAD_SIZE;
  if (weight.row_stride < ggh_row_bytes(weight.type, k) || weight.n_slabs <= 0) return GGH_BAD_SIZE;
  return GGH_OK;
}

void Activations::assign(const float* x, int64_t x_stride, int64_t m, int64_t k) {
  x_ = x;
  x_stride_ = x_stride;
  m_ = m;
  k_ = k;
  for (Rows& rows : rows_) rows.ready = false;
}

uint8_t* Activations::reserve(Rows& rows, size_t stride) {
  constexpr size_t kLine = 64;
  const size_t bytes = stride * static_cast<size_t>(m_) + kLine;
  if (rows.memory.size() < bytes) rows.memory.resize(bytes);
  const auto address = reinterpret_cast<uintptr_t>(rows.memory.data());
  uint8_t* data = rows.memory.data() + (kLine - address % kLine) % kLine;
  rows.data = data;
  rows.stride = stride;
  return data;
}

// Float rows as they are, or zero-padded to the sixteens that the float kernels read.
void Activations::require(Pool& pool, Form form) {
  Rows& rows = rows_[static_cast<int>(form)];
  if (rows.ready) return;
  rows.ready = true;
  if (form == Form::kFloat && !is_padding_needed(k_)) {
    rows.data = reinterpret_cast<const uint8_t*>(x_);
    rows.stride = static_cast<size_t>(x_stride_) * sizeof(float);
    return;
  }
  const auto padded = static_cast<size_t>((k_ + 15) / 16 * 16);
  const size_t strides[] = {padded * sizeof(float), static_cast<size_t>(k_ / 32) * sizeof(Act32),
                            static_cast<size_t>(k_ / 256) * sizeof(Act256)};
  const size_t stride = strides[static_cast<int>(form)];
  uint8_t* data = reserve(rows, stride);
  const auto prepare = [&](int64_t i) {
    const float* from = x_ + i * x_stride_;
    uint8_t* to = data + static_cast<size_t>(i) * stride;
    if (form == Form::kQ8x32) {
      kernels().quantize32(from, k_, reinterpret_cast<Act32*>(to));
    } else if (form == Form::kQ8x256) {
      kernels().quantize256(from, k_, reinterpret_cast<Act256*>(to));
    } else {
      const size_t bytes = static_cast<size_t>(k_) * sizeof(float);
      std::memcpy(to, from, bytes);
      std::memset(to + bytes, 0, stride - bytes);
    }
  };
  const int64_t rows_a_task = std::max<int64_t>(1, kPrepareElements / k_);
  pool.parallel_for((m_ + rows_a_task - 1) / rows_a_task, [&](int64_t task, int) {
    const int64_t end = std::min(m_, (task + 1) * rows_a_task);
    for (int64_t i = task * rows_a_task; i < end; ++i) prepare(i);
  });
}

void matmul(Pool& pool, Activations& x, ggh_mode mode, const Product* products,
            size_t n_products) {
  for (size_t i = 0; i < n_products; ++i) {
    x.require(pool, activation_form(products[i].weight.type, mode));
  }
  const std::vector<Task> tasks = split(products, n_products, pool.n_threads());
  pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    const Task& task = tasks[static_cast<size_t>(i)];
    PanelRun run(*task.product, x, mode, pool, thread);
    for (int64_t panel = task.first; panel < task.last; ++panel) run(panel);
  });
}

void ExpertPairs::assign(int64_t n_experts, int64_t n_pairs, const int32_t* expert_ids,
                         const int32_t* x_rows) {
  first_.assign(static_cast<size_t>(n_experts) + 1, 0);
  for (int64_t p = 0; p < n_pairs; ++p) ++first_[static_cast<size_t>(expert_ids[p]) + 1];
  for (size_t e = 1; e < first_.size(); ++e) first_[e] += first_[e - 1];
  x_rows_.resize(static_cast<size_t>(n_pairs));
  pairs_.resize(static_cast<size_t>(n_pairs));
  std::vector<int64_t> next(first_.begin(), first_.end() - 1);
  for (int64_t p = 0; p < n_pairs; ++p) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(expert_ids[p])]++);
    x_rows_[at] = x_rows[p];
    pairs_[at] = static_cast<int32_t>(p);
  }
}

void ExpertPairs::append(const ggh_weight& weight, float* y, int64_t y_stride,
                         std::vector<Product>& products) const {
  const auto* data = static_cast<const uint8_t*>(weight.data);
  for (size_t e = 0; e + 1 < first_.size(); ++e) {
    const auto first = static_cast<size_t>(first_[e]);
    const int64_t m = first_[e + 1] - first_[e];
    if (m == 0) continue;
    Product product{weight, y, y_stride, m, x_rows_.data() + first, pairs_.data() + first};
    product.weight.data = data + e * weight.slab_stride;
    products.push_back(product);
  }
}

}  // namespace ggh
