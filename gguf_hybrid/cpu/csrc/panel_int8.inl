// Int8 products of one panel. Lane r of an accumulator is row r; a block's integers are exact, so
// the one order that matters is: blocks first to last, a fused multiply-add each (two with minima).

// Kept out of PanelArgs: a member function would be one copy for all variants.
inline const uint8_t* x_row(const PanelArgs& a, int64_t i) {
  return a.x + static_cast<size_t>(a.x_rows != nullptr ? a.x_rows[i] : i) * a.x_row_bytes;
}
inline float* y_row(const PanelArgs& a, int64_t i) {
  return a.y + (a.y_rows != nullptr ? a.y_rows[i] : i) * a.y_stride;
}

// What to fetch meanwhile: the same block of the next panel's rows, which are contiguous, or nearly
// so. A super-block is fetched piece by piece while it is multiplied, because all at once would wait
// for the few lines a core can have on their way; small blocks are fetched when they are unpacked.
struct Ahead {
  const uint8_t* p;
  size_t bytes;  // 0: nothing to fetch

  void all() const {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at, 0, 2);
  }
  void part(int j) const { __builtin_prefetch(p + j * (bytes / 64), 0, 2); }  // of 64
};

// acc[i] += one 32-element block times row i of x.
template <class Unpack, int n_x>
inline void dot_block(const Block32& w, const Act32* const x[n_x], const Ahead&,
                      Floats acc[n_x]) {
  Ints dots[n_x];
  for (int i = 0; i < n_x; ++i) {
    dots[i] = ints(0);
    // The product of the low 16 bits: sums need no more, the upper factor is zero.
    if (Unpack::kOffset != 0) {
      dots[i] = dot2(dots[i], ints((-Unpack::kOffset) & 0xffff), broadcast(&x[i]->sum));
    }
  }
  for (int j = 0; j < 8; ++j) {
    const Ints codes = load(w.codes[j]);
    for (int i = 0; i < n_x; ++i) {
      const Ints four = broadcast(x[i]->q + 4 * j);
      dots[i] = Unpack::kWide ? dot4_wide(dots[i], codes, four) : dot4(dots[i], codes, four);
    }
  }
  const Floats d = load_floats(w.d);
  for (int i = 0; i < n_x; ++i) {
    acc[i] = fused(multiply(d, floats(x[i]->d)), to_floats(dots[i]), acc[i]);
  }
  if (Unpack::kMins) {
    const Floats m = load_floats(w.m);
    for (int i = 0; i < n_x; ++i) {
      const Floats total = floats(static_cast<float>(x[i]->sum));
      acc[i] = fused(multiply(m, floats(x[i]->d)), total, acc[i]);
    }
  }
}

// The integer sum of pairs * (sums of x) over a super-block, added to acc.
template <class Unpack>
inline Ints dot_pairs(const Block256& w, const Act256& x, Ints acc) {
  const int16_t* sums = Unpack::kGroup == 16 ? x.sums16 : x.sums32;
  for (int p = 0; p < 128 / Unpack::kGroup; ++p) {
    acc = dot2(acc, load(w.pairs[p]), broadcast(sums + 2 * p));
  }
  return acc;
}

// acc[i] += one 256-element super-block times row i of x.
template <class Unpack, int n_x>
inline void dot_block(const Block256& w, const Act256* const x[n_x], const Ahead& ahead,
                      Floats acc[n_x]) {
  constexpr int kQuads = Unpack::kGroup / 4;
  Ints totals[n_x];
  for (int i = 0; i < n_x; ++i) {
    totals[i] = Unpack::kOffset != 0 ? dot_pairs<Unpack>(w, *x[i], ints(0)) : ints(0);
  }
  for (int g = 0; g < 256 / Unpack::kGroup; ++g) {
    Ints dots[n_x];
    for (int i = 0; i < n_x; ++i) dots[i] = ints(0);
    for (int j = g * kQuads; j < (g + 1) * kQuads; ++j) {
      const Ints codes = load(w.codes[j]);
      ahead.part(j);
      for (int i = 0; i < n_x; ++i) {
        const Ints four = broadcast(x[i]->q + 4 * j);
        dots[i] = Unpack::kWide ? dot4_wide(dots[i], codes, four) : dot4(dots[i], codes, four);
      }
    }
    const Ints scale = load(w.scales[g]);
    for (int i = 0; i < n_x; ++i) totals[i] = add(totals[i], multiply(dots[i], scale));
  }
  const Floats d = load_floats(w.d);
  for (int i = 0; i < n_x; ++i) {
    acc[i] = fused(multiply(d, floats(x[i]->d)), to_floats(totals[i]), acc[i]);
  }
  if (Unpack::kMins) {
    const Floats dmin = load_floats(w.dmin);
    for (int i = 0; i < n_x; ++i) {
      const Ints minima = dot_pairs<Unpack>(w, *x[i], ints(0));
      acc[i] = fused(multiply(dmin, floats(-x[i]->d)), to_floats(minima), acc[i]);
    }
  }
}

template <class Unpack>
struct PanelOf {
  static constexpr BlockSize kSize = block_size(Unpack::kType);
  static constexpr bool kSuper = kSize.elements == 256;
  using Block = std::conditional_t<kSuper, Block256, Block32>;
  using Act = std::conditional_t<kSuper, Act256, Act32>;
  // Blocks unpacked at a time while one tile holds all rows of x: they stay in the L1 cache.
  static constexpr int64_t kChunk = kSuper ? 1 : 8;

  // Only the first tile of a panel fetches; for the others, a line that is there already.
  static Ahead ahead(const PanelArgs& a, int64_t block, bool first_tile) {
    if (!first_tile || a.read_next == nullptr) return {a.x, 0};
    const size_t bytes = kSize.bytes * kPanelRows;
    return {a.read_next + static_cast<size_t>(block) * bytes, bytes};
  }
};

template <class Unpack>
inline void unpack_blocks(const PanelArgs& a, int64_t first, int64_t last,
                          typename PanelOf<Unpack>::Block* out) {
  constexpr size_t kBytes = PanelOf<Unpack>::kSize.bytes;
  for (int64_t b = first; b < last; ++b) {
    if (!PanelOf<Unpack>::kSuper) PanelOf<Unpack>::ahead(a, b, true).all();
    Unpack::unpack(a.weights + static_cast<size_t>(b) * kBytes, a.row_stride, out[b - first]);
  }
}

inline void store_result(const PanelArgs& a, int64_t i, Floats result) {
  if (a.n_rows == kPanelRows) {
    store_floats(y_row(a, i), result);
    return;
  }
  float lanes[kPanelRows];
  store_floats(lanes, result);
  std::memcpy(y_row(a, i), lanes, static_cast<size_t>(a.n_rows) * sizeof(float));
}

// Rows first_x .. first_x + n_x of x against the panel; `unpack` says whether the blocks still
// have to be unpacked, `chunk` at a time.
template <class Unpack, int n_x>
inline void run_tile(const PanelArgs& a, int64_t first_x, bool unpack, int64_t chunk) {
  using Panel = PanelOf<Unpack>;
  auto* blocks = static_cast<typename Panel::Block*>(a.scratch);
  const int64_t n_blocks = a.k / Panel::kSize.elements;
  const typename Panel::Act* x[n_x];
  Floats acc[n_x];
  for (int i = 0; i < n_x; ++i) {
    x[i] = reinterpret_cast<const typename Panel::Act*>(x_row(a, first_x + i));
    acc[i] = floats(0.0f);
  }
  for (int64_t first = 0; first < n_blocks; first += chunk) {
    const int64_t last = first + chunk < n_blocks ? first + chunk : n_blocks;
    if (unpack) unpack_blocks<Unpack>(a, first, last, blocks);
    for (int64_t b = first; b < last; ++b) {
      dot_block<Unpack, n_x>(blocks[b - first], x, Panel::ahead(a, b, unpack), acc);
      for (int i = 0; i < n_x; ++i) ++x[i];
    }
  }
  for (int i = 0; i < n_x; ++i) store_result(a, first_x + i, acc[i]);
}

template <class Unpack, int n_x = kTile>
inline void run_tile_of(int64_t n, const PanelArgs& a, int64_t first_x, bool unpack,
                        int64_t chunk) {
  if constexpr (n_x > 1) {
    if (n < n_x) return run_tile_of<Unpack, n_x - 1>(n, a, first_x, unpack, chunk);
  }
  run_tile<Unpack, n_x>(a, first_x, unpack, chunk);
}

template <class Unpack>
void panel_int8(const PanelArgs& a) {
  const bool one_tile = a.m <= kTile;
  const int64_t n_blocks = a.k / PanelOf<Unpack>::kSize.elements;
  const int64_t chunk = one_tile ? PanelOf<Unpack>::kChunk : n_blocks;
  for (int64_t first = 0; first < a.m; first += kTile) {
    const int64_t n = a.m - first < kTile ? a.m - first : kTile;
    run_tile_of<Unpack>(n, a, first, first == 0, chunk);
  }
}
