// Quantised weight rows times activation records on the integer matrix units (`simd_mma`): 16 weight
// rows by 8 activation rows, one group of 32 at a time, so that each group's scales apply to an exact
// integer sum. Lane l = 4 g + t holds rows g and g + 8.

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
    for (int h = 0; h < 2; ++h) {
      const uint word = words[(TYPE == TYPE_Q4_K ? 4 : 12) + 8 * pair + 4 * h + t];
      w.q[0][h] = word & LOW;
      w.q[1][h] = word >> 4 & LOW;
      if (TYPE == TYPE_Q5_K) {
        const uint high = words[4 + 4 * h + t] >> (2 * pair);
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
        w.q[i][0] = words[4 + 8 * g + t];
        w.q[i][1] = words[4 + 8 * g + 4 + t];
      }
      w.group[i] = g;
    }
  }
}

// acc[4 nt + i] += the superblocks first, first + step, ... of the 16 rows at `low` (row g of this
// lane) and `high` (row g + 8) times activation rows. `own[nt]` is activation row g of tile nt,
// `out[nt][c]` row 2 t + c: records of whole rows.
template <int TYPE, int NT, int K>
INLINE void tile_rows(const device uchar* low, const device uchar* high, int first, int step, int t,
                      const device uint* (&own)[NT],
                      const device uint* (&out)[NT][2], thread float (&acc)[4 * NT]) {
  for (int s = first; s < K / 256; s += step) {
    UNROLL_BY(4)
    for (int pair = 0; pair < 4; ++pair) {
      Pair lo, hi;
      load_pair<TYPE>(lo, low + s * superblock_bytes(TYPE), pair, t);
      load_pair<TYPE>(hi, high + s * superblock_bytes(TYPE), pair, t);
      UNROLL_BY(2)
      for (int i = 0; i < 2; ++i) {
        const int at = (8 * s + lo.group[i]) * 12;
        for (int nt = 0; nt < NT; ++nt) {
          const device uint* x = own[nt] + at;
          const uint4 e0 = *(const device uint4*)(out[nt][0] + at + 8);
          const uint4 e1 = *(const device uint4*)(out[nt][1] + at + 8);
          const float d0 = as_float(e0.x), d1 = as_float(e1.x);
          thread float* sum = acc + 4 * nt;
          if (TYPE == TYPE_Q6_K) {
            for (int h = 0; h < 2; ++h) {
              int p[4] = {0, 0, 0, 0};
              const uint a[2] = {lo.q[i][h], hi.q[i][h]}, b[1] = {x[4 * h + t]};
              simd_mma(p, a, b);
              sum[0] += lo.a[i][h] * d0 * float(p[0]);
              sum[1] += lo.a[i][h] * d1 * float(p[1]);
              sum[2] += hi.a[i][h] * d0 * float(p[2]);
              sum[3] += hi.a[i][h] * d1 * float(p[3]);
            }
          } else {
            int p[4] = {0, 0, 0, 0};
            const uint a[4] = {lo.q[i][0], hi.q[i][0], lo.q[i][1], hi.q[i][1]};
            const uint b[2] = {x[t], x[4 + t]};
            simd_mma(p, a, b);
            float m0 = 0.0f, m1 = 0.0f, s0 = 0.0f, s1 = 0.0f;
            if (has_minimum(TYPE)) {
              m0 = lo.m[i];
              m1 = hi.m[i];
              s0 = as_float(e0.y) + as_float(e0.z);
              s1 = as_float(e1.y) + as_float(e1.z);
            }
            sum[0] += lo.a[i][0] * d0 * float(p[0]) - m0 * s0;
            sum[1] += lo.a[i][0] * d1 * float(p[1]) - m0 * s1;
            sum[2] += hi.a[i][0] * d0 * float(p[2]) - m1 * s0;
            sum[3] += hi.a[i][0] * d1 * float(p[3]) - m1 * s1;
          }
        }
      }
    }
  }
}
