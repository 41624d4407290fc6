// Quantised weight rows times activation records on the integer matrix units (`simd_mma`): 16 weight
// rows by 8 activation rows, one group of 32 at a time, so that each group's scales apply to an exact
// integer sum. Lane l = 4 g + t holds rows g and g + 8. Which columns of a group are its lanes' is free,
// as long as weights and activations agree: words 2 t and 2 t + 1 where a block's bytes allow it, words
// t and 4 + t where the two halves of a group differ (`by_halves`).

// One lane's share of two groups of a superblock row: words of codes [group][half], factors
// [group][half] and minimums [group]; `group` are their places in the superblock.
struct Pair {
  uint q[2][2];
  float a[2][2];
  float m[2];
  int group[2];
};

INLINE uint minus_bytes(uint word, uint c) {
  return ((word | 0x80808080u) - c * 0x01010101u) ^ 0x80808080u;
}

INLINE constexpr bool has_minimum(int type) { return type == TYPE_Q4_K || type == TYPE_Q5_K; }

INLINE constexpr bool by_halves(int type) { return type == TYPE_Q6_K || type == TYPE_Q4_0; }

template <int TYPE>
INLINE void load_pair(thread Pair& w, const device uchar* block, int pair, int t) {
  const device uint* words = (const device uint*)block;
  if (has_minimum(TYPE)) {
    Unit u;
    unit_scales(u, *(const device uint4*)block, pair);
    w.a[0][0] = w.a[0][1] = u.a0;
    w.a[1][0] = w.a[1][1] = u.a1;
    w.m[0] = u.m0;
    w.m[1] = u.m1;
    const int codes = (TYPE == TYPE_Q4_K ? 4 : 12) + 8 * pair;
    const uint2 low = *(const device uint2*)(words + codes + 2 * t);
    for (int h = 0; h < 2; ++h) {
      const uint word = h ? low.y : low.x;
      w.q[0][h] = word & LOW;
      w.q[1][h] = word >> 4 & LOW;
    }
    if (TYPE == TYPE_Q5_K) {
      const uint2 fifth = *(const device uint2*)(words + 4 + 2 * t);
      for (int h = 0; h < 2; ++h) {
        const uint high = (h ? fifth.y : fifth.x) >> (2 * pair);
        w.q[0][h] |= (high & 0x01010101u) << 4;
        w.q[1][h] |= (high >> 1 & 0x01010101u) << 4;
      }
    }
    w.group[0] = 2 * pair;
    w.group[1] = 2 * pair + 1;
  } else if (TYPE == TYPE_Q6_K) {
    const int upper = pair >> 1, p = pair & 1;
    const float d = half_bits(*(const device ushort*)(block + 208));
    const uint4 scales = *(const device uint4*)(block + 192);
    const uint first = quad_word(scales, 2 * upper) >> (16 * p);
    const uint second = quad_word(scales, 2 * upper + 1) >> (16 * p);
    for (int h = 0; h < 2; ++h) {
      const uint word = words[16 * upper + 8 * p + 4 * h + t];
      const uint high = words[32 + 8 * upper + 4 * h + t] >> (2 * p);
      w.q[0][h] = minus_bytes((word & LOW) | (high & 0x03030303u) << 4, 32u);
      w.q[1][h] = minus_bytes((word >> 4 & LOW) | (high >> 4 & 0x03030303u) << 4, 32u);
      w.a[0][h] = d * float((signed char)(first >> (8 * h) & 0xffu));
      w.a[1][h] = d * float((signed char)(second >> (8 * h) & 0xffu));
    }
    w.group[0] = 4 * upper + p;
    w.group[1] = 4 * upper + 2 + p;
  } else {
    for (int i = 0; i < 2; ++i) {
      const int g = 2 * pair + i;
      w.a[i][0] = w.a[i][1] = half_bits(((const device ushort*)block)[g]);
      if (TYPE == TYPE_Q4_0) {
        const uint word = words[4 + 4 * g + t];
        w.q[i][0] = minus_bytes(word & LOW, 8u);
        w.q[i][1] = minus_bytes(word >> 4 & LOW, 8u);
      } else {
        const uint2 codes = *(const device uint2*)(words + 4 + 8 * g + 2 * t);
        w.q[i][0] = codes.x;
        w.q[i][1] = codes.y;
      }
      w.group[i] = g;
    }
  }
}

// acc[4 nt + i] += the superblocks first, first + step, ... of the 16 rows at `low` (row g of this
// lane) and `high` (row g + 8) times activation rows: words `own[nt]` of `xq` are the codes of row g of
// tile nt in group 0, `out[nt][c]` the factors of row 2 t + c. What is added for one pair of
// rows, and in which order, does not depend on NT.
template <int TYPE, int NT, int K>
INLINE void tile_rows(const device uchar* low, const device uchar* high, int first, int step, int t,
                      const device uint* xq, const thread int (&own)[NT],
                      const thread int (&out)[NT][2], thread float (&acc)[4 * NT]) {
  for (int s = first; s < K / 256; s += step) {
    UNROLL_BY(4)
    for (int pair = 0; pair < 4; ++pair) {
      Pair lo, hi;
      load_pair<TYPE>(lo, low + s * superblock_bytes(TYPE), pair, t);
      load_pair<TYPE>(hi, high + s * superblock_bytes(TYPE), pair, t);
      UNROLL_BY(2)
      for (int i = 0; i < 2; ++i) {
        const device uint* group = xq + (8 * s + lo.group[i]) * RECORD_WORDS;
        for (int nt = 0; nt < NT; ++nt) {
          uint x[2];
          if (by_halves(TYPE)) {
            x[0] = group[own[nt] + t];
            x[1] = group[own[nt] + 4 + t];
          } else {
            const uint2 codes = *(const device uint2*)(group + own[nt] + 2 * t);
            x[0] = codes.x;
            x[1] = codes.y;
          }
          const uint2 e0 = *(const device uint2*)(group + out[nt][0]);
          const uint2 e1 = *(const device uint2*)(group + out[nt][1]);
          const float d0 = as_float(e0.x), d1 = as_float(e1.x);
          thread float* sum = acc + 4 * nt;
          if (TYPE == TYPE_Q6_K) {
            for (int h = 0; h < 2; ++h) {
              int p[4] = {0, 0, 0, 0};
              const uint a[2] = {lo.q[i][h], hi.q[i][h]}, b[1] = {x[h]};
              simd_mma(p, a, b);
              sum[0] = fma(lo.a[i][h] * d0, float(p[0]), sum[0]);
              sum[1] = fma(lo.a[i][h] * d1, float(p[1]), sum[1]);
              sum[2] = fma(hi.a[i][h] * d0, float(p[2]), sum[2]);
              sum[3] = fma(hi.a[i][h] * d1, float(p[3]), sum[3]);
            }
          } else {
            int p[4] = {0, 0, 0, 0};
            const uint a[4] = {lo.q[i][0], hi.q[i][0], lo.q[i][1], hi.q[i][1]};
            simd_mma(p, a, x);
            sum[0] = fma(lo.a[i][0] * d0, float(p[0]), sum[0]);
            sum[1] = fma(lo.a[i][0] * d1, float(p[1]), sum[1]);
            sum[2] = fma(hi.a[i][0] * d0, float(p[2]), sum[2]);
            sum[3] = fma(hi.a[i][0] * d1, float(p[3]), sum[3]);
            if (has_minimum(TYPE)) {
              sum[0] = fma(-lo.m[i], as_float(e0.y), sum[0]);
              sum[1] = fma(-lo.m[i], as_float(e1.y), sum[1]);
              sum[2] = fma(-hi.m[i], as_float(e0.y), sum[2]);
              sum[3] = fma(-hi.m[i], as_float(e1.y), sum[3]);
            }
          }
        }
      }
    }
  }
}

// Places row * ranks + rank of the rows of one expert, as `route` lists them; without a list, of all.
struct Members {
  const device int* list;
  int count, ranks;
};

INLINE int member(const thread Members& m, int i) {
  i = min(i, m.count - 1);
  return m.list ? m.list[i] : i * m.ranks + m.ranks - 1;
}

// parts[16 x stride] = the superblocks first, first + step, ... of 16 weight rows, `bytes` apart, times
// the activation rows of members at ..., 8 NT of them, with DIV places a row. Activation rows are WIDTH
// wide, of which the first K count.
template <int TYPE, int NT, int K, int WIDTH, int DIV>
INLINE void member_tile(const device uchar* w, int bytes, const device uint* xq,
                        const device float* xf, const thread Members& members, int at, int first,
                        int step, int lane, in_threadgroup float* parts, int stride) {
  const int g = lane / 4, t = lane % 4;
  if (is_float(TYPE)) {
    for (int column = 0; column < 8 * NT; ++column) {
      const device float* x = xf + (size_t)(member(members, at + column) / DIV) * WIDTH;
      for (int row = 0; row < 16; ++row) {
        const device uchar* run = w + (size_t)row * bytes;
        float sum = 0.0f;
        for (int s = first; s < K / 256; s += step)
          for (int k = 256 * s + 4 * lane; k < 256 * s + 256; k += 128) {
            float v[4];
            four_weights<TYPE>(v, run, k);
            for (int i = 0; i < 4; ++i) sum = fma(v[i], x[k + i], sum);
          }
        sum = simd_sum(sum);
        if (lane == 0) parts[row * stride + column] = sum;
      }
    }
    return;
  }
  int own[NT], out[NT][2];
  for (int nt = 0; nt < NT; ++nt) {
    const int row = at + 8 * nt;
    own[nt] = record_codes(member(members, row + g) / DIV, WIDTH / 32);
    for (int c = 0; c < 2; ++c)
      out[nt][c] = record_factors(member(members, row + 2 * t + c) / DIV, WIDTH / 32);
  }
  float acc[4 * NT];
  for (int i = 0; i < 4 * NT; ++i) acc[i] = 0.0f;
  const device uchar* low = w + (size_t)g * bytes;
  tile_rows<is_float(TYPE) ? TYPE_Q8_0 : TYPE, NT, K>(low, low + 8 * (size_t)bytes, first, step, t, xq,
                                                      own, out, acc);
  for (int i = 0; i < 4 * NT; ++i)
    parts[(g + i % 4 / 2 * 8) * stride + 8 * (i / 4) + 2 * t + i % 2] = acc[i];
}
