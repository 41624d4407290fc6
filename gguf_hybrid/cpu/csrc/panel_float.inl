// Float32 products of one panel: weights decoded exactly, lane l of sixteen sums the elements
// l, l + 16, l + 32, ... in order by fused multiply-adds, and the lanes are added in a fixed tree.

constexpr int64_t kFloatChunk = 256;  // decoded at a time while one tile holds all rows of x

template <int n_x>
using FloatAcc = Floats[kFloatTile][n_x];

// acc[r][i] += w[r, :k] * x[i, :k], k a multiple of 16.
template <int n_x>
inline void dot_floats(const float* w, int64_t w_stride, const float* const x[n_x], int64_t k,
                       FloatAcc<n_x>& acc) {
  Floats sums[kFloatTile][n_x];
  for (int r = 0; r < kFloatTile; ++r) {
    for (int i = 0; i < n_x; ++i) sums[r][i] = acc[r][i];
  }
  for (int64_t j = 0; j < k; j += 16) {
    Floats ws[kFloatTile];
    for (int r = 0; r < kFloatTile; ++r) ws[r] = load_floats(w + r * w_stride + j);
    for (int i = 0; i < n_x; ++i) {
      const Floats xs = load_floats(x[i] + j);
      for (int r = 0; r < kFloatTile; ++r) sums[r][i] = fused(ws[r], xs, sums[r][i]);
    }
  }
  for (int r = 0; r < kFloatTile; ++r) {
    for (int i = 0; i < n_x; ++i) acc[r][i] = sums[r][i];
  }
}

inline int64_t round_up_16(int64_t k) { return (k + 15) / 16 * 16; }

// k elements of kFloatTile rows from element `first` on, each row padded with zeros to sixteens.
template <DecodeFn decode, int type>
inline void decode_rows(const PanelArgs& a, int row, int64_t first, int64_t k, float* out,
                        int64_t out_stride) {
  constexpr BlockSize kSize = block_size(type);
  const size_t offset = static_cast<size_t>(first / kSize.elements) * kSize.bytes;
  for (int r = 0; r < kFloatTile; ++r) {
    float* to = out + r * out_stride;
    decode(a.weights + static_cast<size_t>(row + r) * a.row_stride + offset, k, to);
    for (int64_t i = k; i < round_up_16(k); ++i) to[i] = 0.0f;
  }
}

// kFloatTile rows of the panel times n_x rows of x. Decoded weights of the whole row are in the
// scratch memory already, or (`decoded` null) pass through it in chunks.
template <DecodeFn decode, int type, int n_x>
inline void run_float_tile(const PanelArgs& a, int row, int64_t first_x, const float* decoded) {
  FloatAcc<n_x> acc;
  const float* x[n_x];
  for (int i = 0; i < n_x; ++i) {
    x[i] = reinterpret_cast<const float*>(x_row(a, first_x + i));
    for (int r = 0; r < kFloatTile; ++r) acc[r][i] = floats(0.0f);
  }
  if (decoded != nullptr) {
    const int64_t k = round_up_16(a.k);
    dot_floats<n_x>(decoded + row * k, k, x, k, acc);
  } else {
    auto* chunk = static_cast<float*>(a.scratch);
    for (int64_t first = 0; first < a.k; first += kFloatChunk) {
      const int64_t n = a.k - first < kFloatChunk ? a.k - first : kFloatChunk;
      decode_rows<decode, type>(a, row, first, n, chunk, kFloatChunk);
      dot_floats<n_x>(chunk, kFloatChunk, x, round_up_16(n), acc);
      for (int i = 0; i < n_x; ++i) x[i] += n;
    }
  }
  for (int i = 0; i < n_x; ++i) {
    for (int r = 0; r < kFloatTile && row + r < a.n_rows; ++r) {
      y_row(a, first_x + i)[row + r] = sum(acc[r][i]);
    }
  }
}

template <DecodeFn decode, int type, int n_x = kFloatTile>
inline void run_float_tile_of(int64_t n, const PanelArgs& a, int row, int64_t first_x,
                              const float* decoded) {
  if constexpr (n_x > 1) {
    if (n < n_x) {
      return run_float_tile_of<decode, type, n_x - 1>(n, a, row, first_x, decoded);
    }
  }
  run_float_tile<decode, type, n_x>(a, row, first_x, decoded);
}

template <DecodeFn decode, int type>
void panel_float(const PanelArgs& a) {
  const float* decoded = nullptr;
  if (a.m > kFloatTile) {
    auto* all = static_cast<float*>(a.scratch);
    const int64_t k = round_up_16(a.k);
    for (int row = 0; row < kPanelRows; row += kFloatTile) {
      decode_rows<decode, type>(a, row, 0, a.k, all + row * k, k);
    }
    decoded = all;
  }
  for (int64_t first = 0; first < a.m; first += kFloatTile) {
    const int64_t n = a.m - first < kFloatTile ? a.m - first : kFloatTile;
    for (int row = 0; row < a.n_rows; row += kFloatTile) {
      run_float_tile_of<decode, type>(n, a, row, first, decoded);
    }
  }
}
